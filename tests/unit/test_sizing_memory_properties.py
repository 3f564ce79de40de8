"""What must hold of the memory model whatever the model, the shape and the GPU."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.model import Attention, AttentionKind, FeedForward, Layer, Model
from shardwright.sizing.partition import Remainder, layers_of_stages
from shardwright.sizing.shape import EngineSettings, GPUMemory, Precision, Shape
from shardwright.sizing.weights import parameters

POWERS = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    kv_heads = draw(st.sampled_from([1, 2, 4, 8, 16]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    size = draw(st.sampled_from([64, 80, 128, 256]))
    kind = draw(st.sampled_from(["full", "sliding", "latent", "linear"]))
    if kind == "latent":
        return Attention(
            AttentionKind.FULL, heads, heads, size + 64, size, kv_lora_rank=512, rope_dim=64
        )
    if kind == "linear":
        state = draw(st.integers(1, 2**22))
        return Attention(
            AttentionKind.LINEAR, heads, 0, size, size, state_bytes=state, parameters=10**6
        )
    window = draw(st.integers(1, 4096)) if kind == "sliding" else 0
    which = AttentionKind.SLIDING if kind == "sliding" else AttentionKind.FULL
    return Attention(which, heads, kv_heads, size, size, window=window)


@st.composite
def blocks(draw: st.DrawFn) -> FeedForward:
    width = draw(st.sampled_from([1024, 2816, 14336]))
    gated = draw(st.booleans())
    if draw(st.booleans()):
        return FeedForward(width, gated)
    experts = draw(st.integers(2, 64))
    return FeedForward(
        width, gated, experts, active=2, shared_width=draw(st.sampled_from([0, width]))
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    kinds = [
        Layer(draw(attentions()), draw(blocks()), draw(st.integers(0, 10_000)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    count = draw(st.integers(16, 48))
    every = draw(st.integers(1, 6))
    # The last kind every so often, the others in turn: the patterns that hybrid models have.
    order = [
        kinds[-1] if number % every == every - 1 else kinds[number % len(kinds)]
        for number in range(count)
    ]
    return Model(
        name=f"drawn-{draw(st.integers())}",
        architecture="Any",
        layers=tuple(order),
        hidden=draw(st.sampled_from([512, 2048, 5120])),
        vocabulary=draw(st.integers(1000, 260_000)),
        tied=draw(st.booleans()),
        max_positions=131_072,
        dtype="bfloat16",
        rotary_dim=draw(st.sampled_from([0, 128])),
        vision_parameters=draw(st.sampled_from([0, 400_000_000])),
    )


ENGINES = st.builds(
    EngineSettings,
    runtime=st.sampled_from(["VLLM", "SGLang", "TensorRTLLM"]),
    version=st.sampled_from(["0.16.0", "0.19.0", "0.22.0", "1.2.1"]),
    memory_fraction=st.sampled_from([0.5, 0.9, 0.95]),
    max_seq_len=st.integers(1, 200_000),
    max_num_tokens=st.sampled_from([512, 2048, 8192]),
    max_batch_size=st.sampled_from([1, 64, 1024]),
    lora_slots=st.sampled_from([0, 4]),
    lora_rank=st.just(16),
)
SHAPES = st.builds(
    lambda tensor, pipeline, expert, groups: Shape(
        tensor, pipeline, min(expert, tensor), min(groups, tensor)
    ),
    POWERS,
    st.integers(1, 4),
    POWERS,
    POWERS,
)
PRECISIONS = st.builds(
    Precision,
    weights=st.sampled_from([None, *WeightPrecision]),
    kv_cache=st.sampled_from(list(KVPrecision)),
)
GPUS = st.integers(10 * 2**30, 300 * 2**30).map(GPUMemory)


@settings(max_examples=300, deadline=None)
@given(models(), SHAPES, PRECISIONS, ENGINES, GPUS, st.integers(1, 200_000))
def test_tokens_never_rise_with_the_sequences_length(
    model: Model,
    shape: Shape,
    precision: Precision,
    engine: EngineSettings,
    gpu: GPUMemory,
    more: int,
) -> None:
    short = plan_memory(model, shape, precision, engine, gpu)
    longer = replace(engine, max_seq_len=engine.max_seq_len + more)
    long = plan_memory(model, shape, precision, longer, gpu)
    assert long.kv_tokens <= short.kv_tokens
    assert long.concurrency <= short.concurrency


@settings(max_examples=300, deadline=None)
@given(models(), SHAPES, PRECISIONS, ENGINES, GPUS)
def test_tokens_never_fall_with_an_fp8_cache(
    model: Model, shape: Shape, precision: Precision, engine: EngineSettings, gpu: GPUMemory
) -> None:
    wide = plan_memory(model, shape, replace(precision, kv_cache=KVPrecision.NONE), engine, gpu)
    narrow = plan_memory(model, shape, replace(precision, kv_cache=KVPrecision.FP8), engine, gpu)
    assert narrow.kv_tokens >= wide.kv_tokens
    assert narrow.fits == wide.fits


@settings(max_examples=300, deadline=None)
@given(models(), SHAPES, PRECISIONS, ENGINES, GPUS, st.integers(1, 2**36))
def test_more_memory_never_makes_it_worse(
    model: Model,
    shape: Shape,
    precision: Precision,
    engine: EngineSettings,
    gpu: GPUMemory,
    more: int,
) -> None:
    small = plan_memory(model, shape, precision, engine, gpu)
    large = plan_memory(model, shape, precision, engine, GPUMemory(gpu.total + more))
    assert large.fits or not small.fits
    assert large.kv_tokens >= small.kv_tokens
    assert large.concurrency >= small.concurrency


@settings(max_examples=300, deadline=None)
@given(models(), POWERS, st.integers(1, 4))
def test_ranks_together_hold_at_least_the_whole_model(
    model: Model, tensor: int, pipeline: int
) -> None:
    engine = EngineSettings("VLLM", "0.19.0")
    gpu = GPUMemory(80 * 2**30)
    plan = plan_memory(model, Shape(tensor, pipeline), Precision(), engine, gpu)
    together = tensor * sum(stage.weights for stage in plan.stages)
    whole = 2 * (parameters(model) + model.vision_parameters)
    assert together >= whole - tensor * pipeline
    assert sum(stage.layers for stage in plan.stages) == len(model.layers)


@settings(max_examples=300, deadline=None)
@given(models(), POWERS, PRECISIONS, ENGINES, GPUS)
def test_more_ranks_never_hold_more_each(
    model: Model, tensor: int, precision: Precision, engine: EngineSettings, gpu: GPUMemory
) -> None:
    few = plan_memory(model, Shape(tensor), precision, engine, gpu).stages[0]
    many = plan_memory(model, Shape(2 * tensor), precision, engine, gpu).stages[0]
    assert many.weights <= few.weights
    assert many.kv_bytes_per_token <= few.kv_bytes_per_token


@settings(max_examples=300, deadline=None)
@given(models(), SHAPES, ENGINES, GPUS)
def test_what_is_counted_adds_up(
    model: Model, shape: Shape, engine: EngineSettings, gpu: GPUMemory
) -> None:
    for stage in plan_memory(model, shape, Precision(), engine, gpu).stages:
        held = stage.weights + stage.lora + stage.draft
        if engine.runtime == "VLLM":
            held += stage.activation + stage.runtime
            assert held + stage.kv_pool == int(engine.memory_fraction * gpu.total)
        elif engine.runtime == "SGLang":
            assert held + stage.kv_pool == int(engine.memory_fraction * gpu.total)
        else:
            assert held + stage.activation + stage.runtime + stage.kv_pool <= gpu.total


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from(list(Remainder)))
def test_stages_hold_every_layer_once_and_evenly(
    layers: int, stages: int, remainder: Remainder
) -> None:
    ranges = layers_of_stages(layers, stages, remainder)
    assert [number for found in ranges for number in found] == list(range(layers))
    sizes = [len(found) for found in ranges]
    assert max(sizes) - min(sizes) <= 1
