"""KWOK's stages: what it does to nodes and pods, and what it leaves alone.

KWOK's own stages make every Job pod succeed at once and every pod ready at
once. Here it plays the kubelet for nodes, the deletion of all pods, and the
start of those pods that are not ours; ours are played by the player, which
writes the files that a real container would, and may fail.
"""

from pathlib import Path

import yaml

from shardwright_sandbox.config import SandboxConfig

KUBELET_LABEL = "sandbox.shardwright.dev/kubelet"
"""On nodes with the value `running`: KWOK keeps their heartbeat. Gone: the kubelet is dead."""
KUBELET_RUNNING = "running"
READY_ANNOTATION = "sandbox.shardwright.dev/ready"
"""On nodes: `false` keeps the node NotReady while its kubelet lives."""
PLAYED_BY_ANNOTATION = "sandbox.shardwright.dev/played-by"
"""On pods: `kwok` takes one of ours away from the player; it is then ready once started."""
ROLE_LABEL = "shardwright.dev/role"
"""On every pod of the operator's: these are the player's."""

_TEMPLATES = Path(__file__).with_name("templates")


def _template(name: str, **values: str) -> str:
    """A status template of KWOK's (Go's template language over YAML), with `@name@` filled in."""
    text = (_TEMPLATES / f"{name}.yaml.gotmpl").read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _stage(
    name: str,
    kind: str,
    expressions: list[tuple[str, str, list[str]]],
    next_: dict[str, object],
    delay_seconds: float = 0.0,
) -> dict[str, object]:
    matches = [
        {"key": key, "operator": operator, **({"values": values} if values else {})}
        for key, operator, values in expressions
    ]
    spec: dict[str, object] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": matches},
        "next": next_,
    }
    if delay_seconds > 0:
        spec["delay"] = {"durationMilliseconds": round(delay_seconds * 1000)}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": spec,
    }


_READY_STATUS = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_WANTED_READY = f'.metadata.annotations["{READY_ANNOTATION}"]'
_GOING = ".metadata.deletionTimestamp"
_PHASE = ".status.phase"


def _node_stages() -> list[dict[str, object]]:
    ready = _template(
        "node-conditions", ready="True", reason="KubeletReady", message="kubelet posts its status"
    )
    failed = _template(
        "node-conditions",
        ready="False",
        reason="KubeletNotReady",
        message="container runtime is down (made so by the sandbox)",
    )
    return [
        _stage(
            "node-ready",
            "Node",
            [(_READY_STATUS, "NotIn", ["True"]), (_WANTED_READY, "NotIn", ["false"])],
            {"statusTemplate": ready},
        ),
        _stage(
            "node-not-ready",
            "Node",
            [(_READY_STATUS, "NotIn", ["False"]), (_WANTED_READY, "In", ["false"])],
            {"statusTemplate": failed},
        ),
    ]


def _pod_stages(config: SandboxConfig) -> list[dict[str, object]]:
    fresh: list[tuple[str, str, list[str]]] = [
        (_GOING, "DoesNotExist", []),
        (_PHASE, "In", ["Pending"]),
    ]
    role = f'.metadata.labels["{ROLE_LABEL}"]'
    played_by = f'.metadata.annotations["{PLAYED_BY_ANNOTATION}"]'
    start: dict[str, object] = {"statusTemplate": _template("pod-running")}
    starts = [
        _stage(
            "pod-start-foreign",
            "Pod",
            [*fresh, (role, "DoesNotExist", [])],
            start,
            config.pod_start_seconds,
        ),
        _stage(
            "pod-start-ours",
            "Pod",
            [*fresh, (role, "Exists", []), (played_by, "In", ["kwok"])]
            if config.player
            else [*fresh, (role, "Exists", [])],
            start,
            config.pod_start_seconds,
        ),
    ]
    # As a kubelet does it: first the containers end and the phase becomes
    # final, then the object goes. Without the first step a Job's pod could
    # never be removed: the Job controller waits for a final phase.
    stops = [
        _stage(
            "pod-stop",
            "Pod",
            [(_GOING, "Exists", []), (_PHASE, "NotIn", ["Succeeded", "Failed"])],
            {"statusTemplate": _template("pod-stopped")},
            config.pod_stop_seconds,
        ),
        _stage(
            "pod-remove",
            "Pod",
            [(_GOING, "Exists", []), (_PHASE, "In", ["Succeeded", "Failed"])],
            {"delete": True},
        ),
    ]
    return [*starts, *stops]


def write_stages(path: Path, config: SandboxConfig) -> Path:
    """Write KWOK's configuration file."""
    options: dict[str, object] = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        # Four pods at once by default: with 400 starting, KWOK itself would be the limit. A file
        # with options turns the defaults of the others off, so all are named.
        "options": {
            "cidr": "10.244.0.0/16",
            "podPlayStageParallelism": 8,
            "nodePlayStageParallelism": 4,
            "nodeLeaseParallelism": 4,
            "podsOnNodeSyncParallelism": 4,
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all([options, *_node_stages(), *_pod_stages(config)]))
    return path
