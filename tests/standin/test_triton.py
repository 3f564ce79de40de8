"""The stand-in's `tritonserver`: the operator's repositories and command lines, over real MPI."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from shardwright_standin.install import install
from shardwright_standin.ports import reserved
from tests.golden import specs
from tests.standin.running import (
    PROMPTS,
    Machine,
    Started,
    ask,
    interpreter,
    until_none_survives,
    why_no_mpi,
)
from tests.standin.test_mpi import FACTS, LIMITS, _placed, mpirun
from tests.support.standin_model import ANSWER_TOKENS, unsharded

from shardwright.render.pods import serve_request
from shardwright.runner.contract import STORE, ServeRequest, artifact_folder
from shardwright.runner.serve.places import Places
from shardwright.runner.serve.prepare import order, order_of, write_files

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def texts(model: Path) -> dict[str, str]:
    """What the unsharded model goes on with after each prompt."""
    return unsharded(model, PROMPTS, chat=False)


@pytest.fixture(scope="module")
def triton_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root as Triton's images are."""
    root = tmp_path_factory.mktemp("triton")
    install(root, "1.2.1", prefix=str(root), triton=True)
    return root


@pytest.fixture
def triton(triton_root: Path, tmp_path: Path) -> Machine:
    """A machine with four GPUs and Open MPI."""
    if reason := why_no_mpi():
        pytest.skip(reason)
    return Machine(triton_root, interpreter("numpy", "yaml", "mpi4py"), tmp_path)


@dataclass(frozen=True)
class Pod:
    """A stage's pod, prepared as the runner would."""

    machine: Machine
    request: ServeRequest
    places: Places
    port: int
    metrics: int

    def words(self, rank: int) -> list[str]:
        whole = order(self.request, self.places, {})
        ports = {"--http-port=8000": self.port, "--metrics-port=8002": self.metrics}
        found = order_of(whole, rank)["argv"]
        return [f"{word.split('=')[0]}={ports[word]}" if word in ports else word for word in found]

    def line(self) -> list[str]:
        """One command line for all ranks; Open MPI's colon stands between them."""
        if not self.request.by_mpi:
            return self.words(0)
        if self.request.command.tool == "trtllm-llmapi-launch":
            return [*mpirun(self.request.world_size), *self.words(0)]
        parts: list[str] = []
        for rank in range(self.request.world_size):
            parts += [":"] if rank else []
            parts += ["-n", "1", *self.words(rank)]
        head = [word for word in mpirun(1) if word not in ("-n", "1")]
        return [*head, *parts]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def serving(self, **changes: str) -> Iterator[Started]:
        with self.machine.started(*self.line(), **changes) as started:
            started.until(f"{self.url}/v2/health/ready")
            yield started

    def generate(self, body: dict[str, Any], stream: str = "") -> tuple[int, Any]:
        return ask(f"{self.url}/v2/models/tiny/generate{stream}", body)


def deploy(
    machine: Machine, model: Path, tensor: int, pipeline: int, backend: str, **config: Any
) -> Pod:
    """The steps that the operator renders, then what the runner prepares."""
    asked = specs.spec(
        model={"uri": "hf://org/tiny", "servedName": "tiny"},
        engine={"runtime": "Triton", "backend": backend, "limits": LIMITS, "config": config},
        parallelism={"tensor": tensor, "pipeline": pipeline},
    )
    resolved = specs.resolved(asked, FACTS)
    store, scratch = machine.folder / "store", machine.folder / "scratch"
    scratch.mkdir()
    fetched, *made = resolved.artifacts
    folder = store / artifact_folder("model", fetched.key)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(model)
    for artifact in made:
        out = store / artifact_folder(artifact.step, artifact.key)
        for command in artifact.commands:
            machine.good(*_placed(command, store, scratch, out, folder))
    request = serve_request(resolved, specs.identity(), 0)
    assert request.prepared is not None
    root = str(machine.root)
    prepared = replace(
        request.prepared,
        copies={path: root + source for path, source in request.prepared.copies.items()},
    )
    here = {
        "artifact": request.artifact.replace(STORE, str(store)),
        "model_folder": request.model_folder.replace(STORE, str(store)),
        "prepared": prepared,
    }
    places = Places(store=str(store), scratch=str(scratch))
    pod = Pod(machine, replace(request, **here), places, reserved(), reserved())
    write_files(pod.request, places)
    return pod


SHAPES = [("TensorRT", 1, 1), ("TensorRT", 2, 2), ("PyTorch", 2, 1), ("PyTorch", 1, 2)]


@pytest.mark.parametrize(("backend", "tensor", "pipeline"), SHAPES)
def test_every_split_goes_on_as_the_whole_model_does(
    triton: Machine,
    model: Path,
    texts: dict[str, str],
    backend: str,
    tensor: int,
    pipeline: int,
) -> None:
    pod = deploy(triton, model, tensor, pipeline, backend)
    budget = "max_tokens" if backend == "TensorRT" else "sampling_param_max_tokens"
    bare = {} if backend == "TensorRT" else {"sampling_param_exclude_input_from_output": True}
    with pod.serving() as started:
        for prompt, expected in texts.items():
            body = {"text_input": prompt, budget: ANSWER_TOKENS, **bare}
            assert pod.generate(body) == (
                200,
                {"model_name": "tiny", "model_version": "1", "text_output": expected},
            )
        ranks = started.ranks(tensor * pipeline)
        assert [row["rank"] for row in ranks] == [str(rank) for rank in range(tensor * pipeline)]
        # A rank's GPU is its number modulo those of its node.
        assert [row["gpu"] for row in ranks] == [str(int(row["rank"]) % tensor) for row in ranks]
        _, told = ask(f"http://127.0.0.1:{pod.metrics}/metrics")
        assert f'nv_inference_request_success{{model="tiny",version="1"}} {len(texts)}' in told
        assert 'nv_trt_llm_general_metrics{general_type="iteration_counter"' in told
        # What the runner asks, and looks at.
        prepared = pod.request.prepared
        assert prepared is not None
        assert prepared.generation is not None
        assert prepared.counters is not None
        status, answer = ask(pod.url + prepared.generation.path, prepared.generation.body)
        assert status == 200
        assert isinstance(answer[prepared.generation.answer], str)
        assert all(series in told for series in prepared.counters.series)


