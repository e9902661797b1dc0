"""A user's own tasks: queries, documents and relevance, and labelled sentences."""

import gzip
import json
import re

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tables import write, write_retrieval

from contrasent import evaluate
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation import preset_named
from contrasent.evaluation.logistic_regression import LabelledFeatures, cross_validate
from contrasent.evaluation.retrieval import read_retrieval
from contrasent.evaluation.sts_data import read_pairs
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.transfer import holds_labels, read_labelled

CORPUS = {"d1": "red cat", "d2": "old house", "d3": "green dog runs", "d4": "new blue house"}
CORPUS["q2"] = "under house"
QUERIES = {"q1": "blue cat", "q2": "under house", "q3": "never"}
JUDGED = [
    *(("q1", "d1", 2), ("q1", "d3", 1), ("q1", "d2", 0)),
    *(("q2", "d2", 1), ("q2", "q2", 1), ("q2", "d1", -1)),
]


@pytest.fixture
def folder(tmp_path):
    """As BEIR's; ``q2`` is a document too, and ``q3`` has nothing that is relevant."""
    write_retrieval(tmp_path / "own", CORPUS, QUERIES, JUDGED, "qrels/test.tsv")
    return tmp_path / "own"


def titled(folder):
    """A query is the document with its text, whatever its title."""
    lines = map(json.loads, (folder / "corpus.jsonl").read_text().splitlines())
    documents = [json.dumps({**line, "title": "On cats"}) for line in lines]
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    return folder


def trec(folder):
    rows = "".join(f"{query}\t0\t{document}\t{grade}\n" for query, document, grade in JUDGED)
    (folder / "qrels/test.tsv").write_text(rows)
    return folder


def zipped(folder, header=""):
    for name, texts in (("corpus", CORPUS), ("queries", QUERIES)):
        (folder / f"{name}.jsonl").unlink()
        rows = [header and "id\ttext\n", *(f"{it}\t{text}\n" for it, text in texts.items())]
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress("".join(rows).encode()))
    (folder / "qrels/test.tsv").unlink()
    rows = "".join("\t".join(map(str, row)) + "\n" for row in JUDGED)
    (folder / "qrels.tsv").write_text(header + rows)
    return folder


