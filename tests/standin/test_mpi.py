"""TensorRT-LLM's tools and server over real MPI, by the command lines the operator renders."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from shardwright_standin.ports import reserved
from tests.golden import specs
from tests.standin.running import (
    PROMPTS,
    Faults,
    Machine,
    Started,
    ask,
    survivors,
    until_none_survives,
)

from shardwright.runner.contract import STEP_MODEL, STORE, Command, ModelFacts, artifact_folder
from shardwright.runtimes.registry import runtime

FACTS = ModelFacts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    layers=4,
    hidden_size=64,
    heads=8,
    kv_heads=4,
    head_dim=8,
    vocab_size=264,
    max_positions=4096,
    dtype="bfloat16",
    bytes=367_000,
)
LIMITS = {"maxBatchSize": 16, "maxNumTokens": 2048, "maxInputLen": 1024, "maxSeqLen": 2048}


@dataclass(frozen=True)
class Deployment:
    """What the operator hands to a pod, with its folders on this machine."""

    machine: Machine
    store: Path
    scratch: Path
    served: Path
    command: tuple[str, ...]
    port: int
    world: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, *, ranks: int = 0, **changes: str) -> Any:
        """Start the server; with several stages every rank runs the command under mpirun."""
        if self.command[0] != "trtllm-llmapi-launch":
            return self.machine.started(*self.command, **changes)
        return self.machine.started(*mpirun(ranks or self.world), *self.command, **changes)


def mpirun(ranks: int) -> list[str]:
    words = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    # Ranks of a test are on one machine and need no other network.
    words += ["--mca", "btl", "vader,self", "--mca", "oob_tcp_if_include", "lo"]
    return [*words, "--allow-run-as-root"] if os.geteuid() == 0 else words


def deploy(machine: Machine, model: Path, tensor: int, pipeline: int, **engine: Any) -> Deployment:
    """Carry out the steps that the operator renders, and prepare the serving pod's folders."""
    asked = specs.spec(
        model={"uri": "hf://org/tiny", "servedName": "tiny"},
        engine={"limits": LIMITS, **engine},
        parallelism={"tensor": tensor, "pipeline": pipeline},
    )
    resolved = specs.resolved(asked, FACTS)
    store, scratch = machine.folder / "store", machine.folder / "scratch"
    scratch.mkdir()
    fetched, *made = resolved.artifacts
    assert fetched.step == STEP_MODEL
    model_folder = store / artifact_folder(STEP_MODEL, fetched.key)
    shutil.copytree(model, model_folder)
    out = model_folder
    for artifact in made:
        out = store / artifact_folder(artifact.step, artifact.key)
        for command in artifact.commands:
            machine.good(*_placed(command, store, scratch, out, model_folder))
        assert {path.name for path in out.iterdir()} == set(artifact.expected_files)
    served = scratch / "served" / "tiny"
    served.parent.mkdir()
    served.symlink_to(out)
    engine_runtime = runtime(asked.engine.runtime)
    config = json.dumps(engine_runtime.serve_config(resolved))
    (scratch / "config.yaml").write_text(config)
    words = _placed(engine_runtime.serve_command(resolved), store, scratch, out, model_folder)
    port = reserved()
    words[words.index("--port") + 1] = str(port)
    return Deployment(machine, store, scratch, out, tuple(words), port, asked.world_size)


def _placed(command: Command, store: Path, scratch: Path, out: Path, model: Path) -> list[str]:
    places = {"{out}": out, "{scratch}": scratch, "{model}": model, STORE: store}
    words = []
    for word in command.argv:
        placed = word
        for name, folder in places.items():
            placed = placed.replace(name, str(folder))
        words.append(placed)
    return words


def say(url: str, prompt: str, **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, **more}
    status, content = ask(f"{url}/v1/chat/completions", body)
    assert status == 200, content
    text: str = content["choices"][0]["message"]["content"]
    return text


