"""The server that a launcher has put into the background: when it counts as gone."""

from __future__ import annotations

import os

import pytest

from shardwright.runner.processes import Process
from shardwright.runner.serve import launcher
from shardwright.runner.serve.launcher import Server, words

COMMAND = ("trtllm-llmapi-launch", "trtllm-serve", "serve", "/model")
LINES = {
    10: ["/bin/bash", "/usr/local/bin/trtllm-llmapi-launch", "trtllm-serve", "serve", "/model"],
    11: ["/usr/bin/python3", "/usr/local/bin/trtllm-serve", "serve", "/model"],
    12: ["python3", "-m", "tensorrt_llm.llmapi.mgmn_worker_node"],
    13: ["/usr/bin/python3", "/usr/local/bin/trtllm-serve", "serve", "/model"],
}


def process(pid: int, started: int = 5) -> Process:
    return Process(pid=pid, parent=1, state="S", cpu_seconds=0.0, started=started)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(launcher, "words", lambda pid: LINES.get(pid, []))
    return Server(COMMAND)


def test_what_was_never_there_is_not_gone(server: Server) -> None:
    for _ in range(5):
        server.look([process(10), process(12)])
        assert not server.gone


def test_a_server_that_was_there_is_gone_at_the_second_look_without_it(server: Server) -> None:
    server.look([process(10), process(11), process(12)])
    server.look([process(10), process(11), process(12)])
    server.look([process(10), process(12)])
    assert not server.gone
    server.look([process(10), process(12)])
    assert server.gone


def test_a_server_that_renames_itself_is_still_there(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.look([process(11)])
    monkeypatch.setattr(launcher, "words", lambda _pid: ["serving llama"])
    for _ in range(3):
        server.look([process(11)])
    assert not server.gone


def test_another_process_under_the_same_number_is_not_the_server(server: Server) -> None:
    server.look([process(11), process(13)])
    for _ in range(2):
        server.look([process(11, started=9), process(13)])
    assert server.gone


def test_the_words_of_a_process_are_read_from_the_kernel() -> None:
    assert "python" in words(os.getpid())[0]
    assert words(2**22 + 1) == []
