"""Links in the SVG by what they carry: TP inside a stage's node, PP from stage to stage."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from xml.etree import ElementTree as ET

from shardwright.picture import layout as at
from shardwright.picture.drawing import element, line, rect, text, text_width, tooltip
from shardwright.picture.layout import Box, Grid
from shardwright.picture.scene import Block, Scene
from shardwright.picture.style import stage_class

_DOT = 3.0
_HEAD = 6.0
_ITEM_GAP = 34.0


def draw_links(root: ET.Element, scene: Scene, grid: Grid, top: float) -> None:
    """TP rails below the ranks of every stage, and an arrow from each stage to the next."""
    for place, node in enumerate(at.seen_from(scene, grid)):
        panel = grid.box(place, top)
        blocks = node.blocks
        for block in blocks:
            _rail(root, scene, grid, panel, block)
        for one, two in pairwise(blocks):
            if (two.replica, two.stage) == (one.replica, one.stage + 1):
                start = (_centre(grid, panel, one.start + one.size - 1) + _DOT, _rail_y(panel))
                end = (_centre(grid, panel, two.start) - _DOT, _rail_y(panel))
                _arrow(root, [start, end])
    carried: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for here, there, link in scene.hops():
        if here < grid.shown and there < grid.shown:
            carried[here, there].append(link)
    for (here, there), links in carried.items():
        _hop(root, scene, grid, top, (here, there), links)


def _rail_y(panel: Box) -> float:
    return panel.y + at.NAME_HEIGHT + at.LABEL_HEIGHT + at.CHIP_HEIGHT + at.BUS_HEIGHT / 2


def _centre(grid: Grid, panel: Box, gpu: int) -> float:
    return panel.x + at.PAD + (gpu + 0.5) * grid.cell


def _rail(root: ET.Element, scene: Scene, grid: Grid, panel: Box, block: Block) -> None:
    y, colour = _rail_y(panel), stage_class(block.stage)
    group = element(root, "g")
    tooltip(
        group,
        f"replica {block.replica} stage {block.stage}: {block.size} tensor-parallel ranks over "
        f"{scene.inside}"
        if block.size > 1
        else f"replica {block.replica} stage {block.stage}: one rank",
    )
    last = block.start + block.size - 1
    if block.size > 1:
        line(
            group,
            colour,
            (_centre(grid, panel, block.start), y),
            (_centre(grid, panel, last), y),
        )
    for gpu in range(block.start, last + 1) if scene.tensor * scene.pipeline > 1 else ():
        element(group, "circle", colour, cx=_centre(grid, panel, gpu), cy=y, r=_DOT - 1.5)


def _hop(
    root: ET.Element,
    scene: Scene,
    grid: Grid,
    top: float,
    pair: tuple[int, int],
    links: list[tuple[int, int]],
) -> None:
    """An arrow between two nodes, with how many pipelines it carries."""
    one, two = grid.box(pair[0], top), grid.box(pair[1], top)
    words = "PP" if len(links) == 1 else f"PP ×{len(links)}"
    group = element(root, "g")
    told = ", ".join(f"replica {replica} stage {stage} → {stage + 1}" for replica, stage in links)
    tooltip(group, f"{told}: activations over {scene.between}")
    y = _rail_y(one)
    if pair[1] == pair[0] + 1 and one.y == two.y:
        _arrow(group, [(one.right + 4, y), (two.x - 4, y)])
        middle = ((one.right + two.x) / 2, y - 8)
        text(group, "sw-ink sw-bold", middle, words, size=at.SMALL, anchor="middle")
        return
    # To another row, or further along: down into the gap below, along it, and down into the node.
    gap = one.bottom + at.ROW_GAP / 2
    x = two.x + two.width / 2
    if two.y > one.y:
        start = one.x + one.width / 2
        if start == x:
            _arrow(group, [(start, one.bottom + 2), (x, two.y - 3)])
        else:
            _arrow(group, [(start, one.bottom + 2), (start, gap), (x, gap), (x, two.y - 3)])
        text(group, "sw-ink sw-bold", (x + 8, two.y - 5), words, size=at.SMALL)
        return
    start = one.x + one.width / 2
    below = one.bottom + at.ROW_GAP / 2 - 4
    _arrow(group, [(start, one.bottom + 2), (start, below), (x, below), (x, two.bottom + 3)])
    text(group, "sw-ink sw-bold", (x + 8, below + 10), words, size=at.SMALL)


def _arrow(parent: ET.Element, points: list[tuple[float, float]]) -> None:
    """A line through the points with a head at its end."""
    before, (x, y) = points[-2], points[-1]
    across = before[1] == y
    sign = 1 if (x > before[0] if across else y > before[1]) else -1
    tail = (x - sign * _HEAD, y) if across else (x, y - sign * _HEAD)
    drawn = [*points[:-1], tail]
    element(
        parent,
        "polyline",
        "sw-arrow",
        points=" ".join(f"{px:.1f},{py:.1f}" for px, py in drawn),
    )
    half = _HEAD * 0.75
    head = (
        [(x, y), (tail[0], y - half), (tail[0], y + half)]
        if across
        else [(x, y), (x - half, tail[1]), (x + half, tail[1])]
    )
    element(parent, "polygon", "sw-head", points=" ".join(f"{px:.1f},{py:.1f}" for px, py in head))


def legend_of_links(root: ET.Element, scene: Scene, y: float) -> None:
    """One line that says what the lines mean; what does not occur is not explained."""
    x = at.MARGIN
    if scene.tensor > 1:
        x += _DOT
        line(root, stage_class(0), (x, y - 4), (x + 24, y - 4))
        for end in (x, x + 12, x + 24):
            element(root, "circle", stage_class(0), cx=end, cy=y - 4, r=_DOT - 1.5)
        x = _item(root, x + 34, y, f"TP: all-reduce in every layer, over {scene.inside}")
    if scene.pipeline > 1:
        _arrow(root, [(x, y - 4), (x + 26, y - 4)])
        x = _item(root, x + 34, y, f"PP: activations to the next stage, over {scene.between}")
    rect(root, "sw-seat-0-4", (x, y - 11, 16, 13), radius=3)
    x = _item(root, x + 22, y, "a GPU with its rank; the colour is the stage's")
    for kind, words, number in (
        ("sw-vacant", "free GPU", scene.free),
        ("sw-taken", "in use by others", scene.taken),
    ):
        if number:
            rect(root, kind, (x, y - 11, 16, 13), radius=3)
            x = _item(root, x + 22, y, words)


def _item(root: ET.Element, x: float, y: float, words: str) -> float:
    text(root, "sw-quiet", (x, y), words, size=at.BODY)
    return x + text_width(words, at.BODY) + _ITEM_GAP
