"""Which published checkpoints a runtime loads, and on which GPUs: one table a runtime.

A row is a kind of checkpoint (`published.kinds`). A kind without a row is refused by its name:
that a runtime might load it is never guessed. The checkpoint's own precision is held against the
GPU whatever the spec asks for, since nothing of it is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.published import is_open, kinds
from shardwright.runtimes.tensorrt_precision import Compute, Span, dotted


@dataclass(frozen=True, slots=True)
class Loads:
    """One kind of checkpoint: where it runs, and the entry of the sources that says so."""

    span: Span
    source: str


Table = Mapping[str, Loads]


def refuse_checkpoint(
    table: Table,
    source: str,
    spec: LLMDeploymentSpec,
    facts: ModelFacts,
    compute: Compute | None,
    *,
    named: str,
    others: str = "",
) -> Refusal | None:
    """Why the runtime does not serve this checkpoint on this GPU; None for a 16-bit model.

    Args:
        table: The runtime's.
        source: Entry of the sources for what the table leaves out.
        spec: Names checkpoint and GPU.
        facts: Of the checkpoint.
        compute: Of the GPU; None while it is not known.
        named: The runtime with its version, for messages.
        others: Another way out than another checkpoint.
    """
    for kind in kinds(facts):
        rows = rows_of(table, kind)
        if not rows:
            return Refusal(
                "CheckpointNotSupported",
                f"model.uri {spec.model.uri}: the checkpoint is quantized as {kind}, which {named} "
                f"does not load; it loads {', '.join(sorted(table))}. Name such a checkpoint, or "
                f"the 16-bit original{others}",
                source,
            )
        # Rows of one quantizer differ; with the kind untold the widest counts.
        if compute is not None and not any(compute in row.span for row in rows):
            widest = min(rows, key=lambda row: row.span.lowest)
            return _not_on_gpu(widest, kind, spec, compute, named, others)
    return None


def loads(table: Table, facts: ModelFacts, compute: Compute | None) -> bool:
    """Whether all that the checkpoint is in has a row that holds for this GPU."""
    return all(
        any(compute is None or compute in row.span for row in rows_of(table, kind))
        for kind in kinds(facts)
    )


def rows_of(table: Table, kind: str) -> tuple[Loads, ...]:
    """The row of a kind; all of a quantizer's where no more is told than its name."""
    if kind in table:
        return (table[kind],)
    if not is_open(kind):
        return ()
    return tuple(row for name, row in table.items() if name.startswith(f"{kind} "))


def _not_on_gpu(
    row: Loads, kind: str, spec: LLMDeploymentSpec, compute: Compute, named: str, others: str
) -> Refusal:
    join = "," if others else " or"
    return Refusal(
        "PrecisionNotSupported",
        f"model.uri {spec.model.uri}: the checkpoint is quantized as {kind}, which {named} runs "
        f"with compute capability {row.span}; {spec.gpu.product} has {dotted(compute)}. Name the "
        f"16-bit original{join} choose a GPU product with compute capability {row.span}{others}",
        row.source,
    )
