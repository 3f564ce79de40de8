"""A scene in words: sentences for a screen reader, tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright.picture.layout import FULL_NODES
from shardwright.picture.scene import GPUMemory, NodeBox, Part, Scene, gib
from shardwright.words import counted

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_green", "white")
# Told apart without colour too.
GLYPHS = {
    Part.WEIGHTS: "█",
    Part.KV_USED: "▓",
    Part.KV_SPARE: "▒",
    Part.ACTIVATIONS: "=",
    Part.OVERHEAD: ":",
    Part.FREE: "·",
}
_STYLES = {Part.KV_USED: "yellow", Part.KV_SPARE: "yellow", Part.FREE: "dim"}
_BAR = 20


def summary(scene: Scene) -> tuple[str, ...]:
    """What the picture shows, in sentences: where each stage is and what its GPUs hold."""
    sentences = [
        (
            f"{counted(scene.replicas, 'replica')} of {counted(scene.pipeline, 'pipeline stage')} "
            f"× {counted(scene.tensor, 'tensor-parallel rank')} on "
            f"{counted(len(scene.nodes), 'node')}: {scene.used:,} of {counted(scene.gpus, 'GPU')} "
            "have a rank."
        )
    ]
    if scene.tensor > 1:
        sentences.append(f"Tensor-parallel ranks are linked by {scene.inside}.")
    if scene.pipeline > 1:
        sentences.append(f"Stages are linked by {scene.between}.")
    for held in scene.memory:
        parts = ", ".join(f"{part} {gib(size)}" for part, size in held.parts)
        sentences.append(
            f"A GPU of {held.name} ({counted(held.layers, 'layer')}) has {gib(held.total)} GiB: "
            f"{parts}."
        )
    return tuple(sentences)


def blocks_of(scene: Scene, node: NodeBox) -> str:
    """Who sits on a node, in words: `replica 0 stage 1: ranks 8–15`."""
    told = []
    for block in node.blocks:
        first = block.stage * scene.tensor
        seat = node.seats[block.start]
        if seat is not None:
            first = scene.rank(seat)
        ranks = f"rank {first}" if block.size == 1 else f"ranks {first}–{first + block.size - 1}"
        stage = f" stage {block.stage}" if scene.pipeline > 1 else ""
        told.append(f"replica {block.replica}{stage}: {ranks}")
    return "; ".join(told)


def node_rows(scene: Scene) -> Iterator[tuple[str, str, str, str]]:
    """(node or run of nodes, product, who sits there, what is unused on each), all nodes in order.

    A fleet is told in runs: neighbours with as many GPUs of a product, alike used.
    """
    if len(scene.nodes) <= FULL_NODES:
        for node in scene.nodes:
            product = f"{len(node.seats)} × {node.product}"
            yield node.name, product, blocks_of(scene, node), unused(node)
        return
    for (product, gpus, pattern, _), run in groupby(scene.nodes, key=_pattern):
        nodes = list(run)
        name = nodes[0].name
        if len(nodes) > 1:
            name = f"{name} – {nodes[-1].name} ({counted(len(nodes), 'node')})"
        told = _run_of(scene, nodes, pattern)
        yield name, f"{gpus} × {product}", told, unused(nodes[0])


def unused(node: NodeBox) -> str:
    """`2 free, 4 in use by others`, or "" on a node that is full of ranks."""
    words = []
    if node.free:
        words.append(f"{node.free} free")
    if node.taken:
        words.append(f"{node.taken} in use by others")
    return ", ".join(words)


def _pattern(node: NodeBox) -> tuple[str, int, tuple[int, ...], int]:
    return node.product, len(node.seats), tuple(block.size for block in node.blocks), node.taken


def _run_of(scene: Scene, nodes: Sequence[NodeBox], sizes: tuple[int, ...]) -> str:
    if not sizes:
        return ""
    held = {block.replica for node in nodes for block in node.blocks}
    span = f"replica {min(held)}" if len(held) == 1 else f"replicas {min(held)}–{max(held)}"
    each = counted(len(sizes), "stage") if scene.pipeline > 1 else counted(len(sizes), "replica")
    return f"{span}: {each} a node, {counted(sizes[0], 'rank')} each"


def draw(scene: Scene) -> RenderableType:
    """The picture for a terminal: nodes × GPUs, then the memory of a GPU by stage."""
    return Group(_nodes(scene), Text(), _links(scene), Text(), _memory(scene))


def _nodes(scene: Scene) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("node", no_wrap=True)
    table.add_column("global rank on each GPU", no_wrap=True)
    table.add_column("who sits there")
    full = len(scene.nodes) <= FULL_NODES
    by_name = {node.name: node for node in scene.nodes}
    for name, product, told, left in node_rows(scene):
        node = by_name.get(name) if full else None
        cells = _cells(scene, node) if node is not None else Text(product)
        table.add_row(name, cells, "; ".join(word for word in (told, left) if word))
    return table


def _cells(scene: Scene, node: NodeBox) -> Text:
    found = Text()
    for gpu, seat in enumerate(node.seats):
        if seat is None:
            found.append(" ## " if gpu < node.taken else "  · ", style="dim")
        else:
            found.append(f"{scene.rank(seat):>3} ", style=_COLOURS[seat.stage % len(_COLOURS)])
    return found


def _links(scene: Scene) -> Text:
    found = Text(style="dim")
    if scene.tensor > 1:
        found.append(f"TP: all-reduce in every layer, over {scene.inside}.  ")
    if scene.pipeline > 1:
        found.append(f"PP: activations to the next stage, over {scene.between}.  ")
    found.append(f"{scene.used:,} of {counted(scene.gpus, 'GPU')} have a rank.")
    if scene.free:
        found.append("  · free")
    if scene.taken:
        found.append("  ## in use by others")
    return found


def _memory(scene: Scene) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("memory of one GPU, GiB")
    table.add_column("", no_wrap=True)
    for part in Part:
        table.add_column(f"{part} {GLYPHS[part]}", justify="right", overflow="fold")
    table.add_column("total", justify="right")
    for held in scene.memory:
        name = held.name if scene.pipeline > 1 else "every GPU"
        sizes = dict(held.parts)
        table.add_row(
            f"{name}, {counted(held.layers, 'layer')}",
            _bar(held),
            *(gib(sizes.get(part, 0)) for part in Part),
            gib(held.total),
        )
    return table


def _bar(held: GPUMemory) -> Text:
    """A bar of fixed length; what is there at all gets at least one sign."""
    found = Text()
    for part, length in zip(
        (part for part, _ in held.parts),
        shares([size for _, size in held.parts], _BAR),
        strict=True,
    ):
        found.append(GLYPHS[part] * length, style=_STYLES.get(part, ""))
    return found


def shares(sizes: Sequence[int], length: int) -> list[int]:
    """Divide `length` signs by size: 0 only for 0, the rounding taken from the largest."""
    total = sum(sizes)
    found = [max(1, round(length * size / total)) if size else 0 for size in sizes]
    while sum(found) != length:
        largest = max(range(len(found)), key=lambda place: found[place])
        found[largest] += 1 if sum(found) < length else -1
    return found
