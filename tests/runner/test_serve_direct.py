"""vLLM and SGLang over two pods: the operator's own commands, the runner, and a stand-in engine.

Each pod has its own network, host name, process 1 and /dev/shm; the engine is a small transformer
behind the real programs' flags and endpoints.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.golden import specs
from tests.runner.serve_world import HTTP, SECONDS, Pod, World, eventually, needs_root, world
from tests.standin import running
from tests.support import standin_model
from tests.support.client_loop import problem

from shardwright.api.spec import Runtime
from shardwright.runner.contract import (
    MANIFEST,
    STEP_MODEL,
    FileEntry,
    Manifest,
    artifact_folder,
    artifact_key,
    encode,
)
from shardwright.runner.verify import sha256_of
from shardwright.runtimes.metrics import pages_of
from shardwright.runtimes.registry import runtime

pytestmark = [needs_root, pytest.mark.timeout(600)]

NAME = "tiny"
PROMPTS = running.PROMPTS[:6]
CONFIG = {"VLLM": {"enable-prefix-caching": False}, "SGLang": {"disable-radix-cache": True}}
each = pytest.mark.parametrize("name", CONFIG)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in's programs are installed."""
    import sys  # noqa: PLC0415 - beside what it is for

    sys.path.insert(0, str(standin_model.STANDIN))
    from shardwright_standin.install import install  # noqa: PLC0415 - after the path is set

    folder = tmp_path_factory.mktemp("root")
    install(folder, "1.2.1", prefix=str(folder))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin_model.make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def reference(model: Path) -> dict[str, str]:
    return standin_model.unsharded(model, PROMPTS)


def fetched(store: Path, model: Path) -> tuple[str, dict[str, Any], Path]:
    """The model as a fetch leaves it on the claim: key, inputs and folder."""
    inputs = {"uri": f"hf://org/{NAME}@main"}
    key = artifact_key(STEP_MODEL, inputs)
    folder = store / artifact_folder(STEP_MODEL, key)
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    files = {
        path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in folder.iterdir()
    }
    (folder / MANIFEST).write_text(encode(Manifest(STEP_MODEL, key, inputs, files)))
    return key, inputs, folder


@contextmanager
def group(name: str, folder: Path, root: Path, model: Path, **pace: float) -> Iterator[World]:
    """Two stages of two ranks, started with what the operator renders for each stage."""
    python = running.interpreter(*running.MODULES)
    if not python:
        pytest.skip(f"no Python has all of {', '.join(running.MODULES)}")
    key, inputs, artifact = fetched(folder / "store", model)
    resolved = specs.resolved(
        specs.spec(
            model={"uri": inputs["uri"], "servedName": NAME, "dtype": "FP16"},
            engine={
                "runtime": name,
                "config": CONFIG[name],
                "limits": {
                    "maxBatchSize": 8,
                    "maxNumTokens": 1024,
                    "maxInputLen": 512,
                    "maxSeqLen": 1024,
                },
            },
            parallelism={"tensor": 2, "pipeline": 2},
        )
    )
    engine = runtime(Runtime(name))
    library = str(root / "usr/local/lib/shardwright-standin")
    inherited = os.environ.get("PYTHONPATH")
    bins = [root / "usr/local/bin", root / "usr/bin"]
    path = [str(Path(python).parent), *map(str, bins), os.environ["PATH"]]
    with world(
        folder,
        2,
        2,
        (),
        step=STEP_MODEL,
        key=key,
        inputs=inputs,
        artifact=str(artifact),
        model_folder=str(artifact),
        served_name=NAME,
        config=dict(engine.serve_config(resolved)),
    ) as made:
        made.pace = {**made.pace, **pace}
        made.environment = {
            "PATH": ":".join(path),
            "PYTHONPATH": f"{library}:{inherited}" if inherited else library,
        }
        for stage in (0, 1):
            pages = pages_of(resolved) if stage == 0 else ()
            made.start(stage, command=engine.serve_command(resolved, stage), metrics=pages)
        made.ready()
        yield made


