"""Two encoders on the same pairs: differences against loops, and what is said of them."""

from io import StringIO
from zlib import crc32

import numpy as np
import pytest
from helpers.tiny_sts import sts_tasks
from rich.console import Console
from scipy.stats import spearmanr

from contrasent.evaluation.bootstrap import Bootstrap, holm
from contrasent.evaluation.compare import Comparison, compare, gains, with_comparison
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.sts import StsTasks
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import pair_cosines
from contrasent.records import Compared, Interval, read_records, write_records
from contrasent.report.comparison import sts_differences
from contrasent.report.table import print_difference

BOOTSTRAP = Bootstrap(0.9, 60, 4)


@pytest.fixture
def half(encoder):
    """An encoder that sees a part of what the other sees."""
    other = type(encoder)()
    other.name = "some/half"
    whole = other.embed
    other.embed = lambda sentence: whole(sentence)[:2]
    return other


@pytest.fixture
def both(encoder, half, senteval):
    """The tasks, and the scores of both."""
    tasks = sts_tasks(["sts12", "sts13", "stsb", "sickr-dev"], senteval).tasks
    read = StsTasks(tasks)
    return tasks, read.records(EncoderUse(encoder)), read.records(EncoderUse(half))


def drawn(stream, pairs):
    draw = np.random.default_rng([BOOTSTRAP.seed, crc32(stream.encode())])
    return [draw.integers(pairs, size=pairs, dtype=np.int32) for _ in range(BOOTSTRAP.resamples)]


def scored(encoder, subset, rows):
    first, second = ([encoder.embed(s) for s in side] for side in (subset.first, subset.second))
    return spearmanr(pair_cosines(first, second)[rows], subset.gold[rows]).statistic


@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
@pytest.mark.parametrize("aggregation", ["mean", "wmean"])
def test_differences_of_means_are_drawn_within_subsets(both, encoder, half, aggregation):
    tasks, first, second = both
    found = compare(
        tasks, first, second, metric="spearman", aggregation=aggregation, bootstrap=BOOTSTRAP
    ).tasks[TaskName("sts13")]
    subsets = tasks[1].subsets
    weights = [len(s.gold) if aggregation == "wmean" else 1 for s in subsets]
    rows = [drawn(f"sts13 {s.name}", len(s.gold)) for s in subsets]
    differences = []
    for number in range(BOOTSTRAP.resamples):
        each = [
            scored(half, s, r[number]) - scored(encoder, s, r[number])
            for s, r in zip(subsets, rows, strict=True)
        ]
        differences.append(np.average(each, weights=weights))
    kept = [d for d in differences if np.isfinite(d)]
    low, high = np.quantile(kept, [0.05, 0.95])
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-9)
    rarer = min(sum(d <= 0 for d in kept), sum(d >= 0 for d in kept))
    assert found.p_value == pytest.approx(min(1, 2 * (rarer + 1) / (len(kept) + 1)))


@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
def test_intervals_are_of_the_same_aggregation_as_their_values(both, encoder):
    task = both[0][1]
    draws = [drawn(f"sts13 {s.name}", len(s.gold)) for s in task.subsets]
    each = [
        [scored(encoder, subset, rows) for rows in of_subset]
        for subset, of_subset in zip(task.subsets, draws, strict=True)
    ]
    pairs = [len(s.gold) for s in task.subsets]
    values = {
        **{s.name: correlations for s, correlations in zip(task.subsets, each, strict=True)},
        "mean": np.average(each, axis=0),
        "wmean": np.average(each, axis=0, weights=pairs),
    }
    records = {
        r.subset or r.aggregation: r.interval
        for r in StsTasks([task]).records(EncoderUse(encoder), bootstrap=BOOTSTRAP).records
        if r.metric == "spearman"
    }
    assert set(records) == {*values, "all"}
    for name, drawn_values in values.items():
        low, high = np.nanquantile(drawn_values, [0.05, 0.95])
        interval = records[name]
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9)


def test_differences_of_whole_tasks_are_drawn_from_all_pairs(both, encoder, half):
    tasks, first, second = both
    found = compare(
        tasks, first, second, metric="spearman", aggregation="all", bootstrap=BOOTSTRAP
    ).tasks[TaskName("stsb")]
    (subset,) = tasks[2].subsets
    draws = drawn("stsb", len(subset.gold))
    differences = [scored(half, subset, rows) - scored(encoder, subset, rows) for rows in draws]
    low, high = np.quantile(differences, [0.05, 0.95])
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-9)
    rows = slice(None)
    expected = scored(half, subset, rows) - scored(encoder, subset, rows)
    assert found.difference == pytest.approx(expected, abs=1e-9)
    assert found.baseline == "some/words"


