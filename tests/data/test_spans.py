"""Documents and their spans: where they lie, how long they are, which documents have room."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.padded import rows_of
from helpers.tiny_tokenizers import Letters
from scipy import stats

from contrasent.data import documents
from contrasent.data.examples import open_examples
from contrasent.data.loader import Draws, tokenize
from contrasent.data.views import open_spans
from contrasent.errors import DataError

SMALL = documents.Spans(anchors=2, positives=3, shortest=2, longest=5)


def drawn(spans, words, times=400, seed=0):
    """Anchors and, for each, its positives, of many draws."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(times):
        all_spans = spans.draw(words, random)
        assert len(all_spans) == spans.views
        anchors, positives = all_spans[: spans.anchors], all_spans[spans.anchors :]
        count = spans.positives
        own = [positives[count * a : count * (a + 1)] for a in range(spans.anchors)]
        found.append(list(zip(anchors, own, strict=True)))
    return found


def lengths(spans, words):
    anchors, positives = [], []
    for document in drawn(spans, words, 1500):
        for (start, end), own in document:
            anchors.append(end - start)
            positives += [b - a for a, b in own]
    return np.array(anchors), np.array(positives)


@pytest.mark.parametrize("anchors", [1, 2, 3, 5])
@pytest.mark.parametrize("more", [0, 1, 7, 200])
def test_spans_stay_within_their_document_and_anchors_apart(anchors, more):
    spans = documents.Spans(anchors, 2, shortest=3, longest=8)
    words = spans.words + more
    assert spans.words == 2 * anchors * 8
    for document in drawn(spans, words):
        places = sorted(anchor for anchor, _ in document)
        assert all(a[1] <= b[0] for a, b in pairwise(places))
        for (start, end), own in document:
            assert start >= 0 and end <= words and 3 <= end - start <= 8
            for first, last in own:
                assert first >= 0 and last <= words and 3 <= last - first <= 8
                assert first <= end and last >= start


def test_lengths_are_those_of_the_beta_distributions():
    """So many words that whole numbers are as good as real ones."""
    shortest, longest = 1_000, 101_000
    anchors, positives = lengths(documents.Spans(2, 2, shortest, longest), 10**6)
    for found, (a, b) in ((anchors, (4, 2)), (positives, (2, 4))):
        scaled = (found - shortest) / (longest - shortest)
        assert stats.kstest(scaled, stats.beta(a, b).cdf).pvalue > 0.01
        assert stats.kstest(scaled, stats.beta(b, a).cdf).pvalue < 1e-9


def letters(*counts):
    """One document per count, of so many words, each word a letter; no letter is an x."""
    return [" ".join(chr(97 + (d * 5 + k) % 20) for k in range(n)) for d, n in enumerate(counts)]


@pytest.fixture
def open_text(write):
    return lambda text, name="text.txt": open_examples(write(name, text))


def test_a_document_is_a_line_or_what_stands_between_blank_lines(open_text):
    texts = letters(20, 25, 19, 40)
    by_line = open_text("\n".join(texts) + "\n", "lines.txt")
    parted = [text.replace(" ", "\n", 3) for text in texts]
    by_blank = open_text("\n\n\n".join(parted) + "\n", "blank.txt")
    for examples in (by_line, by_blank):
        found = documents.long_documents(examples, str.split, 20, "")
        assert (len(found.documents), found.total) == (3, 4)
        assert list(map(found.parts, found.documents)) == [texts[k].split() for k in (0, 1, 3)]


def test_a_batch_is_anchors_then_positives_of_each_document(open_text):
    """Every span is the words that the draw says, view by view."""
    text = "\n".join(letters(20, 31, 5, 26, 44))
    source, draws = open_spans(SMALL, open_text(text), Letters(), 32).source, Draws(3, 1)
    assert source.views == 8
    examples = np.array([2, 0])
    found = rows_of(source.gather(examples, draws))
    assert len(found) == 16
    texts = [text.split() for text in letters(20, 31, 5, 26, 44) if len(text.split()) >= 20]
    for place, example in enumerate(examples):
        words = texts[example]
        spans = SMALL.draw(len(words), draws.of(int(example), 0))
        for view, (start, end) in enumerate(spans):
            # Letters makes an id of each letter, and of each space.
            expected = [ord(letter) for letter in " ".join(words[start:end])]
            assert found[view * 2 + place] == expected


def test_a_span_without_a_token_is_drawn_again_and_a_document_of_them_refused(open_text):
    class Bare(Letters):
        """No id for a space either."""

        def ids(self, texts, max_tokens):
            return super().ids([text.replace(" ", "") for text in texts], max_tokens)

    words = letters(40)[0].split()
    words[10:14] = ["x"] * 4
    text = "\n".join([" ".join(words), " ".join(["x"] * 40)])
    source = open_spans(SMALL, open_text(text), Bare(), 32).source
    for epoch in range(60):
        assert all(rows_of(source.gather(np.array([0]), Draws(0, epoch))))
    with pytest.raises(DataError, match=r"some part of a document, such as 'x x.* had no token"):
        source.gather(np.array([1]), Draws(0, 0))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a\nb\n\nc\n", [2, 1]),
        ("\n\na\nb\n \t\n\n\nc\n\n", [2, 1]),
        ("\ufeff\na\r\n\r\nb\r\nc", [1, 2]),
        ("a\nb\nc\n", [3]),
    ],
)
@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_blank_lines_separate_documents(text, lengths, name, open_text):
    assert documents.document_lengths(open_text(text, name)).tolist() == lengths


def test_documents_are_those_of_the_sentences_with_a_token(open_text):
    random = np.random.default_rng(0)
    lines = random.choice(["a", "b", "x", ""], 200, p=[0.4, 0.2, 0.2, 0.2]).tolist()
    examples = open_text("\n".join(lines))
    store = tokenize(examples, Letters(), None)
    found = documents.document_ends(documents.document_lengths(examples), store)

    expected, document = [], 0
    for line in lines:
        document += line == ""
        if line in ("a", "b"):
            expected.append(document)
    ends = [max(k for k, it in enumerate(expected) if it == own) + 1 for own in expected]
    assert found.tolist() == ends and found.dtype == np.int64
