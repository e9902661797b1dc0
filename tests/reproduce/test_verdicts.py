"""Verdicts, on numbers whose answer is known."""

from math import sqrt
from statistics import fmean, stdev
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t

from contrasent.evaluation.compare import SeedError
from contrasent.evaluation.intervals import Ratio, mean_error, pair_covariance
from contrasent.evaluation.sts_data import RatedPairs
from contrasent.evaluation.task_names import STS, TRANSFER
from contrasent.reproduce.cells import NOT_YET, FilledRow, FilledTable, Filler, PaperCell
from contrasent.reproduce.materials import SMOKE_TASKS, read_suite
from contrasent.reproduce.papers import PAIRS, PaperColumn, load_tables
from contrasent.reproduce.verdicts import CONTRARY, HOLDS, OPEN, WEAK, ClaimPart, _Judge


def part(first, second, *, relation=">", pair_error=0.1, seed_error=None, published=None):
    cells = PaperCell(None, None, tuple(first)), PaperCell(None, None, tuple(second))
    seeds = seed_error and SeedError(*seed_error)
    return ClaimPart("a", "b", relation, published, "", cells, pair_error, seeds)


def paired(first, second):
    each = [a - b for a, b in zip(first, second, strict=True)]
    return stdev(each) / sqrt(len(each)), len(each) - 1


def test_differences_of_geometry_have_three_decimals():
    assert PaperCell("0.177", None, (0.2213,)).comparison("difference").text == "+0.044"
    assert PaperCell("76.25", None, (77.5,)).comparison("difference").text == "+1.25"


def test_a_failed_seed_is_told_beside_those_that_are_made_and_not_made_yet(monkeypatch):
    (table, *_) = load_tables().values()
    outcomes = iter([(80.0, ""), (None, "out of memory"), (None, NOT_YET)])
    filler = Filler(None, SimpleNamespace(scale="small", data_dir=None), (1, 2, 3))
    monkeypatch.setattr(Filler, "plan", lambda *_: ([[], [], []], ""))
    monkeypatch.setattr(Filler, "_value", lambda *_: next(outcomes))
    cell = filler.cell(table, table.rows[0], table.columns[0])
    assert (cell.failed, cell.reason) == (True, "1 of 3 seeds; out of memory")


def test_the_interval_holds_pairs_and_seeds():
    first, second = (80.0, 80.6, 80.3), (79.0, 79.2, 79.4)
    error, freedom = paired(first, second)
    found = part(first, second, pair_error=0.2, seed_error=(error, freedom))
    expected = sqrt((t.ppf(0.975, freedom) * error) ** 2 + (1.959963984540054 * 0.2) ** 2)
    assert found.reach(0.05) == pytest.approx(expected, rel=1e-9)
    assert found.difference == pytest.approx(fmean(first) - fmean(second))


@pytest.mark.parametrize(
    ("first", "second", "relation", "seeds", "status"),
    [
        ((80.0,), (79.8,), ">", (0.3, 10), OPEN),
        ((82.0,), (78.0,), ">", None, OPEN),
        ((), (78.0,), ">", (0.3, 10), OPEN),
        ((80.0,), (80.9,), "~", (0.1, 30), OPEN),
        ((80.0,), (80.5,), ">=", (0.1, 30), HOLDS),
        ((78.0,), (80.0,), ">=", (0.1, 30), CONTRARY),
    ],
)
def test_a_comparison_is_judged_by_its_interval(first, second, relation, seeds, status):
    assert part(first, second, relation=relation, seed_error=seeds).status(1) == status


@pytest.mark.parametrize(
    ("first", "relation", "published", "status"),
    [  # differences can be told from 0.64 on; those that no paper prints, from 1.24 on
        (82.0, ">", 2.0, HOLDS),
        (82.0, ">", 0.5, WEAK),
        (78.0, ">", -0.7, CONTRARY),
        (80.2, ">", 2.0, OPEN),
        (80.2, ">", 0.6, WEAK),
        (80.1, "~", 0.1, HOLDS),
        (80.2, ">", 0.0, OPEN),
        (80.0, "~", None, WEAK),
        (80.0, ">=", None, WEAK),
        (80.8, ">", None, WEAK),
        (83.0, ">", None, HOLDS),
        (83.0, "~", None, CONTRARY),
        (83.0, ">=", None, HOLDS),
        (77.0, ">", None, CONTRARY),
    ],
)
def test_no_verdict_without_power_to_see_the_difference(first, relation, published, status):
    error, reach = (0.6, 1.24) if published is None else (0.3, 0.64)
    found = part((first,), (80.0,), relation=relation, seed_error=(error, 30), published=published)
    assert found.reach(0.05) == pytest.approx(reach, abs=0.01)
    assert found.status(1) == status


