"""Intervals and comparisons of accuracies, F1 and rankings: loops, normal theory, simulated truth,
and what the command prints and writes of them."""

from zlib import crc32

import numpy as np
import pytest
from sklearn.metrics import f1_score

import contrasent.evaluation.transfer as under_test
from contrasent.evaluation import intervals, retrieval
from contrasent.evaluation.compare import compare_ratios
from contrasent.evaluation.embed import EncoderUse, Scores
from contrasent.evaluation.logistic_regression import Accuracy
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.retrieval import RetrievalTask
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.transfer import Part, TransferData, ratios_of

BOOTSTRAP = intervals.Bootstrap(0.9, 80, 4)


def drawn(stream, size, bootstrap=BOOTSTRAP):
    """The rows of each resample, drawn one by one."""
    draw = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    return [draw.integers(size, size=size, dtype=np.int32) for _ in range(bootstrap.resamples)]


def ends(values, bootstrap=BOOTSTRAP):
    tail = (1 - bootstrap.confidence) / 2
    return tuple(np.quantile(values, [tail, 1 - tail]))


def mean(values):
    values = np.asarray(values, dtype=float)
    return intervals.Ratio(values, np.ones_like(values))


@pytest.fixture
def reached(monkeypatch, encoder):
    """Scores a task of made-up rows as if a classifier had found given classes."""

    def run(name, expected, found, folds=None, options=Options(bootstrap=BOOTSTRAP)):  # noqa: B008
        pairs = name == "mrpc"
        texts = tuple(str(n) for n in range(len(expected) * (1 + pairs)))
        part = "test" if folds is None else "all"
        parts = {part: Part(texts, expected), "train": Part(texts, expected)}
        right = found == expected
        of_folds = [right] if folds is None else [right[folds == k] for k in np.unique(folds)]
        test = float(np.mean([fold.mean() for fold in of_folds]))
        given = Accuracy(0.5, test, found, folds)
        monkeypatch.setattr(under_test.logistic_regression, "cross_validate", lambda *_: given)
        task = TransferData(name, parts, 2, "hash")
        return under_test.score([task], EncoderUse(encoder), options)

    return run


def classes(seed, size=60, accuracy=0.75):
    draw = np.random.default_rng(seed)
    expected = draw.integers(0, 2, size=size)
    wrong = draw.random(size) > accuracy
    return expected, np.where(wrong, 1 - expected, expected)


def test_accuracy_and_f1_of_a_resample_are_those_of_its_rows(reached):
    expected, found = classes(0)
    scores = reached("mrpc", expected, found)
    rows = drawn("mrpc", 60)
    accuracies = [(found[r] == expected[r]).mean() for r in rows]
    f1s = [f1_score(expected[r], found[r]) for r in rows]
    dev, accuracy, f1 = scores.records
    assert dev.split == "dev" and dev.interval is None
    for record, values in ((accuracy, accuracies), (f1, f1s)):
        sure = record.interval
        assert (sure.low, sure.high) == pytest.approx(ends(values), abs=1e-12)
        assert sure.error == pytest.approx(np.std(values, ddof=1))
        assert (sure.confidence, sure.resamples, sure.seed) == (0.9, 80, 4)
        assert sure.low < record.value < sure.high
    assert f1.value == pytest.approx(f1_score(expected, found))


def test_over_folds_the_interval_is_of_the_mean_of_the_folds(reached):
    """Folds of very different sizes; each weighs the same, however many rows it has."""
    expected, found = classes(1, size=63)
    folds = np.repeat([0, 1, 2], [40, 20, 3])
    record = reached("mr", expected, found, folds).records[1]
    right = (found == expected).astype(float)
    per_fold = [right[folds == k].mean() for k in range(3)]
    assert record.value == pytest.approx(np.mean(per_fold))
    weights = np.array([1 / (3 * (folds == k).sum()) for k in folds])
    assert (weights * right).sum() == pytest.approx(record.value)
    values = [np.average(right[rows], weights=weights[rows]) for rows in drawn("mr", 63)]
    assert (record.interval.low, record.interval.high) == pytest.approx(ends(values), abs=1e-12)


