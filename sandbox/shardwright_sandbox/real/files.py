"""The configuration files of a real node's programs, as text."""

import json
from pathlib import Path

import yaml

from shardwright_sandbox.config import SandboxConfig
from shardwright_sandbox.fleet import Pool
from shardwright_sandbox.real.addresses import Addresses
from shardwright_sandbox.real.folder import NodeFolder
from shardwright_sandbox.real.images import TOOLS
from shardwright_sandbox.rest import Json

DOMAIN = "cluster.local"
SOCKET = "/run/containerd/containerd.sock"
DNS_READY_PORT = 8181

_CRI = "io.containerd.grpc.v1.cri"


def containerd(folder: NodeFolder, cni: Path) -> str:
    """Containerd's configuration: its sockets are in the node's own /run.

    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE, which containers and many CI machines lack,
    runc may not lower the score of a pod's first process, and the pod would not start.
    """
    cri = f'plugins."{_CRI}"'
    return "\n".join(
        [
            "version = 2",
            f'root = "{folder.containerd}"',
            'state = "/run/containerd"',
            "oom_score = 0",
            # file systems that are not there only fill the log
            "disabled_plugins = ["
            + ", ".join(
                f'"io.containerd.{name}"'
                for name in (
                    "internal.v1.opt",
                    "snapshotter.v1.aufs",
                    "snapshotter.v1.btrfs",
                    "snapshotter.v1.devmapper",
                    "snapshotter.v1.zfs",
                    "tracing.processor.v1.otlp",
                )
            )
            + "]",
            "[grpc]",
            f'address = "{SOCKET}"',
            f"[{cri}]",
            f'sandbox_image = "{TOOLS}"',
            "restrict_oom_score_adj = true",
            'stream_server_address = "127.0.0.1"',
            f"[{cri}.cni]",
            f'bin_dir = "{cni}"',
            f'conf_dir = "{folder.cni}"',
            f"[{cri}.containerd]",
            'default_runtime_name = "runc"',
            f"[{cri}.containerd.runtimes.runc]",
            'runtime_type = "io.containerd.runc.v2"',
            f"[{cri}.containerd.runtimes.runc.options]",
            "SystemdCgroup = false",
            "",
        ]
    )


def cni(addresses: Addresses, index: int) -> str:
    """One routed link a pod, addresses out of the node's range; leases end with the node."""
    plugins = [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{"subnet": str(addresses.pods(index))}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "sandbox", "plugins": plugins}, indent=2)


def kubelet(config: SandboxConfig, pool: Pool, addresses: Addresses, folder: NodeFolder) -> str:
    """The kubelet's configuration."""
    taints = [taint.model_dump(exclude_defaults=False) for taint in pool.taints]
    return _yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # The API server has no client certificate to show. Only this machine and the sandbox's
            # own pods can reach the port.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "readOnlyPort": 0,
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "clusterDNS": [str(addresses.dns)],
            "clusterDomain": DOMAIN,
            "resolvConf": str(folder.resolv),
            "podLogsDir": str(folder.pod_logs),
            "volumePluginDir": str(folder.root / "volume-plugins"),
            "registerWithTaints": taints,
            "maxPods": pool.pods,
            # No cgroups for pods, only for containers: they would be made for as many cores as the
            # node says it has, and the machine has fewer.
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            # A machine whose disk is nearly full is its owner's affair: no pod is evicted for it,
            # no image removed, which nobody could pull again.
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # Quick to tell that a GPU has changed. It is the time limit of these requests as well,
            # which a busy machine must be able to keep.
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": config.node_lease_seconds,
            "syncFrequency": "10s",
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "eventRecordQPS": 0,
        }
    )


def kube_proxy(name: str, kubeconfig: Path) -> str:
    """kube-proxy's configuration: iptables, in the node's own network namespace."""
    return _yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": name,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            # a deleted pod's address is used again soon: its rules must not outlive it
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
            # these are the machine's, not the namespace's
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def corefile(addresses: Addresses, kubeconfig: Path) -> str:
    """CoreDNS: the cluster's names, and that there are no others.

    A name server that refuses instead makes resolvers report a temporary failure, which no client
    of a real cluster sees for a pod that is not there yet.
    """
    return f"""{DOMAIN}:53 {{
    errors
    bind {addresses.dns}
    ready {addresses.dns}:{DNS_READY_PORT}
    kubernetes {DOMAIN} {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
.:53 {{
    errors
    bind {addresses.dns}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _yaml(content: Json) -> str:
    return yaml.safe_dump(content, sort_keys=False)
