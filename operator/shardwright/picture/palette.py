"""Colours for light and dark, chosen to be told apart with every common colour vision.

The stages' hues are Paul Tol's "muted" scheme (personal.sron.nl/~pault, technical note
SRON/EPS/TN/09-002), in an order that keeps neighbours far apart. Memory is drawn in neutrals with
one accent for the KV cache, so that its colours are not mistaken for a stage's; each part has a
texture of its own too. Contrast is that of WCAG 2.2 (success criteria 1.4.3 and 1.4.11): 4.5 for
text, 3 for lines and areas; a test holds every pair that is drawn to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.picture.scene import Part

_HUES = ("#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#999933", "#44AA99", "#AA4499")
# Tensor ranks of a stage are told by number, and by a step from a pale tint to a stronger one.
_PALEST, _STRONGEST = 0.14, 0.40
_LINE_CONTRAST = 3.0
RANK_TINTS = 8


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of one scheme, as #RRGGBB."""

    name: str
    surface: str
    panel: str
    ink: str
    quiet: str
    line: str
    parts: dict[Part, str]

    def stage(self, stage: int) -> str:
        """A stage's full hue, for outlines and links; repeats after eight stages."""
        return _legible(_HUES[stage % len(_HUES)], self.panel, self.ink)

    def seat(self, stage: int, tint: int) -> str:
        """The fill behind a rank: the stage's hue over the panel, stronger by `tint` (0 to 7)."""
        share = _PALEST + (_STRONGEST - _PALEST) * tint / (RANK_TINTS - 1)
        return mix(self.stage(stage), self.panel, share)


STAGE_HUES = len(_HUES)

LIGHT = Theme(
    name="light",
    surface="#FFFFFF",
    panel="#F6F7F9",
    ink="#16191D",
    quiet="#4C535C",
    line="#7B838D",
    parts={
        Part.WEIGHTS: "#3B4654",
        Part.KV_USED: "#B45F00",
        Part.KV_SPARE: "#B45F00",
        Part.ACTIVATIONS: "#5F6B79",
        Part.OVERHEAD: "#7B838D",
        Part.FREE: "#7B838D",
    },
)
DARK = Theme(
    name="dark",
    surface="#0F1216",
    panel="#181C22",
    ink="#EEF1F4",
    quiet="#B4BCC6",
    line="#7F8893",
    parts={
        Part.WEIGHTS: "#C9D2DC",
        Part.KV_USED: "#F0A030",
        Part.KV_SPARE: "#F0A030",
        Part.ACTIVATIONS: "#9AA6B3",
        Part.OVERHEAD: "#7F8893",
        Part.FREE: "#7F8893",
    },
)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix(top: str, under: str, share: float) -> str:
    """`share` of `top` laid over `under`."""
    blended = (
        round(one * share + two * (1 - share))
        for one, two in zip(_rgb(top), _rgb(under), strict=True)
    )
    return "#" + "".join(f"{value:02X}" for value in blended)


def _linear(value: float) -> float:
    """A channel of sRGB, 0 to 1, as light."""
    near_black = 0.04045
    return value / 12.92 if value <= near_black else ((value + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    """Relative luminance, 0 for black and 1 for white (WCAG 2.2, "relative luminance")."""
    red, green, blue = (_linear(value / 255) for value in _rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    darker, lighter = sorted((luminance(one), luminance(two)))
    return (lighter + 0.05) / (darker + 0.05)


def _legible(hue: str, ground: str, ink: str) -> str:
    """The hue, moved toward the ink just as far as a line on this ground needs."""
    for step in range(21):
        found = mix(ink, hue, step / 20)
        if contrast(found, ground) >= _LINE_CONTRAST:
            return found
    return ink
