"""Drawing primitives: SVG elements with rounded numbers, and how wide a text is.

Elements are built as a tree and written by the standard library, so that whatever a name holds is
escaped. Widths are those of DejaVu Sans, the widest of the usual sans-serif fonts: what fits in it
fits in the others.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
ELLIPSIS = "…"

# Advance widths of DejaVu Sans in ems, by group; a character of no group counts as a wide one.
_WIDTHS = {
    " ": 0.32,
    **dict.fromkeys("ijl.,:;'|!", 0.34),
    **dict.fromkeys("frt()[]-/IJ·", 0.42),
    **dict.fromkeys("sczkvxy", 0.58),
    **dict.fromkeys("abdeghnopqu0123456789_$?", 0.64),
    **dict.fromkeys("ABCDEFGHKLNPRSTUVXYZ", 0.73),
    **dict.fromkeys("wOQ~+=×<>−–", 0.84),
    **dict.fromkeys("mMW%@—…→", 1.0),
}
_BOLD = 1.1
_WIDEST = 1.0


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of a text in user units at this font size, rather too large than too small."""
    ems = sum(_WIDTHS.get(character, _WIDEST) for character in text)
    return ems * size * (_BOLD if bold else 1)


def shortened(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """The text, or its two ends around an ellipsis when it is wider; "" when nothing fits."""
    if text_width(text, size, bold=bold) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head, tail = (kept + 1) // 2, kept // 2
        found = text[:head] + ELLIPSIS + text[len(text) - tail :]
        if text_width(found, size, bold=bold) <= width:
            return found
    return ""


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(
    parent: ET.Element, tag: str, classes: str = "", **attributes: str | float
) -> ET.Element:
    """A child element; `stroke_width` becomes `stroke-width`, numbers are rounded to 0.01."""
    made = ET.SubElement(parent, tag)
    if classes:
        made.set("class", classes)
    for name, value in attributes.items():
        text = value if isinstance(value, str) else _number(value)
        made.set(name.rstrip("_").replace("_", "-"), text)
    return made


def rect(
    parent: ET.Element,
    classes: str,
    box: tuple[float, float, float, float],
    *,
    radius: float = 0,
) -> ET.Element:
    """A rectangle; `box` is x, y, width, height."""
    x, y, width, height = box
    made = element(parent, "rect", classes, x=x, y=y, width=width, height=height)
    if radius:
        made.set("rx", _number(radius))
    return made


def text(
    parent: ET.Element,
    classes: str,
    at: tuple[float, float],
    words: str,
    *,
    size: float,
    anchor: str = "start",
) -> ET.Element:
    """A line of text on its baseline at `at`, starting, centred (middle) or ending there."""
    made = element(parent, "text", classes, x=at[0], y=at[1], font_size=size)
    if anchor != "start":
        made.set("text-anchor", anchor)
    made.text = words
    return made


def line(
    parent: ET.Element, classes: str, start: tuple[float, float], end: tuple[float, float]
) -> ET.Element:
    """A straight line."""
    return element(parent, "line", classes, x1=start[0], y1=start[1], x2=end[0], y2=end[1])


def tooltip(parent: ET.Element, words: str) -> None:
    """What a browser shows, and a screen reader says, for an element."""
    ET.SubElement(parent, "title").text = words
