"""STS tasks: each distinct sentence encoded once, similarities, rank correlations.

Shapes: N pairs, of all subsets of a task; K estimates. Of SentEval's regressor: D embedding width,
F = 2 * D features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import DataError
from contrasent.evaluation import embed, intervals
from contrasent.evaluation.embed import Embeddings, EncoderUse, Score, Scores, Similarities
from contrasent.evaluation.intervals import FEWEST_PAIRS, Bootstrap
from contrasent.evaluation.logistic_regression import Fold, Relatedness, expected_scores
from contrasent.evaluation.protocols import AGGREGATIONS, SEED, Options, Preset
from contrasent.evaluation.sts_data import Subset, Task, load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, sts_names
from contrasent.metrics import METRICS, Matrix, Vector, pair_similarities
from contrasent.records import Interval, Record

Rows = Callable[[Sequence[str]], Embeddings]
"""Embeddings ``(N, D)`` of sentences."""

Floats = NDArray[np.float32]
Regressor = Callable[[Floats], Vector]
"""Expected scores ``(N,)``, from 1 to 5, of features ``(N, F)``."""


def names(text: str, options: Options) -> list[TaskName] | None:
    """STS tasks, files and data sets of scored pairs; with all splits if the protocol says."""
    every, named = options.protocol.every_split, sts_names(text, options.splits)
    return named and [
        TaskName(it.name, "all") if it.split == "test" and it.name in every else it for it in named
    ]


def load_task(names: Sequence[TaskName], options: Options) -> Task:
    """Read one split, and what its regressor needs; a constant score is no score."""
    (name,) = names
    task = load(name, options.data_dir, options.columns)
    if (task.gold == task.gold[0]).all():
        what = f"every gold is {task.gold[0]:g}, so there is no correlation"
        raise DataError(f"{name.heading}: {what}; is the right column taken as the score?")
    if options.protocol.regressor and name.name in STS_TASKS and STS_TASKS[name.name].files:
        splits = (TaskName(name.name, split) for split in ("train", "dev"))
        train, dev = (load(split, options.data_dir) for split in splits)
        return replace(task, fitted=(train, dev))
    return task


def score(tasks: Sequence[Task], use: EncoderUse, options: Options) -> Scores:
    """Every metric, aggregation and subset; each distinct sentence is encoded once."""
    read = [part for task in tasks for part in (task, *(task.fitted or ()))]
    sentences = dict.fromkeys(text for task in read for text in task.sentences)
    places, embeddings = {text: n for n, text in enumerate(sentences)}, use.encode([*sentences])
    regressors: dict[str, Regressor] = {}

    def rows(texts: Sequence[str]) -> Embeddings:
        return embeddings[[places[text] for text in texts]]

    scores = embed.score_each(
        (task.name, partial(_score, task, use, options, rows, regressors)) for task in tasks
    )
    return _with_covariances(tasks, scores) if options.bootstrap else scores


def _score(
    task: Task, use: EncoderUse, options: Options, rows: Rows, regressors: dict[str, Regressor]
) -> Scores:
    protocol = options.protocol
    for part in (task, *(task.fitted or ())):
        texts = list(dict.fromkeys(part.sentences))
        zeros = getattr(use.encoder, "gives_zeros", False)
        embed.require_usable(use.encoder.name, texts, rows(texts), zeros=zeros)
    columns = _similarities(task, use, rows, regressors)
    records, regressor = list[Record](), "senteval" if task.fitted else None
    for metric in METRICS:
        asked = metric in protocol.metrics
        for score in correlations(task, columns, metric, options.bootstrap if asked else None):
            whose = protocol.name if asked and protocol.aggregation == score.aggregation else None
            record = score.record(task.name, task.sha256, use, protocol=whose, regressor=regressor)
            records.append(record)
    known = [rows(side).any(axis=1) for side in task.sides]
    without = int((~(known[0] & known[1])).sum())
    note = (
        f"{task.name.heading}: {without} of {len(task.gold)} pairs have a sentence without a "
        "known word; their similarity is 0, as in SentEval"
    )
    return Scores(
        tuple(records), similarities={task.name.label: columns}, notes=(note,) if without else ()
    )


def _similarities(
    task: Task, use: EncoderUse, rows: Rows, regressors: dict[str, Regressor]
) -> Similarities:
    """By the encoder's similarity, or as the task's regressor predicts; it is kept by name."""
    if task.fitted is None:
        sides = ((rows(it.first), rows(it.second)) for it in task.subsets)
        return tuple(pair_similarities(use.similarity, *both, zeros=True) for both in sides)
    if task.name.split in ("train", "all"):
        what = "its regressor is fitted to the training split, so it has no score there"
        raise DataError(f"{what}; ask for test or dev, or for cosines with --no-regressor")

    def features(subset: Subset, order: Sequence[int] | slice = slice(None)) -> Embeddings:
        return pair_features(rows(subset.first)[order], rows(subset.second)[order])

    name = task.name.name
    if name not in regressors:
        ordered = []
        for part in task.fitted:
            (subset,) = part.subsets
            order = sentevals_order(subset.first, subset.second, subset.gold)
            ordered.append((features(subset, order), subset.gold[order]))
        train, dev = ordered
        regressors[name] = fit(train, dev)
    (subset,) = task.subsets
    return (regressors[name](features(subset)),)


def correlations(
    task: Task, similarities: Similarities, metric: str, bootstrap: Bootstrap | None = None
) -> list[Score]:
    """The task's subsets, then the aggregations, in one metric; a DataError if one is none."""
    correlation = METRICS[metric]
    each = []
    for subset, column in zip(task.subsets, similarities, strict=True):
        try:
            each.append(correlation(column, subset.gold))
        except DataError as error:
            where = subset.name and f"{subset.name}: "
            raise DataError(f"{where}no {metric} correlation: {error}") from error
    pairs = [len(subset.gold) for subset in task.subsets]
    aggregated = {
        "all": correlation(np.concatenate(similarities), task.gold),
        "mean": float(np.average(each)),
        "wmean": float(np.average(each, weights=pairs)),
    }
    named = [it for it in zip(task.subsets, each, pairs, strict=True) if it[0].name]
    sure: dict[str, Interval] = {}
    if bootstrap and sum(pairs) >= FEWEST_PAIRS:
        values = aggregated | {it.name: value for it, value, n in named if n >= FEWEST_PAIRS}
        moves = influences(task, similarities, metric)
        covariance = intervals.pair_covariance(*task.sides, np.stack([moves[it] for it in values]))
        deviations = np.sqrt(np.diagonal(covariance)).tolist()
        for (name, value), deviation in zip(values.items(), deviations, strict=True):
            if deviation >= intervals.LEAST_ERROR * abs(value):
                sure[name] = intervals.correlation_interval(value, deviation, bootstrap.confidence)
    return [
        *(
            Score(metric, value, n, "subset", subset.name, sure.get(subset.name))
            for subset, value, n in named
        ),
        *(Score(metric, v, sum(pairs), k, "", sure.get(k)) for k, v in aggregated.items()),
    ]


