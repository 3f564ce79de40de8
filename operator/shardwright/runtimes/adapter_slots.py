"""What slots of adapters a runtime really makes: of which rank, how many, for which matrices.

They stand on the GPUs before any adapter is loaded, so memory is counted from these numbers and
not from those of the spec.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.api.lora import HF_NAMES, MAX_ADAPTERS, LoRA, TargetModule
from shardwright.api.serving import Runtime

# vLLM has kernels for these ranks (`MaxLoRARanks` in vllm/config/lora.py, 0.33.0).
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Adapters kept in host memory for each one on the GPUs (vLLM, TensorRT-LLM): those taken off come
# back without a look at the claim.
HOST_SLOTS = 2
# SGLang takes out the adapter that was asked for least recently when one more than this is loaded;
# all that a spec may name stay.
SGLANG_LOADED = MAX_ADAPTERS + 1

_QKV = frozenset({TargetModule.ATTN_Q, TargetModule.ATTN_K, TargetModule.ATTN_V})
_GATE_UP = frozenset({TargetModule.MLP_H_TO_4H, TargetModule.MLP_GATE})
_PACKED = (Runtime.VLLM, Runtime.SGLANG)


@dataclass(frozen=True, slots=True)
class Slots:
    """Adapters held at once, the rank that each slot is made for, and its modules."""

    count: int
    rank: int
    modules: tuple[TargetModule, ...]

    @property
    def hf_modules(self) -> tuple[str, ...]:
        """The modules by the names of transformers' models."""
        return tuple(HF_NAMES[module] for module in self.modules)


def slots_of(runtime: str, lora: LoRA) -> Slots:
    """The slots that a runtime makes for these limits.

    Queries, keys and values are one matrix in vLLM and SGLang, and TensorRT-LLM fills in zeros for
    those that are not adapted, so that all three have room as soon as one is; gate and up are one
    matrix in vLLM and SGLang. SGLang counts the base model as one more adapter of a batch.
    """
    modules = set(lora.modules)
    for together, packed in ((_QKV, True), (_GATE_UP, runtime in _PACKED)):
        if packed and modules & together:
            modules |= together
    return Slots(
        count=lora.max_loaded + (runtime == Runtime.SGLANG),
        rank=vllm_rank(lora.max_rank) if runtime == Runtime.VLLM else lora.max_rank,
        modules=tuple(module for module in TargetModule if module in modules),
    )


def vllm_rank(rank: int) -> int:
    """The smallest rank that vLLM has kernels for and that holds `rank`."""
    return next(known for known in VLLM_RANKS if known >= rank)
