"""A real node as tests see it: what is on it, and the switches that break and mend it."""

import json
import shlex
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from shardwright_sandbox.config import Layout
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.real import machine, network, record, volumes
from shardwright_sandbox.real.addresses import Addresses
from shardwright_sandbox.real.files import SOCKET
from shardwright_sandbox.real.folder import NodeFolder
from shardwright_sandbox.real.machine import Machine
from shardwright_sandbox.real.store import NAMESPACE

VOLUME = "/var/lib/kubelet"
"""The node's own volume: emptyDirs, projected volumes, the kubelet's state."""


@dataclass(frozen=True, slots=True)
class RealNode:
    """One node. Every switch can be set back, and setting it twice does nothing more."""

    known: record.NodeRecord
    slot: int
    machine: Machine
    layout: Layout
    processes: Processes
    die_with_parent: bool

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.known.name

    @property
    def address(self) -> IPv4Address:
        """Its address; pods' addresses can be reached from this machine too."""
        return Addresses(self.slot).node(self.known.index)

    @property
    def folder(self) -> NodeFolder:
        """Its files."""
        return NodeFolder(self.layout.nodes / self.name)

    def stop_kubelet(self) -> None:
        """The kubelet dies; containers go on running, and nobody tells the cluster."""
        self._stop("kubelet")

    def start_kubelet(self) -> None:
        """The kubelet starts, and finds what runs."""
        self.start_part("kubelet")

    def kill_containerd(self) -> None:
        """The runtime dies; containers go on running, the node becomes NotReady."""
        self._stop("containerd")

    def start_containerd(self) -> None:
        """The runtime starts, and finds what runs."""
        self.start_part("containerd")

    def cut(self) -> None:
        """Cut the node off, pods and kubelet alike. Nobody is told: connections hang."""
        network.set_link(self._fabric(), self.known.index, up=False)

    def mend(self) -> None:
        """Join the node to the network again."""
        network.set_link(self._fabric(), self.known.index, up=True)

    def fill_volume(self) -> int:
        """Fill the node's own volume, where emptyDirs are; how many bytes were free."""
        return self._volume().fill()

    def free_volume(self) -> None:
        """Make room again."""
        self._volume().free()

    def set_unhealthy(self, *indices: int) -> None:
        """Make the device plugin report exactly these GPUs as unhealthy; none: all are well.

        Raises:
            SandboxError: For an index that the node has not.
        """
        if wrong := [index for index in indices if not 0 <= index < self.known.gpus]:
            raise SandboxError(
                f"node {self.name} has the GPUs 0 to {self.known.gpus - 1}, no GPU {wrong[0]}"
            )
        target = self.folder.unhealthy
        scratch = target.with_suffix(".new")
        scratch.write_text(json.dumps(sorted(set(indices))))
        scratch.rename(target)

    def load_image(self, archive: Path) -> None:
        """Import an OCI or Docker archive, such as `dist/image.tar` of `make image`."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client on the node; what it printed."""
        return self.machine.run(
            "ctr", "--address", SOCKET, "--namespace", NAMESPACE, *arguments, timeout=600
        )

    def start_part(self, part: str) -> None:
        """Start one of the node's programs, as `known.commands` has it, if it does not run.

        With `die_with_parent` the kernel ends it when the calling thread ends.
        """
        name = f"{part}-{self.name}"
        running = self.processes.named(name)
        if running is not None and running.alive():
            return
        command = self.known.commands[part]
        log = self.layout.logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as handle:
            handle.write(shlex.join(command) + "\n")
        self.processes.start(
            name, self.machine.command(*command), log, die_with_parent=self.die_with_parent
        )

    def _stop(self, part: str) -> None:
        self.processes.stop(f"{part}-{self.name}")

    def _volume(self) -> volumes.Volume:
        seen = self.machine.path(VOLUME)
        return volumes.Volume(seen, VOLUME, tuple(self.machine.command()))

    def _fabric(self) -> int:
        entry = self.processes.named("fabric")
        if entry is None or not entry.alive():
            raise SandboxError(
                "the network of the real nodes is gone; `make sandbox-down`, then up"
            )
        return entry.pid


def find(layout: Layout, processes: Processes, *, die_with_parent: bool) -> dict[str, RealNode]:
    """The real nodes of the sandbox in a state folder, by name."""
    known = record.read(layout.real_record)
    if known is None:
        return {}
    return {
        node.name: RealNode(
            node,
            known.slot,
            machine.attach(node.name, processes),
            layout,
            processes,
            die_with_parent,
        )
        for node in known.nodes
    }
