"""A request to serve, for tests that vary a field or two of it."""

from __future__ import annotations

from shardwright.runner.contract import Command, ServeRequest

REQUEST = ServeRequest(
    deployment="m",
    replica=0,
    incarnation=1,
    stage=1,
    tensor=2,
    pipeline=2,
    step="engine",
    key="0" * 16,
    artifact="/a",
    model_folder="/m",
    served_name="m",
    product="",
    command=Command("trtllm-llmapi-launch", ("x",)),
    config={},
    peers=("a", "b"),
)
