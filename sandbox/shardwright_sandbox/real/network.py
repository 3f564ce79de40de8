"""The network between the real nodes of one sandbox and the machine.

A bridge joins them, in a network namespace that exists as long as one process of the sandbox's
does; each node has a namespace of its own. So firewalls, kube-proxy's rules and forwarding settings
of nodes never meet those of the machine, which sees one interface and a few routes, and the kernel
removes all of it when the processes end, however they end.

Pods are routed, not bridged: a node answers for its pods' range. A bridge inside a node would need
the kernel module br_netfilter for Services whose pod is on the same node.
"""

import json
import subprocess
import time
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.real.addresses import RANGE, SLOTS, Addresses

_BRIDGE = "fabric"
_UPLINK = "machine"
_NODE_LINK = "eth0"


def claim_slot(fabric: int) -> Addresses:
    """Take a free slot for the namespace of the process `fabric`: its bridge and the machine's end.

    Raises:
        SandboxError: If all slots are taken.
    """
    for slot in range(SLOTS):
        addresses = Addresses(slot)
        if _routed(addresses):
            continue
        made = _ip(
            f"link add {addresses.host_link} type veth peer name {_UPLINK} netns {fabric}",
            check=False,
        )
        if made.returncode == 0:  # the kernel gives each name once: this slot is ours
            _join(addresses, fabric)
            return addresses
        if "File exists" not in made.stderr:
            raise _failed(made)
    raise SandboxError(
        f"all {SLOTS} network slots of {RANGE} are in use: stop other sandboxes, or look with "
        f"`ip route show root {RANGE}` at what else uses that range"
    )


def _routed(addresses: Addresses) -> bool:
    """Whether the machine has routes into the slot: another sandbox's, or its owner's."""
    found = json.loads(_ip(f"-j route show root {addresses.network}").stdout or "[]")
    return bool(found)


def _join(addresses: Addresses, fabric: int) -> None:
    length = addresses.nodes.prefixlen
    _ip(
        "link set lo up",
        f"link add {_BRIDGE} type bridge",
        f"link set {_UPLINK} master {_BRIDGE} up",
        f"link set {_BRIDGE} up",
        f"address add {addresses.dns}/{length} dev {_BRIDGE}",
        f"route add default via {addresses.host}",
        inside=fabric,
    )
    _ip(
        f"address add {addresses.host}/{length} dev {addresses.host_link}",
        f"link set {addresses.host_link} up",
    )


def connect(addresses: Addresses, fabric: int, index: int, node: int, count: int) -> None:
    """Join the namespace of the process `node` as node `index` of `count`, with all routes."""
    link, address, pods = node_link(index), addresses.node(index), addresses.pods(index)
    _ip(
        f"link add {link} type veth peer name {_NODE_LINK} netns {node}",
        f"link set {link} master {_BRIDGE} up",
        f"route add {pods} via {address}",
        inside=fabric,
    )
    _ip(
        "link set lo up",
        f"address add {address}/{addresses.nodes.prefixlen} dev {_NODE_LINK}",
        f"link set {_NODE_LINK} up",
        f"route add default via {addresses.host}",
        *(
            f"route add {addresses.pods(other)} via {addresses.node(other)}"
            for other in range(count)
            if other != index
        ),
        inside=node,
    )
    _ip(f"route add {pods} via {address} dev {addresses.host_link}")


def node_link(index: int) -> str:
    """Name of the bridge's port that a node hangs on."""
    return f"node{index}"


def set_link(fabric: int, index: int, *, up: bool) -> None:
    """Cut a node off, or join it again. Cut, it hears nothing and is not told: no reset is sent."""
    _ip(f"link set {node_link(index)} {'up' if up else 'down'}", inside=fabric)


def wait_gone(addresses: Addresses, seconds: float = 15.0) -> None:
    """Wait until the kernel has taken the namespaces down, after their last process has ended."""
    deadline = time.monotonic() + seconds
    while Path("/sys/class/net", addresses.host_link).exists():
        if time.monotonic() > deadline:
            raise SandboxError(
                f"the interface {addresses.host_link} is still there {seconds} s after the last "
                "process of its namespace ended: does another process hold the namespace "
                f"(`lsns -t net`)? Remove it with `ip link delete {addresses.host_link}`"
            )
        time.sleep(0.05)


def _ip(
    *lines: str, inside: int | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one `ip` command, or several in one go; `inside` the namespace of a process."""
    enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside is not None else []
    if len(lines) == 1:
        command, text = [*enter, "ip", *lines[0].split()], None
    else:
        command, text = [*enter, "ip", "-batch", "-"], "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise _failed(done, text)
    return done


def _failed(done: subprocess.CompletedProcess[str], text: str | None = None) -> SandboxError:
    return SandboxError(
        f"`{' '.join(done.args)}` failed (exit {done.returncode}): {done.stderr.strip()[-600:]}"
        + (f"; its commands were:\n{text}" if text else "")
    )
