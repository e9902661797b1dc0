"""A picture as a part of a page: no second document, no ids or styles that reach others."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from contrasent.report.figures.style import Picture

_LINK = "{http://www.w3.org/1999/xlink}href"
_LEFT_OUT = ("metadata", "style", "title", "desc")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LINES = "stroke-linejoin: round; stroke-linecap: butt"
"""What matplotlib puts into a style sheet, which would hold for the whole page."""

_PIXELS = 1.36
"""Of a point, in every picture, so that their letters are of one size."""


def inline_svg(picture: Picture, prefix: str, title: str) -> str:
    """The picture as an ``<svg>`` element.

    Args:
        picture: as :func:`contrasent.report.figures.style.picture` draws it.
        prefix: of all ids, which two pictures of a page may share otherwise.
        title: for readers who do not see the picture.
    """
    root = ElementTree.fromstring(picture.svg.decode())
    _strip(root, prefix)
    heading = ElementTree.Element("title", {"id": f"{prefix}title"})
    heading.text = title
    root.insert(0, heading)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    wide = float(root.attrib["viewBox"].split()[2])
    style = f"{_LINES}; width: {_PIXELS * wide:.0f}px"
    more = {"role": "img", "aria-labelledby": f"{prefix}title", "style": style}
    root.attrib.update(more)
    return ElementTree.tostring(root, encoding="unicode")


def aspect(svg: str) -> float:
    """Width over height of an element made by :func:`inline_svg`."""
    _, _, width, height = ElementTree.fromstring(svg).attrib["viewBox"].split()
    return float(width) / float(height)


def _strip(element: ElementTree.Element, prefix: str) -> None:
    """Take away name spaces and what a page has already, and put the prefix before every id."""
    element.tag = _local(element.tag)
    known = dict(element.attrib)
    element.attrib.clear()
    for name, value in known.items():
        if name == _LINK:
            element.set("href", f"#{prefix}{value[1:]}" if value.startswith("#") else value)
        elif name == "id":
            element.set("id", f"{prefix}{value}")
        elif not name.startswith("{"):
            element.set(name, _REFERENCE.sub(rf"url(#{prefix}\1)", value))
    for child in list(element):
        if _local(child.tag) in _LEFT_OUT:
            element.remove(child)
        else:
            _strip(child, prefix)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
