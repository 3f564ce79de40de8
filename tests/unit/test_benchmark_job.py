"""Measuring a replica: the tools' command lines, the Job, what it leaves, and the commands."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from shardwright_standin import commandline
from tests.golden import specs
from typer.testing import CliRunner

from shardwright.api import names
from shardwright.api.status import BenchmarkStatus, LLMDeploymentStatus
from shardwright.apply.errors import ClusterError, Conflict, Forbidden, NotFound, Unavailable
from shardwright.benchmark import inside
from shardwright.benchmark.job import (
    LABEL_BENCHMARK,
    PULL_SECONDS,
    JobError,
    Sweep,
    benchmark_job,
    concurrencies,
    longest,
    points_of,
    tool_for,
)
from shardwright.benchmark.results import MOST_POINTS, Point, Run, read_run
from shardwright.benchmark.tools import AIPERF, RESULT_KEYS, TOOLS, Load, Tool, requests_of
from shardwright.benchmark.waiting import over, progress, waits_for, why_not_ready
from shardwright.cli import benchmark as command
from shardwright.cli import measuring
from shardwright.cli.app import app
from shardwright.plan import revisions
from shardwright.plan.report import applied
from shardwright.render.pods import group_pods
from shardwright.runner.contract import TERMINATION_LIMIT_BYTES

LOAD = Load("http://10.0.0.1:8000", "llama-70b", "/shardwright/store/models/x", 2048, 512)
NAME = "llama-70b-tp8-pp2"


def leader(**status: Any) -> dict[str, Any]:
    """A leader's pod as the operator renders it, running."""
    pod = group_pods(specs.resolved(*specs.EXAMPLES[NAME]), specs.identity(NAME), "runner")[0]
    return {**pod, "status": {"podIP": "10.0.0.1", **status}}


def sweep(runtime: str = "VLLM", **changes: Any) -> Sweep:
    base = Sweep(TOOLS.get(runtime, AIPERF), "", 2048, 512, (1, 4, 16), 900)
    return replace(base, **changes)


def request_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    found: dict[str, Any] = json.loads(env[inside.ENVIRONMENT])
    return found


# --- the tools


@pytest.mark.parametrize("runtime", TOOLS)
@pytest.mark.parametrize("concurrency", [1, 7, 4096])
def test_a_tool_s_command_line_is_one_that_its_recorded_contract_takes(
    runtime: str, concurrency: int
) -> None:
    tool = TOOLS[runtime]
    argv = tool.command(LOAD, concurrency, "/r/x")
    assert argv[: len(tool.program)] == tool.program
    found = commandline.parse(tool.contract, argv[len(tool.program) :]).values
    assert found["base_url"] == LOAD.url
    assert (found["model"], found["served_model_name"]) == ("llama-70b", "llama-70b")
    assert found["tokenizer"] == LOAD.tokenizer
    assert (found["random_input_len"], found["random_output_len"]) == (2048, 512)
    assert found["max_concurrency"] == concurrency
    assert found["num_prompts"] == requests_of(concurrency) == max(16, 8 * concurrency)
    assert f"/r/x/{tool.result}" in argv


@pytest.mark.parametrize("concurrency", [1, 7, 4096])
def test_aiperf_is_told_exactly_what_the_others_are(concurrency: int) -> None:
    argv = AIPERF.command(LOAD, concurrency, "/r/x")
    assert argv[:2] == ("aiperf", "profile")
    found = commandline.parse("aiperf-profile", argv[2:]).values
    assert found["url"] == LOAD.url
    assert (found["model"], found["tokenizer"]) == ("llama-70b", LOAD.tokenizer)
    assert (found["isl"], found["osl"]) == (2048, 512)
    assert (found["isl_stddev"], found["osl_stddev"]) == (0, 0)
    assert found["concurrency"] == concurrency
    assert found["request_count"] == found["num_dataset_entries"] == requests_of(concurrency)
    assert found["extra_inputs"] == ["ignore_eos:true"]
    assert found["output_artifact_dir"] == "/r/x"


@pytest.mark.parametrize("tool", [*TOOLS.values(), AIPERF], ids=[*TOOLS, "aiperf"])
def test_what_is_not_recorded_is_refused(tool: Tool) -> None:
    argv = (*tool.command(LOAD, 4, "/r/x")[len(tool.program) :], "--invented", "1")
    with pytest.raises(SystemExit) as ended:
        commandline.parse(tool.contract, argv)
    assert ended.value.code == 2


@pytest.mark.parametrize("tool", [*TOOLS.values(), AIPERF], ids=[*TOOLS, "aiperf"])
def test_code_in_the_model_s_folder_runs_only_where_the_user_trusts_it(tool: Tool) -> None:
    plain = tool.command(LOAD, 4, "/r/x")
    trusted = tool.command(replace(LOAD, trust_code=True), 4, "/r/x")
    assert not [word for word in plain if "trust" in word]
    assert trusted[len(plain) :] == ((tool.trust_flag,) if tool.trust_flag else ())
    commandline.parse(tool.contract, trusted[len(tool.program) :])
    # One that trusts whatever it finds is kept from folders that have code.
    job = benchmark_job(leader(), "x", sweep(tool=tool))
    folder = request_of(job)["must_hold_no_code"]
    assert folder.startswith("/shardwright/store/") if tool.trusts_always else folder == ""
    job = benchmark_job(leader(), "x", sweep(tool=tool, trust_code=True))
    assert request_of(job)["must_hold_no_code"] == ""


