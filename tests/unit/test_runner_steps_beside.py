"""A server beside the tool that measures: real processes, and what each side hears of the other."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from shardwright_standin.ports import reserved
from tests.support.steps import Volumes

from shardwright.runner.contract import (
    SERVE_CONFIG,
    STEP_SCORE,
    STORE,
    Beside,
    Command,
    Report,
    StepRequest,
    artifact_key,
    decode,
    encode,
)
from shardwright.runner.steps.beside import heard, run_beside
from shardwright.runner.steps.score import ScoreStep
from shardwright.runner.steps.stop import Stop

# Answers as vLLM does, with tokens that all have the probability one half; says what it was given.
SERVER = textwrap.dedent("""\
    import json, math, os, pathlib, sys, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    port, folder, config, ending = int(sys.argv[1]), *sys.argv[2:5]
    if ending == "at once":
        print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
        sys.exit(1)
    assert pathlib.Path(folder, "config.json").is_file(), folder
    assert json.loads(pathlib.Path(config).read_text()) == {"seed": 1}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def do_POST(self):
            if ending == "when asked":
                print("Fatal Python error: Segmentation fault", flush=True)
                os._exit(139)
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            count = len(asked["prompt"].split())
            told = {"token_logprobs": [None] + [math.log(0.5)] * count}
            body = json.dumps(
                {"choices": [{"logprobs": told}], "usage": {"prompt_tokens": count}}
            ).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    time.sleep(0.3)  # loading: the other side has to wait
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
""")


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    made = Volumes.make(tmp_path)
    model = made.places.store / "models" / "llama"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (made.places.store / "text.txt").write_text("one two three four " * 50)
    return made


def asked(ending: str = "", **changes: Any) -> StepRequest:
    port = reserved()
    inputs = {"task": "perplexity", "tool": "perplexity"}
    argv = (sys.executable, "-c", SERVER, str(port), "{scratch}/served/tiny", SERVE_CONFIG, ending)
    words = (
        "perplexity",
        *("--url", f"http://{{leader}}:{port}", "--model", "tiny"),
        *("--text", f"{STORE}/text.txt", "--passage_bytes", "40"),
    )
    given: dict[str, Any] = {
        "step": STEP_SCORE,
        "key": artifact_key(STEP_SCORE, inputs),
        "inputs": inputs,
        "commands": (Command(tool="perplexity", argv=words),),
        "expected_files": (),
        "source": f"{STORE}/models/llama",
        "leader": "127.0.0.1",
        "beside": Beside(
            command=Command(tool="vllm-serve", argv=argv),
            served_name="tiny",
            config={"seed": 1},
            port=port,
        ),
        **changes,
    }
    # As both containers get it: through JSON.
    return decode(StepRequest, encode(StepRequest(**given)))


# A process of its own, as in its container: what a runner's processes leave behind is its own.
SIDECAR = textwrap.dedent("""\
    import pathlib, sys
    from shardwright.runner.contract import StepRequest, decode
    from shardwright.runner.steps.main import beside_main
    from shardwright.runner.steps.request import Places

    store, source, scratch = (pathlib.Path(word) for word in sys.argv[2:])
    sys.exit(beside_main(decode(StepRequest, sys.argv[1]), Places(store, source, scratch)))
