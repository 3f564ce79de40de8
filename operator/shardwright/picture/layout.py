"""Where things stand in the SVG: how many nodes a row, how wide a GPU, what is drawn in full.

Two nodes are drawn large, sixteen fit one screen, and of two hundred one replica is drawn in full
above a map of all. Units are SVG user units, which a browser shows as pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.picture.scene import Block, NodeBox, Scene

WIDTH = 1200.0
MARGIN = 24.0
CONTENT = WIDTH - 2 * MARGIN
GUTTER = 44.0  # between two nodes of a row: an arrow and its label stand there
ROW_GAP = 30.0  # between two rows: room for an arrow to the next row
PAD = 10.0
SMALL = 10.0  # font sizes
BODY = 12.0

NAME_HEIGHT = 22.0
LABEL_HEIGHT = 15.0
CHIP_HEIGHT = 20.0
BUS_HEIGHT = 16.0

FULL_NODES = 16
"""Most nodes drawn GPU by GPU; of more, one replica's nodes are, and the rest as a map."""
_LARGE_NODES = 2
_LARGE_CELL, _SMALL_CELL, _WIDEST_CELL = 60.0, 28.0, 140.0
_NARROWEST_PANEL = 150.0
_LARGE_BAR, _SMALL_BAR = 110.0, 46.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Grid:
    """Nodes in rows.

    Attributes:
        shown: How many nodes, from the first, are drawn GPU by GPU.
        columns: Nodes of a row.
        cell: Width of one GPU.
        bar: Height of a GPU's memory bar.
        panel: Width of a node.
    """

    shown: int
    columns: int
    cell: float
    bar: float
    panel: float

    @property
    def panel_height(self) -> float:
        """Height of a node."""
        return NAME_HEIGHT + LABEL_HEIGHT + CHIP_HEIGHT + BUS_HEIGHT + self.bar + PAD

    @property
    def rows(self) -> int:
        """Rows of nodes."""
        return -(-self.shown // self.columns)

    @property
    def height(self) -> float:
        """Height of all rows with the gaps between them."""
        return self.rows * self.panel_height + (self.rows - 1) * ROW_GAP

    def box(self, place: int, top: float) -> Box:
        """The node at this place, in a grid that begins at `top`."""
        row, column = divmod(place, self.columns)
        return Box(
            MARGIN + column * (self.panel + GUTTER),
            top + row * (self.panel_height + ROW_GAP),
            self.panel,
            self.panel_height,
        )

    def cell_box(self, panel: Box, gpu: int, top: float, height: float) -> Box:
        """A strip of one GPU's column inside a node; `top` counts from the node's upper edge."""
        inset = 2.0 if self.cell < _LARGE_CELL else 4.0
        return Box(
            panel.x + PAD + gpu * self.cell + inset,
            panel.y + top,
            self.cell - 2 * inset,
            height,
        )

    def block_span(self, panel: Box, block: Block) -> tuple[float, float]:
        """Left and right edge of a stage's GPUs."""
        left = panel.x + PAD + block.start * self.cell
        return left, left + block.size * self.cell


def grid_of(scene: Scene) -> Grid:
    """How the scene's nodes are laid out.

    Raises:
        ValueError: When the scene has no node, or one without GPUs.
    """
    most = max((len(node.seats) for node in scene.nodes), default=0)
    if most == 0:
        raise ValueError("a picture needs at least one node with a GPU; this plan has none")
    shown = len(scene.nodes) if len(scene.nodes) <= FULL_NODES else _first_replica(scene)
    large = shown <= _LARGE_NODES
    columns = _columns(shown, most, scene.pipeline, _LARGE_CELL if large else _SMALL_CELL)
    width = (CONTENT - (columns - 1) * GUTTER) / columns
    cell = min(_WIDEST_CELL, (width - 2 * PAD) / most)
    return Grid(
        shown=shown,
        columns=columns,
        cell=cell,
        bar=_LARGE_BAR if large else _SMALL_BAR,
        panel=max(cell * most + 2 * PAD, min(width, _NARROWEST_PANEL)),
    )


def _columns(shown: int, most: int, pipeline: int, cell: float) -> int:
    """Most nodes of a row; whole replicas, where several nodes hold one."""
    found = 1
    for columns in range(2, shown + 1):
        width = (CONTENT - (columns - 1) * GUTTER) / columns
        if width < max(most * cell + 2 * PAD, _NARROWEST_PANEL):
            break
        found = columns
    if 1 < pipeline < found:
        found -= found % pipeline
    # Two even rows read better than a full one and a rest.
    rows = -(-shown // found)
    evened = -(-shown // rows)
    return evened if pipeline == 1 or evened % pipeline == 0 else found


def _first_replica(scene: Scene) -> int:
    """Nodes from the first that replica 0 sits on, at most as many as are drawn in full."""
    places = [
        place
        for place, node in enumerate(scene.nodes)
        if any(seat is not None and seat.replica == 0 for seat in node.seats)
    ]
    return min(FULL_NODES, max(places, default=0) + 1)


def seen_from(scene: Scene, grid: Grid) -> tuple[NodeBox, ...]:
    """Nodes drawn GPU by GPU."""
    return scene.nodes[: grid.shown]


MAP_GPU = 8.0
MAP_GAP = 12.0
MAP_ROW = 20.0
MAP_LABEL = 210.0


@dataclass(frozen=True, slots=True)
class FleetMap:
    """All nodes as rows of small squares, one a GPU."""

    columns: int
    pitch: float
    rows: int

    @property
    def height(self) -> float:
        """Height of all rows."""
        return self.rows * MAP_ROW

    def corner(self, place: int, top: float) -> tuple[float, float]:
        """Upper left corner of a node."""
        row, column = divmod(place, self.columns)
        return MARGIN + MAP_LABEL + column * self.pitch, top + row * MAP_ROW


def map_of(scene: Scene) -> FleetMap:
    """How the map of all nodes is laid out; whole replicas a row where they fit."""
    most = max(len(node.seats) for node in scene.nodes)
    pitch = most * MAP_GPU + MAP_GAP
    columns = max(1, int((CONTENT - MAP_LABEL) // pitch))
    if columns >= 10:  # noqa: PLR2004 - rows of ten are easy to count
        columns -= columns % 10
    if 1 < scene.pipeline < columns:
        columns -= columns % scene.pipeline
    return FleetMap(columns, pitch, -(-len(scene.nodes) // columns))