def test_each_runtime_is_measured_by_a_tool_that_can_ask_it() -> None:
    assert [tool_for(name, "own", "") for name in TOOLS] == list(TOOLS.values())
    for name in (*TOOLS, "NIM"):
        assert tool_for(name, "aiperf", "aiperf:0.13.0") is AIPERF


@pytest.mark.parametrize(
    ("runtime", "tool", "image", "words"),
    [
        ("NIM", "own", "", "no benchmark that asks a server; measure with --tool aiperf --image"),
        ("Triton", "own", "", "no benchmark that asks a server; measure with a tool of your own"),
        ("Triton", "aiperf", "x", "aiperf 0.13 has no endpoint type for it"),
        ("VLLM", "aiperf", "", "--tool aiperf: name an image that has aiperf with --image"),
        ("VLLM", "own", "x", "give --image only with --tool aiperf"),
    ],
)
def test_a_tool_that_cannot_measure_is_refused_with_what_can(
    runtime: str, tool: str, image: str, words: str
) -> None:
    with pytest.raises(JobError, match=words):
        tool_for(runtime, tool, image)


# --- the Job


@pytest.mark.parametrize("runtime", TOOLS)
def test_the_job_runs_in_the_leader_s_image_beside_its_files_and_takes_no_gpu(runtime: str) -> None:
    pod = leader()
    job = benchmark_job(pod, "llama-benchmark-1", sweep(runtime))
    kubernetes_validate.validate(job, "1.37", strict=True)
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == pod["spec"]["containers"][0]["image"]
    assert names.GPU_RESOURCE not in container["resources"]["requests"]
    assert spec["automountServiceAccountToken"] is False
    assert job["spec"]["backoffLimit"] == 0
    claims = [one for one in spec["volumes"] if "persistentVolumeClaim" in one]
    assert claims
    for mount in container["volumeMounts"]:
        assert mount.get("readOnly") is (True if mount["name"] == claims[0]["name"] else None)
    request = request_of(job)
    assert [point["concurrency"] for point in request["points"]] == [1, 4, 16]
    assert request["metrics"] == "http://10.0.0.1:8091/metrics"
    assert set(request["keys"].values()) == set(RESULT_KEYS.values())
    assert request["health"] == "http://10.0.0.1:8000/health"
    assert request["seconds"] == 900
    assert job["spec"]["activeDeadlineSeconds"] == 900 + PULL_SECONDS
    argv = request["points"][0]["argv"]
    assert argv[argv.index("--base-url") + 1] == "http://10.0.0.1:8000"
    assert argv[argv.index("--tokenizer") + 1].startswith("/shardwright/store/")
    # The operator counts no pod of a benchmark as one of its own.
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert LABEL_BENCHMARK in labels
        assert names.LABEL_DEPLOYMENT not in labels


def test_an_ipv6_leader_is_asked_at_its_address_in_brackets() -> None:
    job = benchmark_job(leader(podIP="fd00::1"), "x", sweep())
    assert request_of(job)["metrics"] == "http://[fd00::1]:8091/metrics"


def test_it_runs_in_the_leader_s_pool_and_best_where_the_image_and_the_claims_are() -> None:
    pod = leader()
    spec = pod["spec"]
    spec["nodeSelector"] |= {"pool": "gpu", names.HOSTNAME_LABEL: "node-7"}
    made = benchmark_job(pod, "x", sweep())["spec"]["template"]["spec"]
    pool = {name: at for name, at in spec["nodeSelector"].items() if at != "node-7"}
    assert made["nodeSelector"] == pool
    assert pool["pool"] == "gpu"
    assert made["tolerations"] == spec["tolerations"]
    assert made["affinity"] == {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "In",
                                "values": ["node-7"],
                            }
                        ]
                    },
                },
                {
                    "weight": 50,
                    "preference": {
                        "matchExpressions": [
                            {
                                "key": "nvidia.com/gpu.product",
                                "operator": "In",
                                "values": ["NVIDIA-H100-80GB-HBM3"],
                            }
                        ]
                    },
                },
            ]
        }
    }
    kubernetes_validate.validate(benchmark_job(pod, "x", sweep()), "1.37", strict=True)


