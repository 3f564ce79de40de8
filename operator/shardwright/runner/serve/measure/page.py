"""The runner's own metrics page. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.runner.contract import ServeRequest
from shardwright.runner.measures import FAMILIES, OWN_FAMILIES, Family
from shardwright.runner.serve.measure.exposition import Histogram, head, histogram_lines, line
from shardwright.runner.serve.measure.watch import GPULook, Look


def labels_of(request: ServeRequest) -> dict[str, str]:
    """What every series tells: whose it is.

    Namespace and pod are added by whoever scrapes. Adapters are no label: however many a user
    loads, the series stay as many.
    """
    told = {
        "deployment": request.deployment,
        "replica": str(request.replica),
        "model": request.served_name,
        "revision": request.revision,
    }
    return {name: value for name, value in told.items() if value}


def page(
    request: ServeRequest,
    look: Look,
    gpus: GPULook,
    errors: Mapping[str, int],
    in_flight: int | None,
) -> str:
    """Everything as Prometheus' text; what is not known now is not there.

    Args:
        request: Whose pod this is.
        look: The last look at the engine.
        gpus: The last look at the GPUs.
        errors: Failed looks by page of the engine, and of the GPUs.
        in_flight: Connections of the engine's port; None where they cannot be counted.
    """
    labels = labels_of(request)
    lines: list[str] = []
    for name, family in FAMILIES.items():
        value = look.values.get(name)
        if value is None:
            continue
        lines += head(name, family.kind, family.help)
        if isinstance(value, Histogram):
            lines += histogram_lines(name, labels, value)
        else:
            lines.append(line(name, labels, value))
    own: dict[str, list[tuple[dict[str, str], float]]] = {
        "shardwright_engine_up": [({"page": path}, float(up)) for path, up in look.up.items()],
        "shardwright_scrape_errors_total": [
            ({"page": what}, float(count)) for what, count in errors.items()
        ],
    }
    if in_flight is not None and request.stage == 0:
        own["shardwright_requests_in_flight"] = [({}, float(in_flight))]
    for gpu in gpus.gpus:
        which = {"stage": str(request.stage), "gpu": str(gpu.index)}
        for name, value in (
            ("shardwright_gpu_utilization", gpu.utilization),
            ("shardwright_gpu_memory_used_bytes", gpu.used_bytes),
            ("shardwright_gpu_memory_total_bytes", gpu.total_bytes),
        ):
            if value is not None:
                own.setdefault(name, []).append((which, float(value)))
    for name, series in own.items():
        if series:
            lines += _family(name, OWN_FAMILIES[name], labels, series)
    return "\n".join(lines) + "\n"


def _family(
    name: str,
    family: Family,
    labels: Mapping[str, str],
    series: list[tuple[dict[str, str], float]],
) -> list[str]:
    told = [line(name, {**labels, **more}, value) for more, value in series]
    return [*head(name, family.kind, family.help), *told]
