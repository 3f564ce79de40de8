"""A split that works, for the end of a refusal of one that does not.

What one check would have the others may not: experts that vLLM deals out to all ranks of a stage or
to none need not divide by either. So the nearest split is looked for that no check objects to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.api.spec import LLMDeploymentSpec, Parallelism, Runtime
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal

Check = Callable[[LLMDeploymentSpec, ModelFacts], Refusal | None]

_OTHER = {Runtime.VLLM: Runtime.SGLANG, Runtime.SGLANG: Runtime.VLLM}


@dataclass(frozen=True, slots=True)
class _Split:
    """Tensor ranks, stages, groups of experts, groups of attention."""

    tensor: int
    pipeline: int
    expert: int
    attention: int

    def of(self, spec: LLMDeploymentSpec) -> LLMDeploymentSpec:
        """The spec so split."""
        split = Parallelism(
            tensor=self.tensor,
            pipeline=self.pipeline,
            expert=self.expert if self.expert > 1 else None,
            attention_data=self.attention if self.attention > 1 else None,
        )
        return spec.model_copy(update={"parallelism": split})


def refuse_split(
    spec: LLMDeploymentSpec, facts: ModelFacts, checks: Sequence[Check], more: Sequence[Check] = ()
) -> Refusal | None:
    """What the first of `checks` objects to, with the nearest split that none objects to.

    Args:
        spec: As asked.
        facts: Of its model.
        checks: Of the split; their messages say why, and leave the way out to this.
        more: Further checks that another runtime would have to pass before it is named.

    Returns:
        A refusal whose `fix` holds the fields to change; None of a value leaves the field out.
    """
    found = next((refusal for check in checks if (refusal := check(spec, facts))), None)
    if found is None:
        return None
    own = _asked(spec)
    best = next(split for split in _nearest(own, facts) if _fits(split.of(spec), facts, checks))
    fix = tuple(_changes(own, best))
    other = _other_runtime(spec, facts, (*checks, *more))
    return replace(found, message=f"{found.message}; {_words(fix)}{other}", fix=fix)


def _words(fix: Sequence[tuple[str, int | None]]) -> str:
    used = [f"{path} {value}" for path, value in fix if value is not None]
    left = [path for path, value in fix if value is None]
    parts = [f"use {' and '.join(used)}"] if used else []
    parts += [f"leave {' and '.join(left)} out"] if left else []
    return " and ".join(parts)


def _asked(spec: LLMDeploymentSpec) -> _Split:
    split = spec.parallelism
    return _Split(split.tensor, split.pipeline, split.expert_groups, split.attention_groups)


def _fits(spec: LLMDeploymentSpec, facts: ModelFacts, checks: Sequence[Check]) -> bool:
    return all(check(spec, facts) is None for check in checks)


def _nearest(own: _Split, facts: ModelFacts) -> list[_Split]:
    """Splits on no more ranks: first those that change fewest fields, then the largest.

    Groups of experts or of attention where none were asked for come last: they are another way to
    serve, not another size.
    """

    def distance(split: _Split) -> tuple[int, int, int, int, int]:
        return (
            (own.expert == 1 < split.expert) + (own.attention == 1 < split.attention),
            len(list(_changes(own, split))),
            -split.tensor * split.pipeline,
            abs(own.expert - split.expert),
            abs(own.attention - split.attention),
        )

    return sorted(set(_smaller(own, facts)), key=distance)


def _smaller(own: _Split, facts: ModelFacts) -> Iterator[_Split]:
    shares = {size for size in range(1, own.tensor + 1) if facts.heads % size == 0}
    tensors = {own.tensor, *shares, *(share * own.attention for share in shares)}
    stages = {own.pipeline, min(own.pipeline, facts.layers or own.pipeline), 1}
    for tensor in tensors:
        if tensor > own.tensor:
            continue
        divisors = [size for size in range(1, tensor + 1) if tensor % size == 0]
        dealt = {size for size in divisors if facts.experts and facts.experts % size == 0}
        for pipeline in stages:
            for expert in {1, tensor, own.expert, *dealt} & set(divisors):
                for attention in {1, tensor, own.attention} & set(divisors):
                    yield _Split(tensor, pipeline, expert, attention)


def _changes(own: _Split, other: _Split) -> Iterator[tuple[str, int | None]]:
    if other.tensor != own.tensor:
        yield "parallelism.tensor", other.tensor
    if other.pipeline != own.pipeline:
        yield "parallelism.pipeline", other.pipeline
    if other.expert != own.expert:
        yield "parallelism.expert", other.expert if other.expert > 1 else None
    if other.attention != own.attention:
        yield "parallelism.attentionData", other.attention if other.attention > 1 else None


def _other_runtime(spec: LLMDeploymentSpec, facts: ModelFacts, checks: Sequence[Check]) -> str:
    """The runtime that takes the split as it is; the end of a sentence."""
    name = _OTHER.get(spec.engine.runtime)
    if name is None:
        return ""
    engine = spec.engine.model_copy(update={"runtime": name})
    if not _fits(spec.model_copy(update={"engine": engine}), facts, checks):
        return ""
    return f", or use engine.runtime {name}"
