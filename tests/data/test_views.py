from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.padded import rows_of
from helpers.tiny_tokenizers import Letters, bert_folder, roberta_folder

from contrasent.data import views
from contrasent.data.batch import Need
from contrasent.data.documents import split_sentences
from contrasent.data.loader import Draws, Loader
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.views import open_views
from contrasent.settings import ViewSettings

WORDS = ["a", "b", "c", "d", "e", "cat", "cats"]
EDITS = [
    {"name": "crop", "share": 0.3},
    {"name": "delete_words", "share": 0.3},
    {"name": "delete_one_word"},
    {"name": "synonym"},
    {"name": "synonym", "share": 0.5},
]
NEXT = [{"name": "next_sentence"}, {"name": "next_3_sentences"}]


@pytest.fixture(autouse=True)
def wordnet(monkeypatch):
    """In the place of WordNet: a cat is an e or cats."""
    found = SimpleNamespace(version="3.0", synonyms={"cat": ("e", "cats")}.get)
    monkeypatch.setattr(views, "WordNet", lambda: found)


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(request, tmp_path):
    make = {"bert": bert_folder, "roberta": roberta_folder}[request.param]
    return Tokenizer.load(make(tmp_path / request.param))


def sentences_of(seed, count, at_most=9):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(2, at_most))) for _ in range(count)]


def ids(tokenizer, text, max_tokens=32):
    return tokenizer.ids([text], max_tokens)[0][0].tolist()


def source_of(settings, examples, tokenizer, **more):
    given = {"views": 2, **more}
    return open_views(ViewSettings(**settings), examples, tokenizer, 32, **given).source


def ways(settings, text):
    """Every text that an edit can make of a sentence."""
    words, share = text.split(), settings.get("share")
    count = 1 if share is None else share * len(words)
    kept = {max(1, len(words) - int(count)), max(1, len(words) - int(count) - (count % 1 > 0))}
    if settings["name"] == "crop":
        found = [words[k : k + n] for n in kept for k in range(len(words) - n + 1)]
    else:
        masks = (f"{mask:0{len(words)}b}" for mask in range(2 ** len(words)))
        chosen = (mask for mask in masks if mask.count("1") in kept)
        found = [[w for w, bit in zip(words, mask, strict=True) if bit == "1"] for mask in chosen]
    return {" ".join(it) for it in found}


@pytest.mark.parametrize("settings", EDITS[:3], ids=str)
@pytest.mark.parametrize("sides", ["positive", "both"])
@pytest.mark.parametrize("count", [2, 3])
def test_an_edited_view_is_the_tokens_of_the_edited_text(settings, sides, count, tokenizer, opened):
    texts = sentences_of(0, 12)
    source = source_of({**settings, "sides": sides}, opened(texts, "t.txt"), tokenizer, views=count)
    examples, seen = np.array([7, 0, 11, 7]), set()
    for epoch in range(40):
        found = rows_of(source.gather(examples, Draws(3, epoch)))
        assert len(found) == count * len(examples)
        for place, row in enumerate(found):
            view, example = divmod(place, len(examples))
            text = texts[examples[example]]
            allowed = {text} if view == 0 and sides == "positive" else ways(settings, text)
            assert row in [ids(tokenizer, it) for it in allowed]
            seen.add((view, example, tuple(row)))
        assert found[:: len(examples)] == found[3 :: len(examples)]  # the same example twice
    for view in range(count):
        results = Counter(example for v, example, _ in seen if v == view)
        assert (max(results.values()) > 1) == (view > 0 or sides == "both")


def test_the_studys_views_stay_the_same_in_every_epoch(bert, opened):
    texts = sentences_of(4, 40, at_most=20)
    cropped = source_of({"name": "crop_prefix", "share": 0.3}, opened(texts, "t.txt"), bert)
    found = rows_of(cropped.gather(np.arange(40), Draws(1, 0)))
    assert found[40:] == [
        ids(bert, text[: int(0.7 * len(text))]) if text[: int(0.7 * len(text))].strip() else row
        for text, row in zip(texts, found[:40], strict=True)
    ]
    deleted = source_of({"name": "delete_words_once", "share": 0.3}, opened(texts, "t.txt"), bert)
    first, later, other = (
        rows_of(deleted.gather(np.arange(40), Draws(*it))) for it in ((1, 0), (1, 3), (2, 0))
    )
    assert first == later != other


