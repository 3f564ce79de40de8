"""The Job that measures one leader, made from that leader's pod. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.api.names import GROUP, PORT_HTTP, PORT_RUNNER
from shardwright.benchmark import inside
from shardwright.benchmark.results import MOST_POINTS, Point
from shardwright.benchmark.tools import COMPLETED, RESULT_KEYS, TOOLS, Load, Tool
from shardwright.runner.contract import ENV_REQUEST, ContractError, ServeRequest, decode
from shardwright.runner.measures import METRICS_PATH

LABEL_BENCHMARK = f"{GROUP}/benchmark"
_VOLUME = "results"
_SCRATCH = "/shardwright/results"
_DAY_SECONDS = 86400
_HIGHEST = 4096


class JobError(ValueError):
    """What was asked for cannot be measured."""


def concurrencies(text: str) -> tuple[int, ...]:
    """Requests at once, as `1,2,4,8`.

    Raises:
        JobError: They are not 1 to 16 rising numbers from 1 to 4096.
    """
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if (
        not 0 < len(found) <= MOST_POINTS
        or list(found) != sorted(set(found))
        or not 0 < found[0] <= found[-1] <= _HIGHEST
    ):
        raise JobError(
            f"--concurrency {text}: write 1 to {MOST_POINTS} rising numbers from 1 to {_HIGHEST}, "
            "such as 1,2,4,8,16,32,64"
        )
    return found


def served_by(pod: Mapping[str, Any]) -> ServeRequest:
    """What the runner in this pod was asked to serve.

    Raises:
        JobError: It is no serving pod, or of another version.
    """
    env = pod["spec"]["containers"][0].get("env", ())
    text = next((one.get("value", "") for one in env if one["name"] == ENV_REQUEST), "")
    try:
        return decode(ServeRequest, text)
    except ContractError as error:
        raise JobError(f"pod {pod['metadata']['name']} cannot be read: {error}") from error


def benchmark_job(
    pod: Mapping[str, Any],
    name: str,
    runtime: str,
    lengths: tuple[int, int],
    at_once: Sequence[int],
    draft_len: int = 0,
) -> dict[str, Any]:
    """The Job: in the leader's image, with its claims, and with no GPU.

    Args:
        pod: The leader's pod, as the API server gives it.
        name: Of the Job.
        runtime: As `engine.runtime` says it.
        lengths: Tokens of each prompt and of each answer.
        at_once: Requests at once, one point each.
        draft_len: `speculative.maxDraftLen`; 0 without speculative decoding.

    Raises:
        JobError: The runtime's image has no benchmark that asks a server, or the pod no address.
    """
    tool = TOOLS.get(runtime)
    if tool is None:
        raise JobError(
            f"engine.runtime {runtime}: its image has no benchmark that asks a server; measure its "
            "Service with a tool of your own (aiperf) and write the results as docs/benchmark.md "
            "shows"
        )
    address = str(pod.get("status", {}).get("podIP") or "")
    if not address:
        raise JobError(f"pod {pod['metadata']['name']} has no address yet")
    served = served_by(pod)
    host = f"[{address}]" if ":" in address else address
    load = Load(
        f"http://{host}:{PORT_HTTP}",
        served.served_name,
        served.model_folder,
        *lengths,
        seed=zlib.crc32(name.encode()),
    )
    request = {
        "points": [_point(tool, load, number) for number in at_once],
        "keys": dict(RESULT_KEYS),
        "completed": COMPLETED,
        "metrics": f"http://{host}:{PORT_RUNNER}{METRICS_PATH}",
        "draft_len": draft_len,
    }
    labels = {"app.kubernetes.io/part-of": "shardwright", LABEL_BENCHMARK: served.deployment}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": pod["metadata"]["namespace"], "labels": labels},
        "spec": {
            # A second try would measure beside what is left of the first.
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _DAY_SECONDS,
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": _pod_spec(pod["spec"], request),
            },
        },
    }


def _point(tool: Tool, load: Load, number: int) -> dict[str, Any]:
    result = f"{_SCRATCH}/result-{number}.json"
    argv = tool.command(load, number, result)
    requests = int(argv[argv.index("--num-prompts") + 1])
    return {"concurrency": number, "requests": requests, "argv": list(argv), "result": result}


def _pod_spec(leader: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    claims = [one for one in leader.get("volumes", ()) if "persistentVolumeClaim" in one]
    names = {one["name"] for one in claims}
    engine = leader["containers"][0]
    mounts = [
        {**one, "readOnly": True} for one in engine.get("volumeMounts", ()) if one["name"] in names
    ]
    asked = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "2Gi"}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": list(leader.get("imagePullSecrets", ())),
        "tolerations": list(leader.get("tolerations", ())),
        "securityContext": dict(leader.get("securityContext", {})),
        "containers": [
            {
                "name": "benchmark",
                "image": engine["image"],
                "command": ["python3", "-c", Path(inside.__file__).read_text(encoding="utf-8")],
                "env": [
                    {"name": inside.ENVIRONMENT, "value": json.dumps(request)},
                    {"name": "HOME", "value": _SCRATCH},
                    # Nothing is fetched: the tokenizer is there and prompts are made up.
                    {"name": "HF_HUB_OFFLINE", "value": "1"},
                ],
                "resources": {"requests": asked, "limits": dict(asked)},
                "volumeMounts": [*mounts, {"name": _VOLUME, "mountPath": _SCRATCH}],
                "terminationMessagePolicy": "File",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": [*claims, {"name": _VOLUME, "emptyDir": {"sizeLimit": "1Gi"}}],
    }


def points_of(message: str) -> tuple[Point, ...]:
    """The points in a benchmark's termination message.

    Raises:
        JobError: It could not measure them all, or says nothing.
    """
    try:
        told = json.loads(message)
        points = tuple(Point(**dict(zip(told["names"], row, strict=True))) for row in told["rows"])
        error = str(told["error"])
    except (ValueError, KeyError, TypeError) as failure:
        raise JobError(f"the benchmark's pod left no results: {message[:200]!r}") from failure
    if error:
        raise JobError(f"the benchmark failed after {len(points)} points: {error}")
    return points
