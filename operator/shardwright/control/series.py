"""The series of LLMDeployments, made at each scrape from the objects as they are stored.

So no series outlives its object or says what a pass only meant to write, and between two scrapes
thousands of them take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shardwright.api.names import KIND
from shardwright.observe.world import DeploymentView

_STATUSES: Final = ("True", "False", "Unknown")
_OBJECT: Final = ("namespace", "name")


class DeploymentSeries(Collector):
    """What each LLMDeployment asks for, and its conditions."""

    def __init__(self, views: Callable[[], Iterable[DeploymentView]]) -> None:
        """`views` gives the objects as stored."""
        self._views = views

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families, all of one moment."""
        info = _family(
            "resource_info",
            "1 for each LLMDeployment, with what it asks for as labels.",
            *("runtime", "backend", "product", "tensor", "pipeline"),
        )
        desired = _family("replicas_desired", "spec.replicas.")
        ready = _family("replicas_ready", "status.readyReplicas.")
        condition = GaugeMetricFamily(
            "shardwright_condition",
            "1 for the status a condition has, 0 for those it has not.",
            labels=("kind", *_OBJECT, "type", "status"),
        )
        for view in self._views():
            place = (view.namespace, view.name)
            spec, status = _Paths(view.spec), _Paths(view.status)
            asked = (
                spec.text("engine", "runtime"),
                spec.text("engine", "backend"),
                spec.text("gpu", "product"),
                spec.text("parallelism", "tensor"),
                spec.text("parallelism", "pipeline"),
            )
            info.add_metric((*place, *asked), 1)
            desired.add_metric(place, spec.number("replicas"))
            ready.add_metric(place, status.number("readyReplicas"))
            for one in status.items("conditions"):
                for word in _STATUSES:
                    labels = (KIND, *place, str(one.get("type")), word)
                    condition.add_metric(labels, float(one.get("status") == word))
        yield from (info, desired, ready, condition)


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"shardwright_{name}", text, labels=(*_OBJECT, *labels))


class _Paths:
    """Reads decoded JSON by path, whatever its shape: a metric must not fail a pass."""

    def __init__(self, root: object) -> None:
        self._root = root

    def _at(self, path: tuple[str, ...]) -> object:
        found = self._root
        for part in path:
            if not isinstance(found, Mapping):
                return None
            found = found.get(part)
        return found

    def text(self, *path: str) -> str:
        found = self._at(path)
        return "" if found is None else str(found)

    def number(self, *path: str) -> float:
        found = self._at(path)
        return float(found) if isinstance(found, int | float) else 0.0

    def items(self, *path: str) -> list[Mapping[str, object]]:
        found = self._at(path)
        return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