FORMS = {
    "jsonl": lambda it: it,
    "titled": titled,
    "TREC's four columns": trec,
    "tsv.gz": zipped,
    "tsv.gz with headers": lambda it: zipped(it, "q\td\tgrade\n"),
    "of the hub": lambda _: "retrieve:org/x:queries@test+org/x:corpus@test+org/x:default@test",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_task(form, folder, hub):
    judged = [{"query-id": q, "corpus-id": d, "score": g} for q, d, g in JUDGED]
    queries, corpus = (
        [{"_id": n, "title": "", "text": text} for n, text in texts.items()]
        for texts in (QUERIES, CORPUS)
    )
    for config, rows in (("corpus", corpus), ("queries", queries), ("default", judged)):
        hub.tables["org/x", config] = {"test": rows}
    task = read_retrieval(TaskName(str(FORMS[form](folder))))
    if form != "titled":
        assert task.corpus == tuple(CORPUS.values())
    assert task.queries == ("blue cat", "under house")
    assert task.relevant == ({0: 2, 2: 1}, {1: 1})
    assert task.left_out == (None, 4)
    assert task.description == "2 of 3 queries, those with a relevant document; 5 documents"


def test_equal_texts_are_embedded_once_behind_prompts_too(folder, tiny_encoder, monkeypatch):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d9", "text": "red cat"}\n')
    asked, encode = [], tiny_encoder.encode
    monkeypatch.setattr(
        tiny_encoder, "encode", lambda t, **o: asked.append((t, o["prompt"])) or encode(t, **o)
    )
    tiny_encoder.prompts = {"query": "find: ", "document": ""}
    records = evaluate(tiny_encoder, [str(folder)])
    assert asked == [([*CORPUS.values()], ""), (["blue cat", "under house"], "find: ")]
    assert records[0].prompts == {"query": "find: ", "document": ""}
    tiny_encoder.default_prompt_name = "query"
    (record, *_) = evaluate(tiny_encoder, [str(folder)])
    assert record.prompts == {"default": "find: ", "query": "find: ", "document": ""}
    tiny_encoder.prompts, tiny_encoder.default_prompt_name = {"query": "", "x": "any: "}, "x"
    assert evaluate(tiny_encoder, [str(folder)]) and asked[-1][1] == ""


def test_words_rank_a_text_without_a_known_word_last_and_count_it(tmp_path):
    glove = tmp_path / "glove.txt.gz"
    glove.write_bytes(gzip.compress(b"cat 1 0\nred -1 0.5\nhouse -1 -1\nold -1 -1\n"))
    (tmp_path / "q.tsv").write_text("q1\tcat\nq2\tnothing\n")
    (tmp_path / "d.tsv").write_text("d1\tred\nd2\tunknown\nd3\told house\n")
    (tmp_path / "r.tsv").write_text("q1\td2\t1\nq2\td1\t1\n")
    task = f"retrieve:{tmp_path}/q.tsv+{tmp_path}/d.tsv+{tmp_path}/r.tsv"
    said = worked("evaluate", glove, "--tasks", task, "--json", "-")
    found = {r["metric"]: r["value"] for r in map(json.loads, said.out.splitlines())}
    # d2 stands behind both, whose cosines are below 0; d1 behind the one that is no worse.
    assert found["mrr@10"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    told = "1 of 2 queries and 1 of 3 documents have no known word: such a query finds"
    assert re.search(rf"glove.txt.gz: q.tsv\+d.tsv\+r.tsv: {told}", said.err)


NAMES = ("id", "text", "label")
ROWS = [("a b c", "sport"), ("d  e", "news"), (" f", "sport"), ("g h", "sport")]


def test_columns_are_known_by_name(tmp_path):
    source = write(tmp_path / "p.csv", names=NAMES, rows=ROWS)
    assert holds_labels(source, None)
    task = read_labelled(source)
    assert task.description == "4 sentences of 2 classes; the most frequent, 'sport', is 75.00 %"
    assert task.note == f"{source}: text as sentence, label as class (by name)"
    assert len(task.sha256) == 64 and not task.of_pairs


@pytest.mark.parametrize("columns", [["said", "about"], ["1", "2"]])
def test_columns_can_be_chosen(tmp_path, columns):
    source = write(tmp_path / "p.parquet", names=("no", "said", "about"), rows=ROWS)
    assert holds_labels(source, columns)
    assert read_labelled(source, columns).class_names == ("news", "sport")
    with pytest.raises(ConfigError, match="does not name first sentence, second sentence"):
        read_labelled(source, ["said"])


def test_two_columns_without_a_header_are_labelled_where_that_is_said(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("a b\t1\nc\t0\n")
    assert not holds_labels(str(path), None)
    assert read_labelled(f"classify:{path}").class_names == ("0", "1")
    path.write_text("a b\tc\t1\nc\td\t0\n")
    assert not holds_labels(str(path), None)
    task = read_labelled(f"classify:{path}")
    assert task.of_pairs
    assert task.parts["all"].texts == ("c", "a b", "d", "c")


@pytest.mark.parametrize(("heading", "columns"), [("label", None), ("stance", ["0", "1"])])
def test_a_header_of_unknown_names_is_no_class(tmp_path, heading, columns):
    paths = [tmp_path / f"{part}.csv" for part in ("train", "dev", "test")]
    for path in paths:
        path.write_text(f"tweet_text,{heading}\n" + "a,pos\nb,neg\n" * 3)
    name = "classify:" + "+".join(map(str, paths))
    with pytest.raises(DataError, match=rf"train.csv:1: '{heading}' looks like a heading"):
        read_labelled(name, columns)
    assert read_labelled(name, ["tweet_text", heading]).class_names == ("neg", "pos")
    for path in paths:
        path.write_text("a,pos\n" + "b,neg\n" * 3)
    paths[0].write_text("a,pos\n" + "b,neg\nc,pos\n" * 3)
    assert read_labelled(name, columns).class_names == ("neg", "pos")
    paths[2].write_text("a,pos\n" + "b,neg\nc,Pos\n" * 3)
    with pytest.raises(DataError, match=r"test.csv:3: no row of .*train.csv has the class 'Pos'"):
        read_labelled(name, columns)


def test_few_rows_are_learned_too(tiny_encoder, tmp_path):
    unit = np.random.default_rng(0).normal(size=(4, 384)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    labels = np.arange(80) % 4
    preset, features = preset_named(), {"all": LabelledFeatures(unit[labels], labels)}
    assert cross_validate(features, 4, preset.for_rows(80), "cpu").test == 1
    assert preset.for_rows(3775) == preset.for_rows(10_662) == preset
    rows = [(f"{word} {n}", word) for n in range(12) for word in ("cat", "dog")]
    source = write(tmp_path / "own.csv", names=NAMES, rows=rows)
    (record, *_) = evaluate(tiny_encoder, tasks=[source])
    assert record.classifier["epoch_size"] == 16 * preset.epoch_size


PAIRS = [("a", "b", 1), ("c", "d", 0), ("e", "f", 1)]


def test_scored_pairs_are_not_labelled_sentences(tmp_path):
    source = write(tmp_path / "p.csv", names=("n", "sentence1", "sentence2", "label"), rows=PAIRS)
    assert not holds_labels(source, None)
    assert read_pairs(source)[0] == PAIRS
    assert read_labelled(f"classify:{source}").of_pairs
    assert not holds_labels(str(tmp_path / "none.csv"), None)


def test_classes_may_be_text_numbers_or_truths(tmp_path):
    for label, told in [(3, "3"), (2.0, "2"), (True, "True"), (" a  b ", "a b")]:
        source = write(tmp_path / "p.jsonl", names=NAMES, rows=[("a", "x"), ("b", label)])
        assert told in read_labelled(source).class_names
    source = write(tmp_path / "p.jsonl", names=NAMES, rows=[("a", n) for n in (10, 9, 2)])
    assert read_labelled(source).class_names == ("2", "9", "10")


def test_data_sets_of_the_hub_are_judged_as_files_are(hub):
    def publish(labels, *splits):
        records = [{"text": f"{n} a", "label": label} for n, label in enumerate(labels)]
        hub.tables["org/a", None] = dict.fromkeys(splits, records)

    hub.labels = {"label": ["no", "yes"]}
    publish((0, 1, 1), "train", "test")
    task = read_labelled("classify:org/a@train+org/a@test")
    assert [*task.parts] == ["train", "test"] and task.class_names == ("no", "yes")
    name, config, settings = hub.asked[-1]
    assert (name, config, settings["split"]) == ("org/a", None, "test")
    assert [*read_labelled("org/a").parts] == ["all"]
    assert holds_labels("org/a@test", None)
    publish((0, 1, -1), "test")
    with pytest.raises(DataError, match=r"org/a@test:3: a sentence or its label -1"):
        read_labelled("classify:org/a@test")