def test_aiperf_runs_in_its_own_image_and_is_not_told_to_be_offline() -> None:
    job = benchmark_job(leader(), "x", sweep(tool=AIPERF, image="registry/aiperf:0.13.0"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry/aiperf:0.13.0"
    assert "HF_HUB_OFFLINE" not in {one["name"] for one in container["env"]}
    request = request_of(job)
    assert request["keys"]["ttft_p99_ms"] == "time_to_first_token.p99"
    assert request["completed"] == "request_count.avg"
    assert request["points"][2]["result"].endswith("/16/profile_export_aiperf.json")


def test_every_number_of_a_point_is_in_a_result_that_aiperf_itself_wrote() -> None:
    # Of a run of aiperf 0.13.0 against the stand-in's server; what is not read was cut out.
    data = Path(__file__).resolve().parents[1] / "data/benchmark/aiperf-0.13.0.json"
    result = inside.last_result(data.read_text(encoding="utf-8"))
    found = {name: inside.number(result, path) for name, path in AIPERF.keys.items()}
    assert set(found) == set(RESULT_KEYS)
    assert found["tokens_per_second"] == pytest.approx(16 * found["requests_per_second"])
    assert found["ttft_ms"] < found["ttft_p99_ms"]
    assert found["tpot_ms"] < found["tpot_p99_ms"]
    assert inside.number(result, AIPERF.completed) == 32


def test_the_time_allowed_goes_by_the_points() -> None:
    # 8 rounds of 30 s and 512 tokens at 250 ms each, 16 at one request at once; 180 s for a start.
    assert longest((4,), 512) == 180 + 8 * 158
    assert longest((1,), 512) == 180 + 16 * 158
    assert longest((1, 4), 512) == longest((1,), 512) + longest((4,), 512)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(JobError, match="has no address yet"):
        benchmark_job(leader(podIP=None), "x", sweep())
    other = leader()
    other["spec"]["containers"][0]["env"] = []
    with pytest.raises(JobError, match="cannot be read"):
        benchmark_job(other, "x", sweep())


@pytest.mark.parametrize(
    "text", ["", "0,1", "4,2", "2,2", "1,x", "5000", ",".join(map(str, range(1, 18)))]
)
def test_concurrencies_that_make_no_sweep_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="rising numbers"):
        concurrencies(text)
    assert concurrencies("1,2,64") == (1, 2, 64)


# --- inside its pod


TOOL = """
import json, os, pathlib, sys, time
out, at = pathlib.Path(sys.argv[1]), int(sys.argv[2])
print("a table for people")
if at == 99:
    sys.exit("RuntimeError: the server refused")
if at == 96:
    begun = out.parent / "new"
    begun.write_text(f"{os.getppid()} {os.getpid()}")
    begun.rename(out.parent / "begun")
    time.sleep(600)
looks = out.parent.parent / "looks"
if looks.exists():
    # The second look tells that the first one counts.
    enough = looks.stat().st_size + 2
    while looks.stat().st_size < enough:
        time.sleep(0.01)
result = {"completed": 15, "output_throughput": 100.0 * at, "request_throughput": at / 2,
          "median_ttft_ms": 20.5, "p99_ttft_ms": 40.25, "median_tpot_ms": 9.0, "p99_tpot_ms": 11.0}
if at == 98:
    del result["p99_tpot_ms"]
if at == 97:
    result["completed"] = 0
if at == 95:
    result["median_tpot_ms"] = float("nan")
text = json.dumps(result)
out.write_text("{\\"older\\": 1}\\n" + text + "\\n" if at == 2 else text)
"""


@contextmanager
def metrics(text: str, looks: Path | None = None) -> Iterator[str]:
    """A page; each look at it adds a byte to `looks`."""
    if looks is not None:
        looks.touch()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())
            if looks is not None:
                with looks.open("a") as file:
                    file.write("x")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def run_inside(
    folder: Path,
    at_once: tuple[int, ...],
    url: str = "",
    draft_len: int = 0,
    first: str = "",
    **changes: Any,
) -> tuple[int, str]:
    """The exit code and the termination message of what runs in the pod, `first` before it."""
    tool = folder / "tool.py"
    tool.write_text(TOOL)
    points = [
        {
            "concurrency": at,
            "requests": 16,
            "argv": [sys.executable, str(tool), str(folder / f"out/{at}.json"), str(at)],
            "result": str(folder / f"out/{at}.json"),
        }
        for at in at_once
    ]
    log = folder / "termination"
    source = Path(inside.__file__).read_text().replace(inside.TERMINATION_LOG, str(log))
    source = source.replace("_LOOK_SECONDS = 2.0", "_LOOK_SECONDS = 0.01")
    source = source.replace("_PATIENCE_SECONDS = 120.0", "_PATIENCE_SECONDS = 0.1")
    source = source.replace("import contextlib\n", f"{first}import contextlib\n", 1)
    with metrics("well") as health:
        request = {
            "points": points,
            "keys": dict(RESULT_KEYS),
            "completed": "completed",
            "health": health,
            "metrics": url,
            "draft_len": draft_len,
            "seconds": 600,
            "must_hold_no_code": "",
            **changes,
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", source],
            env={inside.ENVIRONMENT: json.dumps(request)},
            capture_output=True,
            text=True,
            check=False,
        )
    (folder / "log").write_text(done.stderr)
    return done.returncode, log.read_text()


def busy(share: float, running: float, waiting: float = 0) -> str:
    return (
        f'shardwright_kv_cache_utilization{{deployment="m"}} {share}\n'
        f'shardwright_requests_running{{deployment="m"}} {running}\n'
        f'shardwright_requests_waiting{{deployment="m"}} {waiting}\n'
    )


