"""Text without its dirt: tags and entities of HTML, control characters, white space, repeats."""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Row = tuple[str, tuple[str, ...]]
"""Where an example stands, and its texts."""

# C0 and C1 without tab and line ends, zero-width space and joiner, byte order mark. C1 usually is
# Windows-1252 that was read as Latin-1.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u2060\ufeff]")
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
CHARACTERS = r"\u0e01-\u0edf\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff"
# Without its semicolon, `&copy` may be part of an address.
_ENTITY = re.compile(r"&(?:[a-z][a-z0-9]{1,30}|#[0-9]{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
# Tags within a text, and those around a block of text.
_TAGS = Path(__file__).with_name("html_tags.txt").read_text(encoding="utf-8")
_INLINE, _BLOCKS = map(str.split, _TAGS.split("\n\n"))
_NAMES = "|".join([*_INLINE, *_BLOCKS])
# Comments and the like, scripts and styles with all they hold, and tags of HTML: `List<String>` has
# none, and in a quoted attribute `>` ends no tag.
_MARKUP = re.compile(
    r"<(?:!--(?:(?!<!--).)*?-->|[!?][a-z][^<>]*>|(script|style)\b.*?(?=</\1\s*>|\Z)"
    rf"|/?({_NAMES})\b(?:=\s*\"[^\"]*\"|=\s*'[^']*'|[^<>])*+>)",
    re.IGNORECASE | re.DOTALL,
)


def without_markup(text: str) -> tuple[str, bool, bool]:
    """A text without HTML's tags and entities; True if it had tags, if it had entities."""
    shown = _MARKUP.sub(_space, text) if "<" in text else text
    plain = _ENTITY.sub(lambda it: html.unescape(it[0]), shown) if "&" in shown else shown
    return plain, shown != text, plain != shown


def _space(markup: re.Match[str]) -> str:
    name = (markup[1] or markup[2] or "").lower()
    return " " if name in _BLOCKS else ""


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
