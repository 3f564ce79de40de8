from __future__ import annotations

import pytest
from tests.support.kube import Kube, gpus, ready
from tests.support.operator import Operator

pytestmark = pytest.mark.e2e


def test_a_replica_of_two_stages_is_fetched_built_proven_placed_and_ready(
    running: Operator, kube: Kube, h100s: list[str]
) -> None:
    kube.create("llama")
    found = kube.wait_ready("llama")
    pods = kube.pods("llama")
    assert [ready(pod) for pod in pods] == [True, True]
    assert sum(gpus(pod) for pod in pods) == 16
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    steps = [job["metadata"]["labels"]["shardwright.dev/step"] for job in kube.jobs()]
    assert sorted(steps) == ["checkpoint", "engine", "model"]
    assert found["status"]["engine"]["serving"]["builtFor"]["tensor"] == "8"


def test_a_service_of_the_same_name_that_is_somebody_elses_is_left_alone(
    running: Operator, kube: Kube, h100s: list[str]
) -> None:
    mine = {
        "metadata": {"name": "llama"},
        "spec": {"ports": [{"port": 5432}], "selector": {"a": "b"}},
    }
    kube.core.create_namespaced_service(kube.namespace, mine)
    kube.create("llama", {"parallelism": {"tensor": 1, "pipeline": 1}})
    told = kube.wait_reason("llama", "Ready", "NameTaken", 60)
    assert "Service llama belongs to nobody" in told["message"]
    assert kube.core.read_namespaced_service("llama", kube.namespace).spec.selector == {"a": "b"}
    assert kube.pods("llama") == []
    kube.core.delete_namespaced_service("llama", kube.namespace)
    kube.wait_ready("llama", 120)