def test_every_point_is_measured_and_told_in_the_termination_message(tmp_path: Path) -> None:
    with metrics(busy(0.625, 4), tmp_path / "looks") as url:
        code, message = run_inside(tmp_path, (1, 2, 4), url)
    assert code == 0
    points, error = points_of(message)
    assert error == ""
    assert [point.concurrency for point in points] == [1, 2, 4]
    assert points[1] == Point(2, 200.0, 1.0, 20.5, 40.25, 9.0, 11.0, failed=1, kv_cache=0.625)
    assert progress((tmp_path / "log").read_text()) == [
        "1 of 3: 1 at once, 16 requests",
        "1 at once: 100.0 tokens/s, TTFT 20 ms, TPOT 9.0 ms",
        "2 of 3: 2 at once, 16 requests",
        "2 at once: 200.0 tokens/s, TTFT 20 ms, TPOT 9.0 ms",
        "3 of 3: 4 at once, 16 requests",
        "4 at once: 400.0 tokens/s, TTFT 20 ms, TPOT 9.0 ms",
    ]


@pytest.mark.parametrize(
    ("page", "share"),
    [
        (busy(0.7, 8), 0.7),
        # The batch is full and the others wait: the point is in force.
        (busy(0.9, 2, 6), 0.9),
        (busy(0.7, 4), 0.7),
        # The tool starts, tries one request, or has few left.
        (busy(0.1, 0), None),
        (busy(0.1, 3), None),
        # An engine that tells no requests cannot say when they were there.
        ("shardwright_kv_cache_utilization 0.7\n", None),
        ("shardwright_requests_running 8\n", None),
        ("", None),
    ],
)
def test_the_cache_is_looked_at_only_while_the_point_s_requests_are_there(
    page: str, share: float | None
) -> None:
    assert inside.held(page, 8) == share


def page(draft: float | None, accepted: float = 0, length: float | None = None) -> str:
    lines = [] if length is None else [f'shardwright_acceptance_length{{rank="0"}} {length}']
    if draft is not None:
        for rank in "01":
            lines.append(f'shardwright_draft_tokens_total{{rank="{rank}"}} {draft / 2}')
            lines.append(f'shardwright_accepted_tokens_total{{rank="{rank}"}} {accepted / 2}')
    return "\n".join(["# HELP shardwright_draft_tokens_total words", *lines, ""])


@pytest.mark.parametrize(
    ("before", "after", "length"),
    [
        (page(100, 90), page(500, 190), 2.0),
        (page(100, 90, 4.0), page(500, 490, 4.0), 5.0),
        (page(None), page(400, 0), 1.0),
        # Nothing was drafted meanwhile: what the engine says by itself.
        (page(100, 90), page(100, 90, 2.5), 2.5),
        (page(None), page(None, length=3.125), 3.125),
        (page(None), page(None), None),
        # No length that drafts of 4 give: an engine that began anew, or an idle one.
        (page(500, 400), page(100, 10), None),
        (page(None), page(None, length=0.0), None),
    ],
)
def test_accepted_tokens_are_those_of_the_time_between_two_looks(
    before: str, after: str, length: float | None
) -> None:
    assert inside.acceptance(before, after, 4) == length


def test_points_tell_what_was_accepted_only_where_tokens_are_drafted(tmp_path: Path) -> None:
    with metrics(page(100, 50, 2.5)) as url:
        _, drafted = run_inside(tmp_path, (1, 2), url, draft_len=4)
        _, plain = run_inside(tmp_path, (1, 2), url)
    assert [point.acceptance for point in points_of(drafted)[0]] == [2.5, 2.5]
    assert [point.acceptance for point in points_of(plain)[0]] == [None, None]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (99, "exit status 1: a table for people / RuntimeError: the server refused"),
        (98, "the result has no number p99_tpot_ms"),
        (97, "none of its 16 requests was answered"),
        (95, "the result has no number median_tpot_ms"),
    ],
)
def test_a_point_that_fails_leaves_those_before_it_and_says_why(
    tmp_path: Path, bad: int, words: str
) -> None:
    code, message = run_inside(tmp_path, (1, bad, 128, 256))
    assert code == 1
    points, error = points_of(message)
    assert [point.concurrency for point in points] == [1]
    assert error == f"{bad} at once (128, 256 not tried): {words}"


def test_points_that_take_too_long_are_given_up_and_their_tool_ended(tmp_path: Path) -> None:
    begun = tmp_path / "out/begun"
    # An hour passes as soon as the second point's tool runs.
    clock = (
        "import os, time\nreal = time.monotonic\n"
        f"time.monotonic = lambda: real() + 3600 * os.path.exists({str(begun)!r})\n"
    )
    _, message = run_inside(tmp_path, (1, 96), first=clock, seconds=1800)
    points, error = points_of(message)
    assert [point.concurrency for point in points] == [1]
    told = re.fullmatch(r"96 at once: not done within (\d+) s, all that was left", error)
    assert told is not None, error
    assert 0 < int(told[1]) <= 1800
    assert not Path(f"/proc/{begun.read_text().split()[1]}").exists()


def test_a_pod_that_is_told_to_end_tells_what_it_has(tmp_path: Path) -> None:
    done: list[tuple[int, str]] = []
    work = threading.Thread(target=lambda: done.append(run_inside(tmp_path, (1, 96, 128))))
    work.start()
    begun = tmp_path / "out/begun"
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(int(begun.read_text().split()[0]), signal.SIGTERM)
    work.join(60)
    ((code, message),) = done
    points, error = points_of(message)
    assert code == 1
    assert [point.concurrency for point in points] == [1]
    assert error == "96 at once (128 not tried): the pod was told to end"


