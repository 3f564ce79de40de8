"""Estimates against arithmetic done by hand, and links against what rings and switches move."""

from __future__ import annotations

import pytest
from tests.support.sizing import A100, H100, L40S, M8B, M70B, R1, VLLM, nodes

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.evaluate import Evaluation, evaluate
from shardwright.sizing.hardware import hardware
from shardwright.sizing.links import Link, Links, links_of
from shardwright.sizing.pools import pools_of
from shardwright.sizing.question import Fabric, FabricKind, Workload
from shardwright.sizing.shape import Precision, Shape
from shardwright.sizing.weights import parameters
from shardwright.sizing.work import AttentionWork, stages_work

BF16 = Precision(WeightPrecision.NONE, KVPrecision.NONE)
RDMA = Fabric(FabricKind.RDMA, 50.0, "test")


def _run(
    name: str, product: str, shape: Shape, precision: Precision = BF16, *, batch: int = 1
) -> Evaluation:
    pool = pools_of(nodes(product, 2), [product])[0]
    load = Workload(input_len=1024, output_len=128)
    return evaluate(
        catalogue_model(name), pool, load, VLLM, precision=precision, shape=shape, batch=batch
    )


def test_one_request_takes_as_long_as_reading_the_weights() -> None:
    """8B in BF16: 15.0 GB without the embedding table, at 80 % of 3.35 TB/s, is 5.6 ms."""
    timed = _run(M8B, H100, Shape()).estimate
    assert timed.step.weights == pytest.approx(5.6e-3, rel=0.02)
    # 1,088 tokens of 128 KiB; 32 layers of 5 µs.
    assert timed.step.kv_cache == pytest.approx(1088 * 131072 / (3.35e12 * 0.8), rel=0.01)
    assert timed.step.overhead == pytest.approx(32 * 5e-6)
    assert timed.step.communication == 0


def test_a_prompt_takes_as_long_as_multiplying_with_the_weights() -> None:
    """1,024 tokens × 2 × 7.0 B multiply-adds in layers at 65 % of 989 TFLOPS are 22 ms."""
    timed = _run(M8B, H100, Shape()).estimate
    assert timed.ttft_seconds == pytest.approx(0.0224, rel=0.05)


def test_multiply_adds_are_the_models_parameters() -> None:
    model = catalogue_model(M70B)
    work = stages_work(model, WeightPrecision.NONE, Shape(), (80,))[0]
    tables = model.vocabulary * model.hidden
    assert work.dense_macs + work.head_macs + tables == pytest.approx(parameters(model), rel=1e-4)
    split = stages_work(model, WeightPrecision.NONE, Shape(8), (80,))[0]
    assert split.dense_macs * 8 == pytest.approx(work.dense_macs)
    halves = stages_work(model, WeightPrecision.NONE, Shape(1, 2), (40, 40))
    assert sum(half.dense_macs for half in halves) == pytest.approx(work.dense_macs)
    assert [half.head_macs > 0 for half in halves] == [False, True]


def test_a_mixture_computes_with_its_active_experts_alone() -> None:
    model = catalogue_model(R1)
    work = stages_work(model, None, Shape(), (61,))[0]
    active = work.dense_macs + work.expert_macs + work.head_macs
    assert active / 1e9 == pytest.approx(37, rel=0.03)  # "37B activated" of its model card
    assert work.touched(1) == pytest.approx(8 / 256)
    assert work.touched(4096) == pytest.approx(1, abs=1e-6)


def test_windows_bound_what_a_query_sees() -> None:
    window = AttentionWork(window=4, layers=1, prefill=1, decode=1)
    assert window.seen(3) == 3
    assert window.seen(100) == 4
    # Of six tokens: 1 + 2 + 3 + 4 pairs, then 4 and 4.
    assert window.pairs(6) == 18
    assert AttentionWork(0, 1, 1, 1).pairs(6) == 21


def test_stages_filled_with_requests_give_as_much_as_ranks_without_sums() -> None:
    one = _run(M70B, H100, Shape(1, 8), batch=256).estimate
    alone = _run(M70B, H100, Shape(1, 8), batch=1).estimate
    assert one.tokens_per_second > 50 * alone.tokens_per_second
    assert one.tpot_seconds > alone.tpot_seconds


def test_fewer_requests_than_stages_leave_stages_idle() -> None:
    one = _run(M70B, H100, Shape(1, 8), batch=1).estimate
    four = _run(M70B, H100, Shape(1, 8), batch=4).estimate
    assert four.step.weights == pytest.approx(one.step.weights, rel=1e-6)


def test_a_ring_moves_twice_the_message_less_its_own_part() -> None:
    link = Link(rate=100e9, seconds=1e-6)
    links = Links(domain=8, inside=link, outside=link)
    assert links.all_reduce(8, 1e9) == pytest.approx(1e-6 + 2 * 7 / 8 * 1e9 / 100e9)
    assert links.all_reduce(1, 1e9) == 0
    assert links.all_to_all(1, 1e9) == 0


def test_ranks_beyond_a_domain_pay_the_network() -> None:
    slow = links_of(
        hardware(H100),
        nvlink_size=8,
        gpus_per_node=8,
        fabric=Fabric(FabricKind.ETHERNET, 1.5625, ""),
        stage_nodes=(0,),
        tensor=16,
    )
    fast = links_of(
        hardware(H100),
        nvlink_size=8,
        gpus_per_node=8,
        fabric=RDMA,
        stage_nodes=(0,),
        tensor=16,
    )
    assert slow.all_reduce(16, 1e8) > 4 * fast.all_reduce(16, 1e8) > fast.all_reduce(8, 1e8)


@pytest.mark.parametrize(
    ("stage_nodes", "tensor", "nvlink", "rates"),
    [
        ((0, 0), 4, 8, ["nvlink"]),
        ((0, 0), 4, 4, ["pcie"]),
        ((0, 0, 0, 0), 2, 4, ["nvlink", "pcie", "nvlink"]),
        ((0, 1), 8, 8, ["network"]),
        ((0, 0), 1, 0, ["pcie"]),
    ],
)
def test_stages_send_over_what_joins_them(
    stage_nodes: tuple[int, ...], tensor: int, nvlink: int, rates: list[str]
) -> None:
    links = links_of(
        hardware(H100),
        nvlink_size=nvlink,
        gpus_per_node=8,
        fabric=RDMA,
        stage_nodes=stage_nodes,
        tensor=tensor,
    )
    names = {450e9 * 0.8: "nvlink", 64e9 * 0.6: "pcie", 50e9 * 0.85: "network"}
    assert [names[round(link.rate)] for link in links.sends] == rates


def test_tensor_cores_that_are_missing_are_named() -> None:
    with pytest.raises(ValueError, match="tensor cores for FP8"):
        _run(M8B, A100, Shape(), Precision(WeightPrecision.FP8, KVPrecision.NONE))


def test_without_nvlink_ranks_talk_over_pcie() -> None:
    pcie = _run(M70B, L40S, Shape(8), batch=32).estimate.step
    nvlink = _run(M70B, A100, Shape(8), batch=32).estimate.step
    assert pcie.communication > 4 * nvlink.communication
