"""The text that a search adapts to: how it is read, split and written."""

import pytest
from helpers.tiny_sentences import sentence, write

from contrasent.adaptation import candidates
from contrasent.adaptation.candidates import (
    GENERAL_TEXT,
    MIXED,
    TRAIN,
    SearchRequest,
    Text,
    split_text,
)

LINES = list(dict.fromkeys(sentence(n, 12) for n in range(260)))[:200]


@pytest.fixture(autouse=True)
def few_queries_are_enough(monkeypatch):
    monkeypatch.setattr(candidates, "FEWEST", 5)


def test_documents_stay_whole(tmp_path):
    documents = [[sentence(7 * n + k, 9) for k in range(4)] for n in range(30)]
    path = tmp_path / "documents.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    text = Text.read(str(path))
    assert text.in_documents
    parts = text.split(1, has_dev=False)
    assert sorted(d for part in parts for d in part.documents) == sorted(documents)
    read = Text.read(str(parts[0].write(tmp_path / "part.txt")))
    assert read.documents == parts[0].documents


def test_candidates_follow_the_text():
    texts = Text("texts", [["A cat sat. A dog ran."], ["One man. Two men."]], in_documents=False)
    sentences = Text("sentences", [["A cat sat."], ["Two men sat."]], in_documents=False)
    documents = Text("documents", [["A cat sat.", "It slept."]], in_documents=True)
    assert [t.gives for t in (texts, sentences, documents)] == [
        {"texts"},
        set(),
        {"texts", "documents"},
    ]
    long = Text("long", [["word " * 200]], in_documents=False)
    assert (sentences.max_tokens, long.max_tokens) == (32, 128)


def test_with_a_dev_task_only_what_is_reported_on_is_held_out():
    text = Text("text.txt", [[line] for line in LINES], in_documents=False)
    train_part, dev, test = text.split(1, has_dev=True)
    assert (train_part.lines, dev.lines, test.lines) == (180, 0, 20)
    few = Text("text.txt", text.documents[:40], in_documents=False)
    assert [part.lines for part in few.split(1, has_dev=True)] == [40, 0, 0]


def test_as_many_lines_of_wikipedia_are_mixed_in_as_there_are_of_the_text(tmp_path, tiny_bert):
    write(tmp_path / "text.txt", LINES)
    settings = {"train.batch_size": 16}
    request = SearchRequest(str(tiny_bert), str(tmp_path / "text.txt"), 5, None, [], settings, 42)
    state = split_text(request, tmp_path)
    train_lines, mixed = ((tmp_path / name).read_text().splitlines() for name in (TRAIN, MIXED))
    assert mixed[:160] == train_lines
    assert mixed[160:] == [it for it in GENERAL_TEXT.read_text().splitlines() if it][:160]
    assert state.lines == {TRAIN: 160, MIXED: 320}
