"""Where a real node keeps its files on this machine."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """Paths of one node below the sandbox's state folder."""

    root: Path

    @property
    def ready(self) -> Path:
        """Made by the node's first process when it has furnished the node."""
        return self.root / "furnished"

    @property
    def containerd(self) -> Path:
        """Images and containers' file systems."""
        return self.root / "containerd"

    @property
    def containerd_config(self) -> Path:
        """Containerd's configuration."""
        return self.root / "containerd.toml"

    @property
    def cni(self) -> Path:
        """The folder with the one CNI configuration."""
        return self.root / "cni"

    @property
    def kubelet_config(self) -> Path:
        """The kubelet's configuration."""
        return self.root / "kubelet.yaml"

    @property
    def proxy_config(self) -> Path:
        """kube-proxy's configuration."""
        return self.root / "kube-proxy.yaml"

    @property
    def resolv(self) -> Path:
        """What pods with the node's own DNS get, and nothing of the machine's."""
        return self.root / "resolv.conf"

    @property
    def pod_logs(self) -> Path:
        """Logs of containers, one folder a pod: on disk, and readable from the machine."""
        return self.root / "pod-logs"

    @property
    def unhealthy(self) -> Path:
        """Which GPUs the device plugin shall report as unhealthy."""
        return self.root / "unhealthy.json"