def test_a_thing_moves_a_mean_as_its_weight_does():
    draw, step = np.random.default_rng(4), 1e-5
    bottom = draw.random(7)
    ratio = intervals.Ratio(bottom * (draw.random(7) < 0.6), bottom)
    assert len({*ratio.influence.round(9)}) == 7
    for place, moved in enumerate(ratio.influence):
        up, down = np.ones((2, 7))
        up[place], down[place] = 1 + step, 1 - step
        above, below = (intervals.Ratio(w * ratio.top, w * ratio.bottom).value for w in (up, down))
        assert moved == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-9)


def test_a_comparison_draws_the_same_rows_for_both():
    names = [TaskName("mr"), TaskName("mrpc"), TaskName("mr", "dev")]
    draw = np.random.default_rng(3)
    columns = {
        (name, metric): [draw.random(50) < share for share in (0.6, 0.7)]
        for name, metrics in zip(names, [["accuracy"], ["accuracy", "f1"]], strict=False)
        for metric in metrics
    }
    both = [
        Scores((), (), ratios={key: mean(found[place]) for key, found in columns.items()})
        for place in range(2)
    ]
    accuracy, f1 = compare_ratios(names, *both, bootstrap=BOOTSTRAP)
    assert (accuracy.metric, f1.metric, accuracy.aggregation) == ("accuracy", "f1", None)
    assert list(accuracy.tasks) == names[:2] and list(f1.tasks) == [names[1]]
    differences = {}
    for comparison in (accuracy, f1):
        for name, one in comparison.tasks.items():
            before, after = columns[name, comparison.metric]
            values = [after[r].mean() - before[r].mean() for r in drawn(name.label, 50)]
            differences[name, comparison.metric] = values
            assert one.difference == pytest.approx(after.mean() - before.mean())
            assert (one.interval.low, one.interval.high) == pytest.approx(ends(values), abs=1e-9)
            assert one.p_value == intervals.p_value(np.round(values, 9))
    each = list(accuracy.tasks.values())
    assert [one.p_holm for one in each] == intervals.holm([one.p_value for one in each])
    assert [one.tests for one in each] == [2, 2] and f1.tasks[names[1]].tests == 1
    parts = [differences[name, "accuracy"] for name in names[:2]]
    found = accuracy.average
    assert (found.interval.low, found.interval.high) == pytest.approx(
        ends(np.mean(parts, axis=0)), abs=1e-9
    )
    assert found.difference == pytest.approx(np.mean([one.difference for one in each]))
    assert f1.average is None
    assert f1.values == pytest.approx({names[1]: columns[names[1], "f1"][1].mean()})


def test_the_average_is_over_the_papers_tasks():
    names = [TaskName(name) for name in ("mr", "cr", "own.csv")]
    one, other = (
        Scores((), (), ratios={(n, "accuracy"): mean(np.arange(20) < 8 + gain) for n, gain in them})
        for them in (((n, 0) for n in names), zip(names, (1, 2, 9), strict=True))
    )
    (found,) = compare_ratios(names, one, other, bootstrap=BOOTSTRAP)
    values = dict(zip(names, (9 / 20, 10 / 20, 17 / 20), strict=True))
    assert found.values == pytest.approx({**values, "the average": (9 + 10) / 40})
    assert found.average.difference == pytest.approx(1.5 / 20)
    (alone,) = compare_ratios(names[1:], one, other, bootstrap=BOOTSTRAP)
    assert alone.average is None and list(alone.tasks) == names[1:]