def test_a_server_that_is_not_ready_is_waited_for_and_named(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/health"
    code, message = run_inside(tmp_path, (1,), health=url)
    assert code == 1
    with pytest.raises(JobError, match=f"measured nothing: 1 at once: .*not ready: {url}: "):
        points_of(message)
    assert f"waits for {url}: " in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_tool_that_trusts_all_never_sees_a_folder_with_code(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for one in ("config.json", "tokenizer_config.json"):
        (folder / one).write_text("{}")
    code, _ = run_inside(tmp_path, (1,), must_hold_no_code=str(folder))
    assert code == 0
    (folder / name).write_text(json.dumps({"auto_map": {"AutoTokenizer": ["tokens.Own", None]}}))
    code, message = run_inside(tmp_path, (1,), must_hold_no_code=str(folder))
    assert code == 1
    with pytest.raises(JobError) as told:
        points_of(message)
    assert str(told.value) == (
        f"the benchmark measured nothing: {name} of the model names code of its own (auto_map), "
        "and this tool would run it unasked: set spec.model.trustRemoteCode if you trust it"
    )


def test_sixteen_points_and_a_long_error_fit_a_termination_message() -> None:
    point = {
        "concurrency": 4096,
        "kv_cache": 0.9999,
        "acceptance": 65.999,
        "failed": 32768,
        **dict.fromkeys(RESULT_KEYS, 123456.789),
    }
    for error in ("", "ö" * 9000, '"\\\\' * 9000):
        message = inside.report([point] * MOST_POINTS, error)
        assert len(message.encode()) <= TERMINATION_LIMIT_BYTES == inside.LIMIT_BYTES
        assert len(json.loads(message)["rows"]) == MOST_POINTS


RESULT_NAMES = ("concurrency", *RESULT_KEYS)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{}",
        "[1]",
        '{"names": ["x"], "rows": [[1]], "error": ""}',
        "[" * 100_000,
        json.dumps({"names": RESULT_NAMES, "rows": [["1"] * len(RESULT_NAMES)], "error": ""}),
        json.dumps({"names": RESULT_NAMES, "rows": [[math.nan] * len(RESULT_NAMES)], "error": ""}),
    ],
)
def test_a_pod_that_left_no_results_is_said_to_have(message: str) -> None:
    with pytest.raises(JobError, match="left no results"):
        points_of(message)


# --- what strangers write


@pytest.mark.parametrize("value", [10**400, math.nan, math.inf, True, "1", None])
def test_what_is_no_number_of_a_result_is_named(value: object) -> None:
    with pytest.raises(RuntimeError, match=r"the result has no number a\.b"):
        inside.number({"a": {"b": value}}, "a.b")


def test_a_result_that_is_nested_too_deep_is_none() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        inside.last_result("[" * 100_000)


@pytest.mark.parametrize(("value", "share"), [("NaN", None), ("soon", None), ("0.5", 0.5)])
def test_a_share_of_the_cache_is_a_number_whatever_its_labels(
    value: str, share: float | None
) -> None:
    labels = '{model="a}b",name="\\"{"}'
    page = (
        f"shardwright_kv_cache_utilization{labels} {value}\n"
        f"shardwright_requests_running{labels} 5\n"
    )
    assert inside.held(page, 4) == share


# --- what a pod waits for


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (None, "waits for its pod: a quota or the namespace's pod security may refuse it"),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient cpu.",
                    }
                ]
            },
            "waits for a node: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        ({"phase": "Pending"}, "waits for its node to take it"),
        (
            {
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such"}}}
                ]
            },
            "waits for its container: ImagePullBackOff: no such",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
            "waits for its container: ContainerCreating",
        ),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
    ],
)
def test_what_the_benchmark_waits_for_is_told(pod: dict[str, Any] | None, words: str) -> None:
    assert waits_for(None if pod is None else {"status": pod}) == words


def test_a_pod_is_over_with_its_message_or_with_what_ended_it() -> None:
    def pod(**status: Any) -> dict[str, Any]:
        return {"status": status}

    ended = [{"state": {"terminated": {"exitCode": 1, "message": "m"}}}]
    assert over(pod(phase="Failed", containerStatuses=ended)) == (True, "m")
    assert over(pod(phase="Failed", reason="Evicted", message="low on memory")) == (
        True,
        "Evicted: low on memory",
    )
    assert over(pod(phase="Running", containerStatuses=[{"state": {"running": {}}}])) == (False, "")
    assert over(None) == (False, "")


def test_why_a_leader_is_not_ready_is_the_kubelet_s_word() -> None:
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "x"}
    assert why_not_ready({"status": {"conditions": [unready]}}) == "x"
    assert why_not_ready({"status": {"phase": "Pending"}}) == "Pending"


# --- the commands


