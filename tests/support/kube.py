"""What a test sees and does in its namespace: LLMDeployments, their objects, and waiting."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from kubernetes import client

GROUP, VERSION, PLURAL = "shardwright.dev", "v1alpha1", "llmdeployments"
H100, H200, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-A100-SXM4-80GB"
Json = dict[str, Any]

BASE: Json = {
    "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main", "servedName": "llama"},
    "engine": {"backend": "TensorRT"},
    "gpu": {"product": H100},
    "parallelism": {"tensor": 8, "pipeline": 2},
    "replicas": 1,
    "storage": {"claimName": "models"},
}


def merged(base: Json, change: Json) -> Json:
    """A JSON merge patch applied: None removes."""
    result = copy.deepcopy(base)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merged(result[name], value)
        else:
            result[name] = copy.deepcopy(value)
    return result


class Kube:
    """One namespace of a cluster."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.core = client.CoreV1Api(api)
        self.batch = client.BatchV1Api(api)
        self.apps = client.AppsV1Api(api)
        self.policy = client.PolicyV1Api(api)
        self.custom = client.CustomObjectsApi(api)

    def raw(self, path: str, **query: str) -> Json:
        """GET an API path as plain JSON."""
        answer = self.api.call_api(
            *self.api.param_serialize(
                method="GET",
                resource_path=path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
        )
        answer.read()
        import json  # noqa: PLC0415

        result: Json = json.loads(answer.data)
        return result

    def create(self, name: str, change: Json | None = None, **metadata: Any) -> Json:
        """Create an LLMDeployment: the tests' base spec with `change` merged in."""
        return self.create_whole(name, merged(BASE, change or {}), **metadata)

    def create_whole(self, name: str, spec: Json, **metadata: Any) -> Json:
        """Create an LLMDeployment of just this spec."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "LLMDeployment",
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        made: Json = self.custom.create_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, body
        )
        return made

    def edit(self, name: str, change: Json) -> Json:
        """Merge a change into the spec."""
        made: Json = self.custom.patch_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name, {"spec": change}
        )
        return made

    def annotate(self, name: str, **annotations: str) -> None:
        """Set annotations of the LLMDeployment."""
        self.custom.patch_namespaced_custom_object(
            GROUP,
            VERSION,
            self.namespace,
            PLURAL,
            name,
            {"metadata": {"annotations": annotations}},
        )

    def delete(self, name: str) -> None:
        """Delete the LLMDeployment."""
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)

    def clear(self, seconds: float = 60.0) -> None:
        """Delete every LLMDeployment and wait until its pods are going.

        Not longer: a pod on a node without a kubelet goes only with its node.
        """
        self.custom.delete_collection_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL
        )
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if all("deletionTimestamp" in pod["metadata"] for pod in self.pods(live=False)):
                return
            time.sleep(0.1)

    def get(self, name: str) -> Json:
        """The LLMDeployment."""
        found: Json = self.custom.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name
        )
        return found

    def condition(self, name: str, kind: str) -> Json:
        """One condition, `{}` while there is none or it is of an older generation."""
        return condition_of(self.get(name), kind)

    def pods(self, name: str = "", *, live: bool = True) -> list[Json]:
        """Serving pods (of one deployment); `live` leaves out those that are going."""
        query = f"shardwright.dev/deployment={name}" if name else "shardwright.dev/replica"
        items: list[Json] = self.raw(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=query
        )["items"]
        if live:
            items = [
                pod
                for pod in items
                if "deletionTimestamp" not in pod["metadata"]
                and pod["status"].get("phase") not in ("Failed", "Succeeded")
            ]
        return sorted(items, key=lambda pod: str(pod["metadata"]["name"]))

    def jobs(self) -> list[Json]:
        """Step Jobs of the namespace."""
        items: list[Json] = self.raw(f"/apis/batch/v1/namespaces/{self.namespace}/jobs")["items"]
        return sorted(items, key=lambda job: str(job["metadata"]["name"]))

    def wait(
        self, what: str, answer: Callable[[], Any], seconds: float = 90.0, every: float = 0.1
    ) -> Any:
        """Until `answer` is truthy; its value. Fails with `what` and the state of the namespace."""
        ends = time.monotonic() + seconds
        while True:
            # Looked at last when the time is over: this process may have stood still meanwhile.
            over = time.monotonic() > ends
            found = answer()
            if found:
                return found
            if over:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.state()}")
            time.sleep(every)

    def wait_quietly(self, seconds: float, happens: Callable[[], Any]) -> Any:
        """Watch for a while that something does not happen; its value if it does."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := happens():
                return found
            time.sleep(0.1)
        return None

    def wait_ready(self, name: str, seconds: float = 90.0) -> Json:
        """Until Ready is true for the current generation; the object as it was then.

        After what is no edit of the spec (a pod deleted, a node lost) it may still be true of the
        moment before: `wait_replaced` is for that.
        """
        found: Json = self.wait(f"{name} ready", lambda: _if_ready(self.get(name)), seconds)
        return found

    def wait_replaced(
        self, name: str, old: set[str], seconds: float = 120.0
    ) -> tuple[list[Json], Json]:
        """Until none of these pods (by uid) is left and all is Ready without them.

        The pods, and the object whose status speaks of just these pods.
        """

        def replaced() -> tuple[list[Json], Json] | None:
            pods = self.pods(name)
            found = _if_ready(self.get(name))
            if found is None or old & {pod["metadata"]["uid"] for pod in pods}:
                return None
            told = {
                (str(one["index"]), str(one["incarnation"]))
                for one in found["status"].get("groups", [])
                if one["state"] == "Ready"
            }
            seen = {
                tuple(
                    pod["metadata"]["labels"][f"shardwright.dev/{part}"]
                    for part in ("replica", "incarnation")
                )
                for pod in pods
            }
            # Of a group that has just lost a member, status may not know yet.
            whole = len(pods) == len(told) * found["status"]["plan"]["pipeline"]
            return (pods, found) if whole and told == seen and all(map(ready, pods)) else None

        made: tuple[list[Json], Json] = self.wait(
            f"{name} ready with other pods", replaced, seconds
        )
        return made

    def wait_reason(self, name: str, kind: str, reason: str, seconds: float = 90.0) -> Json:
        """Until a condition has a reason; the condition."""
        found: Json = self.wait(
            f"{name}: {kind} with reason {reason}",
            lambda: item if (item := self.condition(name, kind)).get("reason") == reason else None,
            seconds,
        )
        return found

    def state(self) -> str:
        """The namespace in a few lines, for failures."""
        lines = []
        listed = self.custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)
        for item in listed["items"]:
            status = item.get("status", {})
            lines.append(f"{item['metadata']['name']}: {status.get('groups')}")
            lines += [
                f"  {cond['type']}={cond['status']} {cond['reason']}: {cond['message']}"
                for cond in status.get("conditions", [])
            ]
        for pod in self.pods(live=False):
            lines.append(
                f"  pod {pod['metadata']['name']} {pod['status'].get('phase')} on "
                f"{pod['spec'].get('nodeName')} gated={bool(pod['spec'].get('schedulingGates'))} "
                f"going={'deletionTimestamp' in pod['metadata']}"
            )
        for job in self.jobs():
            ended = [item["type"] for item in job["status"].get("conditions", [])]
            lines.append(
                f"  job {job['metadata']['name']} active={job['status'].get('active', 0)} "
                f"{' '.join(ended)}"
            )
        return "\n".join(lines)


def condition_of(deployment: Json, kind: str) -> Json:
    """One condition, `{}` while there is none or it is of an older generation."""
    status = deployment.get("status", {})
    if status.get("observedGeneration") != deployment["metadata"]["generation"]:
        return {}
    return next((item for item in status.get("conditions", []) if item["type"] == kind), {})


def _if_ready(found: Json) -> Json | None:
    return found if condition_of(found, "Ready").get("status") == "True" else None


def ready(pod: Json) -> bool:
    """Whether a pod is Ready."""
    return any(
        item["type"] == "Ready" and item["status"] == "True"
        for item in pod["status"].get("conditions", [])
    )


def gpus(pod: Json) -> int:
    """GPUs that a pod asks for."""
    return sum(
        int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
        for container in pod["spec"]["containers"]
    )