def test_what_is_no_difference_is_0_however_sums_are_rounded():
    """Two encoders right on equally many, other rows, in folds of awkward weights."""
    draw, name = np.random.default_rng(5), TaskName("mr")
    sizes = np.repeat([9, 7, 5], [9, 7, 5])
    weights = 1 / sizes
    first = draw.permutation(np.repeat([0.0, 1.0], [7, 14]))
    pair = [
        intervals.Ratio(first * weights, weights),
        intervals.Ratio(first[::-1] * weights, weights),
    ]
    bootstrap = intervals.Bootstrap(resamples=500)
    both = (Scores((), (), ratios={(name, "accuracy"): ratio}) for ratio in pair)
    (found,) = compare_ratios([name], *both, bootstrap=bootstrap)
    moved = (first[::-1] - first) * (315 // sizes)
    exact = [moved[rows].sum() for rows in drawn("mr", 21, bootstrap)]
    assert found.tasks[name].p_value == intervals.p_value(np.array(exact, dtype=float))


def test_the_size_of_a_block_changes_nothing(monkeypatch):
    pair = [mean(np.arange(40) % 3 == 0), mean(np.arange(40) % 5 == 0)]
    whole = intervals.ratio_draws(pair, BOOTSTRAP, "a")
    monkeypatch.setattr(intervals, "_AT_ONCE", 7 * 40)
    assert intervals.ratio_draws(pair, BOOTSTRAP, "a") == pytest.approx(whole, abs=1e-15)


def test_a_resample_without_what_is_divided_by_has_no_score():
    ratio = intervals.Ratio(np.array([2.0, 0, 0, 0]), np.array([2.0, 0, 0, 0]))
    (draws,) = intervals.ratio_draws([ratio], intervals.Bootstrap(resamples=400), "a")
    without = [0 not in rows for rows in drawn("a", 4, intervals.Bootstrap(resamples=400))]
    assert (np.isnan(draws) == without).all() and any(without)
    assert intervals.interval(draws, intervals.Bootstrap(resamples=400)) is None


def task_of(name, queries, relevant, corpus):
    return RetrievalTask(
        name=name,
        corpus=corpus,
        queries=queries,
        relevant=relevant,
        left_out=tuple(corpus.index(q) if q in corpus else None for q in queries),
        metrics=("ndcg@10", "mrr@10", "recall@1"),
        description="",
        sha256="",
    )


WORDS = ("red cat", "old dog", "new house", "blue", "green runs", "never under", "cat", "dog")


def test_the_two_sentences_of_a_pair_of_stsb_are_drawn_together(encoder):
    name = TaskName("stsb-retrieval", "dev")
    pairs = [(0, 6), (1, 7), (3, 2)]
    both = [*pairs, *((b, a) for a, b in pairs)]
    queries = tuple(WORDS[a] for a, _ in both)
    relevant = tuple({b: 1} for _, b in both)
    found = retrieval.score(
        [task_of(name, queries, relevant, WORDS)], EncoderUse(encoder), Options(bootstrap=BOOTSTRAP)
    )
    both = zip(queries, relevant, strict=True)
    asked = [task_of(TaskName("own"), (q,), (r,), WORDS) for q, r in both]
    alone = (retrieval.score([it], EncoderUse(encoder), Options()) for it in asked)
    one_by_one = [scores.records[1].value for scores in alone]
    record = found.records[1]
    values = [
        np.mean([one_by_one[pair + side] for pair in rows for side in (0, 3)])
        for rows in drawn("stsb-retrieval-dev", 3)
    ]
    assert record.value == pytest.approx(np.mean(one_by_one))
    assert (record.interval.low, record.interval.high) == pytest.approx(ends(values))


def judged(labels, predicted, folds=None, classes=3):
    """The ratios of accuracy and macro-F1 of a user's own task."""
    task = TransferData("x", {}, classes, "", class_names=("a",) * classes)
    return ratios_of(task, Accuracy(0, 0, predicted, folds), labels)


@pytest.mark.parametrize("folds", [1, 3])
def test_intervals_are_those_of_rows_drawn_again(folds):
    draw = np.random.default_rng(3)
    labels = draw.choice(3, size=60, p=[0.7, 0.2, 0.1])
    predicted = np.where(draw.random(60) < 0.7, labels, draw.choice(3, size=60))
    fold_of = draw.permutation(60) % folds if folds > 1 else None
    ratios = judged(labels, predicted, fold_of)
    again = [(labels[rows], predicted[rows]) for rows in drawn("x", 60)]
    found = intervals.intervals(ratios, BOOTSTRAP, "x")
    f1s = [f1_score(*both, average="macro") for both in again]
    assert ratios["macro_f1"].value == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert (found["macro_f1"].low, found["macro_f1"].high) == pytest.approx(ends(f1s))
    assert found["macro_f1"].error == pytest.approx(np.std(f1s, ddof=1))


def test_a_class_that_is_nowhere_does_not_count():
    labels, predicted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    expected = pytest.approx(f1_score(labels, predicted, average="macro"))
    assert judged(labels, predicted, classes=4)["macro_f1"].value == expected
