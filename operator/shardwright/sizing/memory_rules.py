"""What no plan may break once its memory is known: it fits, and not barely.

`MEMORY_RULES` is the documentation; the rules are asked in order after those of `rules`.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.runtimes.base import Refusal
from shardwright.sizing.question import GIB
from shardwright.sizing.rules import Subject
from shardwright.sizing.shape import MemoryPlan, StageMemory
from shardwright.words import counted

# KV cache that must be left of a GPU's memory. With 2 % left, two GPUs in place of one gave 3.9
# times the throughput (70B FP8 on H100 PCIe, vLLM; Hyperstack's tutorial): one was a bad plan.
HEADROOM = 0.1
# A stage may have this much more work than the mean before the others wait for it too long.
_UNBALANCED = 1.5


def held_words(stage: StageMemory) -> str:
    """What a spec chose of a stage's memory, in GiB: weights, a draft's weights, adapter slots."""
    parts = (("weights", stage.weights), ("draft", stage.draft), ("adapters", stage.lora))
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts if size)


def fits(subject: Subject, memory: MemoryPlan) -> Refusal | None:
    """Weights, activations and buffers must leave something on every GPU."""
    worst = min(memory.stages, key=lambda stage: stage.kv_pool)
    if worst.kv_pool > 0:
        return None
    return Refusal(
        "DoesNotFit",
        f"stage {worst.stage} needs {worst.before_cache / GIB:.1f} GiB a GPU "
        f"({held_words(worst)}) before any KV cache; {subject.pool.product} has "
        f"{worst.total / GIB:.1f} GiB, of which the runtime may use "
        f"{subject.engine.memory_fraction:.0%}. Use more GPUs or fewer bits",
    )


def headroom(subject: Subject, memory: MemoryPlan) -> Refusal | None:
    """Barely fitting is a bad plan: a small KV cache holds few requests, and all wait for it."""
    for stage in memory.stages:
        if stage.kv_pool < HEADROOM * stage.total:
            return Refusal(
                "TooLittleHeadroom",
                f"stage {stage.stage} has {stage.kv_pool / GIB:.1f} GiB left for the KV cache, "
                f"{stage.kv_pool / stage.total:.0%} of {subject.pool.product}'s "
                f"{stage.total / GIB:.1f} GiB; at least {HEADROOM:.0%} is wanted: use more GPUs or "
                "fewer bits",
            )
    return None


def longest_request_fits(subject: Subject, memory: MemoryPlan) -> Refusal | None:
    """One request of the longest length must find room."""
    longest = subject.engine.max_seq_len
    if memory.concurrency >= 1:
        return None
    return Refusal(
        "LongestRequestDoesNotFit",
        f"maxSeqLen {longest}: the KV cache holds {memory.kv_tokens} tokens; lower maxSeqLen to "
        "that, or use more GPUs",
    )


def stages_balanced(subject: Subject, memory: MemoryPlan) -> Refusal | None:
    """All stages wait for the heaviest: layers, embedding table and head counted as bytes."""
    sizes = [stage.weights for stage in memory.stages]
    mean = sum(sizes) / len(sizes)
    heaviest = max(range(len(sizes)), key=lambda stage: sizes[stage])
    if sizes[heaviest] <= _UNBALANCED * mean:
        return None
    return Refusal(
        "StagesUnbalanced",
        f"pipeline {subject.shape.pipeline}: stage {heaviest} has {sizes[heaviest] / mean:.1f} "
        f"times the mean weights ({counted(len(subject.model.layers), 'layer')}, and the head, do "
        f"not spread evenly), at most {_UNBALANCED:g} times is wanted; use fewer stages",
    )


MemoryRule = Callable[[Subject, MemoryPlan], Refusal | None]
MEMORY_RULES: tuple[MemoryRule, ...] = (
    fits,
    headroom,
    longest_request_fits,
    stages_balanced,
)
