"""The programs of a real node: where they are, how each is started, what it reads."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.observe.quantity import to_whole
from shardwright_sandbox.binaries import NodeBinaries, node_programs
from shardwright_sandbox.config import Layout, SandboxConfig
from shardwright_sandbox.fleet import GPU_RESOURCE, Gpu, Pool
from shardwright_sandbox.labels import memory_and_compute
from shardwright_sandbox.launch import user_kubeconfig
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real import files, images
from shardwright_sandbox.real.addresses import Addresses
from shardwright_sandbox.real.folder import NodeFolder
from shardwright_sandbox.real.host import Host, require
from shardwright_sandbox.real.machine import Size

ORDERS = "/sandbox"
"""Where every container with a GPU finds the folder `Layout.in_gpu_pods`."""
FAULTS = f"{ORDERS}/faults.yaml"


@dataclass(frozen=True, slots=True)
class Programs:
    """All programs that nodes run, and the images that nodes start with."""

    host: Host
    binaries: NodeBinaries
    base: images.BaseImages


@dataclass(frozen=True, slots=True)
class Node:
    """A node to be: `number` in the sandbox's network, `index` in its pool."""

    number: int
    pool: Pool
    index: int

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return f"{self.pool.name}-{self.index}"

    @property
    def size(self) -> Size:
        """What the kubelet shall find on it."""
        pool = self.pool
        return Size(int(pool.cpu), to_whole(pool.memory), to_whole(pool.ephemeral_storage))

    @property
    def gpus(self) -> int:
        """How many GPUs it shows."""
        return self.pool.gpu.count if self.pool.gpu is not None else 0


def find_programs(progress: Progress) -> Programs:
    """Find or build all programs and base images; minutes the first time.

    Raises:
        SandboxError: If this machine cannot run real nodes, with the reason and the remedy.
    """
    host = require()
    return Programs(host, node_programs(progress), images.base_images(host, progress))


def nodes_of(config: SandboxConfig) -> tuple[Node, ...]:
    """Every real node of a sandbox."""
    pairs = [(pool, index) for pool in config.real for index in range(pool.count)]
    return tuple(Node(number, pool, index) for number, (pool, index) in enumerate(pairs))


def commands(
    found: Programs, layout: Layout, node: Node, addresses: Addresses
) -> dict[str, list[str]]:
    """How each program of a node is started, by what it is called in the record of processes."""
    folder = NodeFolder(layout.nodes / node.name)
    binaries = found.binaries
    started = {
        "containerd": [found.host.containerd, "--config", str(folder.containerd_config)],
        "kubelet": [
            str(binaries.kubelet),
            f"--config={folder.kubelet_config}",
            f"--kubeconfig={user_kubeconfig(layout, f'system:node:{node.name}')}",
            f"--hostname-override={node.name}",
            f"--node-ip={addresses.node(node.number)}",
        ],
        "kube-proxy": [str(binaries.kube_proxy), f"--config={folder.proxy_config}"],
    }
    if node.pool.gpu is not None and node.gpus:
        started["device-plugin"] = [
            str(binaries.device_plugin),
            f"-node={node.name}",
            f"-count={node.gpus}",
            f"-resource={GPU_RESOURCE}",
            f"-control={folder.unhealthy}",
            f"-mount={layout.in_gpu_pods}:{ORDERS}",
            *(f"-env={key}={value}" for key, value in _gpu_facts(node.name, node.pool.gpu).items()),
        ]
    return started


def _gpu_facts(node: str, gpu: Gpu) -> Mapping[str, str]:
    """What the stand-ins' nvidia-smi tells of the GPUs, and where their faults are ordered."""
    memory, compute, _ = memory_and_compute(gpu)
    return {
        "SHARDWRIGHT_STANDIN_NODE": node,
        "SHARDWRIGHT_STANDIN_GPU_PRODUCT": gpu.product,
        "SHARDWRIGHT_STANDIN_GPU_COUNT": str(gpu.count),
        "SHARDWRIGHT_STANDIN_GPU_MEMORY_MIB": str(memory),
        "SHARDWRIGHT_STANDIN_GPU_COMPUTE": compute,
        "SHARDWRIGHT_STANDIN_DRIVER": gpu.driver,
        "SHARDWRIGHT_STANDIN_FAULTS": FAULTS,
    }


def write_files(
    found: Programs, layout: Layout, config: SandboxConfig, node: Node, addresses: Addresses
) -> None:
    """Write the configuration files that `commands` names."""
    folder = NodeFolder(layout.nodes / node.name)
    folder.cni.mkdir(parents=True, exist_ok=True)
    folder.pod_logs.mkdir(exist_ok=True)
    proxy = user_kubeconfig(layout, "system:kube-proxy")
    kubelet = files.kubelet(config, node.pool, addresses, folder)
    folder.containerd_config.write_text(files.containerd(folder, found.host.cni))
    (folder.cni / "sandbox.conflist").write_text(files.cni(addresses, node.number))
    folder.kubelet_config.write_text(kubelet)
    folder.proxy_config.write_text(files.kube_proxy(node.name, proxy))
    folder.resolv.write_text(f"nameserver {addresses.dns}\n")
