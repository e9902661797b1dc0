"""Evaluation and analysis by their commands and from Python, and the names of tasks."""

from pathlib import Path

import pytest
from helpers.command_line import rows
from helpers.tables import write_retrieval
from helpers.tiny_transfer import write_transfer

from contrasent import evaluate
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import measure, read_geometry
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.sts_data import RatedPairs
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import STS, averaged, task_names
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import Record, json_lines, read_records
from contrasent.report.figures import FIGURES as KINDS


@pytest.fixture
def command(runner):
    return runner("evaluate")


def test_the_table_is_the_papers(command, encoder, senteval):
    result = command("org/model")
    assert result.exit_code == 0, result.output
    (heading, _, row), protocol = rows(result)
    assert heading == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R", "Avg."]
    records = evaluate(encoder, ["sts"], data_dir=senteval)
    values = [r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")]
    assert row == ["model", *(f"{100 * v:.2f}" for v in [*values, sum(values) / 7])]
    assert "Spearman" in protocol and "test split" in protocol and "aggregation all" in protocol
    assert "model: pooler mean, fp32, encoder org/model." in protocol
    assert "\x1b" not in result.output


def test_a_task_without_data_is_a_dash_and_so_is_the_average(command, senteval):
    path = senteval / "STS/STS13-en-test/STS.gs.OnWN.txt"
    path.unlink()
    result = command("m")
    assert result.exit_code == 0
    (_, _, row), _ = rows(result)
    assert [number for number, cell in enumerate(row) if cell == "-"] == [2, 8]
    assert f"sts13 is left out: {path} is missing" in result.stderr
    assert "contrasent data fetch" in result.stderr
    without = command("m", "--tasks", "sts12,sts14")
    assert "-" not in rows(without)[0][2]


@pytest.mark.parametrize(
    ("bad", "said"), [("gone", "gone: 'gone' is no folder here"), ("constant", "every score is 1")]
)
def test_a_bad_model_costs_its_row_only(command, bad, said):
    result = command("good", bad, "--tasks", "stsb,sts12")
    cells, _ = rows(result)
    assert "-" not in cells[2]
    assert cells[3] == [bad, "-", "-", "-"]
    assert said in str(result.exception)


def test_every_model_is_compared_with_the_first(command, tmp_path):
    path = tmp_path / "r.jsonl"
    result = command("a", "b", "c", "--tasks", "stsb,sickr", "--compare", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "\nb minus a\n" in result.stdout and "\nc minus a\n" in result.stdout
    assert "Holm's adjustment is over the 2 tasks of a metric" in result.stdout
    compared = [r for r in read_records(path) if r.compared]
    against = [(r.encoder, r.compared.baseline) for r in compared]
    assert against == [("b", "a")] * 2 + [("c", "a")] * 2


@pytest.mark.parametrize("words", [("evaluate", "m"), ("analyze", "m", "--pairs", "stsb-dev>2")])
def test_an_old_report_is_kept_and_nothing_is_measured(runner, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, html = runner("evaluate", "analyze"), tmp_path / "r.html"
    html.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(SentenceEncoder, "load", lambda *_, **__: pytest.fail("work has begun"))
        patched.setattr("contrasent.model.loading.resolve", Path)
        result = command(*words, "--html", html)
    assert isinstance(result.exception, ConfigError)
    assert "add --overwrite" in str(result.exception)
    assert html.read_text() == "old"
    assert command(*words, "--html", html, "--overwrite").exit_code == 0
    assert "<title>m: contrasent report</title>" in html.read_text()


FIGURES = [kind.name for kind in KINDS if not kind.of_runs]


def test_the_table_says_what_was_measured_on_what(runner, encoder, senteval):
    result = runner("analyze")("org/model", "--pairs", "stsb>3")
    assert result.exit_code == 0, result.output
    table, _, said = result.stdout.partition("\n\n")
    found = measure(EncoderUse(encoder), RatedPairs.read("stsb>3", senteval))
    values = [f"{found.value(name):.4f}" for name in ("alignment", "uniformity")]
    row = table.split("\n")[2].split()
    assert row[:3] == ["model", *values]
    assert row[-1] == f"{100 * found.value('spearman'):.2f}"
    positive = found.records[0].pairs
    assert f"STS-B all (train, dev and test): alignment over the {positive} of 24 pairs" in said
    assert f"over the {found.sentences} distinct sentences" in said
    assert "model: pooler mean, fp32, encoder org/model." in said


def test_figures_are_drawn_again_from_the_json_alone(runner, tmp_path):
    command = runner("analyze")
    json_file, first, again = tmp_path / "g.jsonl", tmp_path / "first", tmp_path / "again"
    options = ("--json", json_file, "--figures", first)
    result = command("a/one", "b/two", "--pairs", "stsb-dev>2", *options)
    assert result.exit_code == 0, result.output
    encoders = [geometry.records[0].encoder for geometry in read_geometry(json_file)]
    assert encoders == ["a/one", "b/two"]
    names = sorted(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png"))
    assert sorted(path.name for path in first.iterdir()) == names
    assert all(str(first / name) in result.stderr for name in names)
    again_result = command("--from", json_file, "--figures", again)
    assert again_result.stdout == result.stdout
    for name in names:
        assert (again / name).read_bytes() == (first / name).read_bytes()


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("red cat\tred dog\t5\nold\tnew\t1\ncat\thouse\t0\nred\told cat\t3\n")
    return str(path)


def test_records_are_a_list_with_a_table(encoder, senteval, pairs):
    records = evaluate(encoder, ["stsb", pairs], data_dir=senteval)
    assert len(records) == 12 and isinstance(records[0], Record) and records[:2] == [*records][:2]
    assert {record.task for record in records} == {"stsb", pairs}
    assert json_lines(records).count("\n") == 12
    whole = {r.task: r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")}
    heading, _, row, *_ = records.table().splitlines()
    assert heading.split() == ["STS-B", "pairs.tsv"]
    assert row.split() == ["words", *(f"{100 * value:.2f}" for value in whole.values())]
    assert "Spearman" in records.table() and repr(records) == "<12 records of some/words>"


def test_records_become_a_data_frame(encoder, pairs):
    pytest.importorskip("pandas", reason="pandas is not installed")
    records = evaluate(encoder, pairs)
    frame = records.to_pandas()
    assert len(frame) == len(records) and frame["value"].tolist() == [r.value for r in records]


def test_a_suite_is_read_once_for_several_encoders(encoder, pairs):
    suite = load_suite([pairs])
    assert evaluate(encoder, suite, seed=3) == evaluate(encoder, [pairs], seed=3)
    assert {r.seed for r in evaluate(encoder, suite, seed=3)} == {3}
    with pytest.raises(ConfigError, match="compare names encoders to judge on a text"):
        evaluate(encoder, [pairs], compare=["nosuch"])
    with pytest.raises(ConfigError, match="a suite has its own: leave --confidence out"):
        evaluate(encoder, suite, confidence=0.9)


def test_what_a_suite_could_not_read_is_a_problem_of_its_records(encoder, pairs, tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    suite = load_suite([pairs, str(tmp_path / "empty.tsv")])
    with pytest.warns(UserWarning, match=r"empty.tsv has no score: "):
        records = evaluate(encoder, suite)
    with pytest.raises(DataError, match=r"empty.tsv is empty"):
        evaluate(encoder, [pairs, str(tmp_path / "empty.tsv")])
    assert {record.task for record in records} == {pairs}
    assert records.problems == suite.problems != ()


def labels(asked, splits=("test",)):
    return [name.label for name in task_names(asked, splits)]


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        ("STS-B", "stsb"),
        ("STS-B-train", "stsb-train"),
        (" stsb-test ", "stsb"),
        ("SICK-R", "sickr"),
        ("sick-r-dev", "sickr-dev"),
        ("sts-16", "sts16"),
        ("data/My-Pairs.TSV", "data/My-Pairs.TSV"),
        ("pairs.csv.gz", "pairs.csv.gz"),
        ("pairs.jsonl.gz", "pairs.jsonl.gz"),
        ("org/pairs:en@test", "org/pairs:en@test"),
        ("sick-r-all", "sickr-all"),
    ],
)
def test_spellings(asked, label):
    assert labels([asked]) == [label]


def test_splits_apply_to_tasks_named_without_one():
    assert labels(["sts"], ["dev"]) == ["stsb-dev", "sickr-dev"]
    assert labels(["stsb", "sickr-dev"], ["train", "test"]) == ["stsb-train", "stsb", "sickr-dev"]
    assert labels(["sts-dev"]) == ["stsb-dev", "sickr-dev"]
    assert labels(["sts12", "p.tsv"], ["dev", "test"]) == ["sts12", "p.tsv"]
    assert len(labels(["sts"], ["train", "dev", "test"])) == len(STS) + 4


def test_the_average_is_over_test_splits_and_over_all_pairs_where_there_is_no_test_split():
    names = task_names(["sts12", "sickr-all", "stsb-dev", "stsb", "stsb-all", "p.tsv"])
    assert [name.label for name in averaged(names)] == ["sts12", "sickr-all", "stsb"]


def test_each_kind_takes_its_names_and_the_tables_have_an_order_of_their_own(senteval):
    write_transfer(senteval)
    source = senteval / "STS/STSBenchmark/sts-test.csv"
    source.write_text(source.read_text() + "g\tf\t2012\t1\t5.000\tred cat\tred dog\n")
    suite = load_suite(["stsb-retrieval", "mr", "stsb", "mr-dev"], Options(senteval))
    labels = {kind.name: [name.label for name in read.names] for kind, read in suite.kinds}
    assert list(labels) == ["sts", "transfer", "retrieval"]
    assert labels["transfer"] == ["mr", "mr-dev"]
    assert [learned.splits for learned in suite.tasks("transfer")] == [("test", "dev")]


def test_a_folder_that_is_not_there_stops_everything_before_the_work(senteval, tmp_path):
    own, gone = tmp_path / "own", Options(senteval / "gone")
    write_retrieval(own, {"d1": "red cat"}, {"q1": "cat"}, [("q1", "d1", 1)])
    assert load_suite([str(own)], gone).tasks("retrieval")
    for task in ("stsb", "mr", "stsb-retrieval"):
        with pytest.raises(DataError, match=r"no folder \S+gone \(--data-dir\)"):
            load_suite([str(own), task], gone)