def test_contrary_stands_the_correction_for_several_comparisons():
    near = part((79.0,), (79.7,), pair_error=0.0, seed_error=(0.3, 200))
    assert near.status(1) == CONTRARY
    assert near.status(20) == OPEN


def test_a_judgement_of_random_seeds_is_rarely_wrong():
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        first, second = draw.normal(80, 0.5, 3), draw.normal(80, 0.5, 3)
        found = part(first, second, pair_error=0.0, seed_error=paired(first, second))
        wrong += found.status(1) not in (OPEN, WEAK)
    assert wrong / 400 < 0.085


def test_a_start_has_no_deviation_of_its_own():
    trained = PaperCell(ours=(80.0, 80.6, 80.3), is_random=True)
    start, incomplete = PaperCell(ours=(77.0,)), PaperCell(ours=(77.0,), is_random=True)
    seed_error = _Judge(SimpleNamespace(seeds=(42, 43, 44), rows=())).seed_error
    assert seed_error((trained, start)) == SeedError.of(trained.ours)
    assert seed_error((start, start)).error == 0
    assert seed_error((trained, incomplete)) is None


def table_of(results, column, examples, data_dir=None):
    """A table of one column, with the name of a result for each row."""
    cells = {label: PaperCell(results=((it,),)) for label, it in results.items()}
    rows = tuple(FilledRow(label, {column.heading: it}, ()) for label, it in cells.items())
    return FilledTable(None, "smoke", (42,), rows, examples, data_dir)


def error_of(moves, value, data_dir=None):
    """The error of the difference of two rows with these numbers by label."""
    column, system = PaperColumn.parse(value, value), SimpleNamespace(aggregation="")
    rows = [SimpleNamespace(label=it, system=lambda _: system) for it in moves]
    table = table_of({it: it for it in moves}, column, moves.get, data_dir)
    return _Judge(table).pair_error(rows, column)


@pytest.mark.parametrize("table", ["simcse/TB.2", "simcse/TB.3"])
def test_an_interval_is_of_the_aggregation_of_the_cells(table):
    data = str(SMOKE_TASKS)
    drawn = np.random.default_rng(0)

    def cosines(_):
        cosines = {}
        for name in STS:
            (task,) = read_suite((name,), data, "test").tasks("sts")
            noise = (0.5 if table == "simcse/TB.2" else drawn.normal()) * np.sin(np.arange(999))
            cosines[name] = task.gold + 3 * noise[: len(task.gold)]
        return cosines

    paper_table = load_tables()[table]
    pair, column = paper_table.rows[:2], paper_table.columns[-1]
    judge = _Judge(table_of({it.label: it.label for it in pair}, column, cosines, data))
    error = judge.pair_error(pair, column)
    assert error is not None
    assert error > 0.1


@pytest.mark.parametrize("value", ["alignment", "uniformity:stsb-test>3"])
def test_pairs_that_share_a_sentence_are_dependent_in_geometry_too(value):
    data = str(SMOKE_TASKS)
    rated = RatedPairs.read(value.partition(":")[2] or PAIRS, data)
    drawn = np.random.default_rng(0).normal(size=(2, len(rated.gold)))
    moves = {name: {value: it} for name, it in zip("ab", drawn, strict=True)}
    assert error_of(moves, value, data) == pytest.approx(
        mean_error(pair_covariance(*rated.task.sides, (drawn[0] - drawn[1])[None]))
    )


@pytest.mark.parametrize(
    ("value", "tasks"), [("mr", 1), ("transfer", 7), ("transfer-dev", 7), ("recall@5", 1)]
)
def test_examples_that_both_get_right_do_not_widen_a_difference(value, tasks):
    right = {"one": np.repeat([1.0, 0.0], [80, 20]), "other": np.repeat([1.0, 0.0], [70, 30])}
    split = value.removeprefix("transfer")
    labels = (value,) if split == value else [f"{task}{split}" for task in TRANSFER]
    moves = {
        name: dict.fromkeys(labels, Ratio(each, np.ones(100)).influence)
        for name, each in right.items()
    }
    differ = right["one"] - right["other"]  # 10 of 100 examples
    assert error_of(moves, value) == pytest.approx(100 * differ.std() / sqrt(100) / sqrt(tasks))
