"""From apply to Ready on real nodes, and the tokens of the whole model from every split of it."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.real.site import HEAD, REPORT, Site, table
from tests.support.kube import Json, ready
from tests.support.operator import Operator

from shardwright.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SHAPES = [(2, 1, 1), (2, 2, 1), (4, 1, 1), (1, 2, 2)]


def by_name(pods: list[Json]) -> dict[str, Json]:
    return {pod["metadata"]["name"]: pod for pod in pods}


@pytest.mark.parametrize(("tensor", "pipeline", "replicas"), SHAPES, ids=str)
def test_every_split_answers_with_the_tokens_of_the_whole_model(
    running: Operator,
    site: Site,
    request: pytest.FixtureRequest,
    tensor: int,
    pipeline: int,
    replicas: int,
) -> None:
    site.create("tiny", tensor, pipeline, replicas=replicas)
    site.ready("tiny")
    pods = by_name(site.kube.pods("tiny"))
    assert len(pods) == pipeline * replicas
    assert all(ready(pod) for pod in pods.values())
    leaders = site.leaders("tiny")
    assert len(leaders) == replicas

    taken: dict[str, list[int]] = defaultdict(list)
    report = request.config.stash.setdefault(REPORT, [HEAD])
    for number, leader in enumerate(leaders):
        assert site.wrong_answers(leader) == []
        rows = site.ranks(leader)
        shape = f"{tensor}×{pipeline}" + (f" #{number}" if replicas > 1 else "")
        report += table(shape, rows)
        assert [row["rank"] for row in rows] == list(range(tensor * pipeline))
        for row in rows:
            assert row["rank"] == row["stage"] * tensor + row["tensorRank"]
            pod = pods[row["pod"]]
            assert pod["metadata"]["labels"][names.LABEL_STAGE] == str(row["stage"])
            assert pod["spec"]["nodeName"] == row["node"]
        # One stage has one pod, and its ranks have one each of the GPUs that the pod was given.
        for stage in range(pipeline):
            (pod,) = {row["pod"] for row in rows if row["stage"] == stage}
            given = [row["gpu"] for row in rows if row["stage"] == stage]
            assert sorted(given) == sorted(site.visible(pods[pod]))
            taken[pods[pod]["spec"]["nodeName"]] += given
        assert len({row["node"] for row in rows}) == pipeline
    for indices in taken.values():
        assert len(indices) == len(set(indices))