@pytest.mark.parametrize("settings", [*EDITS, *NEXT], ids=str)
def test_what_is_drawn_depends_on_seed_epoch_and_example_alone(settings, bert, opened):
    texts = sentences_of(1, 30)
    texts[10:10], texts[25:25] = [""], [""]
    examples = opened(texts, "t.txt")
    source, again = source_of(settings, examples, bert), source_of(settings, examples, bert)
    count = len(source.examples)
    together = rows_of(source.gather(source.examples, Draws(5, 2)))
    for place, example in reversed([*enumerate(source.examples)]):
        alone = rows_of(again.gather(np.array([example]), Draws(5, 2)))
        assert alone == together[place::count]
    if settings["name"] != "next_sentence":
        others = [rows_of(source.gather(source.examples, Draws(*it))) for it in [(5, 3), (6, 2)]]
        assert together[:count] == others[0][:count] == others[1][:count]
        assert together != others[0] != others[1] != together


def test_a_copy_that_is_not_changed_is_the_sentence_letter_by_letter(opened, tmp_path):
    tokenizer = Tokenizer.load(roberta_folder(tmp_path / "roberta"))
    text = "a  b   cat"
    source = source_of({"name": "crop", "share": 0.001}, opened([text] * 3, "t.txt"), tokenizer)
    anchor, positive = rows_of(source.gather(np.array([1]), Draws(0, 0)))
    assert anchor == positive == ids(tokenizer, text) != ids(tokenizer, "a b cat")


DOCUMENTS = [["a", "b", "c", "d", "e"], ["a b"], ["cat", "cats"], ["c c", "d d", "e e", "a a"]]


@pytest.fixture
def documents(opened):
    """Sentences of ``DOCUMENTS``, in order, with a blank line between documents."""
    text = [line for document in DOCUMENTS for line in (*document, "")]
    return opened(text, "documents.txt")


@pytest.mark.parametrize(("settings", "reach"), [(NEXT[0], 1), (NEXT[1], 3)], ids=str)
def test_a_positive_follows_in_the_same_document(settings, reach, bert, documents):
    source = source_of(settings, documents, bert, views=3)
    anchors = [it for document in DOCUMENTS for it in document[:-1]]
    assert len(source.examples) == len(anchors) == 8
    seen = {}
    for epoch in range(60):
        found = rows_of(source.gather(source.examples, Draws(0, epoch)))
        assert found[:8] == [ids(bert, text) for text in anchors]
        for place, row in enumerate(found[8:]):
            seen.setdefault(anchors[place % 8], set()).add(tuple(row))
    for document in DOCUMENTS:
        for place, text in enumerate(document[:-1]):
            after = document[place + 1 : place + 1 + reach]
            assert seen[text] == {tuple(ids(bert, it)) for it in after}
    assert source.text is None


@pytest.mark.parametrize("settings", [{}, NEXT[1], EDITS[0]], ids=str)
def test_the_sentence_after_each_anchor_is_given_when_asked_for(settings, bert, documents):
    how = {"views": 2, "needs": frozenset({Need.NEXT_SENTENCES})}
    opened_views = open_views(ViewSettings(**settings), documents, bert, 32, **how)
    assert opened_views.origin == {"documents": 4}
    loader = Loader(opened_views.source, batch_size=4, seed=1)
    after = {tuple(ids(bert, a)): ids(bert, b) for it in DOCUMENTS for a, b in pairwise(it)}
    for batch in loader.stream(0, 6):
        anchors = rows_of(batch.view(0))
        following = batch.next_sentences
        assert following.views == 1
        assert rows_of(following) == [after[tuple(anchor)] for anchor in anchors]


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
    texts = ["Aa. Bb. Cc. Dd.", "Ee! Ff?", "Gg", "Hh. Ii... Jj."]
    source = crops(texts, share=share, sides="both").source
    sentences = ["Aa.", "Bb.", "Cc.", "Dd."]
    wanted = {" ".join(sentences[k : k + count]) for count in counts for k in range(5 - count)}
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
