"""Rows of a comparison: what each precision, GPU and split takes to hold one load, and how fast.

Each split that is possible is asked for again with exactly the replicas that hold the load, so that
rows are alike in what they serve and differ in what they take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.cli import wording
from shardwright.cli.rejections import grouped
from shardwright.sizing.choose import choose
from shardwright.sizing.model import Model
from shardwright.sizing.precisions import ACCURACY_SOURCE
from shardwright.sizing.question import GIB, Fleet, Limits, NodeGroup, Objective, Workload
from shardwright.sizing.result import Candidate, Choice
from shardwright.sizing.shape import EngineSettings, Precision, Shape

NODES = 4
"""Nodes that are imagined while splits are looked for: enough for every model of today."""
_HOUR = 3600
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One way of serving the load.

    Attributes:
        candidate: With exactly the replicas that hold the load.
        relative: Output tokens a second of a GPU, against the best row's.
        dollars_per_hour: For all GPUs; None without a price.
        dollars_per_million: For a million output tokens at this load; None without a price.
        smallest: Whether no row of its product and precision takes fewer GPUs.
        best: Whether none of its product and precision does better by the objective.
    """

    candidate: Candidate
    relative: float
    dollars_per_hour: float | None
    dollars_per_million: float | None
    smallest: bool
    best: bool


def compared(
    model: Model,
    groups: Sequence[NodeGroup],
    weights: Sequence[WeightPrecision],
    kv_cache: KVPrecision,
    workload: Workload,
    engine: EngineSettings,
    prices: Mapping[str, float],
) -> tuple[list[Row], list[str]]:
    """All rows in the order of products and precisions, and why some combinations have none."""
    found: list[Candidate] = []
    refused: list[str] = []
    for group in groups:
        for fixed in weights or (None,):
            limits = Limits(weights=fixed, kv_cache=kv_cache, product=group.product)
            choice = choose(model, Fleet((_plenty(group, NODES),)), workload, engine, limits)
            found += _held(model, group, choice, workload, engine)
            if choice.chosen is None:
                first = grouped(choice.rejected, limits)[0].remarks[0]
                about = f"{fixed} weights" if fixed else "every precision"
                refused.append(f"{group.product}, {about}: {first.message}")
    return _rows(found, workload.objective, prices), refused


def _plenty(group: NodeGroup, nodes: int) -> NodeGroup:
    """So many of these nodes, all free."""
    return replace(group, nodes=nodes, free_gpus=group.gpus_per_node)


def _held(
    model: Model, group: NodeGroup, choice: Choice, workload: Workload, engine: EngineSettings
) -> Iterator[Candidate]:
    """Each split that is possible, with the replicas that hold the load and no more."""
    for (precision, shape), capacity in _splits(choice).items():
        needed = -(-workload.concurrency // max(1, capacity))
        nodes = 1 + -(-needed * shape.world_size // max(1, group.gpus_per_node)) * 2
        limits = Limits(
            weights=precision.weights,
            kv_cache=precision.kv_cache,
            tensor=shape.tensor,
            pipeline=shape.pipeline,
            expert=shape.expert,
            attention_data=shape.attention_data,
            product=group.product,
            replicas=needed,
        )
        fleet = Fleet((_plenty(group, max(nodes, NODES)),))
        again = choose(model, fleet, workload, engine, limits).chosen
        if again is not None:
            yield again


def _splits(choice: Choice) -> dict[tuple[Precision, Shape], int]:
    """Splits that are possible, by precision, with what a replica holds; the fewest stages each."""
    everything = [
        (one.precision, one.shape, one.estimate.capacity)
        for one in ([choice.chosen] if choice.chosen else [])
    ]
    everything += [
        (one.precision, one.shape, one.estimate.capacity)
        for one in choice.rejected
        if one.precision is not None and one.shape is not None and one.estimate is not None
    ]
    fewest: dict[tuple[Precision, int, int, int], tuple[Shape, int]] = {}
    for precision, shape, capacity in everything:
        key = (precision, shape.tensor, shape.expert, shape.attention_data)
        if key not in fewest or shape.pipeline < fewest[key][0].pipeline:
            fewest[key] = (shape, capacity)
    return {
        (key[0], shape): capacity
        for key, (shape, capacity) in sorted(fewest.items(), key=lambda item: item[1][0])
    }


def _merit(candidate: Candidate, objective: Objective) -> float:
    """What the objective makes large."""
    found = candidate.estimate
    if objective is Objective.LATENCY:
        return 1 / found.tpot_seconds
    if objective is Objective.BALANCED:
        return found.tokens_per_second_per_gpu / found.tpot_seconds
    return found.tokens_per_second_per_gpu


def _rows(
    found: Sequence[Candidate], objective: Objective, prices: Mapping[str, float]
) -> list[Row]:
    order = {product: n for n, product in enumerate(dict.fromkeys(one.product for one in found))}
    kinds = [None, *WeightPrecision]
    top = max((one.estimate.tokens_per_second_per_gpu for one in found), default=1.0)
    rows = []
    for one in sorted(
        found,
        key=lambda one: (
            order[one.product],
            kinds.index(one.precision.weights),
            one.gpus,
            one.shape,
        ),
    ):
        peers = [
            other
            for other in found
            if (other.product, other.precision) == (one.product, one.precision)
        ]
        fewest = min(peers, key=lambda other: (other.gpus, -_merit(other, objective)))
        price = prices.get(one.product)
        tokens = one.estimate.tokens_per_second * one.replicas
        rows.append(
            Row(
                candidate=one,
                relative=one.estimate.tokens_per_second_per_gpu / top,
                dollars_per_hour=None if price is None else price * one.gpus,
                dollars_per_million=(
                    None if price is None else price * one.gpus / (tokens * _HOUR) * _MILLION
                ),
                smallest=one is fewest,
                best=one is max(peers, key=lambda other: _merit(other, objective)),
            )
        )
    return rows


def as_data(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    one = row.candidate
    return {
        "product": one.product,
        "weights": None if one.precision.weights is None else one.precision.weights.value,
        "kvCache": one.precision.kv_cache.value,
        "tensor": one.shape.tensor,
        "pipeline": one.shape.pipeline,
        "expert": one.shape.expert,
        "attentionData": one.shape.attention_data,
        "replicas": one.replicas,
        "gpus": one.gpus,
        "weightsGiB": round(max(s.weights for s in one.memory.stages) / GIB, 2),
        "kvPoolGiB": round(wording.tightest(one).kv_pool / GIB, 2),
        "gpuGiB": round(wording.tightest(one).total / GIB, 2),
        "tpotSeconds": one.estimate.tpot_seconds,
        "ttftSeconds": one.estimate.ttft_seconds,
        "tokensPerSecondPerGPU": one.estimate.tokens_per_second_per_gpu,
        "relativeSpeed": row.relative,
        "accuracyLossPercent": one.accuracy_loss,
        "accuracySource": ACCURACY_SOURCE if one.accuracy_loss else None,
        "dollarsPerHour": row.dollars_per_hour,
        "dollarsPerMillionTokens": row.dollars_per_million,
        "fewestGPUs": row.smallest,
        "best": row.best,
    }
