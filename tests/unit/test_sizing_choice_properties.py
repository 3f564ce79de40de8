"""What holds for any fleet, model and workload, by thousands of random ones."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.sizing import A100, H100, H200, L40S, PYTORCH, TENSORRT, VLLM

from shardwright.sizing.choose import choose
from shardwright.sizing.fleet import memory_of
from shardwright.sizing.hardware import hardware
from shardwright.sizing.memory_rules import MEMORY_RULES
from shardwright.sizing.model import (
    Attention,
    AttentionKind,
    CheckpointPrecision,
    FeedForward,
    Layer,
    Model,
)
from shardwright.sizing.pools import pools_of
from shardwright.sizing.question import (
    Fabric,
    FabricKind,
    Fleet,
    Limits,
    NodeGroup,
    Objective,
    Workload,
)
from shardwright.sizing.result import Candidate, Choice, from_data, to_data
from shardwright.sizing.rules import SHAPE_RULES, Subject
from shardwright.sizing.shape import EngineSettings

PRODUCTS = (H100, H200, A100, L40S, "NVIDIA-B200", "Tesla-T4", "NVIDIA-H100-NVL")


@st.composite
def models(draw: st.DrawFn) -> Model:
    heads = draw(st.sampled_from((8, 12, 16, 32, 40, 64, 96, 128)))
    kv_heads = draw(st.sampled_from([size for size in (1, 2, 4, 8, heads) if heads % size == 0]))
    head_dim = draw(st.sampled_from((64, 128)))
    hidden = heads * head_dim
    window = draw(st.sampled_from((0, 0, 0, 1024)))
    kind = AttentionKind.SLIDING if window else AttentionKind.FULL
    attention = Attention(kind, heads, kv_heads, head_dim, head_dim, window=window)
    full = replace(attention, kind=AttentionKind.FULL, window=0)
    experts = draw(st.sampled_from((0, 0, 8, 64, 128)))
    width = draw(st.sampled_from((1408, 2048, 11008, 14336, 28672)))
    block = FeedForward(width, experts=experts, active=min(experts, draw(st.integers(1, 8))))
    count = draw(st.integers(2, 100))
    layers = tuple(
        Layer(attention if number % 6 else full, block, 2 * hidden) for number in range(count)
    )
    quantized = draw(st.sampled_from(("", "", "fp8", "gptq", "mxfp4")))
    checkpoint = {
        "": CheckpointPrecision(),
        "fp8": CheckpointPrecision("fp8", 8),
        "gptq": CheckpointPrecision("gptq", 4, 128),
        "mxfp4": CheckpointPrecision("mxfp4", 4, 32),
    }[quantized]
    return Model(
        # The name is most of a model's hash: equal ones would make every cache compare models.
        name=f"{heads}-{kv_heads}-{window}-{experts}-{width}-{count}-{quantized}",
        architecture=draw(st.sampled_from(("LlamaForCausalLM", "NoSuchForCausalLM"))),
        layers=layers,
        hidden=hidden,
        vocabulary=draw(st.sampled_from((32000, 50257, 128256, 151936))),
        tied=draw(st.booleans()),
        max_positions=131072,
        dtype=draw(st.sampled_from(("bfloat16", "float16"))),
        rotary_dim=head_dim,
        checkpoint=checkpoint,
    )


@st.composite
def groups(draw: st.DrawFn, number: int) -> NodeGroup:
    product = draw(st.sampled_from(PRODUCTS))
    gpus = draw(st.sampled_from((1, 2, 4, 6, 8)))
    nvlink = draw(st.sampled_from([size for size in (0, 2, 4, gpus) if size <= gpus]))
    return NodeGroup(
        name=f"group-{number}",
        product=product,
        nodes=draw(st.integers(1, 12)),
        gpus_per_node=gpus,
        free_gpus=draw(st.integers(0, gpus)),
        nvlink_size=nvlink if hardware(product).nvlink_gbps else 0,
        memory_bytes=memory_of(product),
        compute=hardware(product).compute,
        fabric=draw(
            st.sampled_from(
                (Fabric(FabricKind.RDMA, 50.0, "test"), Fabric(FabricKind.ETHERNET, 1.5, "test"))
            )
        ),
    )


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    count = draw(st.integers(1, 3))
    return Fleet(tuple(draw(groups(number)) for number in range(count)))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    target = st.one_of(st.none(), st.floats(1e-3, 1e2))
    return Workload(
        objective=draw(st.sampled_from(Objective)),
        concurrency=draw(st.sampled_from((1, 2, 4, 5, 64, 500, 10_000))),
        input_len=draw(st.integers(1, 4096)),
        output_len=draw(st.integers(1, 4096)),
        ttft_seconds=draw(target),
        tpot_seconds=draw(target),
    )


engines = st.sampled_from((VLLM, PYTORCH, TENSORRT))


def _broken(
    model: Model, where: Fleet, engine: EngineSettings, plan: Candidate, load: Workload
) -> list[str]:
    """Every rule that a plan breaks, on the pool of GPUs it was made for."""
    pool = next(
        pool
        for pool in pools_of(where, [plan.product])
        if pool.memory.total == plan.memory.stages[0].total
    )
    subject = Subject(model, engine, pool, plan.precision, plan.shape)
    found = [refusal.message for rule in SHAPE_RULES if (refusal := rule(subject))]
    found += [rule.message for one in MEMORY_RULES if (rule := one(subject, plan.memory))]
    shape = plan.shape
    # Said again in other words, so that a rule that falls silent is noticed.
    ranks = shape.tensor // shape.attention_data
    heads, kv_heads = model.heads, model.kv_heads
    checks = {
        "heads": heads % ranks == 0,
        "kv heads": kv_heads % ranks == 0 or ranks % kv_heads == 0,
        "domain": shape.tensor
        <= max(group.domain for group in where.groups if group.product == plan.product),
        "layers": shape.pipeline <= len(model.layers),
        "gpus": plan.gpus
        <= sum(g.nodes * g.free_gpus for g in where.groups if g.product == plan.product),
        "experts": shape.expert == 1 or model.experts % shape.expert == 0,
        "stages": len(plan.stage_nodes) == shape.pipeline == len(plan.memory.stages),
        "one request": plan.memory.kv_tokens >= 1 and plan.estimate.capacity >= 1,
        "batch": 1 <= plan.estimate.batch <= plan.estimate.capacity,
        "length": load.request_len <= engine.max_seq_len,
    }
    return found + [name for name, holds in checks.items() if not holds]


@settings(max_examples=150)
@given(models(), fleets(), workloads(), engines)
def test_a_chosen_plan_breaks_no_rule(
    model: Model, where: Fleet, load: Workload, engine: EngineSettings
) -> None:
    choice = choose(model, where, load, engine)
    for plan in (choice.chosen, choice.runner_up):
        if plan is not None:
            assert _broken(model, where, engine, plan, load) == []
    assert choice.chosen is not None or choice.rejected
    assert all(one.code and one.message for one in choice.rejected)


def _more_nodes(where: Fleet, number: int) -> Fleet:
    group = where.groups[number]
    return _with(where, number, replace(group, nodes=group.nodes + 1))


def _more_free(where: Fleet, number: int) -> Fleet:
    group = where.groups[number]
    return _with(where, number, replace(group, free_gpus=group.gpus_per_node))


def _more_memory(where: Fleet, number: int) -> Fleet:
    group = where.groups[number]
    return _with(where, number, replace(group, memory_bytes=group.memory_bytes * 5 // 4))


def _less_memory_beside(where: Fleet, number: int) -> Fleet:
    """More GPUs, but smaller ones."""
    group = where.groups[number]
    other = replace(group, name="more", memory_bytes=group.memory_bytes // 2)
    return Fleet((*where.groups, other))


def _with(where: Fleet, number: int, group: NodeGroup) -> Fleet:
    return Fleet((*where.groups[:number], group, *where.groups[number + 1 :]))


GROWTH = (_more_nodes, _more_free, _more_memory, _less_memory_beside)


@settings(max_examples=150)
@given(models(), fleets(), workloads(), engines, st.sampled_from(GROWTH), st.integers(0, 2))
def test_more_of_anything_never_makes_the_feasible_infeasible(
    model: Model, where: Fleet, load: Workload, engine: EngineSettings, grow: object, number: int
) -> None:
    assume(number < len(where.groups))
    assert callable(grow)
    if choose(model, where, load, engine).chosen is not None:
        assert choose(model, grow(where, number), load, engine).chosen is not None


@settings(max_examples=60)
@given(models(), fleets(), workloads(), engines)
def test_an_answer_survives_json_and_is_the_same_again(
    model: Model, where: Fleet, load: Workload, engine: EngineSettings
) -> None:
    choice = choose(model, where, load, engine)
    again: Choice = from_data(json.loads(json.dumps(to_data(choice), allow_nan=False)))
    assert again == choice
    shuffled = Fleet(tuple(reversed(where.groups)))
    assert choose(model, where, load, engine) == choice
    other = choose(model, shuffled, load, engine)
    assert (other.chosen is None) == (choice.chosen is None)
    if choice.chosen and other.chosen:
        assert other.chosen.shape == choice.chosen.shape
        assert other.chosen.precision == choice.chosen.precision
        assert other.chosen.product == choice.chosen.product


@settings(max_examples=60)
@given(models(), fleets(), workloads(), engines, st.integers(1, 9), st.integers(1, 4))
def test_what_is_fixed_is_kept(
    model: Model,
    where: Fleet,
    load: Workload,
    engine: EngineSettings,
    tensor: int,
    pipeline: int,
) -> None:
    limits = Limits(tensor=tensor, pipeline=pipeline)
    choice = choose(model, where, load, engine, limits)
    if choice.chosen is not None:
        assert (choice.chosen.shape.tensor, choice.chosen.shape.pipeline) == (tensor, pipeline)
        assert choose(model, where, load, engine).chosen is not None


@settings(max_examples=60)
@given(models(), fleets(), workloads(), engines)
def test_estimates_are_finite_and_add_up(
    model: Model, where: Fleet, load: Workload, engine: EngineSettings
) -> None:
    best = choose(model, where, load, engine).chosen
    assume(best is not None)
    assert best is not None
    timed = best.estimate
    assert 0 < timed.ttft_seconds < 1e6
    assert 0 < timed.tpot_seconds < 1e6
    assert timed.tpot_seconds == timed.step.total
    assert timed.tokens_per_second > 0
    per_gpu = timed.tokens_per_second / best.shape.world_size
    assert timed.tokens_per_second_per_gpu == per_gpu
