"""Pairs with scores: what is read, and scores against SentEval's rules in loops."""

import gzip
import hashlib
from math import sqrt

import numpy as np
import pytest
from helpers import tables
from helpers.tiny_sts import SUBSETS, sts_tasks

from contrasent import evaluate
from contrasent.data.senteval import MissingDataError
from contrasent.errors import DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.sts_data import load, read_pairs
from contrasent.evaluation.task_names import TaskName


def write(folder, text, name="pairs.tsv"):
    path = folder / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return TaskName(str(path))


def only(task):
    (subset,) = task.subsets
    return list(zip(subset.first, subset.second, subset.gold.tolist(), strict=True))


def test_a_pair_without_a_score_is_left_out_together_with_it(senteval):
    folder = senteval / "STS/STS15-en-test"
    (folder / "STS.input.belief.txt").write_text("a\tb\nc\td\ne\tf\n g  h \ti\u00a0j\n")
    (folder / "STS.gs.belief.txt").write_text("1.00\n\n3.00\n4.00\n")
    task = load(TaskName("sts15"), senteval)
    assert [subset.name for subset in task.subsets] == list(SUBSETS["sts15"])
    belief = task.subsets[2]
    assert belief.first == ("a", "e", "g h")
    assert belief.second == ("b", "f", "i j")
    assert belief.gold.tolist() == [1.0, 3.0, 4.0]


def test_a_tasks_hash_is_over_its_files_one_after_the_other(senteval):
    digest = hashlib.sha256()
    for subset in SUBSETS["sts13"]:
        for kind in ("input", "gs"):
            path = senteval / f"STS/STS13-en-test/STS.{kind}.{subset}.txt"
            digest.update(path.read_bytes())
    assert load(TaskName("sts13"), senteval).sha256 == digest.hexdigest()


@pytest.mark.parametrize("inside", ["", "downstream", "data/downstream"])
def test_the_data_is_found(senteval, tmp_path, monkeypatch, inside):
    named = tmp_path / "elsewhere"
    (named / inside).parent.mkdir(parents=True, exist_ok=True)
    senteval.rename(named / inside)
    assert load(TaskName("stsb"), named)
    monkeypatch.setenv("CONTRASENT_DATA", str(named))
    assert load(TaskName("stsb"))


ROWS = "a b\tc d\t1\ne\tf\t2.5\ng \t h  i\t-3e0\n"
PARSED = [("a b", "c d", 1.0), ("e", "f", 2.5), ("g", "h i", -3.0)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs.TSV", ROWS.replace("\n", "\r\n")),
        ("pairs.tsv", "\ufeff" + ROWS + "\n\n"),
        ("pairs.csv.gz", '"a b","c\nd","1"\n' + ROWS.replace("\t", ",").split("\n", 1)[1]),
    ],
)
def test_a_users_file_is_a_task(tmp_path, name, text):
    task = load(write(tmp_path, text, name))
    assert only(task) == PARSED
    assert task.note == ""


def test_a_header_is_known_by_its_names_or_its_score(tmp_path):
    name = write(tmp_path, "a\tb\tScore\n" + ROWS)
    task = load(name)
    assert only(task) == PARSED
    assert task.note == (
        f"{name.name}: a as first sentence, b as second sentence, Score as score "
        "(in this order, below a header)"
    )
    source = tables.write(tmp_path / "p.tsv", names=["no", "left", "right", "how"], rows=PARSED)
    with pytest.raises(DataError, match=r"p.tsv:1: the score must be a number, not 'how'"):
        read_pairs(source, ["1", "2", "3"])


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("STS12-en-test/STS.gs.MSRpar.txt", "1\n2\n", "has 2 lines, but"),
        ("STS12-en-test/STS.input.MSRpar.txt", "a\tb\n" * 3 + "a b\na\tb\na\tb\n", ":4: 1 tab-sep"),
        ("STS13-en-test/STS.gs.FNWN.txt", "\n" * 6, "FNWN.txt has no scored pair"),
        ("STSBenchmark/sts-test.csv", "g\tf\ty\t1\t2.0\ta\n", ":1: 6 tab-separated columns, n"),
    ],
)
def test_what_is_wrong_with_sentevals_files_is_told(senteval, path, text, said):
    (senteval / "STS" / path).write_text(text)
    task = "stsb" if path.startswith("STSB") else path[:5].lower()
    with pytest.raises(DataError) as caught:
        load(TaskName(task), senteval)
    assert said in str(caught.value)
    assert not isinstance(caught.value, MissingDataError)


def looped(metric, x, y):
    if metric == "spearman":
        x, y = (
            [1 + sum(b < a for b in z) + (sum(b == a for b in z) - 1) / 2 for a in z]
            for z in (x, y)
        )
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


