"""Prometheus metrics: the names that Go operators use, so that stock dashboards fit, and our own.

Everything hangs on one registry that is passed around, none is global. Labels hold no message and
no uid.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

import shardwright
from shardwright.control.series import DeploymentSeries
from shardwright.observe.world import DeploymentView, NodeView, Resources

CONTROLLER: Final = "llmdeployment"
_PASS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_STEP_SECONDS: Final = (1, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800)


class Metrics:
    """All metrics of one operator process.

    Attributes are the metrics themselves, labelled where the loops that run them need no care:
    `reconcile_total` and the other `controller_runtime_*`, `workqueue_*`, `rest_client_*` and
    `leader_election_*` as client-go and controller-runtime define them, ours as `shardwright_*`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        # a second series for each counter and histogram, which nothing reads
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry if registry is not None else CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._controller_runtime()
        self._workqueue()
        self._own()

    def _controller_runtime(self) -> None:
        of, registry = ("controller",), self.registry
        self.reconcile_total = Counter(
            "controller_runtime_reconcile_total",
            "Reconciliations by result: success, error, requeue, requeue_after.",
            ("controller", "result"),
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "controller_runtime_reconcile_errors_total",
            "Reconciliations that raised.",
            of,
            registry=registry,
        ).labels(CONTROLLER)
        self.terminal_errors = Counter(
            "controller_runtime_terminal_reconcile_errors_total",
            "Reconciliations refused by the API server for good (invalid content, no rights).",
            of,
            registry=registry,
        ).labels(CONTROLLER)
        self.panics = Counter(
            "controller_runtime_reconcile_panics_total",
            "Reconciliations that ended in an exception which is no answer of the API server.",
            of,
            registry=registry,
        ).labels(CONTROLLER)
        self.reconcile_seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Time of one reconciliation.",
            of,
            buckets=_PASS_SECONDS,
            registry=registry,
        ).labels(CONTROLLER)
        self.active_workers = Gauge(
            "controller_runtime_active_workers", "Reconciliations running.", of, registry=registry
        ).labels(CONTROLLER)
        self.max_concurrent = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciliations that may run at the same time.",
            of,
            registry=registry,
        ).labels(CONTROLLER)
        self.requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server by status code (<error>: no answer), method and host.",
            ("code", "method", "host"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "rest_client_request_duration_seconds",
            "Time of a request to the API server.",
            ("method", "host"),
            registry=registry,
        )
        self.leader = Gauge(
            "leader_election_master_status",
            "1 while this process holds the Lease.",
            ("name",),
            registry=registry,
        )

    def _workqueue(self) -> None:
        of, registry = ("name", "controller"), self.registry
        labels = (CONTROLLER, CONTROLLER)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"workqueue_{name}", text, of, registry=registry).labels(*labels)

        self.queue_depth = gauge("depth", "Keys that wait for a worker.")
        self.queue_unfinished = gauge(
            "unfinished_work_seconds", "Seconds of work in progress that is not yet counted."
        )
        self.queue_longest = gauge(
            "longest_running_processor_seconds", "Age of the oldest pass that still runs."
        )
        self.queue_adds = Counter(
            "workqueue_adds_total", "Keys added.", of, registry=registry
        ).labels(*labels)
        self.queue_retries = Counter(
            "workqueue_retries_total", "Keys added again with a backoff.", of, registry=registry
        ).labels(*labels)
        self.queue_waited = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key waited for a worker.",
            of,
            buckets=_PASS_SECONDS,
            registry=registry,
        ).labels(*labels)
        self.queue_worked = Histogram(
            "workqueue_work_duration_seconds",
            "How long a key was worked on.",
            of,
            buckets=_PASS_SECONDS,
            registry=registry,
        ).labels(*labels)

    def _own(self) -> None:
        registry = self.registry

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"shardwright_{name}", text, labels, registry=registry)

        gauge("build_info", "1, with the versions as labels.", ("version", "python")).labels(
            shardwright.__version__, platform.python_version()
        ).set(1)
        self.loop_lag = gauge(
            "event_loop_lag_seconds", "How late the event loop last ran what was due."
        )
        self.gpus = gauge(
            "gpus", "GPUs of ready and unready nodes that can be allocated.", ("product",)
        )
        self.gpus_used = gauge("gpus_used", "GPUs asked for by pods of nodes.", ("product",))
        self.gpus_free = gauge("gpus_free", "GPUs that nobody asked for.", ("product",))
        self.placement_wait = Histogram(
            "shardwright_placement_wait_seconds",
            "From the creation of a replica's pods to the placement of the last.",
            buckets=_STEP_SECONDS,
            registry=registry,
        )
        self.step_seconds = Histogram(
            "shardwright_step_duration_seconds",
            "Time of a finished step Job by step and outcome (Done, Permanent, Environment).",
            ("step", "outcome"),
            buckets=_STEP_SECONDS,
            registry=registry,
        )
        self.artifacts_reused = Counter(
            "shardwright_artifacts_reused_total",
            "Artifacts that a new revision found already made.",
            ("step",),
            registry=registry,
        )
        self.rollouts = Counter(
            "shardwright_rollouts_total",
            "Rollouts ended, by result (Completed, RolledBack).",
            ("result",),
            registry=registry,
        )
        self.group_restarts = Counter(
            "shardwright_group_restarts_total",
            "Groups replaced whole, by cause.",
            ("cause",),
            registry=registry,
        )
        self.unreadable = Counter(
            "shardwright_unreadable_objects_total",
            "Objects of the cluster that could not be read, by kind.",
            ("kind",),
            registry=registry,
        )
        self.relists = Counter(
            "shardwright_store_lists_total",
            "Lists taken to close the gaps of watches.",
            registry=registry,
        )

    def on_request(self, code: int, method: str, host: str, seconds: float) -> None:
        """Count one request to the API server; code 0 means no answer."""
        self.requests.labels(str(code) if code else "<error>", method, host).inc()
        self.request_seconds.labels(method, host).observe(seconds)

    def watch(self, views: Callable[[], Iterable[DeploymentView]]) -> None:
        """Tell of the LLMDeployments that `views` gives at the time of each scrape."""
        self.registry.register(DeploymentSeries(views))

    def inventory(self, nodes: Iterable[NodeView], used: Mapping[str, Resources]) -> None:
        """Set the GPU gauges.

        Args:
            nodes: All nodes.
            used: By node name, what its pods ask for.
        """
        total: dict[str, int] = {}
        taken: dict[str, int] = {}
        free: dict[str, int] = {}
        for node in nodes:
            if not node.gpu.capacity:
                continue
            product = node.gpu.product or "unknown"
            asked = used[node.name].gpus if node.name in used else 0
            total[product] = total.get(product, 0) + node.gpu.count
            taken[product] = taken.get(product, 0) + asked
            free[product] = free.get(product, 0) + max(0, node.gpu.count - asked)
        for metric, values in ((self.gpus, total), (self.gpus_used, taken), (self.gpus_free, free)):
            metric.clear()
            for product, value in values.items():
                metric.labels(product).set(value)
