"""Measuring a replica: the tools' command lines, the Job, what it leaves, and the commands."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
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
from shardwright.apply.errors import Conflict
from shardwright.benchmark import inside
from shardwright.benchmark.job import (
    LABEL_BENCHMARK,
    JobError,
    benchmark_job,
    concurrencies,
    points_of,
)
from shardwright.benchmark.results import MOST_POINTS, Point, Run, read_run
from shardwright.benchmark.tools import RESULT_KEYS, TOOLS, Load
from shardwright.cli import benchmark as command
from shardwright.cli.app import app
from shardwright.plan.report import applied
from shardwright.render.pods import group_pods
from shardwright.runner.contract import TERMINATION_LIMIT_BYTES

LOAD = Load("http://10.0.0.1:8000", "llama-70b", "/shardwright/store/models/x", 2048, 512)
NAME = "llama-70b-tp8-pp2"


def leader(**status: Any) -> dict[str, Any]:
    """A leader's pod as the operator renders it, running."""
    pod = group_pods(specs.resolved(*specs.EXAMPLES[NAME]), specs.identity(NAME), "runner")[0]
    return {**pod, "status": {"podIP": "10.0.0.1", **status}}


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
    argv = tool.command(LOAD, concurrency, "/r/x.json")
    assert argv[: len(tool.program)] == tool.program
    found = commandline.parse(tool.contract, argv[len(tool.program) :]).values
    assert found["base_url"] == LOAD.url
    assert (found["model"], found["served_model_name"]) == ("llama-70b", "llama-70b")
    assert found["tokenizer"] == LOAD.tokenizer
    assert (found["random_input_len"], found["random_output_len"]) == (2048, 512)
    assert found["max_concurrency"] == concurrency
    assert found["num_prompts"] >= max(16, 8 * concurrency)
    assert "/r/x.json" in argv


@pytest.mark.parametrize("runtime", TOOLS)
def test_what_is_not_recorded_is_refused(runtime: str) -> None:
    tool = TOOLS[runtime]
    argv = (*tool.command(LOAD, 4, "/r/x.json")[len(tool.program) :], "--invented", "1")
    with pytest.raises(SystemExit) as ended:
        commandline.parse(tool.contract, argv)
    assert ended.value.code == 2


# --- the Job


@pytest.mark.parametrize("runtime", TOOLS)
def test_the_job_runs_in_the_leader_s_image_beside_its_files_and_takes_no_gpu(runtime: str) -> None:
    pod = leader()
    job = benchmark_job(pod, "llama-benchmark-1", runtime, (2048, 512), (1, 4, 16))
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
    argv = request["points"][0]["argv"]
    assert argv[argv.index("--base-url") + 1] == "http://10.0.0.1:8000"
    assert argv[argv.index("--tokenizer") + 1].startswith("/shardwright/store/")
    # The operator counts no pod of a benchmark as one of its own.
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert LABEL_BENCHMARK in labels
        assert names.LABEL_DEPLOYMENT not in labels


def test_an_ipv6_leader_is_asked_at_its_address_in_brackets() -> None:
    job = benchmark_job(leader(podIP="fd00::1"), "x", "VLLM", (8, 8), (1,))
    assert request_of(job)["metrics"] == "http://[fd00::1]:8091/metrics"


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(JobError, match=r"engine.runtime NIM: its image has no benchmark"):
        benchmark_job(leader(), "x", "NIM", (8, 8), (1,))
    with pytest.raises(JobError, match="has no address yet"):
        benchmark_job(leader(podIP=None), "x", "VLLM", (8, 8), (1,))
    other = leader()
    other["spec"]["containers"][0]["env"] = []
    with pytest.raises(JobError, match="cannot be read"):
        benchmark_job(other, "x", "VLLM", (8, 8), (1,))


@pytest.mark.parametrize(
    "text", ["", "0,1", "4,2", "2,2", "1,x", "5000", ",".join(map(str, range(1, 18)))]
)
def test_concurrencies_that_make_no_sweep_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="rising numbers"):
        concurrencies(text)
    assert concurrencies("1,2,64") == (1, 2, 64)


# --- inside its pod