class FakeCluster:
    """What the command asks of a cluster: one deployment, one leader, and its Job's pod."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.applied: list[tuple[str, dict[str, Any]]] = []
        self.ready = "True"
        self.conflicts = 0
        self.data = revisions.dump(specs.resolved(*specs.EXAMPLES[NAME]))
        limits = {**self.data["spec"]["engine"]["limits"], "maxBatchSize": 256}
        self.data["spec"]["engine"] = {"runtime": "VLLM", "version": "0.33.0", "limits": limits}
        self.data["spec"]["quantization"]["weights"] = "FP8"
        self.states: list[dict[str, Any]] = []
        self.lines = ""
        self.silent: list[ClusterError] = []
        self.gone = False
        self.serving = ""

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert namespace == "llm"
        if kind == "ControllerRevision":
            return {"metadata": {"name": name, "uid": "r"}, "data": self.data, "revision": 1}
        if kind == "Pod":
            if self.gone:
                raise NotFound("get", 404, "NotFound", name)
            return self._leader()
        assert (kind, name) == ("LLMDeployment", "llama-70b")
        found = {"name": name, "namespace": namespace, "uid": "u", "resourceVersion": "7"}
        # As it was edited since: nothing of this is true of what was measured.
        spec = {"engine": {"runtime": "SGLang"}, "quantization": {"weights": "INT4AWQ"}}
        serving = {"engine": {"serving": {"revision": self.serving}}}
        return {"metadata": found, "spec": spec, "status": serving}

    def _leader(self) -> dict[str, Any]:
        ready = {"type": "Ready", "status": self.ready, "message": "the engine loads"}
        made = leader(conditions=[ready])
        made["metadata"]["uid"] = "p"
        return made

    async def apply_status(self, kind: str, body: dict[str, Any], *, manager: str) -> None:
        assert kind == names.KIND
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("PATCH", 409, "Conflict", "the object has been modified")
        self.applied.append((manager, body))

    async def list(self, kind: str, namespace: str, *, labels: str) -> Any:
        assert (kind, namespace) == ("Pod", "llm")
        if "job-name" in labels:
            over = {
                "containerStatuses": [{"state": {"terminated": {"message": self.message}}}],
            }
            status = self.states.pop(0) if self.states else over
            items = [{"metadata": {"name": "j"}, "status": status}]
        else:
            items = [self._leader()]
        return type("Listing", (), {"items": items})

    async def log(self, namespace: str, pod: str) -> str:
        assert (namespace, pod) == ("llm", "j")
        if self.silent:
            raise self.silent.pop()
        if not self.lines:
            raise Forbidden("log", 403, "Forbidden", "pods/log")
        return self.lines

    async def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        assert kind == "Job"
        self.created.append(body)
        return {**body, "metadata": {**body["metadata"], "uid": "job"}}


COLUMNS = (
    *("concurrency", "failed", "kv_cache", "requests_per_second", "tokens_per_second"),
    *("tpot_ms", "tpot_p99_ms", "ttft_ms", "ttft_p99_ms"),
)


def message_of(*at_once: int, error: str = "") -> str:
    rows = [[at, 0, 0.9, 1.0, 100.0 * min(at, 8), 10.0, 12.0, 30.0, 60.0] for at in at_once]
    return json.dumps({"names": COLUMNS, "rows": rows, "error": error})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster(message_of(1, 2, 4, 8, 16, 32))

    @asynccontextmanager
    async def connect(_: str) -> AsyncIterator[FakeCluster]:
        yield fake

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr(measuring, "POLL_SECONDS", 0.0)
    return fake


def call(out: Path, *more: str, at_once: str = "1,2,4,8,16,32") -> Any:
    words = ["benchmark", "llama-70b", "-n", "llm", "-o", str(out), "--concurrency", at_once]
    return CliRunner().invoke(app, [*words, *more])


def test_a_replica_is_measured_and_told_its_knee(cluster: FakeCluster, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    done = call(out)
    assert done.exit_code == 0, done.output
    (job,) = cluster.created
    assert job["metadata"]["name"].startswith("llama-70b-benchmark-")
    run = read_run(out.read_text())
    assert run.remarks == ()
    assert run.max_batch_size == 256
    assert run.points[3].tokens_per_second == 800
    assert "the knee is at 8 requests at once" in done.output
    assert "maxBatchSize from 256 to 10" in done.output
    assert "Raise the token budget" in done.output
    ((manager, body),) = cluster.applied
    assert manager == names.MANAGER_BENCHMARK
    assert body["metadata"]["resourceVersion"] == "7"
    found = BenchmarkStatus.model_validate(body["status"]["benchmark"])
    assert (found.knee, found.revision) == (8, run.revision)
    assert found.points[3].tokens_per_second == 800
    assert len(found.advice) == 2


def test_a_run_is_called_what_its_pod_s_revision_is_not_what_the_spec_says_by_now(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.data["spec"]["parallelism"]["attentionData"] = 4
    done = call(tmp_path / "run.json")
    assert done.exit_code == 0, done.output
    run = read_run((tmp_path / "run.json").read_text())
    assert (run.runtime, run.weights, run.tensor, run.pipeline) == ("VLLM", "FP8", 8, 2)
    assert run.attention_groups == 4
    assert run.tool.startswith("vllm-bench-serve of ")
    (container,) = cluster.created[0]["spec"]["template"]["spec"]["containers"]
    assert request_of(cluster.created[0])["points"][0]["argv"][:3] == ["vllm", "bench", "serve"]
    assert container["name"] == "benchmark"


def test_what_it_waits_for_and_each_point_are_told_meanwhile(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
    running = {"containerStatuses": [{"state": {"running": {}}}]}
    cluster.states = [waiting, waiting, running, running]
    cluster.lines = "tool's own\n[benchmark] 1 of 6: 1 at once, 16 requests\n"
    done = call(tmp_path / "run.json")
    told = done.stderr.splitlines()
    assert told[1:] == [
        "waits for its container: ContainerCreating",
        "1 of 6: 1 at once, 16 requests",
    ]
    assert "measures pod" in told[0]
    cluster.lines = ""
    cluster.states = [running, running]
    done = call(tmp_path / "run.json")
    assert done.exit_code == 0
    assert len([one for one in done.stderr.splitlines() if "progress is not shown" in one]) == 1


def test_a_log_that_cannot_be_read_for_a_moment_is_read_again(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    running = {"containerStatuses": [{"state": {"running": {}}}]}
    cluster.states = [running, running, running]
    cluster.silent = [Unavailable("log", 503, "ServiceUnavailable", "no kubelet")] * 2
    cluster.lines = "[benchmark] 1 of 6: 1 at once, 16 requests\n"
    told = call(tmp_path / "run.json").stderr.splitlines()
    assert len([one for one in told if "progress is not shown" in one]) == 1
    assert told[-1] == "1 of 6: 1 at once, 16 requests"


def test_points_that_were_measured_are_kept_when_a_later_one_fails(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.message = message_of(1, 2, 4, error="8 at once (16, 32 not tried): exit status 1: x")
    out = tmp_path / "run.json"
    done = call(out)
    assert done.exit_code == 1
    run = read_run(out.read_text())
    assert [point.concurrency for point in run.points] == [1, 2, 4]
    assert run.remarks == ("not all was measured: 8 at once (16, 32 not tried): exit status 1: x",)
    assert f"· {run.remarks[0]}" in done.output
    (_, body) = cluster.applied[-1]
    assert body["status"]["benchmark"]["advice"][0] == run.remarks[0]
    cluster.message = message_of(error="1 at once: exit status 1")
    out.unlink()
    done = call(out)
    assert done.exit_code == 1
    assert "the benchmark measured nothing: 1 at once: exit status 1" in done.output
    assert not out.exists()
    assert len(cluster.applied) == 1


def test_a_replica_that_changes_while_it_is_measured_is_told(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    out = tmp_path / "run.json"
    cluster.gone, cluster.serving = True, "llama-70b-newer"
    assert call(out).exit_code == 0
    run = read_run(out.read_text())
    pod = leader()["metadata"]["name"]
    assert run.remarks == (
        f"pod {pod} went away while it was measured: doubt the last point",
        f"these figures are of revision {run.revision}; by now llama-70b-newer serves",
    )


def test_a_revision_that_cannot_be_read_is_not_measured(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.data["version"] = 99
    done = call(tmp_path / "run.json")
    assert done.exit_code == 1
    assert "cannot be read: revision data of version 99; this operator reads 1" in done.output
    assert cluster.created == []


TOO_LONG = (
    "--input-len 8000 and --output-len 512 are 8512 tokens, and engine.limits.maxSeqLen of what "
    "serves is 8192: ask for shorter ones"
)
PROMPT_TOO_LONG = (
    "--input-len 5000 exceeds engine.limits.maxInputLen 4096 of what serves: ask for a shorter one"
)


@pytest.mark.parametrize(
    ("runtime", "lengths", "said"),
    [
        ("VLLM", ("8000", "512"), TOO_LONG),
        ("TensorRTLLM", ("5000", "512"), PROMPT_TOO_LONG),
        ("VLLM", ("7680", "512"), ""),
        ("TensorRTLLM", ("4096", "4096"), ""),
    ],
)
def test_lengths_beyond_the_limits_are_refused_before_anything_runs(
    cluster: FakeCluster, tmp_path: Path, runtime: str, lengths: tuple[str, str], said: str
) -> None:
    version = {"VLLM": "0.33.0", "TensorRTLLM": "1.2.1"}[runtime]
    cluster.data["spec"]["engine"] |= {"runtime": runtime, "version": version}
    done = call(tmp_path / "run.json", "--input-len", lengths[0], "--output-len", lengths[1])
    assert done.output.startswith(said)
    assert (done.exit_code, len(cluster.created)) == ((1, 0) if said else (0, 1))


@pytest.mark.parametrize(
    ("speculative", "length", "cost"),
    [
        ({}, 0, None),
        ({"method": "DraftModel", "maxDraftLen": 5, "model": {"uri": "hf://a/b@c"}}, 5, 0.1),
        ({"method": "Eagle3", "model": {"uri": "hf://a/b@c"}}, 3, 0.1),
        ({"method": "NGram"}, 3, 0.0),
        ({"method": "Medusa", "model": {"uri": "hf://a/b@c"}}, 3, 0.0),
    ],
)
def test_a_run_says_how_long_drafts_are_and_what_they_cost(
    cluster: FakeCluster,
    tmp_path: Path,
    speculative: dict[str, Any],
    length: int,
    cost: float | None,
) -> None:
    cluster.data["spec"]["speculative"] = speculative or None
    stage = {"layers": 40, "activation": 0, "runtime": 0, "kv_cache": 0, "kv_tokens": 0}
    cluster.data["room"] = {
        "stages": [
            {**stage, "stage": 0, "weights": 20},
            {**stage, "stage": 1, "weights": 20, "draft": 4},
        ],
        "constants": "c",
    }
    out = tmp_path / "run.json"
    done = call(out)
    assert done.exit_code == 0, done.output
    run = read_run(out.read_text())
    assert (run.draft_len, run.draft_cost) == (length, cost)
    assert request_of(cluster.created[0])["draft_len"] == length


def test_the_cost_of_a_draft_that_the_plan_does_not_tell_is_not_made_up(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.data["spec"]["speculative"] = {"method": "DraftModel", "model": {"uri": "hf://a/b@c"}}
    cluster.data.pop("room", None)
    out = tmp_path / "run.json"
    done = call(out)
    assert done.exit_code == 0, done.output
    assert read_run(out.read_text()).draft_cost is None


def test_a_status_that_moves_on_is_tried_again_and_results_are_never_lost(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    out = tmp_path / "run.json"
    cluster.conflicts = 2
    assert call(out).exit_code == 0
    assert len(cluster.applied) == 1
    cluster.conflicts = 3
    done = call(out)
    assert done.exit_code == 0
    assert "status.benchmark was not written" in done.output
    assert len(cluster.applied) == 1
    assert call(out, "--no-status").exit_code == 0
    assert len(cluster.applied) == 1


def test_the_operator_keeps_what_a_benchmark_wrote_and_never_owns_it() -> None:
    status = LLMDeploymentStatus.model_validate(
        {
            "benchmark": {
                "revision": "a",
                "date": "d",
                "tool": "t",
                "inputLen": 1,
                "outputLen": 1,
                "points": [],
            }
        }
    )
    assert status.benchmark is not None
    assert "benchmark" not in applied(status)


def test_without_a_serving_replica_nothing_is_made(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.ready = "False"
    out = tmp_path / "run.json"
    done = call(out)
    assert done.exit_code == 1
    pod = leader()["metadata"]["name"]
    assert (
        f"no replica of llm/llama-70b serves: pod {pod}: the engine loads; see shardwright status "
        "llama-70b -n llm"
    ) in done.output
    assert cluster.created == []
    assert call(out, at_once="2,1").exit_code == 2
    assert not out.exists()


def written(folder: Path, name: str, factor: float, **changes: Any) -> Path:
    points = tuple(
        Point(at, factor * 100 * min(at, 16), 1.0, 20.0, 50.0 + at, 9.5, 12.0, kv_cache=0.6)
        for at in (1, 4, 16, 64)
    )
    told: dict[str, Any] = {
        "revision": "abc",
        "date": "2026-11-30T00:00:00Z",
        "tool": "vllm-bench-serve",
        "input_len": 2048,
        "output_len": 512,
        "runtime": "VLLM",
        "weights": "FP8",
        "product": "NVIDIA-H100-80GB-HBM3",
        "tensor": 4,
        "pipeline": 1,
        **changes,
    }
    path = folder / f"{name}.json"
    path.write_text(Run(name=name, points=points, **told).dump())
    return path


def test_runs_are_compared_in_one_table_and_drawn(tmp_path: Path) -> None:
    files = [
        str(written(tmp_path, "fp8", 1.0)),
        str(written(tmp_path, "awq", 0.7, weights="INT4AWQ", tensor=2)),
    ]
    done = CliRunner().invoke(app, ["compare-runs", *files])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()]
    (best,) = [row for row in rows if row[:2] == ["16", "awq"]]
    # 1120 tokens a second of two GPUs are more a GPU than 1600 of four.
    assert best[2:8] == ["VLLM", "INT4AWQ", "TP", "2", "1,120", "560"]
    assert best[-4:] == ["knee,", "best", "a", "GPU"]
    (other,) = [row for row in rows if row[:2] == ["16", "fp8"]]
    assert other[-1] == "knee"
    assert done.output.count("the knee is at 16 requests at once") == 2
    picture = tmp_path / "p.svg"
    done = CliRunner().invoke(app, ["plot", *files, "-o", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.read_text().startswith("<svg")
    mixed = [files[0], str(written(tmp_path, "short", 1.0, input_len=128))]
    done = CliRunner().invoke(app, ["compare-runs", *mixed])
    assert "measured with different lengths" in done.output


def test_files_without_results_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    for words in (["compare-runs", str(empty)], ["plot", str(empty), "-o", str(tmp_path / "x")]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert "empty.json" in done.output
    seven = [str(written(tmp_path, f"r{n}", 1.0)) for n in range(7)]
    done = CliRunner().invoke(app, ["plot", *seven, "-o", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert "1 to 6 runs, not 7" in done.output


@pytest.mark.parametrize("runtime", TOOLS)
def test_no_point_and_no_run_sees_the_prompts_of_another(runtime: str) -> None:
    """A server keeps the beginnings of prompts that it has seen."""

    def seeds(run: int) -> set[str]:
        load = replace(LOAD, seed=run)
        lines = [TOOLS[runtime].command(load, number, "r.json") for number in (1, 2, 4, 8, 128)]
        return {line[line.index("--seed") + 1] for line in lines}

    assert len(seeds(1)) == 5
    assert not seeds(1) & seeds(2)
    assert all(0 <= int(seed) < 2**31 for seed in seeds(2**31 - 1))
