"""Text without its dirt: tags and entities of HTML, control characters, white space, repeats."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser

Row = tuple[str, tuple[str, ...]]
"""Where an example stands, and its texts."""

# C0 and C1 without tab and line ends, zero-width space and joiner, byte order mark. C1 usually is
# Windows-1252 that was read as Latin-1.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u2060\ufeff]")
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
CHARACTERS = r"\u0e01-\u0edf\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff"
# Without its semicolon, `&copy` may be part of an address.
_ENTITY = re.compile(r"&(?:[a-z][a-z0-9]{1,30}|#[0-9]{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
_AMPERSAND = "\ue000"
_INLINE = """
a abbr b bdi big cite code del em font i ins kbd mark q s samp small span strike strong sub sup tt
u var wbr
"""
_BLOCKS = """
address article aside audio blockquote body br button canvas caption center col colgroup dd details
div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html iframe img
input label legend li link main meta nav noscript ol option p path picture pre script section select
source style summary svg table tbody td textarea tfoot th thead time title tr ul video
"""


class _Page(HTMLParser):
    """Gathers the text of a page; what only looks like a tag stays, as ``List<String>``."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self.tags = 0

    def handle_starttag(self, tag: str, attrs: object, text: str | None = None) -> None:
        inline = tag in _INLINE.split()
        known = inline or tag in _BLOCKS.split()
        self.tags += known
        space = "" if inline else " "
        self.parts.append(space if known else text or self.get_starttag_text() or "")

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(tag, (), f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.parts.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags += 1

    handle_decl = handle_pi = unknown_decl = handle_comment  # type: ignore[assignment]


def without_markup(text: str) -> tuple[str, bool, bool]:
    """A text without HTML's tags and entities; True if it had tags, if it had entities."""
    tags = False
    if "<" in text:
        page = _Page()
        page.feed(text.replace("&", _AMPERSAND))
        if page.tags:
            rest = "" if page.cdata_elem else page.rawdata
            text, tags = "".join([*page.parts, rest]).replace(_AMPERSAND, "&"), True
    plain = _ENTITY.sub(lambda it: html.unescape(it[0]), text) if "&" in text else text
    return plain, tags, plain != text


def clean(rows: Iterable[Row], texts: int) -> tuple[Iterator[Row], Counter[str]]:
    """Rows whose first ``texts`` cells are clean, each of these once, and counts that grow.

    Of every kind of dirt, counted are the rows that had it. Rows that become empty, or that an
    earlier one equals, are left out; of those that were read, a hash is kept.
    """
    counts, seen = Counter[str](), set[int]()

    def cleaned() -> Iterator[Row]:
        for where, cells in rows:
            clean_cells, dirt = list[str](), set[str]()
            for cell in cells[:texts]:
                text, tags, entities = without_markup(cell)
                shown = CONTROL.sub("", text)
                plain = " ".join(shown.split())
                found = {"tags": tags, "entities": entities, "control": shown != text}
                found["spaces"] = plain != shown and not tags
                dirt |= {name for name, has in found.items() if has}
                clean_cells.append(plain)
            counts.update(dirt)
            key = hash(tuple(clean_cells))
            if not all(clean_cells):
                counts["empty"] += 1
            elif key in seen:
                counts["repeated"] += 1
            else:
                seen.add(key)
                yield where, (*clean_cells, *cells[texts:])

    return cleaned(), counts


def counted(counts: Mapping[str, int]) -> str:
    """What was cleaned, in words."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "nothing"
