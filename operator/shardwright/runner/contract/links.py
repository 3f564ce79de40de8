"""What ranks talk over, as a leader tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.runner.contract.folders import ContractError

# What a leader tells goes into the status of the deployment: so much of it, whoever answers.
_WORD_CHARS = 300
_MOST_PAIRS = 64


@dataclass(frozen=True)
class StageLinks:
    """What the tensor ranks of one stage, and this stage to others, talk over.

    `tensor` is NVLink, PCIe, SharedMemory, Network, None (one rank) or Unknown; `pipeline` RDMA,
    RDMAWithoutGPUDirect, Socket, None (one stage) or Unknown. `slow_tensor` and `slow_pipeline`
    name each pair that has less than the others of its kind, or than it could have.
    """

    tensor: str
    pipeline: str
    slow_tensor: tuple[str, ...] = ()
    slow_pipeline: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """As the status page has it."""
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "slowTensor": list(self.slow_tensor),
            "slowPipeline": list(self.slow_pipeline),
        }


def links_heard(page: Any) -> dict[int, StageLinks]:
    """Links by stage, from the object that a leader answers at STATUS_PATH.

    Raises:
        ContractError: It is no such object.
    """
    try:
        return {
            int(stage): StageLinks(
                tensor=_word(told["tensor"]),
                pipeline=_word(told["pipeline"]),
                slow_tensor=tuple(map(_word, told.get("slowTensor", ())))[:_MOST_PAIRS],
                slow_pipeline=tuple(map(_word, told.get("slowPipeline", ())))[:_MOST_PAIRS],
            )
            for stage, told in page["links"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ContractError(f"the status page tells no links: {error!r}") from error


def _word(told: object) -> str:
    return str(told)[:_WORD_CHARS]