def test_p_values_are_adjusted_over_the_tasks_and_the_average_is_of_test_splits(both):
    tasks, first, second = both
    found = compare(tasks, first, second, metric="pearson", aggregation="all", bootstrap=BOOTSTRAP)
    each = list(found.tasks.values())
    assert [one.p_holm for one in each] == holm([one.p_value for one in each])
    assert {one.tests for one in each} == {4}
    named = [one.difference for name, one in found.tasks.items() if name.split == "test"]
    assert len(named) == 3
    assert found.average.difference == pytest.approx(sum(named) / 3)
    assert found.average.tests == 1


def test_an_encoder_does_not_differ_from_itself(both):
    tasks, first, _ = both
    found = compare(tasks, first, first, metric="spearman", aggregation="all", bootstrap=BOOTSTRAP)
    for one in (*found.tasks.values(), found.average):
        assert (one.difference, one.interval.low, one.interval.high, one.p_value) == (0, 0, 0, 1)


def test_turning_the_two_round_turns_the_sign_round(both):
    tasks, first, second = both
    settings = {"metric": "spearman", "aggregation": "all", "bootstrap": BOOTSTRAP}
    there = compare(tasks, first, second, **settings).average
    back = compare(tasks, second, first, **settings).average
    assert back.difference == -there.difference
    assert (back.interval.low, back.interval.high) == pytest.approx(
        (-there.interval.high, -there.interval.low)
    )
    assert back.p_value == there.p_value


def test_a_task_that_one_of_them_has_no_score_of_is_left_out(both, encoder):
    tasks, _, second = both
    only = StsTasks(tasks[2:3]).records(EncoderUse(encoder))
    found = compare(tasks, only, second, metric="spearman", aggregation="all", bootstrap=BOOTSTRAP)
    assert list(found.tasks) == [TaskName("stsb")]
    assert found.average is None


def test_records_keep_the_comparison(both, tmp_path):
    tasks, first, second = both
    found = compare(tasks, first, second, metric="spearman", aggregation="all", bootstrap=BOOTSTRAP)
    records = with_comparison(second.records, found)
    compared = [r for r in records if r.compared]
    assert {(r.metric, r.aggregation) for r in compared} == {("spearman", "all")}
    assert [r.compared for r in compared] == list(found.tasks.values())
    write_records(tmp_path / "r.jsonl", records)
    assert read_records(tmp_path / "r.jsonl") == records


def test_the_table_says_what_was_done(both):
    tasks, first, second = both
    found = compare(tasks, first, second, metric="spearman", aggregation="all", bootstrap=BOOTSTRAP)
    file = StringIO()
    print_difference(Console(file=file), sts_differences(found, "half minus words"))
    lines = [line.rstrip() for line in file.getvalue().split("\n")]
    assert lines[1] == "half minus words"
    assert lines[2].split() == ["difference", "interval", "p", "p", "(Holm)"]
    stsb = found.tasks[TaskName("stsb")]
    row = next(line for line in lines if line.startswith("STS-B"))
    assert f"{100 * stsb.difference:+.2f}" in row
    assert f"[{100 * stsb.interval.low:+.2f}, {100 * stsb.interval.high:+.2f}]" in row
    assert row.split()[-2:] == [f"{stsb.p_value:.4f}", f"{stsb.p_holm:.4f}"]
    assert any(line.startswith("SICK-R dev") for line in lines)
    assert any(line.startswith("Avg.") for line in lines)
    assert (
        "Spearman x 100, aggregation all. Paired bootstrap: the same pairs are drawn again for "
        "both, 90 % percentile interval over 60 resamples (seed 4); p is two-sided; Holm's "
        "adjustment is over these 4 tasks." in lines
    )


# What training changed


def changed(difference, low, high):
    ends = Interval(low=low, high=high, error=0.0, confidence=0.95, resamples=10, seed=1)
    more = {"p_value": 0.1, "p_holm": 0.1, "tests": 1}
    return Compared(baseline="x", difference=difference, interval=ends, **more)


def test_a_gain_is_over_the_better_start():
    names = [TaskName("a.tsv"), TaskName("b.tsv")]
    values = {"own": (0.01, 0.05), "cls": (0.03, 0.02)}
    comparisons = {
        start: [
            Comparison(
                "spearman",
                "all",
                {n: changed(v, v - 0.02, v + 0.02) for n, v in zip(names, of_start, strict=True)},
                None,
            )
        ]
        for start, of_start in values.items()
    }
    found = [(g.of, g.start, g.compared.difference, g.verdict) for g in gains(comparisons)]
    assert found == [("a.tsv", "own", 0.01, "unclear"), ("b.tsv", "cls", 0.02, "unclear")]


def test_an_average_stands_for_its_tasks():
    average = changed(-0.03, -0.05, -0.01)
    tasks = {TaskName("stsb"): changed(0.1, 0.0, 0.2)}
    (found,) = gains({"own": [Comparison("spearman", "all", tasks, average)]})
    assert (found.of, found.verdict) == ("the average", "hurt")
    assert found.sentence == (
        "Training made it worse: -3.00 (95 % interval -5.00 to -1.00, paired bootstrap) on the "
        "average, against own."
    )
