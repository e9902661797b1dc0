from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from contrasent.evaluation.task_names import task_names
from contrasent.records import Record
from contrasent.report.scores_table import score_tables
from contrasent.report.table import print_table

SEVEN = task_names(["sts"])


def record(task, value, **changes):
    known = {"encoder": "org/model", "pooler": "cls", "precision": "fp32", "data_sha256": "0"}
    known |= {"split": "test", "metric": "spearman", "aggregation": "all"}
    return Record(task=task, value=value, **{**known, "versions": {}, "pairs": 9, **changes})


def seven(*values, **more):
    return [record(name.name, value, **more) for name, value in zip(SEVEN, values, strict=True)]


BEFORE = seven(0.7, 0.8, 0.755555, 0.85, 0.79, 0.82, 0.77)
AFTER = seven(0.71, 0.8, 0.755545, 0.84, 0.8, 0.83, 0.78)


def printed(rows, *, width=80, terminal=False):
    file = StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    print_table(console, replace(score_tables(rows)[0], title=""))
    return file.getvalue().split("\n")


def test_the_average_is_of_unrounded_values():
    values = [*[0.100049] * 6, 0.10009]
    cells = printed({"m": seven(*values)})[2].split()[1:]
    assert cells == [*["10.00"] * 6, "10.01", "10.01"]
    assert f"{sum(map(float, cells[:7])) / 7:.2f}" == "10.00"
    (table,) = score_tables({"m": seven(*values)})
    assert table.rows[0][8].value == pytest.approx(sum(values) / 7, abs=1e-15)


@pytest.mark.parametrize("gone", range(7))
def test_an_absent_value_is_a_dash_and_there_is_no_average(gone):
    records = BEFORE[:gone] + BEFORE[gone + 1 :]
    cells = printed({"whole": AFTER, "m": records})[3].split()[1:]
    assert [number for number, cell in enumerate(cells) if cell == "-"] == [gone, 7]
    (alone,) = score_tables({"m": records})
    assert alone.rows[0][7].value == pytest.approx(sum(r.value for r in records) / 6)


def test_only_the_metric_and_aggregation_asked_for_are_shown():
    others = [{"aggregation": "mean"}, {"metric": "pearson"}, {"aggregation": "wmean"}]
    records = [record("sts12", 0.1), *(record("sts12", 0.2, **of) for of in others)]
    records.append(record("sts12", 0.4, aggregation="subset", subset="MSRpar"))
    assert printed({"m": records})[2].split() == ["m", "10.00"]
    asked = [record("sts12", 0.3, metric="pearson", aggregation="mean", protocol="hill")]
    shown = printed({"m": [*records, *asked]})
    assert shown[2].split() == ["m", "30.00"]
    assert "Pearson" in shown[4] and "mean over the subsets of a task" in shown[4]


def test_other_splits_and_files_stand_after_the_average():
    records = [
        *BEFORE,
        record("a/p.tsv", 0.11),
        record("b/p.tsv", 0.12),
        record("c/q.tsv", 0.13),
        record("stsb", 0.14, split="dev"),
        record("sickr", 0.15, split="train"),
    ]
    lines = printed({"m": records}, width=200)
    after = lines[0].split()[8:]
    assert after == ["a/p.tsv", "b/p.tsv", "q.tsv", "STS-B", "dev", "SICK-R", "train"]
    average = f"{100 * sum(r.value for r in BEFORE) / 7:.2f}"
    assert lines[2].split()[8:] == [average, "11.00", "12.00", "13.00", "14.00", "15.00"]
    assert "test split unless the heading names another" in lines[4]


LONG = "runs/[bold]an encoder[/bold] with a rather long name"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_gets_a_task_per_line(width):
    lines = printed({LONG: BEFORE, "b": AFTER}, width=width, terminal=True)
    table = lines[: lines.index("")]
    assert [line.split()[0] for line in table[-8:]] == [n.heading for n in SEVEN] + ["Avg."]
    assert table[-8].split() == ["STS12", "70.00", "71.00"]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [10, 80])
def test_a_pipe_gets_whole_lines_without_colour(width):
    lines = printed({LONG: BEFORE, "b": AFTER}, width=width)
    assert lines[2].startswith(LONG + "  70.00")
    assert lines[3].split()[0] == "b"
    assert len([line for line in lines if line]) == 4 + 3
    assert "\x1b" not in "".join(lines)