def leader_pid(server: Started, port: int) -> int:
    """The HTTP server's process among a job's."""
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = stat.read_bytes().split(b"\0")
        except OSError:
            continue
        name = b" ".join(words)
        if b"trtllm-serve" in name and str(port).encode() in words and b"launch" not in name:
            return int(stat.parent.name)
    raise AssertionError(server.text())


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 2), (4, 1), (1, 2)])
def test_what_the_operator_renders_builds_serves_and_gives_the_whole_model_s_tokens(
    tensor: int, pipeline: int, mpi_machine: Machine, model: Path, reference: dict[str, str]
) -> None:
    own = deploy(mpi_machine, model, tensor, pipeline)
    with own.serve() as server:
        server.until(f"{own.url}/health")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda prompt: say(own.url, prompt), PROMPTS))
        assert dict(zip(PROMPTS, answers, strict=True)) == reference
        ranks = server.ranks(own.world)
        assert [(rank["stage"], rank["tensor_rank"]) for rank in ranks] == [
            (str(stage), str(one)) for stage in range(pipeline) for one in range(tensor)
        ]
        assert ask(f"{own.url}/v1/models")[1]["data"][0]["id"] == "tiny"
        assert ask(f"{own.url}/version")[1] == {"version": "1.2.1"}
        assert ask(f"{own.url}/health_generate")[0] == 200
        iterations = ask(f"{own.url}/metrics")[1]
        assert max(one["numActiveRequests"] for one in iterations) > 1, "requests share steps"
        assert iterations[-1]["kvCacheStats"]["tokensPerBlock"] == 32
        assert ask(f"{own.url}/metrics")[1] == [], "reading drains"
        text = ask(f"{own.url}/prometheus/metrics")[1]
        assert "trtllm_request_success_total{" in text
        assert "trtllm_time_to_first_token_seconds_bucket" in text


def test_the_pytorch_backend_serves_the_checkpoint_as_it_is(
    mpi_machine: Machine, model: Path, reference: dict[str, str]
) -> None:
    # What the operator switches on for its metrics, the user may switch off.
    off = {"return_perf_metrics": False, "enable_iter_perf_stats": False}
    own = deploy(mpi_machine, model, 2, 1, backend="PyTorch", config=off)
    with own.serve() as server:
        server.until(f"{own.url}/health")
        assert say(own.url, PROMPTS[0]) == reference[PROMPTS[0]]
        assert ask(f"{own.url}/metrics")[1] == [], "needs enable_iter_perf_stats"
        assert ask(f"{own.url}/prometheus/metrics")[0] == 404, "needs return_perf_metrics"


def test_fifty_requests_in_flight_all_finish_after_sigterm(
    mpi_machine: Machine, model: Path
) -> None:
    own, faults = deploy(mpi_machine, model, 2, 1), Faults(mpi_machine)
    with own.serve() as server:
        server.until(f"{own.url}/health")
        # The first requests take a minute, so that none ends before the last has come.
        faults.ask(at="step", act="slow", seconds=3, where={"rank": 0})
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            running = [pool.submit(ask, f"{own.url}/v1/completions", body) for _ in range(50)]
            _until_all_arrived(own.url, 50)
            server.process.send_signal(signal.SIGTERM)
            server.until_said("Shutting down")
            with pytest.raises(OSError, match=r"refused|reset"):
                ask(f"{own.url}/health")
            assert not any(one.done() for one in running)
            faults.none()
            answers = [one.result() for one in running]
        assert [status for status, _ in answers] == [200] * 50
        assert [content["usage"]["completion_tokens"] for _, content in answers] == [20] * 50
        assert server.ended() == 143
        until_none_survives(server.process.pid)


