"""vLLM's, NIM's and SGLang's servers over TCP, and the HTTP surface that all servers share."""

# ruff: noqa: S310 - all addresses are of servers that the tests started

from __future__ import annotations

import concurrent.futures
import http.client
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from shardwright_standin.ports import reserved
from tests.standin.running import PROMPTS, Faults, Machine, Started, ask
from tests.support.standin_model import unsharded

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def shared(
    installed: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Machine:
    """One machine for the tests that only look."""
    from tests.standin import running  # noqa: PLC0415 - beside the fixtures that need it

    python = running.interpreter(*running.MODULES)
    if not python:
        pytest.skip(f"no Python has all of {', '.join(running.MODULES)}")
    return Machine(installed, python, tmp_path_factory.mktemp("shared"))


def nodes(machine: Machine, stack: ExitStack, *lines: list[str]) -> list[Started]:
    """One program a node; each node's pod sees two GPUs."""
    return [
        stack.enter_context(
            machine.started(
                *line,
                NVIDIA_VISIBLE_DEVICES=f"{2 * node},{2 * node + 1}",
                SHARDWRIGHT_POD_NAME=f"pod-{node}",
                SHARDWRIGHT_NODE_NAME=f"node-{node}",
            )
        )
        for node, line in enumerate(lines)
    ]


def vllm(model: Path, *words: str) -> list[str]:
    return ["vllm", "serve", str(model), "--served-model-name", "tiny", *words]


def find_sglang(machine: Machine) -> None:
    """What a `.pth` file of the image does: `python3 -m sglang.launch_server` is found."""
    path = str(machine.root / "usr/local/lib/shardwright-standin")
    inherited = machine.environment().get("PYTHONPATH")
    machine.variables["PYTHONPATH"] = f"{path}:{inherited}" if inherited else path


def say(url: str, prompt: str, **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, **more}
    status, content = ask(url + CHAT, body)
    assert status == 200, content
    text: str = content["choices"][0]["message"]["content"]
    return text


def test_vllm_over_two_nodes_gives_the_whole_model_s_tokens(
    machine: Machine, model: Path, reference: dict[str, str]
) -> None:
    port, master = reserved(), reserved()
    url = f"http://127.0.0.1:{port}"
    words = ["-tp", "2", "-pp", "2", "--nnodes", "2", "--master-port", str(master)]
    with ExitStack() as stack:
        first, second = nodes(
            machine,
            stack,
            vllm(model, *words, "--node-rank", "0", "--port", str(port)),
            vllm(model, *words, "--node-rank", "1", "--headless"),
        )
        first.until(f"{url}/health")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = dict(zip(PROMPTS, pool.map(lambda p: say(url, p), PROMPTS), strict=True))
        assert answers == reference
        ranks = first.ranks(4)
        assert [
            (rank["node"], rank["pod"], rank["stage"], rank["tensor_rank"]) for rank in ranks
        ] == [
            ("node-0", "pod-0", "0", "0"),
            ("node-0", "pod-0", "0", "1"),
            ("node-1", "pod-1", "1", "0"),
            ("node-1", "pod-1", "1", "1"),
        ]
        assert len({rank["uuid"] for rank in ranks}) == 4
        assert ask(f"{url}/health_generate")[0] == 404
        _, metrics = ask(f"{url}/metrics")
        assert 'vllm:generation_tokens_total{model_name="tiny"}' in metrics
        assert 'vllm:num_requests_running{model_name="tiny"} 0.0' in metrics
        first.process.send_signal(signal.SIGTERM)
        assert first.ended() == 143
        assert second.ended() == 0, "a follower ends with its leader"


@pytest.mark.parametrize("tool", ["vllm", "nim-serve", "sglang"])
def test_a_16_bit_model_is_rounded_while_it_loads(tool: str, machine: Machine, model: Path) -> None:
    prompts = PROMPTS[:3]
    rounded = unsharded(model, prompts, qformat="fp8")
    port = reserved()
    words = {
        "vllm": [*vllm(model, "-tp", "2", "--kv-cache-dtype", "fp8"), "--port", str(port)],
        "nim-serve": ["nim-serve", "--served-model-name", "tiny", "--tensor-parallel-size", "2"],
        "sglang": [
            *("python3", "-m", "sglang.launch_server", "--model-path", str(model)),
            *("--tp-size", "2", "--kv-cache-dtype", "fp8_e4m3", "--schedule-policy", "lpm"),
            *("--port", str(port)),
        ],
    }[tool]
    environment = {
        "NIM_MODEL_PATH": str(model),
        "NIM_SERVER_PORT": str(port),
        "NIM_CACHE_PATH": str(machine.folder),
        "NVIDIA_VISIBLE_DEVICES": "0,1",
    }
    find_sglang(machine)
    with machine.started(*words, "--quantization", "fp8", **environment) as server:
        url = f"http://127.0.0.1:{port}"
        server.until(f"{url}{'/v1/health/ready' if tool == 'nim-serve' else '/health'}")
        assert {prompt: say(url, prompt) for prompt in prompts} == rounded


def test_nim_serves_a_folder_behind_its_proxys_paths(
    machine: Machine, model: Path, reference: dict[str, str]
) -> None:
    port = reserved()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "NIM_MODEL_PATH": str(model),
        "NIM_SERVER_PORT": str(port),
        "NIM_CACHE_PATH": str(machine.folder),
        "NVIDIA_VISIBLE_DEVICES": "0,1",
    }
    words = ["nim-serve", "--served-model-name", "tiny", "--tensor-parallel-size", "2"]
    with machine.started(*words, **environment) as server:
        server.until(f"{url}/v1/health/ready")
        prompt = PROMPTS[0]
        assert say(url, prompt) == reference[prompt]
        _, metrics = ask(f"{url}/v1/metrics")
        assert 'vllm:generation_tokens_total{model_name="tiny"}' in metrics
        assert ask(f"{url}/metrics")[0] == 404
        assert ask(f"{url}/version")[1] == {"version": "0.31.0"}


