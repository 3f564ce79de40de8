"""A plan in sections, for terminal and page alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from shardwright.cli import wording
from shardwright.cli.asking import Answer
from shardwright.cli.rejections import grouped
from shardwright.cli.second_opinion import Opinion
from shardwright.picture.html import Section
from shardwright.picture.scene import Part
from shardwright.picture.seating import memory_of
from shardwright.sizing.precisions import ACCURACY_SOURCE
from shardwright.sizing.result import Candidate

_NOT_POSSIBLE_SHOWN = 8
# Limits that no manifest sets.
_NO_FIELDS = frozenset({"weight_bits", "expert", "attention_data"})

Heard = Sequence[tuple[str, Candidate, Opinion]]


def sections(found: Answer, heard: Heard = ()) -> list[Section]:
    """What is said, for terminal and page alike."""
    choice, chosen = found.choice, found.choice.chosen
    parts = [
        Section(
            "Asked",
            (wording.asked(found.manifest.workload) + ".",),
            (
                f"Nodes ({found.nodes.source}): {wording.fleet(found.nodes.fleet)}",
                *_fixed(found),
                *found.manifest.notes,
            ),
        )
    ]
    if chosen is None:
        parts.append(_not_possible(found))
    else:
        parts.append(_chosen(found, chosen))
        parts.append(Section("Why this one", items=chosen.reasons))
        parts.append(_runner_up(found))
        parts.append(Section("What would change the choice", items=_changes(found)))
        if heard:
            parts.append(_second(heard))
        parts.append(Section("Before it serves", items=wording.steps(chosen)))
        parts.append(
            Section("To use it, in the manifest's spec", code=tuple(_to_use(found, chosen)))
        )
    if choice.notes:
        parts.append(Section("Limits of this answer", items=choice.notes))
    return parts


def _fixed(found: Answer) -> Iterator[str]:
    fixed = {
        name: value
        for name, value in asdict(found.manifest.limits).items()
        if value is not None and name not in _NO_FIELDS
    }
    if fixed:
        told = ", ".join(f"{_camel(name)} {value}" for name, value in fixed.items())
        yield f"Fixed by the manifest: {told} (--open plans them anew)"


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _chosen(found: Answer, chosen: Candidate) -> Section:
    workload = found.manifest.workload
    stage = wording.tightest(chosen)
    held = dict(memory_of(stage, chosen, workload).parts)
    where = "" if chosen.shape.pipeline == 1 else f" of stage {stage.stage}, the tightest"
    facts = [
        f"Speed, estimated: {wording.speed(chosen.estimate)}",
        f"Room: {wording.room(chosen, workload, found.manifest.engine.max_batch_size)}",
        (
            f"Memory left: of the {wording.gib(stage.total)} GiB of a GPU{where}, "
            f"{wording.gib(stage.kv_pool)} are KV cache; "
            f"{wording.counted(chosen.estimate.batch, 'request')} fill "
            f"{wording.gib(held[Part.KV_USED])} and leave {wording.gib(held[Part.KV_SPARE])} "
            f"spare; {wording.gib(held[Part.FREE])} stay free"
        ),
    ]
    if chosen.accuracy_loss:
        facts.append(f"Accuracy: {chosen.accuracy_loss:g} % lost ({ACCURACY_SOURCE})")
    return Section(f"Chosen: {wording.headline(chosen)}", items=tuple(facts))


def _runner_up(found: Answer) -> Section:
    second, engine = found.choice.runner_up, found.manifest.engine
    if second is None:
        return Section("Runner-up: none", ("Nothing else is possible with what is fixed.",))
    return Section(
        f"Runner-up: {wording.headline(second)}",
        items=(
            f"Speed, estimated: {wording.speed(second.estimate)}",
            f"Room: {wording.room(second, found.manifest.workload, engine.max_batch_size)}",
            *(f"Not chosen: {reason}" for reason in second.reasons),
        ),
    )


def _changes(found: Answer) -> tuple[str, ...]:
    return found.choice.would_change or (
        "nothing that was tried: other objectives choose the same",
    )


def _not_possible(found: Answer) -> Section:
    items = [
        f"{group.code}: {remark.message} ({remark.subject})"
        for group in grouped(found.choice.rejected, found.manifest.limits)
        for remark in group.remarks[:1]
    ]
    more = len(items) - _NOT_POSSIBLE_SHOWN
    if more > 0:
        items = [
            *items[:_NOT_POSSIBLE_SHOWN],
            f"{wording.counted(more, 'more reason')}: `shardwright explain`",
        ]
    return Section("No plan is possible", items=tuple(items))


def _to_use(found: Answer, chosen: Candidate) -> Iterator[str]:
    """Fields for the manifest, one a line."""
    shape = chosen.shape
    ranks = {"tensor": shape.tensor, "pipeline": shape.pipeline}
    if shape.expert > 1:
        ranks["expert"] = shape.expert
    if shape.attention_data > 1:
        ranks["attentionData"] = shape.attention_data
    weights = chosen.precision.weights
    precision = {
        # a checkpoint's own precision is what a spec says nothing about
        "weights": "None" if weights is None else weights.value,
        "kvCache": chosen.precision.kv_cache.value,
    }
    yield f"gpu: {{product: {chosen.product}}}"
    yield f"parallelism: {_flow(ranks)}"
    yield f"quantization: {_flow(precision)}"
    yield _replicas(chosen, found.manifest.workload.concurrency)
    if weights is None:
        yield "# the checkpoint comes quantized, and is served as it is"


def _replicas(chosen: Candidate, concurrency: int) -> str:
    """As many as share the asked load as the times above suppose."""
    batch = chosen.estimate.batch
    timed = min(chosen.replicas, -(-concurrency // batch))
    needed = min(chosen.replicas_needed, chosen.replicas)
    where = "it" if timed == 1 else "each"
    said = [f"with {wording.counted(batch, 'request')} in {where}, as timed above"]
    if chosen.replicas_needed > chosen.replicas:
        said.append("too few for what is asked")
    if needed < timed:
        said.append(f"{needed} would hold the load, slower")
    if chosen.replicas > timed:
        said.append(f"the free GPUs hold {chosen.replicas}")
    return f"replicas: {timed}  # {'; '.join(said)}"


def _flow(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}"


def _second(heard: Heard) -> Section:
    items = []
    for about, candidate, opinion in heard:
        if opinion.why_not:
            items.append(f"{about}: no answer, {opinion.why_not}")
            continue
        ours = candidate.estimate
        rate = opinion.tokens_per_second_per_gpu
        told = "" if rate is None else f", {rate:,.0f} tokens/s a GPU"
        warned = f"; it warns: {opinion.warning}" if opinion.warning else ""
        items.append(
            f"{about}: {opinion.tool} says first token after {opinion.ttft_ms:,.0f} ms, "
            f"{opinion.tpot_ms:.1f} ms a token{told} (ours: {ours.ttft_seconds * 1000:,.0f} ms, "
            f"{ours.tpot_seconds * 1000:.1f} ms, {ours.tokens_per_second_per_gpu:,.0f}){warned}"
        )
    return Section("Second opinion (evidence, it decides nothing)", items=tuple(items))
