"""A map of the fleet: a row a node, a cell a GPU, with the replica, stage and rank on it.

Which physical GPU a rank holds is the device plugin's choice; cells are filled from the left.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwright.api import names
from shardwright.observe.world import NodeView, PodView
from shardwright.plan.groups import slot_of, stage_of

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_green", "white")


def draw(console: Console, nodes: Sequence[NodeView], pods: Sequence[PodView]) -> None:
    """Print the map and a legend."""
    gpu_nodes = sorted(
        (node for node in nodes if node.gpu.capacity),
        key=lambda node: (node.gpu.product, node.name),
    )
    if not gpu_nodes:
        console.print("no node of this cluster has GPUs")
        return
    widest = max(node.gpu.capacity for node in gpu_nodes)
    table = Table(title="nodes × GPUs", show_lines=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("node", no_wrap=True)
    table.add_column("GPUs", no_wrap=True)
    table.add_column("global rank on each GPU", no_wrap=True, min_width=4 * widest)
    table.add_column("replica and stage", overflow="fold")
    colours = _colours(pods)
    for node in gpu_nodes:
        here = _here(node, pods)
        table.add_row(_name(node), _short(node), _cells(node, here, colours), _held(here, colours))
    console.print(table)
    several = len({owner for owner, _ in colours}) > 1
    for (owner, replica), colour in colours.items():
        held = [pod for pod in pods if _group(pod) == (owner, replica) and not pod.finished]
        where = ", ".join(
            f"stage {stage_of(pod)} on {pod.node or 'no node yet'}"
            for pod in sorted(held, key=stage_of)
        )
        name = f"{owner} replica {replica}" if several else f"replica {replica}"
        console.print(Text(f"  {name}: {where}", style=colour))
    console.print("  · free  st a step Job  ## another pod  ✗ unhealthy", style="dim")


def _short(node: NodeView) -> str:
    """Count and the part of the product's name that tells it apart."""
    product = node.gpu.product.removeprefix("NVIDIA-")
    return f"{node.gpu.capacity}×{product or 'unknown'}"


def _here(node: NodeView, pods: Sequence[PodView]) -> list[PodView]:
    return sorted(
        (
            pod
            for pod in pods
            if (pod.node or (pod.pin if not pod.gated else "")) == node.name
            and pod.requests.gpus
            and not pod.finished
        ),
        key=lambda pod: pod.name,
    )


def _held(here: Sequence[PodView], colours: dict[tuple[str, int], str]) -> Text:
    several = len({owner for owner, _ in colours}) > 1
    found = Text()
    for pod in here:
        replica = slot_of(pod)[0]
        if replica < 0:
            continue
        owner = f"{_group(pod)[0]} " if several else ""
        state = "" if pod.ready else " (starting)"
        if found:
            found.append(", ")
        found.append(
            f"{owner}r{replica} s{stage_of(pod)}{state}", style=colours.get(_group(pod), "")
        )
    return found


def _name(node: NodeView) -> str:
    marks = []
    if not node.ready:
        marks.append("NotReady")
    if node.unschedulable:
        marks.append("cordoned")
    return f"{node.name} ({', '.join(marks)})" if marks else node.name


def _group(pod: PodView) -> tuple[str, int]:
    return pod.labels.get(names.LABEL_DEPLOYMENT, ""), slot_of(pod)[0]


def _colours(pods: Sequence[PodView]) -> dict[tuple[str, int], str]:
    groups = sorted({_group(pod) for pod in pods if slot_of(pod)[0] >= 0 and not pod.finished})
    return {group: _COLOURS[number % len(_COLOURS)] for number, group in enumerate(groups)}


def _cells(node: NodeView, here: Sequence[PodView], colours: dict[tuple[str, int], str]) -> Text:
    cells: list[tuple[str, str]] = []
    for pod in here:
        replica, stage, tensor = slot_of(pod)[0], stage_of(pod), pod.requests.gpus
        if replica < 0:
            word = "st" if names.LABEL_STEP in pod.labels else "##"
            cells += [(word, "dim")] * tensor
            continue
        style = colours.get(_group(pod), "white") + (" bold" if pod.ready else " dim")
        cells += [(str(stage * tensor + rank), style) for rank in range(tensor)]
    unhealthy = max(0, node.gpu.capacity - node.gpu.count)
    cells += [("·", "dim")] * max(0, node.gpu.capacity - unhealthy - len(cells))
    cells += [("✗", "red")] * unhealthy
    line = Text()
    for word, style in cells:
        line.append(f"{word:>3} ", style=style)
    return line