def _until_all_arrived(url: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for one in ask(f"{url}/metrics")[1]:
            if one["numActiveRequests"] + one["numQueuedRequests"] == count:
                return
        time.sleep(0.02)
    raise AssertionError(f"{count} requests were never in flight at once")


# --- refusals ---


@pytest.fixture
def tp2(mpi_machine: Machine, model: Path) -> Deployment:
    return deploy(mpi_machine, model, 2, 1)


def _truncated(own: Deployment) -> None:
    path = own.served / "rank1.engine"
    path.write_bytes(path.read_bytes()[:1000])


def _missing(own: Deployment) -> None:
    (own.served / "rank1.engine").unlink()


REFUSALS: dict[str, tuple[Any, dict[str, str], str]] = {
    "cut": (_truncated, {}, "rank 1: EngineError"),
    "missing": (_missing, {}, "Error opening engine file"),
    "gpu": (
        None,
        {"SHARDWRIGHT_STANDIN_GPU_PRODUCT": "NVIDIA-L40S"},
        "expecting compute 8.9 got compute 9.0, please rebuild",
    ),
    "version": (
        None,
        {"SHARDWRIGHT_STANDIN_VERSION": "1.1.0"},
        "Current Version: 1013, Serialized Engine Version: 1014",
    ),
    "no-gpu": (None, {"NVIDIA_VISIBLE_DEVICES": "void"}, "No CUDA GPUs are available"),
    "one-gpu": (None, {"NVIDIA_VISIBLE_DEVICES": "0"}, "invalid device ordinal"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_engine_that_does_not_fit_ends_the_server_with_the_reason(
    name: str, tp2: Deployment
) -> None:
    change, variables, said = REFUSALS[name]
    if change is not None:
        change(tp2)
    with tp2.serve(**variables) as server:
        assert server.ended() == 1
        assert said in server.text()
        until_none_survives(server.process.pid)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--tp_size", "4", "tp_size 4 is not consistent with the engine's tp_size 2"),
        ("--gpus_per_node", "0", "gpus_per_node must be greater than 0"),
        ("--backend", "pytorch", "is an engine; backend pytorch loads a checkpoint"),
        ("--tokenizer", "nowhere", "Can't load tokenizer for 'nowhere'"),
    ],
)
def test_a_command_line_that_does_not_go_with_the_engine_is_refused(
    flag: str, value: str, said: str, tp2: Deployment
) -> None:
    words = list(tp2.command)
    words[words.index(flag) + 1] = value
    done = tp2.machine.run(*words)
    assert done.returncode == 1
    assert said in done.stderr


def test_options_that_are_not_known_are_refused(tp2: Deployment) -> None:
    (tp2.scratch / "config.yaml").write_text("max_batch: 3")
    done = tp2.machine.run(*tp2.command)
    assert done.returncode == 1
    assert "max_batch\n  Extra inputs are not permitted" in done.stderr


def test_another_number_of_ranks_is_named_and_the_launcher_s_ranks_stay(
    mpi_machine: Machine, model: Path
) -> None:
    """The real launcher's trap: its command has ended with an error, and the job hangs."""
    own = deploy(mpi_machine, model, 1, 2)
    with own.serve(ranks=3) as server:
        server.until_said("MPI size 3 != TP size 1 * PP size 2 * CP Size 1")
        server.until_said("the command ended with 1; ranks stay")
        time.sleep(1)
        assert server.process.poll() is None
        assert len([line for line in survivors(server.process.pid) if "mpirun" in line]) == 1


# --- death, and what is left ---


@pytest.fixture
def staged(mpi_machine: Machine, model: Path) -> Iterator[tuple[Deployment, Started, Faults]]:
    """TP 1 × PP 2 under the launcher, serving; a control file for faults beside it."""
    own, faults = deploy(mpi_machine, model, 1, 2), Faults(mpi_machine)
    with own.serve() as server:
        server.until(f"{own.url}/health")
        yield own, server, faults


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_whole_job(
    rank: int, staged: tuple[Deployment, Started, Faults]
) -> None:
    own, server, _ = staged
    os.kill(int(server.ranks(own.world)[rank]["pid"]), signal.SIGKILL)
    assert server.ended() == 137
    until_none_survives(server.process.pid)
    with pytest.raises(OSError, match="refused"):
        ask(f"{own.url}/health")


@pytest.mark.parametrize(
    ("act", "code"), [("exit", 7), ("oom", 137), ("gpu_oom", 1)], ids=["exit", "oom", "gpu_oom"]
)
def test_a_rank_that_dies_in_the_middle_of_a_request_takes_the_job_with_it(
    act: str, code: int, staged: tuple[Deployment, Started, Faults]
) -> None:
    own, server, faults = staged
    assert say(own.url, "x")
    faults.ask(at="step", act=act, code=7, where={"stage": 1}, after=2)
    with pytest.raises((OSError, http.client.HTTPException, AssertionError)):
        say(own.url, "x")
    assert server.ended() == code
    assert "fault it" in server.text()
    until_none_survives(server.process.pid)


def test_a_hung_rank_leaves_a_healthy_server_that_answers_nothing(
    staged: tuple[Deployment, Started, Faults],
) -> None:
    own, server, faults = staged
    faults.ask(at="step", act="hang", where={"rank": 1})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        request = pool.submit(say, own.url, "x")
        server.until_said("fault it: hang")
        time.sleep(1)
        assert not request.done()
        assert ask(f"{own.url}/health")[0] == 200, "it does not ask the engine"
        assert server.process.poll() is None
        os.kill(leader_pid(server, own.port), signal.SIGKILL)
        with pytest.raises((OSError, http.client.HTTPException)):
            request.result()


def test_a_slow_rank_delays_readiness_and_nothing_else(mpi_machine: Machine, model: Path) -> None:
    own, faults = deploy(mpi_machine, model, 1, 2), Faults(mpi_machine)
    faults.ask(at="load", act="hold", where={"rank": 1})
    with own.serve() as server:
        server.until_said("fault it: hold")
        time.sleep(1)
        with pytest.raises(OSError, match="refused"):
            ask(f"{own.url}/health")
        faults.none()
        server.until(f"{own.url}/health")
        assert say(own.url, "x")


def test_a_server_killed_outright_leaves_no_ranks(tp2: Deployment) -> None:
    with tp2.serve() as server:
        server.until(f"{tp2.url}/health")
        server.process.kill()
        assert server.ended() == 137
        until_none_survives(server.process.pid)


# --- evaluation and benchmark ---


def test_mmlu_is_scored_and_a_missed_threshold_is_an_error(
    tp2: Deployment, mpi_machine: Machine
) -> None:
    from shardwright_standin.tools.mmlu import SUBJECTS  # noqa: PLC0415 - path set by conftest

    data = mpi_machine.folder / "mmlu"
    for part in ("dev", "test"):
        (data / part).mkdir(parents=True)
        for index, subject in enumerate(SUBJECTS):
            # Noise never answers "Bee"; every text begins with an answer of no letters.
            answer = "Bee" if index % 3 else ""
            row = f'"What, {subject}?",one,two,three,four,{answer}\n'
            (data / part / f"{subject}_{part}.csv").write_text(row)
    line = [
        *("trtllm-eval", "--model", str(tp2.served), "--backend", "tensorrt", "--tp_size", "2"),
        *("mmlu", "--dataset_path", str(data), "--num_fewshot", "1"),
    ]
    out = mpi_machine.good(*line)
    assert "Average accuracy 100.00 (1) - abstract_algebra" in out
    assert "Average accuracy 0.00 (1) - anatomy" in out
    (found,) = (row for row in out.splitlines() if "MMLU weighted average accuracy" in row)
    assert found.endswith("MMLU weighted average accuracy: 33.33 (57)")
    done = mpi_machine.run(*line, "--check_accuracy", "--accuracy_threshold", "34")
    assert done.returncode == 1
    assert "Expected accuracy >= 34.0, but got 33.3" in done.stderr
    (data / "test" / "virology_test.csv").unlink()
    assert "virology_test.csv" in mpi_machine.run(*line).stderr


def test_throughput_is_measured_and_reported_by_the_real_keys(
    tp2: Deployment, mpi_machine: Machine
) -> None:
    data, report = mpi_machine.folder / "data.jsonl", mpi_machine.folder / "report.json"
    lines: Sequence[dict[str, Any]] = (
        {"task_id": 0, "prompt": "Hello", "output_tokens": 6},
        {"task_id": 1, "input_ids": [1, 2, 3], "output_tokens": 4},
    )
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mpi_machine.good(
        *("trtllm-bench", "--model", "tiny", "throughput", "--engine_dir", str(tp2.served)),
        *("--backend", "tensorrt", "--dataset", str(data), "--report_json", str(report)),
        *("--warmup", "1", "--streaming"),
    )
    found = json.loads(report.read_text())
    assert found["world_info"]["world_size"] == 2
    assert found["request_info"] == {
        "num_requests": 2,
        "avg_input_length": 4.5,
        "avg_output_length": 5.0,
    }
    speed = found["performance"]
    seconds = speed["total_latency_ms"] / 1000
    assert speed["system_output_throughput_tok_s"] == pytest.approx(10 / seconds)
    assert speed["output_throughput_per_gpu_tok_s"] == pytest.approx(5 / seconds)
    assert 0 < found["streaming_metrics"]["avg_ttft_ms"] <= speed["total_latency_ms"]


def test_bench_builds_an_engine_that_serves(
    mpi_machine: Machine, model: Path, tmp_path: Path
) -> None:
    mpi_machine.good(
        *("trtllm-bench", "--model", "tiny", "--model_path", str(model), "-w", str(tmp_path)),
        *("build", "-tp", "2", "--max_seq_len", "256"),
    )
    engine = tmp_path / "tiny" / "tp_2_pp_1"
    assert json.loads((engine / "config.json").read_text())["build_config"]["max_seq_len"] == 256
    port = reserved()
    words = ["trtllm-serve", str(engine), "--backend", "tensorrt", "--tokenizer", str(model)]
    with mpi_machine.started(*words, "--port", str(port)) as server:
        server.until(f"http://localhost:{port}/health")
        assert say(f"http://localhost:{port}", "x")
