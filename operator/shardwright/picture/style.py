"""The style sheet and the textures of an SVG, for light and dark."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from shardwright.picture.drawing import element, line, rect
from shardwright.picture.palette import DARK, LIGHT, RANK_TINTS, STAGE_HUES, Theme
from shardwright.picture.scene import Part

FONTS = 'system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif'

PART_CLASS = {part: f"sw-{part.name.lower().replace('_', '-')}" for part in Part}
_TEXTURED = (Part.KV_SPARE, Part.ACTIVATIONS, Part.OVERHEAD)


def seat_class(stage: int, tensor_rank: int, tensor: int) -> str:
    """The class that fills a rank's GPU."""
    tint = tensor_rank * (RANK_TINTS - 1) // max(1, tensor - 1)
    return f"sw-seat-{stage % STAGE_HUES}-{tint}"


def stage_class(stage: int) -> str:
    """The class of a stage's outlines and links."""
    return f"sw-stage-{stage % STAGE_HUES}"


def style_sheet(pipeline: int) -> str:
    """Rules for as many stages as there are, light first, dark where the reader prefers it."""
    return (
        f"text{{font-family:{FONTS};font-variant-numeric:tabular-nums}}"
        ".sw-bold{font-weight:600}"
        + _rules(LIGHT, pipeline)
        + "@media (prefers-color-scheme:dark){"
        + _rules(DARK, pipeline)
        + "}"
    )


def _rules(theme: Theme, pipeline: int) -> str:
    rules = {
        ".sw-surface": f"fill:{theme.surface}",
        ".sw-panel": f"fill:{theme.panel};stroke:{theme.line};stroke-width:1",
        ".sw-ink": f"fill:{theme.ink}",
        ".sw-quiet": f"fill:{theme.quiet}",
        ".sw-rule": f"fill:none;stroke:{theme.line};stroke-width:1",
        ".sw-vacant": f"fill:none;stroke:{theme.line};stroke-width:1;stroke-dasharray:3 2",
        ".sw-taken": f"fill:{theme.line};fill-opacity:.45;stroke:{theme.line};stroke-width:1",
        ".sw-arrow": f"fill:none;stroke:{theme.ink};stroke-width:2",
        ".sw-head": f"fill:{theme.ink}",
        ".sw-ground": f"fill:{theme.panel}",
    }
    for part in Part:
        colour = theme.parts[part]
        if part is Part.FREE:
            rules[f".{PART_CLASS[part]}"] = "fill:none"
        elif part not in _TEXTURED:
            rules[f".{PART_CLASS[part]}"] = f"fill:{colour}"
        rules[f".{PART_CLASS[part]}-mark"] = f"stroke:{colour};fill:{colour}"
    for stage in range(min(pipeline, STAGE_HUES)):
        rules[f".{stage_class(stage)}"] = (
            f"stroke:{theme.stage(stage)};fill:{theme.stage(stage)};stroke-width:3"
        )
        for tint in range(RANK_TINTS):
            rules[f".sw-seat-{stage}-{tint}"] = (
                f"fill:{theme.seat(stage, tint)};stroke:{theme.stage(stage)};stroke-width:1"
            )
    return "".join(f"{name}{{{body}}}" for name, body in rules.items())


def textures(root: ET.Element, prefix: str) -> dict[Part, str]:
    """Define the textures of parts that are not solid; the fill of each, by part.

    Args:
        root: The SVG element.
        prefix: Begins every id, so that two pictures can stand in one page.
    """
    definitions = element(root, "defs")
    for part in _TEXTURED:
        pattern = element(
            definitions,
            "pattern",
            id=f"{prefix}-{part.name.lower()}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )
        rect(pattern, "sw-ground", (0, 0, 6, 6))
        mark = f"{PART_CLASS[part]}-mark"
        if part is Part.KV_SPARE:  # stripes that rise
            for start, end in (((-1, 1), (1, -1)), ((0, 6), (6, 0)), ((5, 7), (7, 5))):
                line(pattern, mark, start, end).set("stroke-width", "1.8")
        elif part is Part.ACTIVATIONS:  # level stripes
            line(pattern, mark, (0, 1.5), (6, 1.5)).set("stroke-width", "1.6")
            line(pattern, mark, (0, 4.5), (6, 4.5)).set("stroke-width", "1.6")
        else:  # dots
            for at in ((1.5, 1.5), (4.5, 4.5)):
                element(pattern, "circle", mark, cx=at[0], cy=at[1], r=1.0)
    return {part: f"url(#{prefix}-{part.name.lower()})" for part in _TEXTURED}
