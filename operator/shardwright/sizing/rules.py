"""What no plan may break: each rule looks at one thing and refuses with a code, or is silent.

`SHAPE_RULES` is the documentation, as is `MEMORY_RULES` of `memory_rules`: they are asked in order
and the first refusal is the one that is kept. What a runtime refuses it says itself (`runtimes`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from shardwright.api.serving import Backend, Runtime, WeightPrecision
from shardwright.runtimes.base import Refusal
from shardwright.sizing.blocks import block_refusal
from shardwright.sizing.constants import EngineConstants, constants_of
from shardwright.sizing.heads import heads_refusal
from shardwright.sizing.model import FeedForward, Model
from shardwright.sizing.pools import Pool
from shardwright.sizing.precisions import checkpoint_weights
from shardwright.sizing.shape import EngineSettings, Precision, Shape
from shardwright.sizing.weights import VOCABULARY_PADDING
from shardwright.words import counted

# cpp/tensorrt_llm/kernels/customAllReduceKernels.cu: "only supported on {2, 4, 6, 8, 16} GPUs".
_TENSORRT_SUMS = frozenset({1, 2, 4, 6, 8, 16})
# Weights of a group share a scale, so a rank's rows must be whole groups.
_GROUPS = {
    WeightPrecision.INT4_AWQ: 128,
    WeightPrecision.W4A8_AWQ: 128,
    WeightPrecision.INT4_GPTQ: 128,
    WeightPrecision.NVFP4: 16,
}
# Runtimes pad a rank's part of these to whole groups (vLLM: Mxfp4MoEMethod.create_weights).
_PADDED = frozenset({"mxfp4"})


@dataclass(frozen=True, slots=True)
class Subject:
    """What the rules look at."""

    model: Model
    engine: EngineSettings
    pool: Pool
    precision: Precision
    shape: Shape

    @property
    def runtime(self) -> EngineConstants:
        """The engine that really runs: Triton and NIM serve through another one."""
        return constants_of(self.engine)[0]

    @property
    def attention_ranks(self) -> int:
        """Ranks that share one attention group."""
        return self.shape.tensor // self.shape.attention_data


def experts_divide(subject: Subject) -> Refusal | None:
    """Groups need experts to put in them, and a runtime that can."""
    shape, experts = subject.shape, _experts(subject.model)
    if shape.attention_data > 1 and not experts:
        return Refusal(
            "AttentionDataWithoutExperts",
            f"attentionData {shape.attention_data}: without experts to share, replicas do the same "
            "and talk less; use replicas",
        )
    if shape.expert > 1 and (not experts or experts % shape.expert):
        found = counted(experts, "routed expert") if experts else "no routed experts"
        return Refusal(
            "ExpertsNotDivisible",
            f"expert {shape.expert}: the model has {found}; use 1 or a divisor of their number",
        )
    if shape.attention_data > 1 and subject.runtime.backend == Backend.TENSORRT:
        return Refusal(
            "AttentionDataNotSupported",
            f"attentionData {shape.attention_data} with engine.backend TensorRT: attention by data "
            "is an option of the PyTorch backend; use that, or attentionData 1",
        )
    return None


def groups_divide(subject: Subject) -> Refusal | None:
    """Expert and attention groups need equally many ranks."""
    shape = subject.shape
    for name, value in (("expert", shape.expert), ("attentionData", shape.attention_data)):
        if shape.tensor % value:
            return Refusal(
                "GroupsNotDivisible",
                f"{name} {value} does not divide tensor {shape.tensor}: every group needs equally "
                f"many ranks; use a divisor of {shape.tensor}",
            )
    return None


def heads_divide(subject: Subject) -> Refusal | None:
    """Query heads are shared evenly; KV heads too, or each is kept by equally many ranks."""
    return heads_refusal(subject.model, subject.attention_ranks)


@functools.lru_cache(maxsize=256)
def _experts(model: Model) -> int:
    return model.experts


@functools.lru_cache(maxsize=256)
def _blocks(model: Model) -> frozenset[FeedForward]:
    return frozenset(layer.feed_forward for layer in model.layers)


def vocabulary_divides(subject: Subject) -> Refusal | None:
    """The embedding table, padded to 64 rows, is cut evenly; TensorRT-LLM pads to the ranks."""
    ranks, rows = subject.attention_ranks, subject.model.vocabulary
    padded = -(-rows // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if subject.runtime.engine == Runtime.TENSORRT_LLM or padded % ranks == 0:
        return None
    return Refusal(
        "VocabularyNotDivisible",
        f"tensor {ranks} does not divide the vocabulary of {rows} entries, padded to {padded}; use "
        "a power of two",
    )


def width_divides(subject: Subject) -> Refusal | None:
    """Feed-forward blocks are cut evenly, and inside a cut no group of weights is torn."""
    shape = subject.shape
    group, why = _group_size(subject)
    for width, ranks, what in sorted(_widths(subject.model, shape)):
        if width % ranks:
            return Refusal(
                "WidthNotDivisible",
                f"tensor {shape.tensor} cuts {what} of {width} over {ranks} ranks, which does not "
                "come out even; use a power of two, or whole experts (expert)",
            )
        if group and ranks > 1 and width // ranks % group:
            return Refusal(
                "QuantizationGroupSplit",
                f"tensor {shape.tensor} leaves {width // ranks} of {what}'s {width} to a rank, no "
                f"multiple of the {group} weights that share a scale in {why}; use fewer ranks, "
                "whole experts (expert), or another precision",
            )
    return None


def blocks_stay_whole(subject: Subject) -> Refusal | None:
    """Where the checkpoint's scales are of blocks, a rank's part is whole blocks."""
    return block_refusal(subject.model, subject.precision, subject.shape)


def _group_size(subject: Subject) -> tuple[int, str]:
    weights = subject.precision.weights
    if weights is None:
        own = subject.model.checkpoint
        return (0 if own.method in _PADDED else own.group_size), "the checkpoint"
    return _GROUPS.get(weights, 0), weights.value


def _widths(model: Model, shape: Shape) -> set[tuple[int, int, str]]:
    attention_ranks = shape.tensor // shape.attention_data
    widths = set()
    for block in _blocks(model):
        if block.experts:
            widths.add((block.width, shape.tensor // shape.expert, "an expert's width"))
            if block.shared_width:
                widths.add((block.shared_width, attention_ranks, "the shared experts' width"))
        elif block.width:
            widths.add((block.width, attention_ranks, "the feed-forward width"))
    return widths


def sums_supported(subject: Subject) -> Refusal | None:
    """The runtime's own all-reduce kernels know some numbers of ranks only."""
    tensor = subject.shape.tensor
    if subject.runtime.engine != Runtime.TENSORRT_LLM or tensor in _TENSORRT_SUMS:
        return None
    sizes = ", ".join(str(size) for size in sorted(_TENSORRT_SUMS))
    return Refusal(
        "AllReduceSizeNotSupported",
        f"tensor {tensor}: TensorRT-LLM's all-reduce kernels are made for {sizes} ranks",
    )


