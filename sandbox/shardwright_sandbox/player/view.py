"""What the player needs to know of a pod, read from its object."""

from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.contract import (
    ENV_REQUEST,
    SOURCE,
    STEP_SCORE,
    STORE,
    ContractError,
    ServeRequest,
    StepRequest,
    decode,
)
from shardwright_sandbox.rest import Json
from shardwright_sandbox.stages import PLAYED_BY_ANNOTATION, ROLE_LABEL
from shardwright_sandbox.storage import claim_folder

_PREFIX = "shardwright.dev/"
_SERVING_ROLES = ("leader", "worker")


@dataclass(frozen=True)
class PodView:
    """One pod of ours."""

    raw: Json

    @property
    def uid(self) -> str:
        """Its uid."""
        return str(self.raw["metadata"]["uid"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.raw["metadata"]["namespace"])

    @property
    def path(self) -> str:
        """Its path in the API."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def version(self) -> str:
        """Its resourceVersion."""
        return str(self.raw["metadata"]["resourceVersion"])

    @property
    def node(self) -> str:
        """Its node; empty while it is not bound."""
        return str(self.raw["spec"].get("nodeName", ""))

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded or Failed."""
        return str(self.raw["status"].get("phase", "Pending"))

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.raw["metadata"]

    @property
    def ready(self) -> bool:
        """Whether its condition Ready is true."""
        return any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in self.raw["status"].get("conditions", [])
        )

    @property
    def waiting(self) -> str:
        """What its containers wait for to start; empty if they do not."""
        reasons = (
            status.get("state", {}).get("waiting", {}).get("reason", "")
            for status in self.raw["status"].get("containerStatuses", [])
        )
        return next(filter(None, reasons), "")

    @property
    def ours(self) -> bool:
        """Whether the player plays it."""
        metadata = self.raw["metadata"]
        return (
            ROLE_LABEL in metadata.get("labels", {})
            and metadata.get("annotations", {}).get(PLAYED_BY_ANNOTATION) != "kwok"
        )

    def label(self, name: str) -> str:
        """One of our labels, by the part behind the slash."""
        return str(self.raw["metadata"].get("labels", {}).get(_PREFIX + name, ""))

    @property
    def serving(self) -> bool:
        """Whether it is a leader or worker (else the pod of a step)."""
        return self.label("role") in _SERVING_ROLES

    @property
    def leader(self) -> bool:
        """Whether it is the leader of its group."""
        return self.label("role") == "leader"

    @property
    def group(self) -> tuple[str, ...]:
        """Equal for the pods of one incarnation."""
        names = ("deployment", "replica", "incarnation")
        return (self.namespace, *(self.label(name) for name in names))

    def facts(self) -> dict[str, str]:
        """What rules are matched against."""
        names = ("deployment", "role", "step", "key", "stage", "incarnation")
        return {
            "namespace": self.namespace,
            "pod": self.name,
            "node": self.node,
            "measured": self._measured(),
            **{name: self.label(name) for name in names},
        }

    def _measured(self) -> str:
        """Precision of the weights that a score is of; empty for everything else."""
        if self.label("step") != STEP_SCORE:
            return ""
        try:
            request = self.request()
        except ContractError:
            return ""  # reported when the step works
        of = request.inputs.get("of") if isinstance(request, StepRequest) else None
        return str(of.get("weights", "None")) if isinstance(of, dict) else ""

    def _container(self) -> Json:
        """The container that gets the request: the first that has one, else the first."""
        containers: list[Json] = self.raw["spec"]["containers"]
        for container in containers:
            if any(one["name"] == ENV_REQUEST for one in container.get("env", [])):
                return container
        return containers[0]

    @property
    def main(self) -> str:
        """Name of that container."""
        return str(self._container()["name"])

    def request(self) -> StepRequest | ServeRequest:
        """The request in its environment.

        Raises:
            ContractError: When there is none, or it cannot be read.
        """
        for variable in self._container().get("env", []):
            if variable["name"] == ENV_REQUEST:
                text = variable.get("value", "")
                return decode(ServeRequest, text) if self.serving else decode(StepRequest, text)
        raise ContractError(f"the container {self.main} has no {ENV_REQUEST}")

    def folder(self, claims: Path, path: str) -> Path:
        """Where a path inside the pod is on this machine.

        A path without a leading slash is relative to the claim's root.

        Raises:
            ContractError: When no claim is mounted there.
        """
        mount, rest = STORE, path
        for root in (STORE, SOURCE):
            if path == root or path.startswith(root + "/"):
                mount, rest = root, path[len(root) :]
        claim = self._claim_at(mount)
        if claim is None:
            raise ContractError(f"the container {self.main} mounts no claim at {mount}")
        return claim_folder(claims, self.namespace, claim) / rest.strip("/")

    def claim_name(self) -> str:
        """Name of the claim that is the store; empty if there is none."""
        return self._claim_at(STORE) or ""

    def _claim_at(self, mount_path: str) -> str | None:
        for mount in self._container().get("volumeMounts", []):
            if mount["mountPath"].rstrip("/") != mount_path:
                continue
            for volume in self.raw["spec"].get("volumes", []):
                if volume["name"] == mount["name"] and "persistentVolumeClaim" in volume:
                    return str(volume["persistentVolumeClaim"]["claimName"])
        return None