def influences(task: Task, similarities: Similarities, metric: str) -> dict[str, Vector]:
    """Influence ``(N,)`` of each pair on the aggregations, and on the subsets by name."""
    from scipy.linalg import block_diag

    each = [
        intervals.influence(metric, scores, subset.gold)
        for subset, scores in zip(task.subsets, similarities, strict=True)
    ]
    shares = np.array([len(column) for column in each]) / len(task.gold)
    rows: Matrix = block_diag(*each)
    return {
        **{subset.name: row for subset, row in zip(task.subsets, rows, strict=True)},
        "all": intervals.influence(metric, np.concatenate(similarities), task.gold),
        "mean": rows.mean(axis=0),
        "wmean": shares @ rows,
    }


def joint_covariance(tasks: Sequence[Task], moves: Sequence[Vector]) -> Matrix:
    """Covariance ``(K, K)`` of an estimate per task, whose pairs move it by ``moves``, ``(N,)``.

    Tasks share sentences: 1,006 of the 1,377 distinct pairs of STS-B test are also in STS12-16.
    """
    from scipy.linalg import block_diag

    first, second = zip(*(task.sides for task in tasks), strict=True)
    sides = chain.from_iterable(first), chain.from_iterable(second)
    return intervals.pair_covariance(*sides, block_diag(*moves))


def _with_covariances(tasks: Sequence[Task], scores: Scores) -> Scores:
    """The scores, whose intervals tell how the errors of the tasks go together."""
    records, of_name = list(scores.records), {task.name: task for task in tasks}
    for metric, aggregation in product(METRICS, AGGREGATIONS):
        numbered = {
            n: (of_name[TaskName(it.task, it.split)], it.interval)
            for n, it in enumerate(records)
            if it.interval and (it.metric, it.aggregation) == (metric, aggregation)
        }
        together = [task for task, _ in numbered.values()]
        if len(together) < 2:
            continue
        labels = [task.name.label for task in together]
        moves = [
            influences(task, scores.similarities[task.name.label], metric)[aggregation]
            for task in together
        ]
        rows = joint_covariance(together, moves).tolist()
        for (n, (task, interval)), row in zip(numbered.items(), rows, strict=True):
            others = dict(zip(labels, row, strict=True))
            del others[task.name.label]
            records[n] = replace(records[n], interval=replace(interval, covariances=others))
    return replace(scores, records=tuple(records))


RELATEDNESS = Preset("relatedness", 1, "adam", 64, tenacity=3, epoch_size=50, max_epochs=1000)
"""SentEval's regressor: the fourth look that brings nothing better is the last."""


def pair_features(first: Floats, second: Floats) -> Floats:
    """``(N, F)`` of embeddings ``(N, D)``: differences without sign, then products."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def fit(train: tuple[Floats, Vector], dev: tuple[Floats, Vector], seed: int = SEED) -> Regressor:
    """Fit :class:`Relatedness` to features ``(N, F)`` and scores ``(N,)``; the dev split ends it.

    First weights and order of the pairs are drawn as SentEval draws them, if ``train`` is in
    :func:`sentevals_order`.
    """
    import torch

    features, gold = (np.concatenate([train[k], dev[k]]) for k in (0, 1))
    problems = Relatedness(torch.from_numpy(features), gold)
    rows, held_out = np.split(np.arange(len(gold)), [len(train[1])])
    fitted = problems.fit([Fold(rows, held_out)], [[0.0]], replace(RELATEDNESS, seed=seed))
    if fitted.accuracy.item() == -1:
        what = "SentEval's regressor predicts the same score for every dev pair"
        raise DataError(f"{what}; its embeddings hardly differ")
    weight, bias = fitted.weights[0, 0].tensor_split(features.shape[1:], dim=1)
    return lambda rows: expected_scores(torch.from_numpy(rows) @ weight.T + bias[:, 0])


def sentevals_order(first: Sequence[str], second: Sequence[str], gold: Vector) -> list[int]:
    """Pairs by the words of both sentences, then by score: where SentEval's epochs start from."""
    lengths = [[len(text.split()) for text in side] for side in (first, second)]
    return sorted(range(len(gold)), key=lambda n: (lengths[0][n], lengths[1][n], gold[n]))