TOOL = """
import json, sys
out, at = sys.argv[1], int(sys.argv[2])
if at == 99:
    sys.exit(3)
result = {"completed": 15, "output_throughput": 100.0 * at, "request_throughput": at / 2,
          "median_ttft_ms": 20.5, "p99_ttft_ms": 40.25, "median_tpot_ms": 9.0, "p99_tpot_ms": 11.0}
if at == 98:
    del result["p99_tpot_ms"]
text = json.dumps(result)
open(out, "w").write("{\\"older\\": 1}\\n" + text + "\\n" if at == 2 else text)
print("a table for people")
"""


@contextmanager
def metrics(text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

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
    folder: Path, at_once: tuple[int, ...], url: str = "", draft_len: int = 0
) -> tuple[int, str]:
    """The exit code and the termination message of what runs in the pod."""
    tool = folder / "tool.py"
    tool.write_text(TOOL)
    points = [
        {
            "concurrency": at,
            "requests": 16,
            "argv": [sys.executable, str(tool), str(folder / f"{at}.json"), str(at)],
            "result": str(folder / f"{at}.json"),
        }
        for at in at_once
    ]
    request = {
        "points": points,
        "keys": dict(RESULT_KEYS),
        "completed": "completed",
        "metrics": url,
        "draft_len": draft_len,
    }
    log = folder / "termination"
    source = Path(inside.__file__).read_text().replace(inside.TERMINATION_LOG, str(log))
    source = source.replace("_LOOK_SECONDS = 5.0", "_LOOK_SECONDS = 0.01")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source],
        env={inside.ENVIRONMENT: json.dumps(request)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, log.read_text()


def test_every_point_is_measured_and_told_in_the_termination_message(tmp_path: Path) -> None:
    with metrics('shardwright_kv_cache_utilization{deployment="m"} 0.625\n') as url:
        code, message = run_inside(tmp_path, (1, 2, 4), url)
    assert code == 0
    points = points_of(message)
    assert [point.concurrency for point in points] == [1, 2, 4]
    assert points[1] == Point(2, 200.0, 1.0, 20.5, 40.25, 9.0, 11.0, failed=1, kv_cache=0.625)


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
    assert [point.acceptance for point in points_of(drafted)] == [2.5, 2.5]
    assert [point.acceptance for point in points_of(plain)] == [None, None]


@pytest.mark.parametrize(
    ("bad", "words"), [(99, "exit status 3"), (98, "the result has no number p99_tpot_ms")]
)
def test_a_point_that_fails_ends_the_sweep_and_says_why(
    tmp_path: Path, bad: int, words: str
) -> None:
    code, message = run_inside(tmp_path, (1, bad))
    assert code == 1
    with pytest.raises(JobError, match=f"after 1 points: {bad} at once: .*{words}"):
        points_of(message)


def test_sixteen_points_and_a_long_error_fit_a_termination_message() -> None:
    point = {
        "concurrency": 4096,
        "kv_cache": 0.9999,
        "acceptance": 65.999,
        "failed": 32768,
        **dict.fromkeys(RESULT_KEYS, 123456.789),
    }
    for error in ("", "ö" * 9000):
        message = inside.report([point] * MOST_POINTS, error)
        assert len(message.encode()) <= TERMINATION_LIMIT_BYTES == inside.LIMIT_BYTES
        assert len(json.loads(message)["rows"]) == MOST_POINTS


@pytest.mark.parametrize(
    "message", ["", "{}", "[1]", '{"names": ["x"], "rows": [[1]], "error": ""}']
)
def test_a_pod_that_left_no_results_is_said_to_have(message: str) -> None:
    with pytest.raises(JobError, match="left no results"):
        points_of(message)


# --- the commands


class FakeCluster:
    """What the command asks of a cluster: one deployment, one leader, and its Job's pod."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.created: list[dict[str, Any]] = []
        self.applied: list[tuple[str, dict[str, Any]]] = []
        self.serves = True
        self.conflicts = 0
        self.speculative: dict[str, Any] = {}
        self.stages: list[dict[str, Any]] = []

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (kind, namespace, name) == ("LLMDeployment", "llm", "llama-70b")
        engine = {"runtime": "VLLM", "limits": {"maxBatchSize": 256}}
        found = {"name": name, "namespace": namespace, "uid": "u", "resourceVersion": "7"}
        spec = {"engine": engine, "quantization": {"weights": "FP8"}}
        if self.speculative:
            spec["speculative"] = self.speculative
        return {"metadata": found, "spec": spec, "status": {"plan": {"perGPU": self.stages}}}

    async def apply_status(self, kind: str, body: dict[str, Any], *, manager: str) -> None:
        assert kind == names.KIND
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("PATCH", 409, "Conflict", "the object has been modified")
        self.applied.append((manager, body))

    async def list(self, kind: str, namespace: str, *, labels: str) -> Any:
        assert (kind, namespace) == ("Pod", "llm")
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        if "job-name" in labels:
            over = {"state": {"terminated": {"exitCode": 0, "message": self.message}}}
            items = [{"status": {"containerStatuses": [over]}}]
        else:
            items = [leader(**ready)] if self.serves else [leader()]
        return type("Listing", (), {"items": items})

    async def create(self, kind: str, body: dict[str, Any]) -> None:
        assert kind == "Job"
        self.created.append(body)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    values = [
        [at, 0, 0.9, 1.0, 100.0 * min(at, 8), 10.0, 12.0, 30.0, 60.0] for at in (1, 2, 4, 8, 16, 32)
    ]
    columns = [
        *("concurrency", "failed", "kv_cache", "requests_per_second", "tokens_per_second"),
        *("tpot_ms", "tpot_p99_ms", "ttft_ms", "ttft_p99_ms"),
    ]
    fake = FakeCluster(json.dumps({"names": columns, "rows": values, "error": ""}))

    @asynccontextmanager
    async def connect(_: str) -> AsyncIterator[FakeCluster]:
        yield fake

    monkeypatch.setattr(command, "connect", connect)
    return fake


def test_a_replica_is_measured_and_told_its_knee(cluster: FakeCluster, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = [
        "benchmark",
        "llama-70b",
        "-n",
        "llm",
        "-o",
        str(out),
        "--concurrency",
        "1,2,4,8,16,32",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (job,) = cluster.created
    assert job["metadata"]["name"].startswith("llama-70b-benchmark-")
    run = read_run(out.read_text())
    assert (run.runtime, run.weights, run.tensor, run.pipeline) == ("VLLM", "FP8", 8, 2)
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


@pytest.mark.parametrize(
    ("speculative", "length", "cost"),
    [
        ({}, 0, None),
        ({"method": "DraftModel", "maxDraftLen": 5}, 5, 0.1),
        ({"method": "Eagle3"}, 3, 0.1),
        ({"method": "NGram"}, 3, 0.0),
        ({"method": "Medusa"}, 3, 0.0),
    ],
)
def test_a_run_says_how_long_drafts_are_and_what_they_cost(
    cluster: FakeCluster,
    tmp_path: Path,
    speculative: dict[str, Any],
    length: int,
    cost: float | None,
) -> None:
    cluster.speculative = speculative
    cluster.stages = [{"weightsGiB": 20.0}, {"weightsGiB": 20.0, "draftGiB": 4.0}]
    out = tmp_path / "run.json"
    done = CliRunner().invoke(app, ["benchmark", "llama-70b", "-n", "llm", "-o", str(out)])
    assert done.exit_code == 0, done.output
    run = read_run(out.read_text())
    assert (run.draft_len, run.draft_cost) == (length, cost)
    assert request_of(cluster.created[0])["draft_len"] == length


def test_the_cost_of_a_draft_that_the_plan_does_not_tell_is_not_made_up(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.speculative = {"method": "DraftModel"}
    cluster.stages = [{"weightsGiB": 20.0}]
    out = tmp_path / "run.json"
    done = CliRunner().invoke(app, ["benchmark", "llama-70b", "-n", "llm", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert read_run(out.read_text()).draft_cost is None


def test_a_status_that_moves_on_is_tried_again_and_results_are_never_lost(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    words = ["benchmark", "llama-70b", "-n", "llm", "-o", str(tmp_path / "run.json")]
    cluster.conflicts = 2
    assert CliRunner().invoke(app, words).exit_code == 0
    assert len(cluster.applied) == 1
    cluster.conflicts = 3
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "status.benchmark was not written" in done.output
    assert len(cluster.applied) == 1
    assert CliRunner().invoke(app, [*words, "--no-status"]).exit_code == 0
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
    cluster.serves = False
    out = tmp_path / "run.json"
    done = CliRunner().invoke(app, ["benchmark", "llama-70b", "-n", "llm", "-o", str(out)])
    assert done.exit_code == 1
    assert "no replica of llm/llama-70b serves" in done.output
    assert cluster.created == []
    wrong = ["benchmark", "llama-70b", "-o", str(out), "--concurrency", "2,1"]
    assert CliRunner().invoke(app, wrong).exit_code == 2
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