def cosine(encoder, first, second):
    u, v = (encoder.embed(" ".join(text.split())).astype(float) for text in (first, second))
    return float(u @ v / sqrt((u @ u) * (v @ v)))


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
@pytest.mark.parametrize("task", list(SUBSETS))
def test_every_aggregation_is_sentevals(encoder, senteval, task, metric):
    """Of the tasks of 2012-2016, whose files are read once more."""
    cosines, gold, parts, sizes = [], [], [], []
    for subset in SUBSETS[task]:
        folder = senteval / "STS" / f"{task.upper()}-en-test"
        pairs = (folder / f"STS.input.{subset}.txt").read_text().splitlines()
        scores = (folder / f"STS.gs.{subset}.txt").read_text().splitlines()
        kept = [(p.split("\t"), float(s)) for p, s in zip(pairs, scores, strict=True) if s]
        found = [cosine(encoder, *pair) for pair, _ in kept]
        parts.append(looped(metric, found, [s for _, s in kept]))
        sizes.append(len(kept))
        cosines += found
        gold += [s for _, s in kept]
    expected = {
        "all": looped(metric, cosines, gold),
        "mean": sum(parts) / len(parts),
        "wmean": sum(p * n for p, n in zip(parts, sizes, strict=True)) / sum(sizes),
    }
    records = [r for r in evaluate(encoder, [task], data_dir=senteval) if r.metric == metric]
    whole = {r.aggregation: r.value for r in records if not r.subset}
    assert whole == pytest.approx(expected, abs=1e-9)
    assert {r.pairs for r in records if not r.subset} == {sum(sizes)}
    found = {r.subset: r.value for r in records if r.aggregation == "subset"}
    assert found == pytest.approx(dict(zip(SUBSETS[task], parts, strict=True)), abs=1e-9)
    assert len(records) == 3 + len(parts)


@pytest.mark.parametrize(
    ("task", "path", "header", "columns"),
    [
        ("stsb-train", "STS/STSBenchmark/sts-train.csv", 0, (5, 6, 4)),
        ("stsb-dev", "STS/STSBenchmark/sts-dev.csv", 0, (5, 6, 4)),
        ("stsb", "STS/STSBenchmark/sts-test.csv", 0, (5, 6, 4)),
        ("sickr-train", "SICK/SICK_train.txt", 1, (1, 2, 3)),
        ("sickr-dev", "SICK/SICK_trial.txt", 1, (1, 2, 3)),
        ("sickr", "SICK/SICK_test_annotated.txt", 1, (1, 2, 3)),
    ],
)
def test_tasks_of_one_file(encoder, senteval, task, path, header, columns):
    text = (senteval / path).read_text()
    rows = [line.split("\t") for line in text.splitlines()][header:]
    a, b, score = columns
    found = [cosine(encoder, row[a], row[b]) for row in rows]
    records = evaluate(encoder, [task], data_dir=senteval)
    for record in records:
        oracle = looped(record.metric, found, [float(row[score]) for row in rows])
        assert record.value == pytest.approx(oracle, abs=1e-9)
        assert (record.subset, record.pairs) == ("", len(rows))
    assert [(r.metric, r.aggregation) for r in records] == [
        (metric, aggregation)
        for metric in ("spearman", "pearson")
        for aggregation in ("all", "mean", "wmean")
    ]


def test_every_distinct_sentence_is_encoded_once_in_one_call(encoder, senteval):
    evaluate(encoder, ["sts"], data_dir=senteval, splits=["train", "dev", "test"])
    ((sentences, precision, show_progress),) = encoder.calls
    assert len(set(sentences)) == len(sentences)
    assert (precision, show_progress) == ("fp32", False)
    alone = [e for e in evaluate(encoder, ["stsb"], data_dir=senteval) if e.aggregation == "all"]
    together = evaluate(encoder, ["sickr", "sts12", "stsb"], data_dir=senteval)
    assert [r for r in together if r.task == "stsb" and r.aggregation == "all"] == alone


def test_a_record_says_what_it_rests_on(encoder, senteval):
    record = evaluate(encoder, ["stsb-dev"], data_dir=senteval, precision="bf16", seed=3)[0]
    assert (record.task, record.split, record.encoder) == ("stsb", "dev", "some/words")
    assert (record.pooler, record.precision, record.seed) == ("mean", "bf16", 3)
    assert (record.head, record.max_tokens) == (None, None)
    told = {"python", "contrasent", "torch", "transformers", "numpy", "scipy"}
    assert told <= record.versions.keys()
    encoder.head_name, encoder.max_tokens = "mlp", 32
    record = evaluate(encoder, ["stsb-dev"], data_dir=senteval)[0]
    assert (record.head, record.max_tokens) == ("mlp", 32)


def test_an_embedding_without_direction_costs_its_tasks_only(encoder, senteval):
    loaded = prepared = sts_tasks(["sts12", "stsb", "sickr"], senteval)
    of_stsb = {s for part in loaded.tasks[1].subsets for s in (*part.first, *part.second)}
    subsets = [part for it in loaded.tasks if it.name.name != "stsb" for part in it.subsets]
    others = {s for part in subsets for s in (*part.first, *part.second)}
    bad = next(s for s in loaded.tasks[1].sentences if s in of_stsb - others)
    embed = encoder.embed
    whole = prepared.records(EncoderUse(encoder))
    encoder.embed = lambda sentence: embed(sentence) * np.float32(sentence != bad)
    scores = prepared.records(EncoderUse(encoder))
    assert [r for r in whole.records if r.task != "stsb"] == list(scores.records)
    (problem,) = scores.problems
    assert problem.task == "stsb"
    assert problem.message.startswith("STS-B: some/words gives 1 of ")
    assert repr(bad) in problem.message


def test_a_constant_column_has_no_correlation_and_leaves_the_other_tasks_alone(encoder, senteval):
    (senteval / "STS/STS13-en-test/STS.gs.FNWN.txt").write_text("2.0\n" * 6)
    scores = sts_tasks(["sts12", "sts13", "stsb"], senteval).records(EncoderUse(encoder))
    assert {record.task for record in scores.records} == {"sts12", "stsb"}
    (problem,) = scores.problems
    assert problem.task == "sts13"
    assert "STS13: FNWN: no spearman correlation: every gold is 2" in problem.message
    encoder.embed = lambda _: np.ones(6, np.float32)
    with pytest.raises(DataError, match="STS12: MSRpar: no spearman correlation: every score is 1"):
        evaluate(encoder, ["sts12"], data_dir=senteval)
