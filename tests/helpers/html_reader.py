"""What a browser would find in a page, by the standard library's parser, strictly."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Element:
    """An element, with what is inside it."""

    tag: str
    attributes: dict
    parent: "Element | None" = None
    inside: list = field(default_factory=list)

    @property
    def text(self):
        """All text inside, white space as a browser shows it."""
        return " ".join(self.written.split())

    @property
    def written(self):
        """All text inside, as it is written."""
        return "".join(it if isinstance(it, str) else it.written for it in self.inside)

    def all(self, tag=None, **attributes):
        """Elements below this one, in order."""
        for it in self.inside:
            if isinstance(it, Element):
                wanted = {name.rstrip("_"): value for name, value in attributes.items()}
                if tag in (None, it.tag) and wanted.items() <= it.attributes.items():
                    yield it
                yield from it.all(tag, **attributes)

    def one(self, tag=None, **attributes):
        (found,) = self.all(tag, **attributes)
        return found


class Reader(HTMLParser):
    """Builds the tree; an element that is closed in the wrong place is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("", {})
        self.declarations = []
        self.feed(text)
        self.close()
        assert self.at is self.root, f"<{self.at.tag}> is not closed"

    def handle_decl(self, decl):
        self.declarations.append(decl)

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice"
        found = Element(tag, dict(attrs), self.at)
        self.at.inside.append(found)
        if tag not in VOID:
            self.at = found

    def handle_startendtag(self, tag, attrs):
        self.at.inside.append(Element(tag, dict(attrs), self.at))

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.inside.append(data)


def read(text):
    """The tree of a page."""
    reader = Reader(text)
    assert reader.declarations == ["DOCTYPE html"]
    return reader.root


def grid(element):
    """The body of a table by row and column: the cells, by heading."""
    headings = [cell.text for cell in element.one("thead").all("th")]
    rows = {}
    for row in element.one("tbody").all("tr"):
        cells = [it for it in row.inside if isinstance(it, Element)]
        assert len(cells) == len(headings)
        rows.setdefault(cells[0].text, []).append(dict(zip(headings, cells, strict=True)))
    return headings, rows