def test_a_drained_leader_takes_its_followers_along(triton: Machine, model: Path) -> None:
    pod = deploy(triton, model, 2, 1, "TensorRT")
    with pod.serving() as started:
        (server,) = [
            int(pid)
            for pid in Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children")
            .read_text()
            .split()
            if b"--load-model" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(server, signal.SIGTERM)
        assert started.ended() == 0
        until_none_survives(started.process.pid)


def test_it_streams_where_it_is_asked_to(
    triton: Machine, model: Path, texts: dict[str, str]
) -> None:
    pod = deploy(triton, model, 1, 1, "TensorRT", exclude_input_in_output=False)
    prompt, expected = next(iter(texts.items()))
    body = {"text_input": prompt, "max_tokens": ANSWER_TOKENS}
    with pod.serving():
        status, said = pod.generate({**body, "stream": True}, stream="_stream")
        assert status == 200
        events = [json.loads(line[6:]) for line in said.splitlines() if line]
        assert "".join(event["text_output"] for event in events) == expected
        assert len(events) > 1
        # The whole answer in one event where nothing is said of streaming, here with its prompt.
        _, said = pod.generate(body, stream="_stream")
        assert json.loads(said.strip()[6:])["text_output"] == prompt + expected
        assert pod.generate(body)[1]["text_output"] == prompt + expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text_input": "x"}, "max_tokens"),
        ({"max_tokens": 1}, "text_input"),
        ({"text_input": "x", "max_tokens": 0}, "at least 1"),
        ({"text_input": "x", "max_tokens": 9999}, "maximum sequence length"),
        ({"text_input": "x", "max_tokens": 2, "stream": True}, "exactly 1 response"),
        ({"text_input": "x", "max_tokens": 2, "temperature": 0.5}, "does not play temperature"),
        (
            {"text_input": "x", "max_tokens": 2, "return_log_probs": True},
            "does not play return_log_probs True",
        ),
    ],
)
def test_requests_that_are_refused(alone: Pod, body: dict[str, Any], words: str) -> None:
    status, answer = alone.generate(body)
    assert status == 400
    assert words in answer["error"]


def test_models_that_are_there_and_not(alone: Pod) -> None:
    assert ask(f"{alone.url}/v2/models/other/generate", {"text_input": "x"})[0] == 400
    assert ask(f"{alone.url}/v2/models/tensorrt_llm/ready")[0] == 200
    assert ask(f"{alone.url}/v2/models/preprocessing")[1]["platform"] == "python"
    status, told = ask(f"{alone.url}/v2/models/tiny")
    assert (status, told["platform"]) == (200, "ensemble")
    assert {"name": "text_input", "datatype": "BYTES", "shape": [-1, 1]} in told["inputs"]


@pytest.fixture(scope="module")
def alone(
    triton_root: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pod]:
    """One server of one rank for all tests of a module."""
    if reason := why_no_mpi():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("alone")
    machine = Machine(triton_root, interpreter("numpy", "yaml", "mpi4py"), folder)
    pod = deploy(machine, model, 1, 1, "TensorRT")
    with pod.serving():
        yield pod


def refused(pod: Pod, words: Sequence[str] = ()) -> str:
    """What a server says that does not start."""
    line = [*pod.line(), *words]
    done = pod.machine.run(*line)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


NAME = 'name: "tensorrt_llm"\n'
HEADS = "".join(
    f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    for key, value in {"decoding_mode": "medusa", "medusa_choices": "{0}, {0, 0}"}.items()
)


def test_what_does_not_fit_ends_the_job_with_the_cause(triton: Machine, model: Path) -> None:
    pod = deploy(triton, model, 2, 1, "TensorRT")
    config = Path(pod.places.scratch) / "repository/tensorrt_llm/config.pbtxt"
    whole = config.read_text()
    changes = {
        ('"0,1"', '"0"'): "deviceIds (1) * numNodes (1) must be equal to tp*pp*cp",
        ('key: "tokenizer_dir"', 'key: "tokenizer"'): "Cannot find parameter with name: tokeniz",
        (str(pod.request.artifact), "/no/engine"): "path at /no/engine does not exist",
        ("max_batch_size: 16", "max_batch_size: many"): "a int32 is expected",
        (NAME, NAME + HEADS): "has 2 tokens, and the engine is built for 0",
        (NAME, NAME + HEADS.replace("{0}, ", "{a}, ")): "cannot be read",
        ("preferred_batch_size: [ 16 ]", "preferred_batch_size: [ 17 ]"): "must be <= max batch",
    }
    for (old, new), words in changes.items():
        assert old in whole
        config.write_text(whole.replace(old, new))
        assert words in refused(pod), new
    config.write_text(whole)
    # One rank alone is no world of two.
    done = triton.run(*pod.words(0))
    assert "MPI worldSize is expected to be equal to tp*pp*cp" in done.stdout + done.stderr
    assert "unrecognized arguments: --http-prot=1" in refused(pod, ["--http-prot=1"])
