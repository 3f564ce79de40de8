"""What a sandbox can be asked for, and where it keeps its files."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import MAX_REAL, Pool

CONTEXT = "shardwright-sandbox"
"""Name of the kubeconfig's context and cluster; half of how the guard knows a sandbox."""

SYSTEM_USERS: Mapping[str, tuple[str, ...]] = {
    "sandbox-admin": ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
    "sandbox-kwok": ("system:masters",),
    "sandbox-player": ("system:masters",),
    # the operator as a process: a name of its own, so that the audit log can
    # count its requests; its real rights are tested through a ServiceAccount
    "sandbox-operator": ("system:masters",),
}

_NODE_LEASES_PER_GRACE = 2


@dataclass(frozen=True)
class SandboxConfig:
    """Settings of one sandbox.

    Attributes:
        node_grace_seconds: how long a node may be silent before it counts as
            unreachable (Kubernetes' own default is 50 s; tests cannot wait so long).
        pod_start_seconds: from bound to Running, for pods that KWOK plays.
        pod_stop_seconds: from deletion to gone. A shorter grace period of the
            pod's own does not shorten it, it is short already.
        audit: write `audit.log`, one JSON line a request, at level Metadata.
        player: run the player; without it KWOK plays our pods as well, and
            Jobs run for ever.
        users: more token users, name to groups.
        real: pools of real nodes (kubelet, containerd), which need root and Linux.
        die_with_parent: kill everything when the starting process dies.
        apiserver_args, controller_manager_args, scheduler_args: more flags.
    """

    node_grace_seconds: int = 16
    pod_start_seconds: float = 0.02
    pod_stop_seconds: float = 0.2
    audit: bool = False
    player: bool = True
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    real: tuple[Pool, ...] = ()
    die_with_parent: bool = False
    ready_timeout_seconds: float = 90.0
    apiserver_args: tuple[str, ...] = ()
    controller_manager_args: tuple[str, ...] = ()
    scheduler_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could not work, with the limit."""
        if self.node_grace_seconds < 4:  # noqa: PLR2004 - said in the message
            raise SandboxError(
                f"node_grace_seconds={self.node_grace_seconds} is below 4: nodes renew their lease "
                "every quarter of half of it, and would flap; use 4 or more"
            )
        if wrong := [pool.name for pool in self.real if not pool.real]:
            raise SandboxError(
                f"real: the pool {wrong[0]} is simulated; give it `real: true`, or make it with "
                "make_nodes"
            )
        if (count := sum(pool.count for pool in self.real)) > MAX_REAL:
            raise SandboxError(f"real: {count} nodes in all pools, {MAX_REAL} are the limit")
        for name in self.users:
            if name in SYSTEM_USERS or not re.fullmatch(r"[A-Za-z0-9:._-]+", name):
                raise SandboxError(
                    f"users: the name {name!r} is taken or not made of letters, digits and :._-; "
                    "choose another"
                )

    @property
    def node_lease_seconds(self) -> int:
        """Duration of node leases; KWOK renews at a quarter of it."""
        return max(2, self.node_grace_seconds // _NODE_LEASES_PER_GRACE)

    @property
    def all_users(self) -> dict[str, tuple[str, ...]]:
        """Every token user with its groups."""
        return {**SYSTEM_USERS, **self._node_users(), **self.users}

    def _node_users(self) -> dict[str, tuple[str, ...]]:
        """The users of the real nodes' programs, each with the rights it has in any cluster."""
        if not self.real:
            return {}
        kubelets = {
            f"system:node:{name}": ("system:nodes",)
            for pool in self.real
            for name in pool.node_names()
        }
        return {**kubelets, "system:kube-proxy": (), "sandbox-dns": ("system:masters",)}

    def fingerprint(self) -> str:
        """Equal for settings that give the same sandbox."""
        content = asdict(self) | {"real": [pool.model_dump(mode="json") for pool in self.real]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Layout:
    """Paths below the state folder. Everything a sandbox writes is named here."""

    root: Path

    @property
    def logs(self) -> Path:
        """One log file a process."""
        return self.root / "logs"

    @property
    def etcd(self) -> Path:
        """The database."""
        return self.root / "etcd"

    @property
    def certs(self) -> Path:
        """Serving certificate, signing key of service accounts, tokens."""
        return self.root / "certs"

    @property
    def service_account_key(self) -> Path:
        """Signs the tokens of service accounts."""
        return self.certs / "service-account.key"

    @property
    def tokens(self) -> Path:
        """The API server's static token file."""
        return self.certs / "tokens.csv"

    @property
    def config(self) -> Path:
        """Kubeconfigs of the parts, KWOK's stages, audit policy."""
        return self.root / "config"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig: what people use."""
        return self.root / "kubeconfig"

    @property
    def claims(self) -> Path:
        """One folder a claim: `claims/<namespace>/<claim>`."""
        return self.root / "claims"

    @property
    def nodes(self) -> Path:
        """One folder a real node."""
        return self.root / "nodes"

    @property
    def real_record(self) -> Path:
        """Which real nodes there are, and on which network."""
        return self.root / "real.json"

    @property
    def in_gpu_pods(self) -> Path:
        """Shown to every container on a real node that has a GPU: orders for what runs there."""
        return self.root / "in-gpu-pods"

    @property
    def audit_log(self) -> Path:
        """The audit log, when asked for."""
        return self.root / "audit.log"

    @property
    def publishes(self) -> Path:
        """What the player published, one JSON line each."""
        return self.root / "publishes.jsonl"

    @property
    def processes(self) -> Path:
        """Which processes run: what `down` reads."""
        return self.root / "processes.json"

    @property
    def lock(self) -> Path:
        """Held while starting and stopping."""
        return self.root / "lock"

    def owned(self) -> list[Path]:
        """Everything a sandbox may have written here; `stop` removes this and no more."""
        return [
            self.logs,
            self.etcd,
            self.certs,
            self.config,
            self.kubeconfig,
            self.claims,
            self.nodes,
            self.real_record,
            self.in_gpu_pods,
            self.audit_log,
            self.publishes,
            self.processes,
            self.lock,
        ]
