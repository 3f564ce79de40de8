"""The picture of a plan: what is drawn, that it can be read, and that text says the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from shardwright.picture.drawing import shortened, text_width
from shardwright.picture.html import Section, html
from shardwright.picture.palette import DARK, LIGHT, RANK_TINTS, STAGE_HUES, Theme, contrast
from shardwright.picture.scene import (
    GIB,
    GPUMemory,
    NodeBox,
    Part,
    Scene,
    Seat,
    gib,
    together,
)
from shardwright.picture.svg import svg
from shardwright.picture.text import draw, node_rows, shares, summary

SVG = "{http://www.w3.org/2000/svg}"


def memory(stage: int, weights: float = 47.3, kv: float = 12.5) -> GPUMemory:
    sizes = [round(size * GIB) for size in (weights, kv, 7.1, 1.1 + stage / 8, 3.4)]
    total = round(79.19 * GIB)
    return GPUMemory(
        first=stage,
        last=stage,
        layers=40,
        parts=tuple(zip(Part, [*sizes, total - sum(sizes)], strict=True)),
        total=total,
    )


def scene(
    nodes: int,
    gpus: int,
    tensor: int,
    pipeline: int,
    replicas: int,
    *,
    pack: bool = False,
    taken: int = 0,
    name: str = "h100-",
) -> Scene:
    """Replicas on nodes from the first; stages on a node of their own unless packed."""
    seats: list[list[Seat | None]] = [[None] * gpus for _ in range(nodes)]
    used = [taken] * nodes
    place = 0
    for replica in range(replicas):
        for stage in range(pipeline):
            while used[place] + tensor > gpus:
                place += 1
            for rank in range(tensor):
                seats[place][used[place] + rank] = Seat(replica, stage, rank)
            used[place] += tensor
            if pipeline > 1 and not pack:
                place += 1
    return Scene(
        title="llama-405b: BF16 weights",
        subtitle=f"{nodes} × {gpus} NVIDIA-H100-80GB-HBM3",
        tensor=tensor,
        pipeline=pipeline,
        replicas=replicas,
        nodes=tuple(
            NodeBox(f"{name}{number}", "NVIDIA-H100-80GB-HBM3", tuple(row), taken)
            for number, row in enumerate(seats)
        ),
        memory=together([memory(stage) for stage in range(pipeline)]),
        inside="NVLink",
        between="RDMA",
        notes=("Which of a node's GPUs a rank gets is the device plugin's choice.",),
    )


SCENES = {
    "one node": scene(1, 8, 8, 1, 1),
    "replicas of two GPUs": scene(1, 8, 2, 1, 3),
    "two nodes": scene(2, 8, 8, 2, 1),
    "two nodes, one stage each of three": scene(3, 8, 8, 3, 1),
    "in use by others": scene(2, 8, 4, 1, 2, taken=3),
    "sixteen nodes": scene(16, 8, 8, 2, 8),
    "sixteen nodes, a hundred replicas": scene(16, 8, 1, 1, 100),
    "fourteen nodes, four stages": scene(14, 8, 8, 4, 3),
    "ten stages": scene(10, 8, 8, 10, 1),
    "stages share a node": scene(4, 8, 2, 4, 3, pack=True),
    "one GPU a node": scene(9, 1, 1, 3, 3),
    "sixteen GPUs a node": scene(8, 16, 16, 2, 4),
    "long names": scene(16, 8, 8, 2, 8, name="ip-10-0-128-21.eu-central-1.compute.internal-"),
    "two hundred nodes": scene(200, 8, 8, 2, 95),
    "two hundred nodes, small replicas": scene(200, 8, 2, 1, 700),
    "nobody": scene(20, 8, 8, 2, 0),
}
EACH = pytest.mark.parametrize("shown", SCENES.values(), ids=SCENES)


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - what the tool drew a moment ago


class Label(NamedTuple):
    """A text as it lies in the picture."""

    words: str
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Label) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def labels(root: ET.Element) -> Iterator[Label]:
    for element in root.iter(f"{SVG}text"):
        words = element.text or ""  # a tooltip stands inside, and is no label
        size = float(element.get("font-size", "0"))
        width = text_width(words, size, bold="sw-bold" in element.get("class", ""))
        x, y = float(element.get("x", "0")), float(element.get("y", "0"))
        x -= {"start": 0.0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        # ascenders and descenders of digits and letters without accents
        yield Label(words, x, y - size * 0.75, x + width, y + size * 0.2)


def numbers(text: str) -> set[str]:
    """Every number of a text, those within a run such as 0–7 too."""
    found = set(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text))
    for first, last in re.findall(r"(\d+)–(\d+)", text):
        found |= {str(number) for number in range(int(first), int(last))}
    return found


def in_words(shown: Scene) -> str:
    console = Console(width=400, no_color=True)
    with console.capture() as captured:
        console.print(draw(shown))
    return "\n".join([captured.get(), shown.title, shown.subtitle, *summary(shown)])


@EACH
def test_no_label_lies_over_another_or_outside_the_picture(shown: Scene) -> None:
    root = parsed(svg(shown))
    _, _, width, height = (float(part) for part in root.get("viewBox", "").split())
    found = list(labels(root))
    assert found
    for label in found:
        assert label.words
        assert label.left >= 0, label
        assert label.right <= width, label
        assert label.bottom <= height, label
    clashes = [(one, two) for one, two in combinations(found, 2) if one.overlaps(two)]
    assert clashes == []


@EACH
def test_every_number_of_the_picture_stands_in_the_text_and_in_the_page(shown: Scene) -> None:
    drawn = set().union(*(numbers(label.words) for label in labels(parsed(svg(shown)))))
    # the nodes of a fleet are told as runs of names, and a name's number is a name
    names = {number for node in shown.nodes for number in numbers(node.name)}
    drawn -= names if len(shown.nodes) > 16 else set()
    assert drawn - numbers(in_words(shown)) == set()
    page = re.sub(r"<svg.*</svg>", "", html(shown), flags=re.DOTALL)
    assert drawn - numbers(page) == set()


@EACH
def test_the_svg_stands_alone_and_says_what_it_is(shown: Scene) -> None:
    text = svg(shown)
    root = parsed(text)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert set(root.get("aria-labelledby", "").split()) <= ids
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == shown.title
    assert description is not None
    assert description.text == " ".join(summary(shown))
    assert text.count("http") == 1, "the namespace is the only address"
    assert "<script" not in text
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= ids


@EACH
def test_every_class_that_is_drawn_has_a_rule_in_both_schemes(shown: Scene) -> None:
    root = parsed(svg(shown))
    style = root.findtext(f"{SVG}style", "")
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    used = {name for element in root.iter() for name in element.get("class", "").split()}
    for name in used - {"sw-bold"}:
        solid = f".{name}{{" in light and f".{name}{{" in dark
        textured = f".{name}-mark{{" in light and f".{name}-mark{{" in dark
        assert solid or textured, name


@EACH
def test_the_page_needs_nothing_else(shown: Scene) -> None:
    said = Section(
        "Choice",
        paragraphs=("FP8.",),
        items=("a <b> & c",),
        code=("tensor: 8",),
        header=("part", "GiB"),
        rows=(("x", "1.5"),),
    )
    page = html(shown, [said])
    assert page.startswith("<!DOCTYPE html>")
    assert re.findall(r"(?:src|href)=", page) == []
    assert "<script" not in page
    assert "a &lt;b&gt; &amp; c" in page
    assert "prefers-color-scheme:dark" in page
    for heading in re.findall(r"<th(?: [^>]*)?>", page):
        assert 'scope="' in heading


def test_a_plan_of_two_nodes_shows_a_rail_a_stage_and_one_arrow() -> None:
    root = parsed(svg(SCENES["two nodes"]))
    words = [label.words for label in labels(root)]
    assert [word for word in words if word.startswith("rank ")] == [f"rank {n}" for n in range(16)]
    assert words.count("PP") == 1
    rails = [
        line
        for line in root.iter(f"{SVG}line")
        if line.get("class") in ("sw-stage-0", "sw-stage-1")
    ]
    assert len(rails) == 3, "one in the legend, one a stage"


@pytest.mark.parametrize(
    "name", ["two nodes", "sixteen nodes", "fourteen nodes, four stages", "ten stages"]
)
def test_every_hop_between_nodes_has_an_arrow(name: str) -> None:
    shown = SCENES[name]
    words = [label.words for label in labels(parsed(svg(shown)))]
    assert words.count("PP") == len(list(shown.hops()))


def test_two_pipelines_over_the_same_nodes_share_an_arrow_that_counts_them() -> None:
    rows = (
        (*(Seat(0, 0, n) for n in range(4)), *(Seat(1, 0, n) for n in range(4))),
        (*(Seat(0, 1, n) for n in range(4)), *(Seat(1, 1, n) for n in range(4))),
    )
    base = SCENES["two nodes"]
    nodes = tuple(replace(node, seats=row) for node, row in zip(base.nodes, rows, strict=True))
    root = parsed(svg(replace(base, tensor=4, replicas=2, nodes=nodes)))
    assert "PP ×2" in [label.words for label in labels(root)]


def test_a_fleet_is_drawn_as_one_replica_in_full_and_a_map_of_all() -> None:
    shown = SCENES["two hundred nodes"]
    root = parsed(svg(shown))
    words = [label.words for label in labels(root)]
    assert "Replica 0 in full" in words
    assert "All 200 nodes: 1,520 GPUs with a rank, 80 free" in words
    assert sum(word.startswith("rank ") for word in words) == 16
    squares = [
        rect
        for rect in root.iter(f"{SVG}rect")
        if rect.get("width") == "8"
        and (rect.get("class") or "").startswith(("sw-seat", "sw-vacant"))
    ]
    assert len(squares) == 1600
    height = float(root.get("height", "0"))
    assert height < 1000, "one screen"


def test_sixteen_nodes_fit_one_screen() -> None:
    assert float(parsed(svg(SCENES["sixteen nodes"])).get("height", "0")) <= 900


def test_the_text_of_a_fleet_is_told_in_runs() -> None:
    rows = list(node_rows(SCENES["two hundred nodes"]))
    assert rows == [
        (
            "h100-0 – h100-189 (190 nodes)",
            "8 × NVIDIA-H100-80GB-HBM3",
            "replicas 0–94: 1 stage a node, 8 ranks each",
            "",
        ),
        ("h100-190 – h100-199 (10 nodes)", "8 × NVIDIA-H100-80GB-HBM3", "", "8 free"),
    ]


def test_names_are_escaped_and_never_markup() -> None:
    hostile = scene(2, 8, 8, 2, 1, name='<script>alert("x")</script>&')
    for text in (svg(hostile), html(hostile)):
        assert "<script" not in text
    parsed(svg(hostile))


def test_two_pictures_of_one_page_share_no_id() -> None:
    def ids(text: str) -> set[str]:
        return set(re.findall(r'id="([^"]+)"', text))

    shown = SCENES["two nodes"]
    assert ids(svg(shown, "a")) & ids(svg(shown, "b")) == set()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
class TestContrast:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for lines and areas (1.4.11)."""

    def test_text_on_what_lies_behind_it(self, theme: Theme) -> None:
        grounds = [theme.surface, theme.panel]
        grounds += [
            theme.seat(stage, tint) for stage in range(STAGE_HUES) for tint in range(RANK_TINTS)
        ]
        assert min(contrast(theme.ink, ground) for ground in grounds) >= 4.5
        assert min(contrast(theme.quiet, ground) for ground in grounds[:2]) >= 4.5

    def test_lines_and_areas(self, theme: Theme) -> None:
        for ground in (theme.surface, theme.panel):
            assert contrast(theme.line, ground) >= 3
            for stage in range(STAGE_HUES):
                assert contrast(theme.stage(stage), ground) >= 3
            for colour in theme.parts.values():
                assert contrast(colour, ground) >= 3

    def test_ranks_of_a_stage_grow_stronger(self, theme: Theme) -> None:
        for stage in range(STAGE_HUES):
            strength = [
                contrast(theme.seat(stage, tint), theme.panel) for tint in range(RANK_TINTS)
            ]
            assert strength == sorted(strength)
            assert len(set(strength)) == RANK_TINTS

    def test_stages_are_told_apart_with_colour_blindness(self, theme: Theme) -> None:
        for name, matrix in BLINDNESS.items():
            seen = [lab(simulated(theme.stage(stage), matrix)) for stage in range(STAGE_HUES)]
            for one, two in pairwise(seen):
                assert difference(one, two) > 11, (name, one, two)


# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
# deficiency", 2009, at severity 1.0, on linear RGB.
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
Triple = tuple[float, float, float]


def simulated(colour: str, matrix: tuple[Triple, ...]) -> Triple:
    """What somebody sees, as linear RGB."""
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    mixed = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in matrix)
    red, green, blue = (min(1.0, max(0.0, value)) for value in mixed)
    return red, green, blue


def lab(rgb: Triple) -> Triple:
    """Linear RGB as CIELAB under D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    scaled = [
        sum(a * b for a, b in zip(row, rgb, strict=True)) / w
        for row, w in zip(rows, white, strict=True)
    ]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one: Triple, two: Triple) -> float:
    """CIE76 colour difference; about 2.3 is just noticeable."""
    return sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) ** 0.5


def test_memory_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="add up to 3 bytes, the GPU has 4"):
        GPUMemory(0, 0, 1, ((Part.WEIGHTS, 3),), 4)
    with pytest.raises(ValueError, match="negative"):
        GPUMemory(0, 0, 1, ((Part.WEIGHTS, 5), (Part.FREE, -1)), 4)


def test_a_picture_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one node with a GPU"):
        svg(replace(SCENES["one node"], nodes=()))


def test_stages_alike_are_one_row() -> None:
    alike = [replace(memory(0), first=stage, last=stage) for stage in range(4)]
    (row,) = together(alike)
    assert (row.first, row.last, row.name) == (0, 3, "stages 0–3")


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.integers(8, 60))
def test_a_bar_is_full_and_shows_whatever_is_there(sizes: list[int], length: int) -> None:
    if not sum(sizes):
        return
    found = shares(sizes, length)
    assert sum(found) == length
    assert all((sign > 0) == (size > 0) for sign, size in zip(found, sizes, strict=True))


@given(st.text(max_size=60), st.floats(0, 400))
def test_a_shortened_text_fits_or_is_empty(text: str, width: float) -> None:
    found = shortened(text, width, 12)
    assert text_width(found, 12) <= width
    assert found in ("", text) or "…" in found


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 40),
    gpus=st.sampled_from([1, 2, 4, 8, 16]),
    tensor=st.sampled_from([1, 2, 4, 8, 16]),
    pipeline=st.integers(1, 6),
    data=st.data(),
)
def test_any_plan_can_be_drawn_without_overlap(
    nodes: int, gpus: int, tensor: int, pipeline: int, data: st.DataObject
) -> None:
    tensor = min(tensor, gpus)
    slots = nodes * (gpus // tensor) if pipeline == 1 else nodes
    replicas = data.draw(st.integers(0, slots // pipeline))
    test_no_label_lies_over_another_or_outside_the_picture(
        scene(nodes, gpus, tensor, pipeline, replicas)
    )


def test_gib_is_written_one_way() -> None:
    assert gib(round(79.19 * GIB)) == "79.2"
