"""Every way of serving a model on a fleet that breaks no rule, and why the others were refused.

Products, precisions, tensor sizes, stages and expert groups are walked in a fixed order, from the
cheap rules to the memory model. Whole branches are left out where nothing in them can be better: of
the numbers of stages that are possible, the smallest few are looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.api.running import StagePlacement
from shardwright.runtimes.base import Refusal
from shardwright.sizing.hardware import UnknownHardwareError
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.memory_rules import MEMORY_RULES
from shardwright.sizing.model import AttentionKind, Model
from shardwright.sizing.offered import precisions
from shardwright.sizing.pools import Pool, pools_of
from shardwright.sizing.question import Question
from shardwright.sizing.result import Rejection
from shardwright.sizing.rules import SHAPE_RULES, Subject
from shardwright.sizing.runtime_says import RuntimeVoice
from shardwright.sizing.shape import EngineSettings, MemoryPlan, Precision, Shape
from shardwright.sizing.weights import checkpoint_bytes

# How many larger numbers of stages are looked at once one is possible: a longer pipeline has more
# room for KV cache, which pays where the first barely had any.
_FURTHER = 2


@dataclass(frozen=True, slots=True)
class Option:
    """A way of serving that breaks no rule.

    Attributes:
        pool: The GPUs.
        precision: Of weights and KV cache.
        shape: How one replica is split.
        memory: What its GPUs hold.
        capacity: Requests of the asked lengths that one replica holds.
        replicas: How many there will be.
        fitting: How many the free GPUs hold.
    """

    pool: Pool
    precision: Precision
    shape: Shape
    memory: MemoryPlan
    capacity: int
    replicas: int
    fitting: int


def options(question: Question) -> tuple[list[Option], list[Rejection]]:
    """What is possible, and what was refused for which reason, in a fixed order."""
    found: list[Option] = []
    refused: list[Rejection] = []
    voice = RuntimeVoice(question.model, question.engine)
    for pool in _pools(question, refused):
        for precision in precisions(question, pool, voice, refused):
            for tensor in _tensors(question, pool):
                _walk_stages(question, pool, precision, tensor, voice, found, refused)
    return found, refused


def _pools(question: Question, refused: list[Rejection]) -> Iterator[Pool]:
    fixed = question.limits.product
    if not question.fleet.groups or (fixed and fixed not in question.fleet.products):
        known = ", ".join(question.fleet.products) or "no GPUs"
        wanted = f"gpu.product {fixed}" if fixed else "the fleet"
        refused.append(Rejection("ProductNotFound", f"{wanted}: the nodes have {known}", fixed))
        return
    for product in [fixed] if fixed else question.fleet.products:
        try:
            apart = question.limits.pipeline_stages is StagePlacement.SPREAD
            yield from pools_of(question.fleet, [product], apart=apart)
        except UnknownHardwareError as error:
            refused.append(Rejection("ProductUnknown", str(error), product))


def _tensors(question: Question, pool: Pool) -> Sequence[int]:
    """Every size up to the domain, and those beyond it that people ask for."""
    if question.limits.tensor is not None:
        return (question.limits.tensor,)
    domain = pool.domain
    beyond = [domain * factor for factor in (2, 4) if domain * factor <= pool.gpus]
    return [*range(1, domain + 1), *beyond]


def _walk_stages(
    question: Question,
    pool: Pool,
    precision: Precision,
    tensor: int,
    voice: RuntimeVoice,
    found: list[Option],
    refused: list[Rejection],
) -> None:
    for groups in _groups(question, tensor):
        possible = 0
        for pipeline in _pipelines(question, pool, precision, tensor):
            shape = Shape(tensor, pipeline, *groups)
            subject = Subject(question.model, question.engine, pool, precision, shape)
            answer = _ask(question, subject, voice)
            if isinstance(answer, Option):
                found.append(answer)
                possible += 1
            else:
                refused.append(answer)
                if answer.code not in _CURED_BY_STAGES:
                    break
            if possible > _FURTHER:
                break


# Refusals that more stages may lift; any other stands for all numbers of stages.
_CURED_BY_STAGES = frozenset(
    {"DoesNotFit", "TooLittleHeadroom", "LongestRequestDoesNotFit", "StagesUnbalanced"}
)


def _groups(question: Question, tensor: int) -> list[tuple[int, int]]:
    """Expert and attention groups: none, whole experts, and those with attention by data."""
    limits = question.limits
    offered = [(1, 1)]
    if question.model.experts and tensor > 1:
        offered += [(tensor, 1), (tensor, tensor)]
    if limits.expert is None and limits.attention_data is None:
        return offered
    return [
        (limits.expert or (limits.attention_data or 1), limits.attention_data or 1),
    ]


def _pipelines(question: Question, pool: Pool, precision: Precision, tensor: int) -> Sequence[int]:
    """One stage, then from as many as the weights alone need; fewer could not fit."""
    if question.limits.pipeline is not None:
        return (question.limits.pipeline,)
    most = min(pool.longest(tensor), len(question.model.layers))
    weights = checkpoint_bytes(question.model, precision.weights)
    fewest = weights // (tensor * pool.memory.total)
    return [1, *range(max(2, fewest), most + 1)]


def _ask(question: Question, subject: Subject, voice: RuntimeVoice) -> Option | Rejection:
    """Rule after rule; the first refusal, or the option."""
    pool, shape, precision = subject.pool, subject.shape, subject.precision

    def no(refusal: Refusal, memory: MemoryPlan | None = None) -> Rejection:
        return Rejection(
            refusal.reason, refusal.message, pool.product, precision, shape, memory=memory
        )

    for rule in SHAPE_RULES:
        if refusal := rule(subject):
            return no(refusal)
    if refusal := voice.on_shape(pool, precision, shape):
        return no(refusal)
    memory = plan_memory(question.model, shape, precision, question.engine, pool.memory)
    for memory_rule in MEMORY_RULES:
        if refusal := memory_rule(subject, memory):
            return no(refusal, memory)
    most = pool.replicas(shape)
    # A replica more than there are requests would have nothing to do.
    replicas = question.limits.replicas or min(most, question.workload.concurrency)
    if replicas > most:
        return no(_too_many_replicas(subject, replicas, most), memory)
    capacity = capacity_of(
        question.model,
        question.engine,
        memory,
        pool=pool,
        precision=precision,
        shape=shape,
        length=question.workload.request_len,
    )
    if not capacity:
        return no(_request_too_large(question, memory), memory)
    return Option(pool, precision, shape, memory, capacity, replicas, most)


def _too_many_replicas(subject: Subject, replicas: int, most: int) -> Refusal:
    shape = subject.shape
    return Refusal(
        "NotEnoughGPUsForReplicas",
        f"replicas {replicas} of tensor {shape.tensor} × pipeline {shape.pipeline}: the free GPUs "
        f"of {subject.pool.product} hold {most}; lower replicas",
    )


def _request_too_large(question: Question, memory: MemoryPlan) -> Refusal:
    return Refusal(
        "LongestRequestDoesNotFit",
        f"one request of {question.workload.request_len} tokens finds no room in a KV cache of "
        f"{memory.kv_tokens}; use more GPUs or shorter requests",
    )


def capacity_of(
    model: Model,
    engine: EngineSettings,
    memory: MemoryPlan,
    *,
    pool: Pool,
    precision: Precision,
    shape: Shape,
    length: int,
) -> int:
    """Requests of `length` tokens that a replica holds, by KV cache and by the runtime's limit.

    With attention by data every rank has a batch of its own (TensorRT-LLM: max_batch_size counts
    for each rank). 0 when not even one finds room.
    """
    held = float(memory.kv_tokens // length)
    if _has_windows(model):
        shorter = replace(engine, max_seq_len=length)
        held = plan_memory(model, shape, precision, shorter, pool.memory).concurrency
    return min(engine.max_batch_size * shape.attention_data, int(held))


@functools.lru_cache(maxsize=256)
def _has_windows(model: Model) -> bool:
    return any(layer.attention.kind is not AttentionKind.FULL for layer in model.layers)