def tensor_inside_domain(subject: Subject) -> Refusal | None:
    """Ranks of a stage sum after every layer, twice: never over the network, or between islands."""
    tensor, pool = subject.shape.tensor, subject.pool
    if tensor <= pool.domain:
        return None
    stages = -(-tensor // pool.domain)
    if pool.has_nvlink(pool.domain):
        where = f"one NVLink domain of {pool.product}, {counted(pool.domain, 'GPU')}"
    else:
        where = f"one node of {pool.product}, {counted(pool.domain, 'GPU')}"
    return Refusal(
        "TensorOutsideDomain",
        f"tensor {tensor} exceeds {where}: every layer's sums would go over a slower link; use "
        f"tensor {pool.domain} with pipeline {stages * subject.shape.pipeline}, or replicas",
    )


def stages_have_layers(subject: Subject) -> Refusal | None:
    """Every stage needs a layer."""
    pipeline, layers = subject.shape.pipeline, len(subject.model.layers)
    if pipeline <= layers:
        return None
    return Refusal(
        "MoreStagesThanLayers",
        f"pipeline {pipeline} exceeds the model's {counted(layers, 'layer')}; use at most {layers}",
    )


def gpus_suffice(subject: Subject) -> Refusal | None:
    """One replica must find its stages among the free GPUs."""
    shape, pool = subject.shape, subject.pool
    slots = pool.slots(shape.tensor)
    if pool.longest(shape.tensor) >= shape.pipeline:
        return None
    if slots >= shape.pipeline:
        return Refusal(
            "NotEnoughNodes",
            f"placement.pipelineStages Spread with pipeline {shape.pipeline} needs as many nodes "
            f"with {counted(shape.tensor, 'free GPU')} in one domain; {pool.product} has "
            f"{pool.longest(shape.tensor)}: use Auto or Pack, or fewer stages",
        )
    return Refusal(
        "NotEnoughGPUs",
        f"tensor {shape.tensor} × pipeline {shape.pipeline} needs {shape.pipeline} × "
        f"{counted(shape.tensor, 'GPU')} in one domain; {pool.product} has room for {slots} of "
        f"these ({pool.free_gpus} of {counted(pool.gpus, 'GPU')} free)",
    )


ShapeRule = Callable[[Subject], Refusal | None]
SHAPE_RULES: tuple[ShapeRule, ...] = (
    experts_divide,  # first: whatever the number of ranks, the model has these experts
    tensor_inside_domain,
    groups_divide,
    heads_divide,
    vocabulary_divides,
    width_divides,
    blocks_stay_whole,
    sums_supported,
    stages_have_layers,
    gpus_suffice,
)


def already_quantized(model: Model, weights: WeightPrecision | None) -> Refusal | None:
    """A quantized checkpoint is served as it is: quantizing anew adds one error to another."""
    own = model.checkpoint.method
    if not own or weights is None or weights is checkpoint_weights(model):
        return None
    return Refusal(
        "ModelAlreadyQuantized",
        f"weights {weights}: the checkpoint comes quantized by {own}; serve it as it is, or name "
        "its 16-bit original",
    )
