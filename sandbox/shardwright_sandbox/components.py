"""Command lines of the control plane's parts."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from shardwright_sandbox.binaries import Binaries
from shardwright_sandbox.config import Layout, SandboxConfig

LOOPBACK = "127.0.0.1"
_ISSUER = "https://kubernetes.default.svc"
# The defaults (50 and 20 to 30 requests a second) would measure the clients,
# not the operator: binding 400 pods takes three times as long with them.
_CLIENT_LIMITS = ("--kube-api-qps=1000", "--kube-api-burst=1000")


def etcd(binaries: Binaries, layout: Layout, client_port: int, peer_port: int) -> list[str]:
    """The database, without fsync: it is thrown away."""
    client, peer = f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
    return [
        str(binaries.etcd),
        "--name=sandbox",
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=sandbox={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(
    binaries: Binaries,
    layout: Layout,
    config: SandboxConfig,
    host: str,
    port: int,
    etcd_port: int,
) -> list[str]:
    """The API server: tokens and service accounts, RBAC, default admission with PodSecurity.

    It listens on one address only; with real nodes it is one that they reach, which the Service
    `kubernetes` then leads to.
    """
    audit: list[str] = []
    if config.audit:
        policy = layout.config / "audit-policy.yaml"
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        # blocking (the default mode): a request is in the log before its answer
        # is out, so that a test counts exactly
        audit = [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={layout.audit_log}",
            "--audit-log-format=json",
        ]
    return [
        str(binaries.apiserver),
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--bind-address={host}",
        *((f"--advertise-address={host}",) if host != LOOPBACK else ()),
        # names of nodes do not resolve here
        "--kubelet-preferred-address-types=InternalIP",
        f"--secure-port={port}",
        f"--cert-dir={layout.certs}",
        f"--token-auth-file={layout.tokens}",
        "--authorization-mode=Node,RBAC",
        f"--service-account-key-file={layout.service_account_key}",
        f"--service-account-signing-key-file={layout.service_account_key}",
        f"--service-account-issuer={_ISSUER}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        "--max-requests-inflight=1600",
        "--max-mutating-requests-inflight=800",
        "--profiling=false",
        *audit,
        *config.apiserver_args,
    ]


def controller_manager(
    binaries: Binaries, layout: Layout, config: SandboxConfig, kubeconfig: Path
) -> list[str]:
    """All default controllers, each under its own role, quick to notice a dead node."""
    return [
        str(binaries.controller_manager),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.service_account_key}",
        f"--root-ca-file={layout.certs / 'apiserver.crt'}",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={config.node_grace_seconds}s",
        # one node every ten seconds is the default: too slow to see a rack die
        "--node-eviction-rate=50",
        "--secondary-node-eviction-rate=50",
        *_CLIENT_LIMITS,
        *config.controller_manager_args,
    ]


def scheduler(binaries: Binaries, config: SandboxConfig, kubeconfig: Path) -> list[str]:
    """The stock scheduler."""
    return [
        str(binaries.scheduler),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        *_CLIENT_LIMITS,
        *config.scheduler_args,
    ]


def kwok(
    binaries: Binaries, config: SandboxConfig, kubeconfig: Path, stages: Path, selector: str
) -> list[str]:
    """KWOK, for the nodes that carry the label of a living kubelet and no others.

    A label and not KWOK's annotation: the label is watched by the server, so
    KWOK sees a node leave when the label goes, which is how a kubelet dies here.
    """
    return [
        str(binaries.kwok),
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={selector}",
        f"--node-lease-duration-seconds={config.node_lease_seconds}",
        f"--config={stages}",
        "--server-address=",
    ]


_AUDIT_POLICY: dict[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # one line a request: when it is answered
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [
        # the API server's calls to itself are nobody's doing
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "Metadata"},
    ],
}


def join(command: Sequence[str]) -> str:
    """A command line as it can be pasted (for logs)."""
    return " ".join(json.dumps(part) if " " in part else part for part in command)
