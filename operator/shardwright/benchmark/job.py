"""The Job that measures one leader, made from that leader's pod. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.api.names import GROUP, HOSTNAME_LABEL, PORT_HTTP, PORT_RUNNER
from shardwright.benchmark import inside
from shardwright.benchmark.results import MOST_POINTS, Point, read_point
from shardwright.benchmark.tools import AIPERF, TOOLS, Load, Tool, requests_of
from shardwright.runner.contract import ENV_REQUEST, ContractError, ServeRequest, decode
from shardwright.runner.measures import METRICS_PATH

LABEL_BENCHMARK = f"{GROUP}/benchmark"
_VOLUME = "results"
_SCRATCH = "/shardwright/results"
_DAY_SECONDS = 86400
_HIGHEST = 4096
# Allowed for a point at most: a tool's start, and for each token what nobody would serve at.
_START_SECONDS, _FIRST_SECONDS, _TOKEN_SECONDS = 180.0, 30.0, 0.25
# For a node, and for an image that must be pulled, before anything is measured.
PULL_SECONDS = 1800
# By GPU Feature Discovery; nodes of the leader's kind have the runtime's image sooner than others.
_PRODUCT_LABEL = "nvidia.com/gpu.product"


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


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be measured.

    Attributes:
        tool: What measures.
        image: Its image; empty for the leader's.
        input_len, output_len: Tokens of each prompt and of each answer.
        at_once: Requests at once, one point each.
        seconds: All points together may take so long.
        draft_len: `speculative.maxDraftLen`; 0 without speculative decoding.
        trust_code: `model.trustRemoteCode`.
    """

    tool: Tool
    image: str
    input_len: int
    output_len: int
    at_once: tuple[int, ...]
    seconds: int
    draft_len: int = 0
    trust_code: bool = False


def longest(at_once: tuple[int, ...], output_len: int) -> int:
    """Seconds that points may take together: far more than any that is worth measuring takes."""
    each = _FIRST_SECONDS + output_len * _TOKEN_SECONDS
    rounds = sum(-(-requests_of(number) // number) for number in at_once)
    return int(_START_SECONDS * len(at_once) + rounds * each)


def tool_for(runtime: str, asked: str, image: str) -> Tool:
    """The tool that measures a runtime.

    Args:
        runtime: As `engine.runtime` says it.
        asked: `own` for the one in the runtime's image, or `aiperf`.
        image: An image that has aiperf; the runtimes' images have not.

    Raises:
        JobError: The runtime cannot be measured so, with what can be done.
    """
    if asked == "aiperf":
        if runtime == "Triton":
            raise JobError(
                "engine.runtime Triton: its server speaks KServe's protocol, and aiperf 0.13 has "
                "no endpoint type for it; measure with a tool of your own and write the results "
                "as docs/benchmark.md shows"
            )
        if not image:
            raise JobError("--tool aiperf: name an image that has aiperf with --image")
        return AIPERF
    if image:
        raise JobError(
            f"--image {image}: the runtime's own benchmark runs in the leader's image; give "
            "--image only with --tool aiperf"
        )
    tool = TOOLS.get(runtime)
    if tool is None:
        other = (
            "measure with --tool aiperf --image IMAGE"
            if runtime == "NIM"
            else "measure with a tool of your own and write the results as docs/benchmark.md shows"
        )
        raise JobError(
            f"engine.runtime {runtime}: its image has no benchmark that asks a server; {other}"
        )
    return tool


def benchmark_job(pod: Mapping[str, Any], name: str, sweep: Sweep) -> dict[str, Any]:
    """The Job: near the leader, with its claims, and with no GPU.

    Args:
        pod: The leader's pod, as the API server gives it.
        name: Of the Job.
        sweep: What is to be measured.

    Raises:
        JobError: The pod has no address, or is no serving pod.
    """
    address = str(pod.get("status", {}).get("podIP") or "")
    if not address:
        raise JobError(f"pod {pod['metadata']['name']} has no address yet")
    served = served_by(pod)
    host = f"[{address}]" if ":" in address else address
    load = Load(
        f"http://{host}:{PORT_HTTP}",
        served.served_name,
        served.model_folder,
        sweep.input_len,
        sweep.output_len,
        seed=zlib.crc32(name.encode()),
        trust_code=sweep.trust_code,
    )
    tool = sweep.tool
    request = {
        "points": [_point(tool, load, number) for number in sweep.at_once],
        "keys": dict(tool.keys),
        "completed": tool.completed,
        "health": f"{load.url}{served.health_path}",
        "metrics": f"http://{host}:{PORT_RUNNER}{METRICS_PATH}",
        "draft_len": sweep.draft_len,
        "seconds": sweep.seconds,
        "must_hold_no_code": load.tokenizer if tool.trusts_always and not load.trust_code else "",
    }
    labels = {"app.kubernetes.io/part-of": "shardwright", LABEL_BENCHMARK: served.deployment}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": pod["metadata"]["namespace"], "labels": labels},
        "spec": {
            # A second try would measure beside what is left of the first.
            "backoffLimit": 0,
            "activeDeadlineSeconds": sweep.seconds + PULL_SECONDS,
            "ttlSecondsAfterFinished": _DAY_SECONDS,
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": _pod_spec(pod["spec"], sweep, served.product, request),
            },
        },
    }


