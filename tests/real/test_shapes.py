"""From apply to Ready on real nodes, and the tokens of the whole model from every split of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.real.examples import example
from tests.real.site import MODEL, RANKS, Site, table
from tests.support.kube import ready
from tests.support.operator import Operator

from shardwright.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# Tensor, pipeline, replicas. All are there at a time: 12 of the 24 GPUs, in whatever order.
SHAPES = {"tp2-pp2": (2, 2, 1), "tp4": (4, 1, 1), "pp2": (1, 2, 2)}
# The example of engines over two nodes, in this shape.
EXAMPLE, OF_EXAMPLE = "llama-70b-pp2", "tp2-pp2"


@pytest.fixture(scope="module")
def shapes(running: Operator, shared_site: Site) -> Site:
    """One deployment of each shape, from one model."""
    for name, (tensor, pipeline, replicas) in SHAPES.items():
        if name == OF_EXAMPLE:
            shared_site.kube.create_whole(name, example(EXAMPLE, tensor, pipeline))
        else:
            shared_site.create(name, tensor, pipeline, replicas=replicas)
    return shared_site


@pytest.mark.parametrize("name", SHAPES)
def test_every_split_answers_with_the_tokens_of_the_whole_model(
    shapes: Site, record_property: Callable[[str, object], None], name: str
) -> None:
    tensor, pipeline, replicas = SHAPES[name]
    shapes.ready(name)
    pods = {pod["metadata"]["name"]: pod for pod in shapes.kube.pods(name)}
    assert len(pods) == pipeline * replicas
    assert all(ready(pod) for pod in pods.values())
    leaders = shapes.leaders(name)
    assert len(leaders) == replicas
    asked_for = "llama-70b" if name == OF_EXAMPLE else MODEL

    taken = []
    for leader in leaders:
        assert shapes.wrong_answers(leader, model=asked_for) == []
        rows = shapes.ranks(leader)
        for line in table(name, rows):
            record_property(RANKS, line)
        assert [row["rank"] for row in rows] == list(range(tensor * pipeline))
        for row in rows:
            assert row["rank"] == row["stage"] * tensor + row["tensorRank"]
            pod = pods[row["pod"]]
            assert pod["metadata"]["labels"][names.LABEL_STAGE] == str(row["stage"])
            assert pod["spec"]["nodeName"] == row["node"]
        # One stage has one pod, and its ranks have one each of the GPUs that the pod was given.
        for stage in range(pipeline):
            (pod_name,) = {row["pod"] for row in rows if row["stage"] == stage}
            given = [row["gpu"] for row in rows if row["stage"] == stage]
            assert sorted(given) == sorted(shapes.visible(pods[pod_name]))
        taken += [(row["node"], row["gpu"]) for row in rows]
        # Stages keep apart.
        assert len({row["node"] for row in rows}) == pipeline
    assert len(taken) == len(set(taken)) == tensor * pipeline * replicas


def test_what_tensor_ranks_talk_over_is_read_and_told(shapes: Site) -> None:
    shapes.ready("tp4")
    verified = shapes.kube.wait_reason("tp4", "TopologyVerified", "LinksAsPlanned", 60)
    assert verified["status"] == "True"
    assert verified["message"] == "tensor ranks talk over NVLink in 1 serving replicas"
    [group] = shapes.kube.get("tp4")["status"]["groups"]
    assert group["links"] == {"tensor": "NVLink", "pipeline": "None", "slow": []}
