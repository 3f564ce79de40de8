"""How fast one replica is: time to first token, time per token, tokens a second.

A roofline with links: a pass takes as long as reading its weights or multiplying with them, plus
reading the KV cache, plus talking, plus starting kernels. Prompts share the GPUs with decoding, so
each of the others' prompts lengthens every answer. The formulas and what they leave out stand in
docs/choosing.md; the figures are made for comparing candidates, and rough in themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.sizing.hardware import Hardware
from shardwright.sizing.links import Links
from shardwright.sizing.model import Model
from shardwright.sizing.precisions import arithmetic, sixteen_bit
from shardwright.sizing.result import Estimate, StepTime
from shardwright.sizing.shape import EngineSettings, MemoryPlan, Precision, Shape
from shardwright.sizing.work import StageWork, stages_work

# Shares of the data sheet's figures that kernels reach. Assumptions of the usual magnitude, the
# same for every product, so that they hardly change an order.
_MEMORY_SHARE = 0.8
_COMPUTE_SHARE = 0.65
# Unpacking weights costs the tensor cores 20 to 90 % (QServe, arXiv 2405.04532); the least of it.
_UNPACKING = 1.2
# Kernel starts of a layer within a CUDA graph; an assumption.
_LAYER_SECONDS = 5e-6
_BYTES_ACTIVATION = 2
_REDUCED_OUTPUTS = 2  # attention and feed-forward: each layer's two sums over the ranks


@dataclass(frozen=True, slots=True)
class Setup:
    """One way of serving a model, complete enough to be timed."""

    model: Model
    shape: Shape
    precision: Precision
    engine: EngineSettings
    hardware: Hardware
    links: Links
    memory: MemoryPlan


@dataclass(frozen=True, slots=True)
class _Pass:
    """Seconds of one pass through one stage."""

    weights: float
    cache: float
    talk: float
    start: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.talk + self.start


def estimate(
    setup: Setup, *, input_len: int, output_len: int, batch: int, capacity: int | None = None
) -> Estimate:
    """Time one replica.

    Args:
        setup: The replica.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        batch: Requests in flight in this replica, at least 1.
        capacity: What it holds, for the record; `batch` when None.

    Raises:
        ValueError: When the GPU has no tensor cores for the precision.
    """
    held = batch if capacity is None else capacity
    return Clock(setup, input_len=input_len, output_len=output_len, capacity=held).at(batch)


class Clock:
    """Times one replica at any load; what a prompt takes does not depend on it and is kept."""

    def __init__(self, setup: Setup, *, input_len: int, output_len: int, capacity: int) -> None:
        """See `estimate`."""
        model, hardware = setup.model, setup.hardware
        how = arithmetic(model, setup.precision.weights, hardware, setup.engine)
        peak = hardware.flops(how.kind) if how.kind else None
        plain = hardware.flops(sixteen_bit(model, hardware))
        if peak is None or plain is None:
            raise ValueError(
                f"{setup.precision.weights} needs tensor cores for {how.wanted}, which "
                f"{hardware.name} has not"
            )
        self._setup = setup
        self._works = stages_work(
            model,
            setup.precision.weights,
            setup.shape,
            tuple(stage.layers for stage in setup.memory.stages),
        )
        self._memory_rate = hardware.memory_gbps * 1e9 * _MEMORY_SHARE
        self._peak = peak * _COMPUTE_SHARE / (_UNPACKING if how.unpacks else 1)
        self._plain_peak = plain * _COMPUTE_SHARE
        self._context = input_len + output_len / 2
        self._output_len = output_len
        self._capacity = capacity
        self._first = self.first_token(input_len)
        self._occupied = self.prompt_occupancy(input_len)
        self._known: dict[int, Estimate] = {}

    def at(self, batch: int) -> Estimate:
        """The figures with so many requests in flight."""
        if batch not in self._known:
            self._known[batch] = self._estimate(batch)
        return self._known[batch]

    def _estimate(self, batch: int) -> Estimate:
        decode = self.decode(context=self._context, batch=batch)
        step = StepTime(
            weights=decode.weights,
            kv_cache=decode.cache,
            communication=decode.talk,
            overhead=decode.start,
            prefill=(batch - 1) * self._occupied / self._output_len,
        )
        tokens = batch * self._output_len / (self._first + self._output_len * step.total)
        return Estimate(
            batch=batch,
            capacity=self._capacity,
            ttft_seconds=self._first,
            tpot_seconds=step.total,
            tokens_per_second=tokens,
            tokens_per_second_per_gpu=tokens / self._setup.shape.world_size,
            step=step,
        )

    def decode(self, *, context: float, batch: int) -> _Pass:
        """One token of every request: the parts of the time between two tokens.

        With fewer requests than stages, each passes the stages alone. With more, every stage works
        on its share of them in turn, and the slowest sets the pace (the pipeline's bubble).
        """
        stages = len(self._works)
        groups = self._setup.shape.attention_data
        share = max(1.0, batch / stages)
        here = max(1.0, share / groups)
        passes = []
        for number, work in enumerate(self._works):
            memory = self._setup.memory.stages[number]
            read = here * context * memory.kv_bytes_per_token * work.cache_share(context)
            macs = sum(kind.seen(context) * kind.decode for kind in work.attention)
            passes.append(
                self._pass(
                    work,
                    here=here,
                    everywhere=max(share, 1.0),
                    cache=max(read / self._memory_rate, 2 * here * macs / self._plain_peak),
                    outputs=here,
                )
            )
        sends = self._sends(here)
        through = sum(one.total for one in passes) + sum(sends)
        slowest = max(passes, key=lambda one: one.total)
        pace = stages * max(slowest.total, *sends, 0.0)
        if batch < stages or through >= pace:
            return _Pass(
                weights=sum(one.weights for one in passes),
                cache=sum(one.cache for one in passes),
                talk=sum(one.talk for one in passes) + sum(sends),
                start=sum(one.start for one in passes),
            )
        waiting = pace - stages * slowest.total
        return _Pass(
            weights=stages * slowest.weights,
            cache=stages * slowest.cache,
            talk=stages * slowest.talk + waiting,
            start=stages * slowest.start,
        )

    def prompt_occupancy(self, tokens: int) -> float:
        """Seconds that one prompt keeps the slowest stage busy, among full passes of many."""
        groups = self._setup.shape.attention_data
        chunk = self._setup.engine.max_num_tokens
        longest = 0.0
        for number, work in enumerate(self._works):
            one = self._pass(work, here=chunk, everywhere=chunk * groups, cache=0.0, outputs=1)
            send = self._sends(chunk)[number] if number < len(self._works) - 1 else 0.0
            seconds = max(one.total, send) * tokens / chunk + self._prompt_attention(work, tokens)
            longest = max(longest, seconds)
        return longest / groups

    def first_token(self, tokens: int) -> float:
        """Seconds of one prompt alone, chunk after chunk through the stages."""
        chunks = math.ceil(tokens / self._setup.engine.max_num_tokens)
        chunk = tokens / chunks
        times = [
            self._pass(work, here=chunk, everywhere=chunk, cache=0.0, outputs=1).total
            + self._prompt_attention(work, tokens) / chunks
            for work in self._works
        ]
        return sum(times) + sum(self._sends(chunk)) + (chunks - 1) * max(times)

    def _prompt_attention(self, work: StageWork, tokens: int) -> float:
        macs = sum(kind.pairs(tokens) * kind.prefill for kind in work.attention)
        return 2 * macs / self._plain_peak

    def _sends(self, tokens: float) -> tuple[float, ...]:
        """Each boundary's time: a rank sends its part of the activations to its peer."""
        shape = self._setup.shape
        size = tokens * self._setup.model.hidden * _BYTES_ACTIVATION
        part = size * shape.attention_data / shape.tensor
        return tuple(
            self._setup.links.send(boundary, part) for boundary in range(len(self._works) - 1)
        )

    def _pass(
        self, work: StageWork, *, here: float, everywhere: float, cache: float, outputs: float
    ) -> _Pass:
        """One pass of one stage.

        Args:
            work: The stage.
            here: Tokens of the GPU's own attention group.
            everywhere: Tokens of all attention groups.
            cache: Seconds of the attention proper.
            outputs: Tokens that the output head is computed for.
        """
        dense = max(
            work.dense_bytes / self._memory_rate,
            2 * here * work.dense_macs / self._peak,
        )
        routed = max(
            work.expert_bytes * work.touched(everywhere) / self._memory_rate,
            2 * everywhere * work.expert_macs / self._peak,
        )
        head = 2 * outputs * work.head_macs / self._plain_peak
        return _Pass(
            weights=dense + routed + head,
            cache=cache,
            talk=self._talk(work, here),
            start=work.layers * _LAYER_SECONDS,
        )

    def _talk(self, work: StageWork, here: float) -> float:
        """Sums over the ranks of a group, and the way to the experts and back."""
        shape, links = self._setup.shape, self._setup.links
        group = shape.tensor // shape.attention_data
        row = self._setup.model.hidden * _BYTES_ACTIVATION
        seconds = 0.0
        if group > 1:
            sums = _REDUCED_OUTPUTS * work.layers
            if shape.attention_data > 1:
                sums -= work.moe_layers
            seconds += sums * links.all_reduce(group, here * row)
        if shape.attention_data > 1 and work.moe_layers:
            size = here / group * row * _copies(shape, work.active)
            seconds += work.moe_layers * 2 * links.all_to_all(shape.tensor, size)
        return seconds


def _copies(shape: Shape, active: int) -> float:
    """Other GPUs that a token's activations go to, with experts drawn evenly.

    Of the other expert-parallel groups each is missed by all `active` experts with probability
    (1 − 1/expert)^active; inside a group every rank holds a part of each expert.
    """
    inside = shape.tensor // shape.expert
    hit = 1 - (1 - 1 / shape.expert) ** active
    return (shape.expert - 1) * hit * inside + (inside - 1)
