"""Each runtime's example on real nodes, and a live change of the one line `runtime`.

TensorRT-LLM's engines are in `test_shapes`, Triton in `test_triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client
from tests.real.examples import example
from tests.real.site import MODEL, RANKS, READY_SECONDS, Site, table
from tests.standin.running import PROMPTS
from tests.support import standin_model
from tests.support.kube import Json, ready
from tests.support.operator import Operator
from typer.testing import CliRunner

from shardwright.api import names
from shardwright.benchmark.results import read_run
from shardwright.cli.app import app

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SWITCHED = "switched"
# A merge patch: the backend is TensorRT-LLM's alone, and the user's own options go into the file
# that the runtime reads as flags.
TO_VLLM: Json = {"runtime": "VLLM", "backend": None, "config": {"enable-prefix-caching": False}}
TO_ENGINE: Json = {"runtime": "TensorRTLLM", "backend": "TensorRT", "config": None}
FP8 = "tiny-fp8"


@dataclass(frozen=True, slots=True)
class Case:
    """An example, its split here, and what must come of it.

    `fp8` says who rounds the weights: the runtime while it loads, the checkpoint, or nobody.
    """

    file: str
    runtime: str
    image: str
    served_name: str
    tensor: int = 2
    pipeline: int = 2
    model: str = MODEL
    fp8: bool = False


CASES = (
    Case("llama-405b-vllm", "VLLM", "docker.io/vllm/vllm-openai:v0.33.0", "llama-405b"),
    Case("llama-70b-sglang", "SGLang", "docker.io/lmsysorg/sglang:v0.5.23", "llama-70b", fp8=True),
    Case(
        "llama-70b-pytorch",
        "TensorRTLLM",
        "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        "llama-70b",
        model=FP8,
        fp8=True,
    ),
    # One stage is all that it has.
    Case(
        "llama-8b-nim",
        "NIM",
        "nvcr.io/nim/nvidia/vllm-model-free-nim:2.1.5",
        "llama-8b",
        pipeline=1,
    ),
)


@pytest.fixture(scope="module")
def served(running: Operator, shared_site: Site) -> Site:
    """All of them at once, and a deployment to be switched."""
    standin_model.make_fp8_model(shared_site.claim / FP8)
    login = client.V1Secret(
        # NIM's example names it; the image is on the nodes, and nobody asks for it.
        metadata=client.V1ObjectMeta(name="ngc"),
        type="kubernetes.io/dockerconfigjson",
        string_data={".dockerconfigjson": '{"auths": {}}'},
    )
    shared_site.kube.core.create_namespaced_secret(shared_site.kube.namespace, login)
    shared_site.create(SWITCHED, 2, 1)
    for case in CASES:
        spec = example(case.file, case.tensor, case.pipeline, case.model)
        shared_site.kube.create_whole(case.file, spec)
    return shared_site


@pytest.fixture(scope="module")
def rounded(served: Site) -> dict[str, str]:
    """What the unsharded model says in FP8."""
    found = standin_model.unsharded(served.claim / MODEL, PROMPTS, qformat="fp8")
    assert all(found[prompt] != served.reference[prompt] for prompt in PROMPTS)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_an_example_answers_with_the_tokens_of_the_whole_model(
    served: Site,
    rounded: dict[str, str],
    record_property: Callable[[str, object], None],
    case: Case,
) -> None:
    name = case.file
    status = served.ready(name)["status"]
    built = status["engine"]["serving"]["builtFor"]
    assert (built["runtime"], built["tensor"], built["pipeline"]) == (
        case.runtime,
        str(case.tensor),
        str(case.pipeline),
    )
    pods = served.kube.pods(name)
    assert all(ready(pod) for pod in pods)
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == case.pipeline
    (leader,) = served.leaders(name)
    assert leader["spec"]["containers"][0]["image"] == case.image
    says = rounded if case.fp8 else served.reference
    assert served.wrong_answers(leader, says, case.served_name) == []
    rows = served.ranks(leader)
    for line in table(name, rows):
        record_property(RANKS, line)
    assert [(row["rank"], row["stage"]) for row in rows] == [
        (rank, rank // case.tensor) for rank in range(case.tensor * case.pipeline)
    ]
    assert len({(row["node"], row["gpu"]) for row in rows}) == case.tensor * case.pipeline


# NIM's image has no benchmark.
@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.file)
def test_a_replica_is_measured_by_its_runtime_s_own_benchmark_drawn_and_compared(
    served: Site, tmp_path: Path, case: Case
) -> None:
    name, namespace = case.file, served.kube.namespace
    before = served.ready(name)["status"]
    revision = before["engine"]["serving"]["revision"]
    out, picture = tmp_path / "run.json", tmp_path / "run.svg"
    where = ["-n", namespace, "--kubeconfig", str(served.sandbox.kubeconfig)]
    sizes = ["--concurrency", "1,2,8", "--input-len", "32", "--output-len", "6"]
    done = CliRunner().invoke(app, ["benchmark", name, "-o", str(out), *where, *sizes])
    assert done.exit_code == 0, done.output
    told = done.stderr.splitlines()
    assert told[0].startswith(f"Job {namespace}/{name}-benchmark-")
    assert "3 of 3: 8 at once, 64 requests" in told

    run = read_run(out.read_text())
    assert (run.runtime, run.tensor, run.pipeline) == (case.runtime, case.tensor, case.pipeline)
    assert run.revision == revision
    assert [(point.concurrency, point.failed) for point in run.points] == [(1, 0), (2, 0), (8, 0)]
    assert run.remarks == ()
    for point in run.points:
        assert point.tokens_per_second == pytest.approx(6 * point.requests_per_second, rel=0.01)
        assert 0 < point.ttft_ms <= point.ttft_p99_ms
    assert run.points[-1].tokens_per_second > run.points[0].tokens_per_second

    done = CliRunner().invoke(app, ["plot", str(out), "-o", str(picture)])
    assert done.exit_code == 0, done.output
    assert "Output tokens per second (one replica)" in picture.read_text()
    done = CliRunner().invoke(app, ["compare-runs", str(out)])
    rows = [line.split() for line in done.output.splitlines()]
    assert [row[:4] for row in rows if row[1:2] == [name]] == [
        [str(at), name, case.runtime, run.weights] for at in (1, 2, 8)
    ]

    def kept() -> bool:
        status = served.kube.get(name)["status"]
        return (status.get("benchmark") or {}).get("revision") == revision

    # The operator's next write of status leaves it alone.
    assert kept()
    served.kube.edit(name, {"rollout": {"drainTimeoutSeconds": 3}})
    generation = served.kube.get(name)["metadata"]["generation"]
    served.kube.wait(
        "the edit is seen",
        lambda: served.kube.get(name)["status"]["observedGeneration"] == generation,
        60.0,
    )
    assert kept()


def test_another_runtime_is_proven_by_a_candidate_and_nothing_is_fetched_or_built(
    served: Site,
) -> None:
    before = served.ready(SWITCHED)
    jobs = {job["metadata"]["name"] for job in served.kube.jobs()}
    (old,) = served.leaders(SWITCHED)
    revision = before["status"]["engine"]["serving"]["key"]

    served.kube.edit(SWITCHED, {"engine": TO_VLLM})
    gone(served, old)
    after = served.ready(SWITCHED)
    assert {job["metadata"]["name"] for job in served.kube.jobs()} == jobs
    assert after["status"]["engine"]["serving"]["key"] != revision
    assert after["status"]["engine"]["serving"]["builtFor"]["runtime"] == "VLLM"
    (leader,) = served.leaders(SWITCHED)
    assert served.wrong_answers(leader) == []

    # Back again: the engine is still there and was proven, so no Job is made either.
    served.kube.edit(SWITCHED, {"engine": TO_ENGINE})
    gone(served, leader)
    served.ready(SWITCHED)
    assert {job["metadata"]["name"] for job in served.kube.jobs()} == jobs
    (leader,) = served.leaders(SWITCHED)
    assert leader["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_LEADER
    assert served.wrong_answers(leader) == []


def gone(site: Site, pod: Json) -> None:
    """Wait until a pod of the switched deployment is not there any more."""
    uid = pod["metadata"]["uid"]
    site.kube.wait(
        "the old pod is gone",
        lambda: uid not in {one["metadata"]["uid"] for one in site.kube.pods(SWITCHED, live=False)},
        READY_SECONDS,
    )
