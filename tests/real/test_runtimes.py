"""vLLM and SGLang over two real nodes, and a live change of the one line `runtime`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.real.site import RANKS, SPEC, Site, table
from tests.support.kube import Json, merged, ready
from tests.support.operator import Operator

from shardwright.api import names
from shardwright.api.engines import DEFAULT_VERSIONS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# A merge patch: the backend is TensorRT-LLM's alone, and the user's own options go into the file
# that each runtime reads as flags.
ENGINES: dict[str, Json] = {
    "VLLM": {"runtime": "VLLM", "backend": None, "config": {"enable-prefix-caching": False}},
    "SGLang": {"runtime": "SGLang", "backend": None, "config": {"disable-radix-cache": True}},
}
SWITCHED = "switched"


@pytest.fixture(scope="module")
def served(running: Operator, shared_site: Site) -> Site:
    """One deployment of each runtime, two ranks on each of two nodes, and one to be switched."""
    for name, engine in ENGINES.items():
        spec = merged(SPEC, {"parallelism": {"tensor": 2, "pipeline": 2}})
        # The backend's null must reach the base that it is merged into.
        shared_site.kube.create(name.lower(), {**spec, "engine": {**spec["engine"], **engine}})
    shared_site.create(SWITCHED, 2, 1)
    return shared_site


@pytest.mark.parametrize("name", ENGINES)
def test_ranks_of_two_nodes_answer_with_the_tokens_of_the_whole_model(
    served: Site, record_property: Callable[[str, object], None], name: str
) -> None:
    deployment = name.lower()
    status = served.ready(deployment)["status"]
    assert status["engine"]["serving"]["builtFor"]["runtime"] == name
    pods = served.kube.pods(deployment)
    assert len(pods) == 2
    assert all(ready(pod) for pod in pods)
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    (leader,) = served.leaders(deployment)
    image = leader["spec"]["containers"][0]["image"]
    assert image.endswith(f":v{DEFAULT_VERSIONS[name]}")
    assert served.wrong_answers(leader) == []
    rows = served.ranks(leader)
    for line in table(deployment, rows):
        record_property(RANKS, line)
    assert [(row["rank"], row["stage"]) for row in rows] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert len({(row["node"], row["gpu"]) for row in rows}) == 4


def test_another_runtime_is_proven_by_a_candidate_and_nothing_is_fetched_or_built(
    served: Site,
) -> None:
    before = served.ready(SWITCHED)
    jobs = {job["metadata"]["name"] for job in served.kube.jobs()}
    (old,) = served.leaders(SWITCHED)
    revision = before["status"]["engine"]["serving"]["key"]

    served.kube.edit(SWITCHED, {"engine": ENGINES["VLLM"]})
    served.kube.wait(
        "the old pod is gone",
        lambda: (
            old["metadata"]["uid"]
            not in {pod["metadata"]["uid"] for pod in served.kube.pods(SWITCHED, live=False)}
        ),
        90.0,
    )
    after = served.ready(SWITCHED)
    assert {job["metadata"]["name"] for job in served.kube.jobs()} == jobs
    assert after["status"]["engine"]["serving"]["key"] != revision
    assert after["status"]["engine"]["serving"]["builtFor"]["runtime"] == "VLLM"
    (leader,) = served.leaders(SWITCHED)
    assert served.wrong_answers(leader) == []

    # Back again: the engine is still there and was proven, so no Job is made either.
    back = {"runtime": "TensorRTLLM", "backend": "TensorRT", "config": None}
    served.kube.edit(SWITCHED, {"engine": back})
    uid = leader["metadata"]["uid"]
    served.kube.wait(
        "the second pod is gone",
        lambda: (
            uid not in {pod["metadata"]["uid"] for pod in served.kube.pods(SWITCHED, live=False)}
        ),
        90.0,
    )
    served.ready(SWITCHED)
    assert {job["metadata"]["name"] for job in served.kube.jobs()} == jobs
    (leader,) = served.leaders(SWITCHED)
    assert leader["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_LEADER
    assert served.wrong_answers(leader) == []
