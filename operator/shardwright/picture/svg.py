"""A scene as SVG: nodes with their GPUs, links by use, and the memory of each stage's GPUs."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from shardwright.picture import layout as at
from shardwright.picture.drawing import SVG, element, rect, shortened, text, text_width, tooltip
from shardwright.picture.layout import Box, Grid
from shardwright.picture.links import draw_links, legend_of_links
from shardwright.picture.memory import Painter, memory_height, memory_table
from shardwright.picture.scene import Block, NodeBox, Scene, Seat, gib
from shardwright.picture.style import seat_class, stage_class, style_sheet, textures
from shardwright.picture.text import summary, unused
from shardwright.words import counted

_TITLE, _SUBTITLE, _HEADING = 20.0, 13.0, 14.0
_TITLE_HEIGHT, _LEGEND_HEIGHT = 60.0, 32.0
_NOTE_ROW = 17.0


def svg(scene: Scene, prefix: str = "sw", *, headed: bool = True) -> str:
    """The picture as a file of its own; also fit to stand inside a page.

    Args:
        scene: What is shown.
        prefix: Begins the ids, for pages with several pictures.
        headed: Whether title and subtitle are drawn; a page has them as its own text.
    """
    tree = _draw(scene, prefix, headed=headed)
    ET.indent(tree, " ")
    return ET.tostring(tree, encoding="unicode", xml_declaration=False) + "\n"


def _draw(scene: Scene, prefix: str, *, headed: bool) -> ET.Element:
    grid = at.grid_of(scene)
    mapped = at.map_of(scene) if grid.shown < len(scene.nodes) else None
    legend_top = _TITLE_HEIGHT if headed else 0.0
    nodes_top = legend_top + _LEGEND_HEIGHT + (24 if mapped else 0)
    map_top = nodes_top + grid.height + 60
    memory_top = (map_top + mapped.height if mapped else nodes_top + grid.height) + 48
    notes_top = memory_top + memory_height(scene) + 26
    height = notes_top + _NOTE_ROW * len(scene.notes) + 4
    root = ET.Element("svg", {"xmlns": SVG, "role": "img"})
    root.set("viewBox", f"0 0 {at.WIDTH:g} {height:g}")
    root.set("width", f"{at.WIDTH:g}")
    root.set("height", f"{height:g}")
    root.set("aria-labelledby", f"{prefix}-title {prefix}-desc")
    element(root, "title", id=f"{prefix}-title").text = scene.title
    element(root, "desc", id=f"{prefix}-desc").text = " ".join(summary(scene))
    element(root, "style").text = style_sheet(scene.pipeline)
    painter = Painter(textures(root, prefix))
    rect(root, "sw-surface", (0, 0, at.WIDTH, height))
    if headed:
        _heading(root, scene)
    legend_of_links(root, scene, legend_top + 16)
    if mapped:
        replica = "Replica 0 in full" if scene.used else "The first node in full"
        text(root, "sw-ink sw-bold", (at.MARGIN, nodes_top - 12), replica, size=_HEADING)
    for place, node in enumerate(at.seen_from(scene, grid)):
        _node(root, scene, grid, grid.box(place, nodes_top), node, painter)
    draw_links(root, scene, grid, nodes_top)
    if mapped:
        words = (
            f"All {counted(len(scene.nodes), 'node')}: {counted(scene.used, 'GPU')} with a rank, "
            + ("" if not scene.taken else f"{scene.taken:,} in use by others, ")
            + f"{scene.free:,} free"
        )
        text(root, "sw-ink sw-bold", (at.MARGIN, map_top - 14), words, size=_HEADING)
        _map(root, scene, mapped, map_top)
    text(
        root,
        "sw-ink sw-bold",
        (at.MARGIN, memory_top - 14),
        "Memory of one GPU, in GiB",
        size=_HEADING,
    )
    memory_table(root, scene, memory_top, painter)
    for number, note in enumerate(scene.notes):
        words = shortened(note, at.CONTENT, at.BODY)
        text(root, "sw-quiet", (at.MARGIN, notes_top + number * _NOTE_ROW), words, size=at.BODY)
    return root


def _heading(root: ET.Element, scene: Scene) -> None:
    title = shortened(scene.title, at.CONTENT, _TITLE, bold=True)
    text(root, "sw-ink sw-bold", (at.MARGIN, 32), title, size=_TITLE)
    below = shortened(scene.subtitle, at.CONTENT, _SUBTITLE)
    text(root, "sw-quiet", (at.MARGIN, 53), below, size=_SUBTITLE)


def _node(
    root: ET.Element, scene: Scene, grid: Grid, panel: Box, node: NodeBox, painter: Painter
) -> None:
    group = element(root, "g")
    tooltip(group, _about_node(node))
    rect(group, "sw-panel", (panel.x, panel.y, panel.width, panel.height), radius=6)
    aside = unused(node)
    room = panel.width - 2 * at.PAD - (text_width(aside, at.SMALL) + 8 if aside else 0)
    text(
        group,
        "sw-ink sw-bold",
        (panel.x + at.PAD, panel.y + 16),
        shortened(node.name, room, at.BODY, bold=True),
        size=at.BODY,
    )
    if aside:
        corner = (panel.right - at.PAD, panel.y + 16)
        text(group, "sw-quiet", corner, aside, size=at.SMALL, anchor="end")
    for block in node.blocks:
        _block_label(group, scene, grid, panel, block)
    for gpu, seat in enumerate(node.seats):
        _gpu(group, scene, grid, panel, gpu, seat, painter, taken=gpu < node.taken)


def _about_node(node: NodeBox) -> str:
    held = ", ".join(
        f"replica {block.replica} stage {block.stage} on {counted(block.size, 'GPU')}"
        for block in node.blocks
    )
    told = "; ".join(word for word in (held, unused(node)) if word)
    return f"{node.name} ({len(node.seats)} × {node.product}): {told}"


def _block_label(group: ET.Element, scene: Scene, grid: Grid, panel: Box, block: Block) -> None:
    """The longest of several ways to say which stage this is that fits above its GPUs."""
    left, right = grid.block_span(panel, block)
    several = scene.pipeline > 1
    forms = (
        f"replica {block.replica} · stage {block.stage} · TP {scene.tensor}",
        f"replica {block.replica} · stage {block.stage}",
        f"r{block.replica} · stage {block.stage}",
        f"r{block.replica} s{block.stage}",
        f"r{block.replica}",
    )
    if not several:
        forms = (
            f"replica {block.replica} · TP {scene.tensor}",
            f"replica {block.replica}",
            f"r{block.replica}",
            "",
            "",
        )
    room = right - left - 4
    words = next((form for form in forms if shortened(form, room, at.SMALL) == form), "")
    if words:
        middle = ((left + right) / 2, panel.y + at.NAME_HEIGHT + 10)
        text(group, "sw-quiet", middle, words, size=at.SMALL, anchor="middle")


def _gpu(
    group: ET.Element,
    scene: Scene,
    grid: Grid,
    panel: Box,
    gpu: int,
    seat: Seat | None,
    painter: Painter,
    *,
    taken: bool,
) -> None:
    chip_top = at.NAME_HEIGHT + at.LABEL_HEIGHT
    chip = grid.cell_box(panel, gpu, chip_top, at.CHIP_HEIGHT)
    bar = grid.cell_box(panel, gpu, chip_top + at.CHIP_HEIGHT + at.BUS_HEIGHT, grid.bar)
    if seat is None:
        kind = "sw-taken" if taken else "sw-vacant"
        rect(group, kind, (chip.x, chip.y, chip.width, chip.height), radius=3)
        rect(group, kind, (bar.x, bar.y, bar.width, bar.height))
        return
    one = element(group, "g")
    rank, held = scene.rank(seat), scene.memory_of(seat.stage)
    parts = ", ".join(f"{part} {gib(size)}" for part, size in held.parts)
    tooltip(
        one,
        f"replica {seat.replica}, stage {seat.stage}, tensor rank {seat.tensor_rank}, "
        f"global rank {rank}; GiB: {parts}",
    )
    fill = seat_class(seat.stage, seat.tensor_rank, scene.tensor)
    rect(one, fill, (chip.x, chip.y, chip.width, chip.height), radius=3)
    forms = (f"rank {rank}", str(rank))
    words = next((form for form in forms if shortened(form, chip.width - 4, 11) == form), "")
    middle = (chip.x + chip.width / 2, chip.y + 14)
    text(one, "sw-ink", middle, words, size=11, anchor="middle")
    painter.upright(one, bar, held)


def _map(root: ET.Element, scene: Scene, mapped: at.FleetMap, top: float) -> None:
    for place, node in enumerate(scene.nodes):
        x, y = mapped.corner(place, top)
        if place % mapped.columns == 0:
            last = min(place + mapped.columns, len(scene.nodes)) - 1
            words = f"{node.name} – {scene.nodes[last].name}" if last > place else node.name
            label = shortened(words, at.MAP_LABEL - 14, at.SMALL)
            text(root, "sw-quiet", (at.MARGIN, y + 11), label, size=at.SMALL)
        if place % mapped.columns == 0:
            _replicas_of_row(root, scene, mapped, place, (x, y))
        group = element(root, "g")
        tooltip(group, _about_node(node))
        for gpu, seat in enumerate(node.seats):
            box = (x + gpu * at.MAP_GPU, y + 2, at.MAP_GPU, at.MAP_GPU + 2)
            if seat is None:
                rect(group, "sw-taken" if gpu < node.taken else "sw-vacant", box)
            else:
                rect(group, seat_class(seat.stage, seat.tensor_rank, scene.tensor), box)
        for block in node.blocks:
            rail = (
                x + block.start * at.MAP_GPU + 1,
                y + at.MAP_GPU + 5,
                block.size * at.MAP_GPU - 2,
                1,
            )
            rect(group, stage_class(block.stage), rail)


def _replicas_of_row(
    root: ET.Element, scene: Scene, mapped: at.FleetMap, place: int, corner: tuple[float, float]
) -> None:
    """Which replicas a row of the map holds, behind its last node, where there is room."""
    row = scene.nodes[place : place + mapped.columns]
    held = sorted({block.replica for node in row for block in node.blocks})
    words = ""
    if held:
        words = f"replica {held[0]}" if len(held) == 1 else f"replicas {held[0]}–{held[-1]}"
    x = corner[0] + mapped.columns * mapped.pitch
    if words and text_width(words, at.SMALL) <= at.MARGIN + at.CONTENT - x:
        text(root, "sw-quiet", (x, corner[1] + 11), words, size=at.SMALL)