@pytest.mark.parametrize(
    ("model_path", "words", "told"),
    [
        ("", [], "NIM_MODEL_PATH is not set"),
        ("hf://org/model", [], "absolute paths only"),
        ("/model", ["--pipeline-parallel-size", "2"], "unrecognized arguments"),
    ],
)
def test_nim_refuses_what_is_not_recorded_or_not_played(
    shared: Machine, model_path: str, words: list[str], told: str
) -> None:
    done = shared.run("nim-serve", *words, NIM_MODEL_PATH=model_path)
    assert done.returncode
    assert told in done.stdout + done.stderr


def test_when_a_vllm_node_is_gone_the_others_do_not_stay(machine: Machine, model: Path) -> None:
    port, master = reserved(), reserved()
    words = ["-pp", "2", "--nnodes", "2", "--master-port", str(master)]
    with ExitStack() as stack:
        first, second = nodes(
            machine,
            stack,
            vllm(model, *words, "--port", str(port)),
            vllm(model, *words, "--node-rank", "1", "--headless"),
        )
        first.until(f"http://127.0.0.1:{port}/health")
        second.process.send_signal(signal.SIGTERM)
        assert second.ended() == 0
        with pytest.raises((OSError, AssertionError, http.client.HTTPException)):
            say(f"http://127.0.0.1:{port}", "x")
        assert first.ended() == 1
        assert "lost" in first.text() or "closed by peer" in first.text()


def test_sglang_over_two_nodes_drains_and_ends_with_zero(
    machine: Machine, model: Path, reference: dict[str, str]
) -> None:
    port, master = reserved(), reserved()
    url = f"http://127.0.0.1:{port}"
    words = [
        *("python3", "-m", "sglang.launch_server", "--model-path", str(model)),
        *("--tp-size", "2", "--pp-size", "2", "--nnodes", "2"),
        *("--dist-init-addr", f"127.0.0.1:{master}"),
    ]
    find_sglang(machine)
    faults = Faults(machine)
    with ExitStack() as stack:
        first, second = nodes(
            machine,
            stack,
            [*words, "--node-rank", "0", "--port", str(port), "--enable-metrics"],
            [*words, "--node-rank", "1"],
        )
        first.until(f"{url}/health")
        for prompt in PROMPTS[:5]:
            assert say(url, prompt) == reference[prompt]
        assert "sglang:num_running_reqs" in ask(f"{url}/metrics")[1]
        # A few steps tell that a request runs, and the next does not come before we say so.
        faults.ask(at="step", act="hold", after=3, where={"rank": 0})
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(say, url, PROMPTS[0], max_tokens=300, ignore_eos=True)
            _until_running(url, "sglang:num_running_reqs")
            first.process.send_signal(signal.SIGTERM)
            first.until_said("Shutting down")
            assert ask(f"{url}/health")[0] == 503, "out of the Service, and still answering"
            faults.none()
            assert len(running.result()) >= 300
        assert first.ended() == 0
        assert second.ended() == 0