def ask(made: World, prompt: str, expected: str) -> str:
    url = f"http://{made.address(0)}:{HTTP}/v1/chat/completions"
    return problem(url, NAME, prompt, expected, standin_model.ANSWER_TOKENS, SECONDS)


@each
def test_ranks_of_two_pods_serve_the_whole_model_and_drain(
    name: str, tmp_path: Path, root: Path, model: Path, reference: dict[str, str]
) -> None:
    # Who has just seen it ready may be slow to ask.
    with group(name, tmp_path, root, model, lame_duck=8.0) as made:
        leader, worker = made.pods
        found: list[str] = []
        assert [ask(made, *item) for item in reference.items()] == [""] * len(reference)
        table = [(row["rank"], row["stage"], row["pod"]) for row in leader.status()["ranks"]]
        assert table == [(0, 0, "m-0"), (1, 0, "m-0"), (2, 1, "m-1"), (3, 1, "m-1")]

        def on_and_on() -> None:
            for prompt, expected in itertools.cycle(reference.items()):
                if leader.get("/readyz")[0] != 200:
                    return  # out of the Service: no client would come
                found.append(ask(made, prompt, expected))

        clients = [threading.Thread(target=on_and_on, daemon=True) for _ in range(3)]
        for client in clients:
            client.start()
        eventually(lambda: len(found) >= 3)
        # All of a group get the signal at once: a worker asks the leader to drain, and waits.
        for pod in made.pods:
            pod.signal(signal.SIGTERM)
        eventually(lambda: leader.get("/readyz")[0] == 503)
        for client in clients:
            client.join(SECONDS)
        assert not any(client.is_alive() for client in clients)
        assert set(found) == {""}
        assert [pod.end().outcome for pod in (leader, worker)] == ["Done", "Done"]


@each
def test_a_killed_rank_takes_the_group_down(
    name: str, tmp_path: Path, root: Path, model: Path
) -> None:
    with group(name, tmp_path, root, model) as made:
        leader, worker = made.pods
        victim = worker.running("shardwright_standin.ranks.main")[0]
        os.kill(victim, signal.SIGKILL)
        reports = [pod.end() for pod in (leader, worker)]
        assert {report.outcome for report in reports} == {"Environment"}
        assert {report.reason for report in reports} <= {"PeerLost", "RankFailed", "Killed"}


@each
def test_the_leader_tells_the_engine_s_metrics_and_each_stage_its_gpus(
    name: str, tmp_path: Path, root: Path, model: Path, reference: dict[str, str]
) -> None:
    with group(name, tmp_path, root, model) as made:
        leader, worker = made.pods

        def counted() -> dict[str, float]:
            found = values(leader.get("/metrics")[1])
            return found if found.get("shardwright_time_to_first_token_seconds_count") else {}

        def asked() -> dict[str, float]:
            assert ask(made, *next(iter(reference.items()))) == ""
            return counted()

        told = eventually(asked, says=leader.log)
        assert told["shardwright_engine_up"] == 1
        assert told["shardwright_scrape_errors_total"] == 0
        assert 0 <= told["shardwright_kv_cache_utilization"] <= 1
        assert {"shardwright_requests_running", "shardwright_requests_waiting"} <= set(told)
        for pod in (leader, worker):
            gpus = eventually(lambda pod=pod: of_gpus(pod), says=pod.log)
            assert gpus["shardwright_gpu_utilization"] == 0
            assert gpus["shardwright_gpu_memory_total_bytes"] > 0
        assert "shardwright_engine_up" not in values(worker.get("/metrics")[1])


def of_gpus(pod: Pod) -> dict[str, float]:
    """The pod's metrics, once its GPUs were looked at."""
    found = values(pod.get("/metrics")[1])
    return found if "shardwright_gpu_utilization" in found else {}


def values(text: str) -> dict[str, float]:
    """The last sample of each name."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
