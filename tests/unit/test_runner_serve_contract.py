"""What the serving half adds to the messages between operator and runner."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.serving import REQUEST as BASE

from shardwright.runner.contract import Command, ServeRequest, decode, encode

REQUEST = replace(BASE, stage=0, tensor=8)
ADDED = (
    "channel_port",
    "launch",
    "health_path",
    "peer_timeout_seconds",
    "stall_seconds",
    "hang_seconds",
)


def test_a_request_of_an_operator_that_knows_none_of_it_is_read() -> None:
    older = {
        name: value for name, value in json.loads(encode(REQUEST)).items() if name not in ADDED
    }
    assert decode(ServeRequest, json.dumps(older)) == REQUEST


def test_a_request_goes_and_comes_back() -> None:
    changed = replace(REQUEST, launch="each", channel_port=9000, hang_seconds=7)
    assert decode(ServeRequest, encode(changed)) == changed


@pytest.mark.parametrize(
    ("pipeline", "tool", "launch", "by_mpi"),
    [
        (2, "trtllm-llmapi-launch", "", True),
        (1, "trtllm-llmapi-launch", "", False),
        (2, "vllm", "", False),
        (2, "sglang", "", False),
        (2, "vllm", "mpi", True),
        (2, "trtllm-llmapi-launch", "each", False),
        (2, "tritonserver", "mpi", True),
        # Several ranks of one stage too, where it is asked for.
        (1, "tritonserver", "mpi", True),
        (1, "tritonserver", "", False),
    ],
)
def test_who_starts_the_ranks(pipeline: int, tool: str, launch: str, by_mpi: bool) -> None:
    found = replace(REQUEST, pipeline=pipeline, launch=launch, command=Command(tool, ("x",)))
    assert found.by_mpi is by_mpi
    assert found.world_size == 8 * pipeline


def test_one_rank_alone_needs_no_mpirun() -> None:
    assert not replace(REQUEST, tensor=1, pipeline=1, launch="mpi").by_mpi