def _until_running(url: str, name: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in ask(f"{url}/metrics")[1].splitlines():
            if line.startswith(name) and not line.endswith(" 0.0"):
                return
        time.sleep(0.02)
    raise AssertionError(f"{name} stayed at 0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-tp", "3"], "attention heads (8) must be divisible by tensor parallel size (3)"),
        (["-tp", "8"], "World size (8) is larger than the number of available GPUs (4)"),
        (["-tp", "2", "--nnodes", "3"], "must be divisible by nnodes 3"),
        (["--headless", "--api-server-count", "1"], "cannot be used with --headless"),
        (["--max-model-len", "1M"], "(1048576) is greater than the derived max_model_len"),
        (["--enable-sleep-mode"], "does not play --enable-sleep-mode"),
        (["-dp", "2"], "does not play --data-parallel-size 2"),
        (["--quantization", "gptq"], "does not play --quantization gptq"),
        (
            ["--nnodes", "2", "-pp", "2", "--distributed-executor-backend", "ray"],
            "nnodes > 1 can only be set when distributed executor backend is",
        ),
    ],
)
def test_vllm_refuses_what_the_real_one_refuses_or_what_is_not_played(
    words: list[str], said: str, shared: Machine, model: Path
) -> None:
    done = shared.run(*vllm(model, *words))
    assert done.returncode == 1
    assert said in done.stderr


def test_an_unknown_flag_ends_with_two_before_anything_starts(shared: Machine, model: Path) -> None:
    done = shared.run(*vllm(model, "--tensor-parallel", "2"))
    assert done.returncode == 2
    assert "unrecognized arguments: --tensor-parallel" in done.stderr


# --- the HTTP surface ---


@pytest.fixture(scope="module")
def url(shared: Machine, model: Path) -> Iterator[str]:
    port = reserved()
    words = ["--port", str(port), "--max-model-len", "512", "--shutdown-timeout", "30"]
    with shared.started(*vllm(model, *words)) as server:
        server.until(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"


def test_models_and_version_are_told(url: str) -> None:
    assert ask(f"{url}/v1/models")[1]["data"][0]["id"] == "tiny"
    assert ask(f"{url}/version") == (200, {"version": "0.33.0"})
    assert ask(f"{url}/nothing")[0] == 404


def test_a_completion_counts_its_tokens(url: str) -> None:
    status, content = ask(f"{url}/v1/completions", {"prompt": "Hello", "max_tokens": 5})
    assert status == 200
    assert content["usage"] == {"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11}
    assert content["choices"][0]["finish_reason"] == "length"
    same = ask(f"{url}/v1/completions", {"prompt": [256, *b"Hello"], "max_tokens": 5})[1]
    assert same["choices"][0]["text"] == content["choices"][0]["text"]


def test_a_stream_s_pieces_are_the_whole_answer(url: str, reference: dict[str, str]) -> None:
    body = {
        "messages": [{"role": "user", "content": PROMPTS[0]}],
        "max_tokens": 12,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(url + CHAT, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        lines = [line.decode().strip() for line in answer if line.strip()]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(e["choices"][0]["delta"]["content"] for e in events if e["choices"])
    assert text == reference[PROMPTS[0]]
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert events[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": "x", "top_a": 2}, 400, "top_a: Extra inputs are not permitted"),
        ({"prompt": "x", "best_of": 2}, 400, "best_of 2: the stand-in decodes greedily, send 1"),
        ({"prompt": "x", "temperature": 0.7}, 400, "temperature 0.7"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens 0"),
        ({"prompt": "x", "max_tokens": 600}, 400, "exceeds max_seq_len 512"),
        ({"prompt": "x" * 600}, 400, "prompt length 601 exceeds max_input_len 512"),
        ({"prompt": 3}, 400, "neither text nor a list"),
        ({"prompt": "x", "stream": "yes"}, 400, "stream 'yes'"),
        ({"prompt": "x", "model": "other"}, 404, "The model `other` does not exist."),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused_with_its_field(
    body: dict[str, Any], status: int, said: str, url: str
) -> None:
    got, content = ask(f"{url}/v1/completions", body)
    assert got == status
    assert said in content["message"]


def test_a_body_that_is_no_json_object_is_refused(url: str) -> None:
    for data in (b"nothing", b"[1]"):
        request = urllib.request.Request(f"{url}/v1/completions", data)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request, timeout=60)


def test_a_client_that_leaves_a_stream_frees_its_place(url: str) -> None:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    body = {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    connection.getresponse().read(10)
    connection.close()
    deadline = time.monotonic() + 60
    while 'num_requests_running{model_name="tiny"} 0.0' not in ask(f"{url}/metrics")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_vllm_cuts_what_runs_longer_than_its_shutdown_timeout(
    machine: Machine, model: Path
) -> None:
    port = reserved()
    url = f"http://127.0.0.1:{port}"
    faults = Faults(machine)
    with machine.started(*vllm(model, "--port", str(port))) as server:
        server.until(f"{url}/health")
        # Longer than anybody waits for here, and its rank still hears that it shall stop.
        faults.ask(at="step", act="slow", seconds=0.05)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(say, url, "x", max_tokens=3000, ignore_eos=True)
            _until_running(url, "vllm:num_requests_running")
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 143
            with pytest.raises((OSError, http.client.HTTPException, AssertionError)):
                running.result()
