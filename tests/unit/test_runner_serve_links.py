"""What recorded logs say of the links of a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.runner.contract import links_heard
from shardwright.runner.serve.links import judge
from shardwright.runner.serve.nccl import Way, Ways, read_way, read_ways
from shardwright.runner.serve.topo import TopologyError, read_topology

DATA = Path(__file__).parents[1] / "runner/data"


def text(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


def ways(name: str) -> Ways:
    return read_ways(text(name).splitlines())


def test_a_matrix_with_network_cards_and_affinities_is_read() -> None:
    found = read_topology(text("topo-h100-nvlink"))
    assert found.gpus == (0, 1, 2, 3)
    assert set(found.links.values()) == {"NV6"}
    assert len(found.links) == 6
    assert found.link(3, 1) == found.link(1, 3) == "NV6"


@pytest.mark.parametrize(
    ("name", "pair", "link"),
    [
        ("topo-a100-bridge", (0, 1), "NV12"),
        ("topo-a100-bridge", (2, 3), "NODE"),
        ("topo-a100-bridge", (0, 3), "SYS"),
        ("topo-pcie", (3, 4), "PHB"),
        ("topo-pcie", (0, 4), "SYS"),
        ("topo-p100", (0, 1), "PIX"),
        ("topo-p100", (5, 7), "PXB"),
    ],
)
def test_links_of_recorded_machines(name: str, pair: tuple[int, int], link: str) -> None:
    assert read_topology(text(name)).link(*pair) == link


def test_coloured_output_is_read_as_plain_output_is() -> None:
    plain = text("topo-h100-nvlink")
    coloured = plain.replace("GPU0 ", "\x1b[4mGPU0\x1b[0m ", 1)
    assert read_topology(coloured) == read_topology(plain)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "\tGPU0\tGPU1\nGPU0\t X \tOK\nGPU1\tOK\t X \n",
    ],
)
def test_what_is_no_matrix_is_refused(wrong: str) -> None:
    with pytest.raises(TopologyError):
        read_topology(wrong)


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ("Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM", Way(3, 2, "P2P")),
        ("Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read", Way(7, 6, "P2P")),
        ("Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA", Way(0, 2, "IB", gdr=True)),
        ("Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2", Way(47, 39, "IBext_v8")),
        (
            "Channel 01 : 13[92000] -> 4[89000] [send] via NET/IB/0/GDRDMA",
            Way(13, 4, "IB", gdr=True),
        ),
        ("Channel 09 : 6[6] -> 7[7] via SHM/direct/direct", Way(6, 7, "SHM")),
        ("Channel 00/04 :    0   1", None),
        ("Connected all rings", None),
    ],
)
def test_channel_lines_of_several_versions(line: str, way: Way | None) -> None:
    assert read_way(line) == way


@pytest.mark.parametrize(
    ("topology", "log", "shape", "tensor", "pipeline", "degraded"),
    [
        ("topo-h100-nvlink", "nccl-ib", (2, 2), "NVLink", "RDMA", []),
        ("topo-h100-nvlink", "nccl-bus-ids", (4, 2), "NVLink", "RDMA", []),
        ("topo-h100-nvlink", "nccl-ib-no-gdr", (4, 2), "NVLink", "RDMAWithoutGPUDirect", []),
        (
            "topo-h100-nvlink",
            "nccl-socket",
            (4, 2),
            "NVLink",
            "Socket",
            ["ranks 15 and 6 talk over TCP sockets"],
        ),
        (
            "topo-p100",
            "nccl-shm",
            (8, 2),
            "SharedMemory",
            "Socket",
            [
                "GPUs 3 and 4 talk through host memory",
                "GPUs 4 and 5 talk through host memory",
                "GPUs 6 and 7 talk through host memory",
                "ranks 15 and 0 talk over TCP sockets",
            ],
        ),
        (
            "topo-a100-bridge",
            "",
            (4, 1),
            "PCIe",
            "None",
            [
                f"GPUs {pair} have no NVLink ({link}), others have"
                for pair, link in (
                    ("0 and 2", "SYS"),
                    ("0 and 3", "SYS"),
                    ("1 and 2", "SYS"),
                    ("1 and 3", "SYS"),
                    ("2 and 3", "NODE"),
                )
            ],
        ),
        ("topo-a100-bridge", "", (2, 1), "NVLink", "None", []),
        ("topo-pcie", "", (4, 1), "PCIe", "None", []),
        ("", "", (4, 2), "Unknown", "Unknown", []),
        ("", "nccl-ib", (1, 2), "None", "RDMA", []),
    ],
)
def test_the_verdict_names_the_links_and_each_pair_that_has_less(
    topology: str,
    log: str,
    shape: tuple[int, int],
    tensor: str,
    pipeline: str,
    degraded: list[str],
) -> None:
    matrix = read_topology(text(topology)) if topology else None
    found = judge(*shape, matrix, ways(log).found() if log else ())
    assert (found.tensor, found.pipeline) == (tensor, pipeline)
    assert [*found.slow_tensor, *found.slow_pipeline] == degraded
    assert links_heard({"links": {"3": found.told()}}) == {3: found}


def test_tensor_ranks_of_one_node_over_the_network_are_degraded() -> None:
    found = judge(2, 1, read_topology(text("topo-h100-nvlink")), [Way(0, 1, "Socket")])
    assert found.tensor == "Network"
    assert found.slow_tensor == ("GPUs 0 and 1 of one node talk over the network",)


def test_the_network_that_was_chosen_is_kept_and_other_lines_are_not_looked_at() -> None:
    found = read_ways(
        [
            "gh1:185972:186354 [0] NCCL INFO Using network IBext_v8",
            "Using network Nonsense",
            "[12/03/2026] loading weights",
        ]
    )
    assert found.networks() == ("IBext_v8",)
    assert found.found() == ()


def test_a_log_without_end_does_not_grow_without_end() -> None:
    found = read_ways(
        f"a:1:2 [0] NCCL INFO Channel 00/0 : {n}[0] -> {n + 1}[0] via P2P/CUMEM"
        for n in range(20_000)
    )
    assert len(found.found()) == 4096
