"""Crops of texts: where sentences end, which texts have several, and which crops are drawn."""

from collections import Counter
from itertools import pairwise

import pytest
from helpers.tiny_tokenizers import Letters

from contrasent.data.documents import split_sentences
from contrasent.data.loader import Draws
from contrasent.data.views import open_views
from contrasent.settings import ViewSettings

TEXTS = ["Aa. Bb. Cc. Dd.", "Ee! Ff?", "Gg", "Hh. Ii... Jj."]


@pytest.fixture
def crops(opened):
    def open_crops(lines, **settings):
        view = ViewSettings(name="crop_sentences", **settings)
        return open_views(view, opened(lines, "text.txt"), Letters(), 100, views=2)

    return open_crops


def texts_of(source, example, epoch=0):
    """The text of each view of one example."""
    ids, offsets = source.gather([example], Draws(0, epoch))
    text = "".join(map(chr, ids))
    return tuple(text[a:b] for a, b in pairwise(offsets))


def runs(sentences, count):
    """Every run of so many consecutive sentences, in plain loops."""
    found = set()
    for start in range(len(sentences)):
        if start + count <= len(sentences):
            found.add(" ".join(sentences[number] for number in range(start, start + count)))
    return found


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He said \u201cno.\u201d Then he left.", ["He said \u201cno.\u201d", "Then he left."]),
        ("(It ended.) It began", ["(It ended.)", "It began"]),
        ("It left. Mr. Smith met J. R. Hill.", ["It left.", "Mr. Smith met J. R. Hill."]),
        ("The U.S. Army won 3.5 points.", ["The U.S. Army won 3.5 points."]),
        ("It took 90 min. or so. 5 came.", ["It took 90 min. or so.", "5 came."]),
        ("It is so... and so on.", ["It is so... and so on."]),
        ("this is one . this is two !", ["this is one .", "this is two !"]),
        ("\u4ed6\u6765\u3002\u5979\u8d70\uff01", ["\u4ed6\u6765\u3002", "\u5979\u8d70\uff01"]),
        ("  ", []),
    ],
)
def test_where_sentences_end(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(("share", "counts"), [(0.5, {2}), (0.25, {3}), (0.3, {2, 3}), (0.99, {1})])
def test_both_crops_are_any_consecutive_sentences_each_by_itself(share, counts, crops):
    source = crops(TEXTS, share=share, sides="both").source
    sentences = ["Aa.", "Bb.", "Cc.", "Dd."]
    wanted = set()
    for count in counts:
        wanted |= runs(sentences, count)
    drawn = Counter(texts_of(source, 0, epoch) for epoch in range(1500))
    assert {first for first, _ in drawn} == {second for _, second in drawn} == wanted
    assert len(drawn) == len(wanted) ** 2


def test_lines_with_a_blank_line_between_are_one_text(crops):
    opened = crops(["Aa.", "Bb. Cc.", "", "", "Dd.", "", "Ee", "Ff"], sides="both", share=0.7)
    assert len(opened.source.examples) == 2
    assert opened.left_out == "1 of 3 documents left out, which are too short"
    assert opened.origin == {"documents": 3}
    drawn = {text for epoch in range(200) for text in texts_of(opened.source, 0, epoch)}
    assert drawn == {"Aa.", "Bb.", "Cc."}
    assert texts_of(opened.source, 1)[0] in {"Ee", "Ff"}