""")


@contextmanager
def server(request: StepRequest, volumes: Volumes) -> Iterator[subprocess.Popen[bytes]]:
    """The sidecar, until the pod has ended."""
    places = volumes.places
    folders = [str(folder) for folder in (places.store, places.source, places.scratch)]
    words = [sys.executable, "-c", SIDECAR, encode(request), *folders]
    with subprocess.Popen(words) as process:
        try:
            yield process
            assert process.poll() is None, "a sidecar that ended would be started again"
            process.terminate()
            # Without a handler yet it is ended by the signal; process 1 would not hear it.
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            process.kill()


def measured(request: StepRequest, volumes: Volumes) -> Report:
    return ScoreStep(request, "pod-1", volumes.places).run()


def until_ended(volumes: Volumes) -> None:
    deadline = time.monotonic() + 60
    while heard(volumes.places.scratch) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_step_waits_for_the_server_and_asks_it(volumes: Volumes) -> None:
    request = asked()
    with server(request, volumes):
        report = measured(request, volumes)
    assert (report.outcome, report.reason) == ("Done", "")
    assert report.score == pytest.approx(2.0)
    assert heard(volumes.places.scratch) is None, "that it was told to end is no failure"


def test_what_ended_the_server_before_it_answered_is_the_steps_cause(volumes: Volumes) -> None:
    request = asked("at once")
    with server(request, volumes):
        report = measured(request, volumes)
    assert (report.outcome, report.reason) == ("Permanent", "OutOfMemory")
    first = "the server of the 16-bit model ended before it was measured: vllm-serve"
    assert report.message.startswith(first)
    # The candidate's limits and split, which the server's words speak of, are none of its own.
    assert "lower engine.limits.gpuMemoryFraction, or give its score" in report.message
    assert "CUDA out of memory" in report.log_tail


def test_what_ended_the_server_while_it_was_asked_comes_before_the_tools_words(
    volumes: Volumes,
) -> None:
    request = asked("when asked")
    with server(request, volumes):
        report = measured(request, volumes)
    assert report.message.startswith("the server of the 16-bit model ended")
    assert "Segmentation fault" in report.log_tail


def test_a_tool_that_fails_while_the_server_answers_says_itself_why(volumes: Volumes) -> None:
    failing = "import sys; sys.exit('ValueError: tasks not found: gsm8k')"
    inputs = {"task": "gsm8k", "tool": "lm_eval"}
    request = asked(
        key=artifact_key(STEP_SCORE, inputs),
        inputs=inputs,
        commands=(Command("lm_eval", (sys.executable, "-c", failing, "--tasks", "gsm8k")),),
    )
    with server(request, volumes):
        report = measured(request, volumes)
    assert "ended before" not in report.message
    assert "tasks not found: gsm8k" in report.message + report.log_tail


def test_a_server_that_was_killed_with_its_container_is_told_of_and_not_started_again(
    volumes: Volumes,
) -> None:
    request = asked()
    (volumes.places.scratch / "beside.begun").touch()
    with server(request, volumes):
        report = measured(request, volumes)
    assert (report.outcome, report.reason) == ("Environment", "OutOfMemory")
    assert "its container was killed as a whole" in report.message
    assert "stepResources.memory" in report.message


def test_a_server_that_ended_stays_ended_when_its_container_is_started_again(
    volumes: Volumes,
) -> None:
    request = asked("at once")
    for _ in range(2):
        with server(request, volumes):
            until_ended(volumes)
    report = measured(request, volumes)
    assert report.reason == "OutOfMemory"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": ""}, "no model for it"),
        ({"source": "/etc/models"}, "neither below"),
    ],
)
def test_a_request_that_cannot_be_used_is_told_of(
    volumes: Volumes, changes: dict[str, Any], said: str
) -> None:
    request = asked(**changes)
    with server(request, volumes):
        report = measured(request, volumes)
    assert (report.outcome, report.reason) == ("Environment", "ToolFailed")
    assert said in report.message


def test_a_runner_that_fails_itself_is_not_taken_for_a_kill_by_the_kernel(
    volumes: Volumes,
) -> None:
    """Its container is started again and again, and its own words tell why."""
    scratch = volumes.places.scratch
    (scratch / "config.yaml").mkdir()
    stop = Stop()
    stop.set()
    for _ in range(2):
        with pytest.raises(OSError, match=r"config\.yaml"):
            run_beside(asked(), volumes.places, stop)
    assert heard(scratch) is None


def test_a_server_that_answers_nonsense_is_not_ready(volumes: Volumes) -> None:
    """Any process may have the port before the server has."""
    request = asked(timeout_seconds=2)
    assert request.beside is not None
    with socket.create_server(("127.0.0.1", request.beside.port)) as listening:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    other, _ = listening.accept()
                    with other:
                        other.sendall(b"SSH-2.0-x\r\n")

        threading.Thread(target=answer, daemon=True).start()
        report = measured(request, volumes)
        listening.shutdown(socket.SHUT_RDWR)
    assert (report.outcome, report.reason) == ("Environment", "Timeout")


def test_a_tool_that_is_not_in_the_image_names_the_image(volumes: Volumes) -> None:
    whole = asked()
    assert whole.beside is not None
    request = asked(beside=Beside(Command("vllm-serve", ("/nowhere/vllm", "serve")), "tiny"))
    with server(request, volumes):
        report = measured(request, volumes)
    assert (report.outcome, report.reason) == ("Environment", "ToolFailed")
    assert "/nowhere/vllm cannot be started" in report.message
    assert "choose another engine.image" in report.message


def test_a_step_that_is_told_to_end_does_not_wait_for_the_server(volumes: Volumes) -> None:
    stop = Stop()
    threading.Timer(0.3, stop.set).start()
    report = ScoreStep(asked(), "pod-1", volumes.places, stop).run()
    assert (report.outcome, report.reason) == ("Environment", "Killed")


def test_a_server_that_does_not_come_up_is_waited_for_until_the_steps_end(
    volumes: Volumes,
) -> None:
    report = measured(asked(timeout_seconds=1), volumes)
    assert (report.outcome, report.reason) == ("Environment", "Timeout")


@pytest.mark.parametrize("left", [b"{", b"{}", json.dumps({"cause": {"a": 1}}).encode()])
def test_what_the_server_left_is_no_cause_when_it_cannot_be_read(
    volumes: Volumes, left: bytes
) -> None:
    (volumes.places.scratch / "beside.json").write_bytes(left)
    report = measured(asked(), volumes)
    assert (report.outcome, report.reason) == ("Environment", "ToolFailed")
    assert "what the server beside left cannot be read" in report.message
