import numpy as np
import pytest
from helpers.tiny_tokenizers import Letters

from contrasent.data.documents import document_ends, document_lengths, require_documents
from contrasent.data.examples import open_examples
from contrasent.data.loader import tokenize
from contrasent.errors import DataError


@pytest.fixture
def open_text(write):
    return lambda text, name="text.txt": open_examples(write(name, text))


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
    assert document_lengths(open_text(text, name)).tolist() == lengths


def test_documents_are_those_of_the_sentences_with_a_token(open_text):
    random = np.random.default_rng(0)
    lines = random.choice(["a", "b", "x", ""], 200, p=[0.4, 0.2, 0.2, 0.2]).tolist()
    examples = open_text("\n".join(lines))
    store = tokenize(examples, Letters(), None)
    documents = document_ends(document_lengths(examples), store)

    expected, document = [], 0
    for line in lines:
        document += line == ""
        if line in ("a", "b"):
            expected.append(document)
    ends = [max(k for k, it in enumerate(expected) if it == own) + 1 for own in expected]
    assert documents.tolist() == ends and documents.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("a\nb\nc\n\n", "text.txt", "has 2 of 3 sentences with another after them, in 1 doc"),
        ("a\n\nb\nc\n\nd\n", "text.txt", "has 1 of 4 sentences with another after them, in 3 d"),
        ("a,b\n\nc,d\n", "text.csv", "has 0 of 0 sentences"),
        ('{"text": "a"}\n', "text.jsonl", "has 0 of 0 sentences"),
    ],
)
def test_what_has_no_documents_is_refused(text, name, said, open_text):
    with pytest.raises(DataError, match=f"^the view: .*{name} {said}"):
        require_documents(open_text(text, name), "the view")
