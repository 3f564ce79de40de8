"""The benchmarks that ask a server, started as the operator starts them, against a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from shardwright_standin.ports import reserved
from tests.standin.running import Machine, ask

from shardwright.benchmark import inside
from shardwright.benchmark.job import points_of
from shardwright.benchmark.tools import AIPERF, TOOLS, Load

AT_ONCE = (1, 4)


@pytest.fixture
def url(machine: Machine, model: Path) -> Iterator[str]:
    port = reserved()
    words = ["vllm", "serve", str(model), "--served-model-name", "tiny", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with machine.started(*words, "--max-num-seqs", "4", "--max-model-len", "512") as server:
        server.until(f"{address}/health")
        yield address


def test_each_tool_measures_a_server_and_the_pod_s_script_reads_its_file(
    machine: Machine, model: Path, url: str
) -> None:
    load = Load(url, "tiny", str(model), 32, 4, seed=7)
    script = Path(inside.__file__).read_text()
    for name, tool in {**TOOLS, "aiperf": AIPERF}.items():
        folder = machine.folder / name
        points = [
            {
                "concurrency": number,
                "requests": 32 if number == 4 else 16,
                "argv": machine.command(tool.command(load, number, str(folder / str(number)))),
                "result": str(folder / str(number) / tool.result),
            }
            for number in AT_ONCE
        ]
        request = {
            "points": points,
            "keys": dict(tool.keys),
            "completed": tool.completed,
            "health": f"{url}/health",
            "metrics": "",
            "seconds": 300,
            "must_hold_no_code": str(model) if tool.trusts_always else "",
        }
        log = machine.folder / f"{name}.json"
        done = machine.run(
            *("python3", "-c", script.replace(inside.TERMINATION_LOG, str(log))),
            **{
                inside.ENVIRONMENT: json.dumps(request),
                # What a .pth file does in an image.
                "PYTHONPATH": str(machine.root / "usr/local/lib/shardwright-standin"),
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found, error = points_of(log.read_text())
        assert error == ""
        assert [point.concurrency for point in found] == [1, 4]
        for point in found:
            assert point.failed == 0
            # All answers have exactly the asked length.
            assert point.tokens_per_second == pytest.approx(4 * point.requests_per_second, rel=0.01)
            assert 0 < point.ttft_ms <= point.ttft_p99_ms
            assert 0 < point.tpot_ms <= point.tpot_p99_ms


def test_a_server_that_refuses_fails_the_tool_or_counts_as_failed(
    machine: Machine, model: Path, url: str
) -> None:
    """A prompt longer than the server takes; whoever asks once before says so at once."""
    load = Load(url, "tiny", str(model), 600, 4)
    folder = machine.folder
    environment = {"PYTHONPATH": str(machine.root / "usr/local/lib/shardwright-standin")}
    for name, tool in TOOLS.items():
        done = machine.run(*tool.command(load, 1, str(folder)), **environment)
        if name == "VLLM":
            assert done.returncode == 0, done.stderr
            assert json.loads((folder / tool.result).read_text())["completed"] == 0
        else:
            assert done.returncode != 0
            assert "Initial test run failed" in done.stderr


def test_what_the_tools_send_beside_is_taken_at_values_that_change_nothing(url: str) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    plain = ask(f"{url}/v1/completions", body)
    sent = {"repetition_penalty": 1.0, "best_of": 1, "logprobs": None, "temperature": 0.0}
    status, content = ask(f"{url}/v1/completions", {**body, **sent})
    assert status == plain[0] == 200
    assert content["choices"] == plain[1]["choices"]
    for wrong in ({"repetition_penalty": 1.1}, {"best_of": 2}):
        status, content = ask(f"{url}/v1/completions", {**body, **wrong})
        assert status == 400, content
