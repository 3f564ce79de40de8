"""A memory plan for people and for machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from shardwright.sizing.model import Model
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import EngineSettings, MemoryPlan, StageMemory

_DECIMALS = 3


def _gib(amount: int) -> float:
    return round(amount / GIB, _DECIMALS)


def stage_document(stage: StageMemory) -> dict[str, Any]:
    """One stage for machines: memory in GiB, one GPU's."""
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "weightsGiB": _gib(stage.weights),
        "activationGiB": _gib(stage.activation),
        "runtimeGiB": _gib(stage.runtime),
        "loraGiB": _gib(stage.lora),
        "draftGiB": _gib(stage.draft),
        "kvPoolGiB": _gib(stage.kv_pool),
        "outsideGiB": _gib(stage.outside),
        "totalGiB": _gib(stage.total),
        "kvBytesPerToken": stage.kv_bytes_per_token,
        "kvTokens": stage.kv_tokens,
    }


def document(
    model: Model, engine: EngineSettings, plan: MemoryPlan, notes: tuple[str, ...]
) -> dict[str, Any]:
    """The whole answer for machines; `notes` come before the plan's own."""
    return {
        "model": model.name,
        "runtime": engine.runtime,
        "version": engine.version,
        "constants": plan.constants,
        "fits": plan.fits,
        "kvTokens": plan.kv_tokens,
        "sequences": round(plan.concurrency, 2),
        "maxSeqLen": engine.max_seq_len,
        "stages": [stage_document(stage) for stage in plan.stages],
        "sources": list(plan.sources),
        "notes": [*notes, *plan.notes],
    }


def show(model: Model, engine: EngineSettings, plan: MemoryPlan, notes: tuple[str, ...]) -> None:
    """Print the answer for people."""
    console = Console()
    console.print(f"{model.name}: one GPU of every stage, in GiB", highlight=False, markup=False)
    console.print(_table(plan))
    if plan.fits:
        console.print(
            f"KV cache: {plan.kv_tokens:,} tokens, or {plan.concurrency:.1f} requests of "
            f"{engine.max_seq_len:,} tokens",
            highlight=False,
        )
    else:
        least = min(plan.stages, key=lambda stage: stage.kv_pool)
        console.print(
            f"Does not fit: stage {least.stage} is short of {-_gib(least.kv_pool):.2f} GiB before "
            "any KV cache. More tensor or pipeline ranks, or a smaller precision, make room.",
            highlight=False,
        )
    console.print(f"Constants: {plan.constants}", highlight=False)
    for note in (*notes, *plan.notes):
        console.print(f"Note: {note}", highlight=False, markup=False)


def _table(plan: MemoryPlan) -> Table:
    """Stages as rows; adapters and drafts have a column where there are any."""
    columns: list[tuple[str, Callable[[StageMemory], str]]] = [
        ("stage", lambda stage: str(stage.stage)),
        ("layers", lambda stage: str(stage.layers)),
        ("weights", lambda stage: f"{_gib(stage.weights):.2f}"),
        ("LoRA", lambda stage: f"{_gib(stage.lora):.2f}"),
        ("draft", lambda stage: f"{_gib(stage.draft):.2f}"),
        ("activation", lambda stage: f"{_gib(stage.activation):.2f}"),
        ("runtime", lambda stage: f"{_gib(stage.runtime):.2f}"),
        ("KV pool", lambda stage: f"{_gib(stage.kv_pool):.2f}"),
        ("outside", lambda stage: f"{_gib(stage.outside):.2f}"),
        ("of", lambda stage: f"{_gib(stage.total):.2f}"),
        ("KV tokens", lambda stage: f"{stage.kv_tokens:,}"),
    ]
    absent = set()
    if not any(stage.lora for stage in plan.stages):
        absent.add("LoRA")
    if not any(stage.draft for stage in plan.stages):
        absent.add("draft")
    shown = [(name, cell) for name, cell in columns if name not in absent]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name, _ in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for stage in plan.stages:
        table.add_row(*(cell(stage) for _, cell in shown))
    return table
