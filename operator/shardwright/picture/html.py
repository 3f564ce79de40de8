"""A page that needs nothing else: the picture, and everything that it shows as tables and text.

Headings, tables with captions and scoped headers, and a style that follows the reader's choice of
light or dark. No script, no font, no address from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from shardwright.picture.drawing import SVG
from shardwright.picture.palette import DARK, LIGHT, Theme
from shardwright.picture.scene import MEANINGS, Part, Scene, gib
from shardwright.picture.style import FONTS
from shardwright.picture.svg import svg
from shardwright.picture.text import node_rows, summary


@dataclass(frozen=True, slots=True)
class Section:
    """Text beside the picture: a heading with paragraphs, list items or a table below it.

    Attributes:
        heading: Of the section.
        paragraphs: Sentences.
        items: Entries of a list.
        code: Lines to copy.
        header: Headings of a table's columns; none for no table.
        rows: The table's cells.
    """

    heading: str
    paragraphs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def html(scene: Scene, sections: Sequence[Section] = ()) -> str:
    """The page.

    Args:
        scene: What is shown.
        sections: What else is to be said, above the picture's tables.
    """
    root = ET.Element("html", {"lang": "en"})
    head = ET.SubElement(root, "head")
    ET.SubElement(head, "meta", {"charset": "utf-8"})
    ET.SubElement(
        head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    )
    ET.SubElement(head, "meta", {"name": "color-scheme", "content": "light dark"})
    ET.SubElement(head, "title").text = scene.title
    ET.SubElement(head, "style").text = _style()
    main = ET.SubElement(ET.SubElement(root, "body"), "main")
    ET.SubElement(main, "h1").text = scene.title
    ET.SubElement(main, "p", {"class": "lead"}).text = scene.subtitle
    figure = ET.SubElement(main, "figure")
    figure.append(_inline(scene))
    caption = ET.SubElement(figure, "figcaption")
    caption.text = "The tables below say the same as the picture."
    for section in sections:
        _section(main, section)
    for sentence in summary(scene):
        ET.SubElement(main, "p").text = sentence
    memory_header = ("GPUs of", "layers", *(part.value for part in Part), "total")
    _table(main, "Memory of one GPU, in GiB", memory_header, _memory_rows(scene))
    _table(
        main,
        "Parts of the memory",
        ("part", "what it is"),
        [(part.value, MEANINGS[part]) for part in Part],
    )
    header = ("node", "GPUs", "who sits there", "unused on each")
    _table(main, "Nodes", header, list(node_rows(scene)))
    return "<!DOCTYPE html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"


def _inline(scene: Scene) -> ET.Element:
    """The SVG as an element of a page: as wide as the page, names without their namespace."""
    drawn = ET.fromstring(svg(scene, headed=False))  # noqa: S314 - what this package wrote a moment ago
    for element in drawn.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
    drawn.attrib.pop("width", None)
    drawn.attrib.pop("height", None)
    return drawn


def _memory_rows(scene: Scene) -> list[tuple[str, ...]]:
    return [
        (
            held.name,
            str(held.layers),
            *(gib(dict(held.parts).get(part, 0)) for part in Part),
            gib(held.total),
        )
        for held in scene.memory
    ]


def _section(parent: ET.Element, section: Section) -> None:
    made = ET.SubElement(parent, "section")
    ET.SubElement(made, "h2").text = section.heading
    for paragraph in section.paragraphs:
        ET.SubElement(made, "p").text = paragraph
    if section.items:
        listed = ET.SubElement(made, "ul")
        for item in section.items:
            ET.SubElement(listed, "li").text = item
    if section.code:
        ET.SubElement(made, "pre").text = "\n".join(section.code)
    if section.header:
        _table(made, "", section.header, section.rows)


def _table(
    parent: ET.Element, caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    frame = ET.SubElement(parent, "div", {"class": "wide", "tabindex": "0", "role": "region"})
    frame.set("aria-label", caption or header[0])
    table = ET.SubElement(frame, "table")
    if caption:
        ET.SubElement(table, "caption").text = caption
    top = ET.SubElement(ET.SubElement(table, "thead"), "tr")
    for name in header:
        ET.SubElement(top, "th", {"scope": "col"}).text = name
    body = ET.SubElement(table, "tbody")
    for row in rows:
        line = ET.SubElement(body, "tr")
        ET.SubElement(line, "th", {"scope": "row"}).text = row[0]
        for cell in row[1:]:
            made = ET.SubElement(line, "td")
            made.text = cell
            if cell.replace(".", "").replace(",", "").isdigit():
                made.set("class", "number")


def _style() -> str:
    return (
        f"body{{margin:0;font:16px/1.5 {FONTS}}}"
        "main{max-width:1200px;margin:0 auto;padding:24px}"
        "h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:1.6em 0 .4em}"
        "p{max-width:80ch;margin:.4em 0}.lead{margin-bottom:1em}li{max-width:80ch}"
        "figure{margin:0 0 1em}figure svg{width:100%;height:auto;display:block}"
        "figcaption{font-size:.875rem}"
        "pre{overflow-x:auto;padding:.6em .8em;border:1px solid;border-radius:6px;"
        "font-size:.9375rem}"
        ".wide{overflow-x:auto}table{border-collapse:collapse;margin:1em 0;font-size:.9375rem}"
        "caption{text-align:left;font-weight:600;padding:.3em 0}"
        "th,td{text-align:left;padding:.3em .9em .3em 0;border-bottom:1px solid;"
        "vertical-align:top}"
        "tbody th{font-weight:400;white-space:nowrap}"
        "td.number{text-align:right;font-variant-numeric:tabular-nums}"
        + _theme(LIGHT)
        + f"@media (prefers-color-scheme:dark){{{_theme(DARK)}}}"
    )


def _theme(theme: Theme) -> str:
    return (
        f"body{{background:{theme.surface};color:{theme.ink}}}"
        f"th,td,pre{{border-color:{theme.line}}}figcaption{{color:{theme.quiet}}}"
    )