def _point(tool: Tool, load: Load, number: int) -> dict[str, Any]:
    folder = f"{_SCRATCH}/{number}"
    return {
        "concurrency": number,
        "requests": requests_of(number),
        "argv": list(tool.command(load, number, folder)),
        "result": f"{folder}/{tool.result}",
    }


def _pod_spec(
    leader: Mapping[str, Any], sweep: Sweep, product: str, request: Mapping[str, Any]
) -> dict[str, Any]:
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
        **_near(leader, product),
        "securityContext": dict(leader.get("securityContext", {})),
        "containers": [
            {
                "name": "benchmark",
                "image": sweep.image or engine["image"],
                "command": ["python3", "-c", Path(inside.__file__).read_text(encoding="utf-8")],
                "env": [
                    {"name": inside.ENVIRONMENT, "value": json.dumps(request)},
                    {"name": "HOME", "value": _SCRATCH},
                    *({"name": key, "value": value} for key, value in sweep.tool.env.items()),
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


def _near(leader: Mapping[str, Any], product: str) -> dict[str, Any]:
    """Where it runs: in the leader's pool, best on its node, else on one of the same GPUs.

    Such a node has the image and can mount the claims. The pin is a wish only: the node may have
    no CPU left.
    """
    pool = dict(leader.get("nodeSelector", {}))
    pinned = pool.pop(HOSTNAME_LABEL, "")

    def likes(weight: int, label: str, value: str) -> dict[str, Any]:
        matches = [{"key": label, "operator": "In", "values": [value]}]
        return {"weight": weight, "preference": {"matchExpressions": matches}}

    liked = [likes(100, HOSTNAME_LABEL, pinned)] if pinned else []
    liked += [likes(50, _PRODUCT_LABEL, product)] if product else []
    found: dict[str, Any] = {"nodeSelector": pool}
    if liked:
        kind = "preferredDuringSchedulingIgnoredDuringExecution"
        found["affinity"] = {"nodeAffinity": {kind: liked}}
    return found


def points_of(message: str) -> tuple[tuple[Point, ...], str]:
    """The points in a benchmark's termination message, and why there are no more of them.

    Raises:
        JobError: It measured none, or says nothing.
    """
    try:
        told = json.loads(message)
        rows = [dict(zip(told["names"], row, strict=True)) for row in told["rows"]]
        points = tuple(map(read_point, rows))
        error = str(told["error"])
    except (ValueError, KeyError, TypeError, RecursionError) as failure:
        raise JobError(f"the benchmark's pod left no results: {message[:200]!r}") from failure
    if not points:
        raise JobError(f"the benchmark measured nothing: {error}")
    return points, error
