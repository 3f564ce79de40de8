"""Metrics: the names that stock dashboards know, and series that go with their object."""

from __future__ import annotations

import json
import logging
from io import StringIO
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest
from tests.support import bodies

from shardwright.api.settings import Settings
from shardwright.control import logs
from shardwright.control.metrics import Metrics
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import deployment_view
from shardwright.observe.world import DeploymentView, Resources

PLACE = {"namespace": "llm", "name": "a"}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def names_of(metrics: Metrics) -> set[str]:
    return {
        line.split()[2]
        for line in generate_latest(metrics.registry).decode().splitlines()
        if line.startswith("# TYPE")
    }


@pytest.mark.parametrize(
    "name",
    [
        "controller_runtime_reconcile_total",
        "controller_runtime_reconcile_errors_total",
        "controller_runtime_terminal_reconcile_errors_total",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_reconcile_panics_total",
        "controller_runtime_active_workers",
        "controller_runtime_max_concurrent_reconciles",
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_queue_duration_seconds",
        "workqueue_work_duration_seconds",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "workqueue_retries_total",
        "rest_client_requests_total",
        "leader_election_master_status",
    ],
)
def test_the_names_of_go_operators_are_there(metrics: Metrics, name: str) -> None:
    assert name in names_of(metrics)


def test_everything_else_is_ours_or_the_processs(metrics: Metrics) -> None:
    known = ("controller_runtime_", "workqueue_", "rest_client_", "leader_election_")
    others = {name for name in names_of(metrics) if not name.startswith(known)}
    assert all(name.startswith(("shardwright_", "process_", "python_")) for name in others)


def ready(status: str) -> dict[str, object]:
    condition = {"type": "Ready", "status": status, "reason": "R", "message": "a message"}
    return {"conditions": [condition], "readyReplicas": 1}


def watch(metrics: Metrics, *stored: dict[str, Any]) -> list[DeploymentView]:
    """Objects as the store has them; the list may be changed."""
    views = [deployment_view(body) for body in stored]
    metrics.watch(lambda: views)
    return views


def test_a_condition_is_one_for_the_status_it_has_and_zero_for_the_others(metrics: Metrics) -> None:
    value = metrics.registry.get_sample_value
    views = watch(metrics)
    for status in ("False", "True", "Unknown"):
        views[:] = [deployment_view(bodies.deployment(status=ready(status)))]
        found = {
            one: value(
                "shardwright_condition",
                {"kind": "LLMDeployment", **PLACE, "type": "Ready", "status": one},
            )
            for one in ("True", "False", "Unknown")
        }
        assert found == {one: float(one == status) for one in found}
    assert value("shardwright_replicas_desired", PLACE) == 2
    assert value("shardwright_replicas_ready", PLACE) == 1


def test_the_series_of_a_deployment_go_with_it(metrics: Metrics) -> None:
    both = [bodies.deployment(), bodies.deployment("b", "uid-b")]
    views = watch(metrics, *(body | {"status": ready("True")} for body in both))
    assert 'name="a"' in generate_latest(metrics.registry).decode()
    del views[0]
    text = generate_latest(metrics.registry).decode()
    assert 'name="a"' not in text
    assert 'name="b"' in text


def test_a_changed_product_leaves_no_series_behind(metrics: Metrics) -> None:
    views = watch(metrics)
    for product in ("H100", "H200"):
        body = bodies.deployment()
        body["spec"]["gpu"] = {"product": product}
        views[:] = [deployment_view(body)]
        assert f'product="{product}"' in generate_latest(metrics.registry).decode()
    text = generate_latest(metrics.registry).decode()
    assert 'product="H200"' in text
    assert 'product="H100"' not in text


def test_an_odd_spec_does_not_fail_the_pass(metrics: Metrics) -> None:
    body = bodies.deployment(status={"conditions": "none"})
    body["spec"] = {"engine": "fast", "replicas": "two"}
    watch(metrics, body)
    assert metrics.registry.get_sample_value("shardwright_replicas_desired", PLACE) == 0


def test_gpus_are_counted_by_product(metrics: Metrics) -> None:
    nodes = [node_view(bodies.node(name), Settings()) for name in ("n1", "n2")]
    metrics.inventory(nodes, {"n1": Resources(gpus=3), "gone": Resources(gpus=8)})
    product = {"product": "NVIDIA-H100-80GB-HBM3"}
    value = metrics.registry.get_sample_value
    assert value("shardwright_gpus", product) == 16
    assert value("shardwright_gpus_used", product) == 3
    assert value("shardwright_gpus_free", product) == 13
    metrics.inventory([], {})
    assert value("shardwright_gpus", product) is None


def test_a_request_without_an_answer_is_counted_as_client_go_does(metrics: Metrics) -> None:
    metrics.on_request(0, "GET", "api:443", 0.1)
    labels = {"code": "<error>", "method": "GET", "host": "api:443"}
    assert metrics.registry.get_sample_value("rest_client_requests_total", labels) == 1


@pytest.fixture
def log_lines() -> object:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = StringIO()
    logs.configure("INFO", "json", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_log_lines_are_json_with_the_context_of_the_pass(log_lines: StringIO) -> None:
    with structlog.contextvars.bound_contextvars(key="deployment/llm/a", reconcile_id="7"):
        structlog.get_logger("shardwright.x").info("engine built", seconds=3)
        logging.getLogger("some.library").warning("old %s", "style")
    logging.getLogger("kopf.objects").info("Handler 'event' succeeded.")
    first, second = [json.loads(line) for line in log_lines.getvalue().splitlines()]
    assert (first["message"], first["seconds"], first["level"]) == ("engine built", 3, "info")
    assert second["message"] == "old style"
    for line in (first, second):
        assert (line["key"], line["reconcile_id"]) == ("deployment/llm/a", "7")
        assert line["timestamp"].endswith("Z")


def test_an_exception_stays_on_its_line(log_lines: StringIO) -> None:
    try:
        int("odd")
    except ValueError:
        structlog.get_logger("shardwright.x").exception("pass failed")
    line = json.loads(log_lines.getvalue())
    assert "ValueError: invalid literal" in line["exception"]
