"""Memory in the SVG: the bar on every GPU, and one table that has its numbers and its legend."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as ET

from shardwright.picture.drawing import element, line, rect, text, tooltip
from shardwright.picture.layout import BODY, CONTENT, MARGIN, Box
from shardwright.picture.scene import MEANINGS, GPUMemory, Part, Scene, gib
from shardwright.picture.style import PART_CLASS, stage_class
from shardwright.words import counted

_ROW = 30.0
_HEAD = 24.0
_NAME = 190.0
_BAR = 372.0
_BAR_HEIGHT = 16.0
_SWATCH = 11.0
_COLUMN = (CONTENT - _NAME - _BAR - 14) / (len(Part) + 1)


@dataclass(frozen=True, slots=True)
class Painter:
    """Paints parts of memory; `fills` are the textures of those that are not solid."""

    fills: dict[Part, str]

    def part(
        self, parent: ET.Element, part: Part, box: tuple[float, float, float, float]
    ) -> ET.Element:
        """One part as a rectangle."""
        made = rect(parent, PART_CLASS[part], box)
        if part in self.fills:
            made.set("fill", self.fills[part])
        return made

    def upright(self, parent: ET.Element, bar: Box, held: GPUMemory) -> None:
        """A GPU's bar, filled from below."""
        rect(parent, "sw-ground", (bar.x, bar.y, bar.width, bar.height))
        y = bar.bottom
        for part, size in held.parts:
            height = bar.height * size / held.total
            y -= height
            if size:
                self.part(parent, part, (bar.x, y, bar.width, height))
        rect(parent, "sw-rule", (bar.x, bar.y, bar.width, bar.height))

    def level(self, parent: ET.Element, bar: Box, held: GPUMemory) -> None:
        """The same bar lying down, filled from the left, thin lines between its parts."""
        rect(parent, "sw-ground", (bar.x, bar.y, bar.width, bar.height))
        x = bar.x
        for part, size in held.parts:
            width = bar.width * size / held.total
            if size:
                tooltip(
                    self.part(parent, part, (x, bar.y, width, bar.height)),
                    f"{part}: {gib(size)} GiB, {MEANINGS[part]}",
                )
            x += width
            if size and x < bar.right:
                line(parent, "sw-rule", (x, bar.y), (x, bar.bottom))
        rect(parent, "sw-rule", (bar.x, bar.y, bar.width, bar.height))


def memory_height(scene: Scene) -> float:
    """Height of the table."""
    return _HEAD + _ROW * len(scene.memory)


def memory_table(root: ET.Element, scene: Scene, top: float, painter: Painter) -> None:
    """A row a stage (or run of stages alike): its bar, and every part in GiB."""
    first = MARGIN + _NAME + _BAR + 14
    for number, part in enumerate(Part):
        right = first + (number + 1) * _COLUMN
        _heading(root, part, right, top, painter)
    text(root, "sw-ink sw-bold", (MARGIN + CONTENT, top + 12), "total", size=BODY - 1, anchor="end")
    for number, held in enumerate(scene.memory):
        _row(root, scene, held, top + _HEAD + number * _ROW, first, painter)


def _heading(root: ET.Element, part: Part, right: float, top: float, painter: Painter) -> None:
    label = text(root, "sw-ink sw-bold", (right, top + 12), part.value, size=BODY - 1, anchor="end")
    tooltip(label, MEANINGS[part])
    box = (right - _SWATCH, top - 12, _SWATCH, _SWATCH)
    painter.part(root, part, box)
    rect(root, "sw-rule", box)


def _row(
    root: ET.Element, scene: Scene, held: GPUMemory, top: float, first: float, painter: Painter
) -> None:
    baseline = top + 15
    if held.first == held.last:
        element(
            root,
            "circle",
            stage_class(held.first),
            cx=MARGIN + 5,
            cy=baseline - 4,
            r=3,
        )
    layers = counted(held.layers, "layer")
    name = f"{held.name}, {layers}" if scene.pipeline > 1 else f"every GPU, {layers}"
    text(root, "sw-ink", (MARGIN + 16, baseline), name, size=BODY)
    bar = Box(MARGIN + _NAME, top + 2, _BAR, _BAR_HEIGHT)
    painter.level(root, bar, held)
    sizes = dict(held.parts)
    for number, part in enumerate(Part):
        right = first + (number + 1) * _COLUMN
        words = gib(sizes.get(part, 0))
        text(root, "sw-ink", (right, baseline), words, size=BODY, anchor="end")
    total = (MARGIN + CONTENT, baseline)
    text(root, "sw-ink sw-bold", total, gib(held.total), size=BODY, anchor="end")
