"""Brings real nodes up, in two parts: what the control plane needs, and what needs it."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from kubernetes import client

from shardwright_sandbox.config import Layout, SandboxConfig
from shardwright_sandbox.fleet import GPU_RESOURCE
from shardwright_sandbox.labels import node_labels
from shardwright_sandbox.launch import user_kubeconfig
from shardwright_sandbox.nodes import wait_schedulable
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real import files, machine, network, record, standin, store, volumes
from shardwright_sandbox.real.addresses import Addresses
from shardwright_sandbox.real.folder import NodeFolder
from shardwright_sandbox.real.node import RealNode, find
from shardwright_sandbox.real.programs import Node, Programs, commands, nodes_of, write_files
from shardwright_sandbox.rest import NOT_FOUND, STRATEGIC_PATCH, Rest, RestError, rest_of

REAL_LABEL = "sandbox.shardwright.dev/real"
"""On real nodes, with the value `true`: for the node selector of what must not be played."""

_READY_SECONDS = 90.0


def prepare(
    layout: Layout,
    config: SandboxConfig,
    found: Programs,
    processes: Processes,
    progress: Progress,
) -> Addresses:
    """Start the network and the nodes' containerd, which need no control plane.

    All processes are started by the calling thread: with `die_with_parent` the kernel ends them
    when the thread that started them ends.

    Returns:
        The addresses; the API server has to listen on `host` among them.
    """
    began = time.monotonic()
    addresses = _network(layout, config, processes)
    nodes = nodes_of(config)
    record.write(
        layout.real_record,
        record.Record(
            addresses.slot,
            tuple(
                record.NodeRecord(
                    node.name, node.number, node.gpus, commands(found, layout, node, addresses)
                )
                for node in nodes
            ),
        ),
    )
    layout.claims.mkdir(parents=True, exist_ok=True)
    volumes.share(layout.claims)
    layout.in_gpu_pods.mkdir()
    layout.in_gpu_pods.chmod(0o777)  # what runs in containers, under any user, keeps counts there
    for node in nodes:
        _boot(layout, config, found, node, len(nodes), addresses, processes)
    booted = find(layout, processes, die_with_parent=config.die_with_parent)
    for one in booted.values():
        one.start_part("containerd")
    archive = standin.write_images(layout.nodes / "standin.tar", found.base)
    with ThreadPoolExecutor(len(nodes)) as workers:
        list(workers.map(lambda one: _load(one, archive, processes), booted.values()))
    archive.unlink()
    progress.say(f"{len(nodes)} real nodes booted in {time.monotonic() - began:.1f} s")
    return addresses


def _network(layout: Layout, config: SandboxConfig, processes: Processes) -> Addresses:
    fabric = processes.start(
        "fabric",
        ["unshare", "--net", "sleep", "infinity"],
        layout.logs / "fabric.log",
        die_with_parent=config.die_with_parent,
    )
    ours = machine.namespace_of("self")
    machine.wait(lambda: machine.namespace_of(fabric.pid) != ours, "the network", processes)
    return network.claim_slot(fabric.pid)


def _boot(
    layout: Layout,
    config: SandboxConfig,
    found: Programs,
    node: Node,
    count: int,
    addresses: Addresses,
    processes: Processes,
) -> None:
    folder = NodeFolder(layout.nodes / node.name)
    booted = machine.boot(
        node.name,
        folder,
        node.size,
        f"{record.cgroup_name(layout)}/{node.name}",
        processes,
        layout.logs / f"node-{node.name}.log",
        die_with_parent=config.die_with_parent,
    )
    fabric = processes.named("fabric")
    assert fabric is not None  # noqa: S101 - started above
    network.connect(addresses, fabric.pid, node.number, booted.first, count)
    store.give(found.base.store, folder.containerd, booted)
    write_files(found, layout, config, node, addresses)


def _load(node: RealNode, archive: Path, processes: Processes) -> None:
    socket = node.machine.path(files.SOCKET)
    machine.wait(socket.exists, f"containerd of {node.name}", processes)
    node.load_image(archive)


def join(
    layout: Layout,
    config: SandboxConfig,
    found: Programs,
    addresses: Addresses,
    processes: Processes,
    api: client.ApiClient,
    progress: Progress,
) -> None:
    """Start what talks to the API server, and wait until every node can take pods.

    Raises:
        SandboxError: If a program ends or a node is not ready in time.
    """
    began = time.monotonic()
    corefile = layout.config / "Corefile"
    corefile.write_text(files.corefile(addresses, user_kubeconfig(layout, "sandbox-dns")))
    fabric = processes.named("fabric")
    assert fabric is not None  # noqa: S101 - started by `prepare`
    enter = ["nsenter", f"--net=/proc/{fabric.pid}/ns/net", "--"]
    processes.start(
        "dns",
        [*enter, str(found.binaries.dns), "-conf", str(corefile)],
        layout.logs / "dns.log",
        die_with_parent=config.die_with_parent,
    )
    for one in find(layout, processes, die_with_parent=config.die_with_parent).values():
        for part in one.known.commands:
            one.start_part(part)
    rest = rest_of(api)
    for node in nodes_of(config):
        machine.wait(partial(_label, rest, node), f"kubelet of {node.name}", processes)
        machine.wait(partial(_shows_its_gpus, rest, node), f"GPUs of {node.name}", processes)
    wait_schedulable(api, [node.name for node in nodes_of(config)], _READY_SECONDS)
    machine.wait(lambda: _answers(addresses), "CoreDNS", processes)
    progress.say(f"real nodes ready {time.monotonic() - began:.1f} s after the control plane")


def _label(rest: Rest, node: Node) -> bool:
    """Write the labels that GPU Feature Discovery and a cloud would; False: no such node yet."""
    metadata = {
        "labels": {**node_labels(node.pool, node.index), REAL_LABEL: "true"},
        "annotations": dict(node.pool.annotations),
    }
    try:
        rest.patch(f"/api/v1/nodes/{node.name}", {"metadata": metadata}, STRATEGIC_PATCH)
    except RestError as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True


def _shows_its_gpus(rest: Rest, node: Node) -> bool:
    status = rest.get(f"/api/v1/nodes/{node.name}")["status"]
    return int(status.get("allocatable", {}).get(GPU_RESOURCE, 0)) == node.gpus


def _answers(addresses: Addresses) -> bool:
    try:
        with urlopen(f"http://{addresses.dns}:{files.DNS_READY_PORT}/ready", timeout=2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP's "OK"
    except (URLError, OSError):
        return False
