"""Protocols by name: what Table B.1 of SimCSE lists, and numbers against plain loops."""

import numpy as np
import pytest
from helpers.tiny_sts import sts_tasks

from contrasent import evaluate
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import PROTOCOLS, protocol
from contrasent.evaluation.sts import fit, pair_features, sentevals_order
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import METRICS, pair_cosines

# Regressor, metrics, aggregation, in the order of the table.
TABLE_B_1 = {
    "hill": (False, ("pearson", "spearman"), "all"),
    "infersent": (True, ("pearson",), "mean"),
    "senteval": (True, ("pearson",), "mean"),
    "sbert": (False, ("spearman",), "all"),
    "isbert": (False, ("spearman",), "all"),
    "flow": (False, ("spearman",), "wmean"),
    "whitening": (False, ("spearman",), "wmean"),
    "bgt": (False, ("pearson",), "mean"),
    "declutr": (False, ("spearman",), "mean"),
    "simcse": (False, ("spearman",), "all"),
}


def test_every_row_of_table_b_1_has_its_name():
    rows = {
        name: (it.regressor, it.metrics, it.aggregation)
        for name, it in PROTOCOLS.items()
        if name not in ("diffcse", "mteb")
    }
    assert rows == TABLE_B_1
    assert all(name == it.name for name, it in PROTOCOLS.items())


def embedded(encoder, task):
    (subset,) = task.subsets
    order = sentevals_order(subset.first, subset.second, subset.gold)
    first, second = (
        np.stack([encoder.embed(side[row]) for row in order])
        for side in (subset.first, subset.second)
    )
    return pair_features(first, second), subset.gold[order]


@pytest.mark.parametrize("name", ["stsb", "sickr"])
@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_regressor_is_fitted_to_train_and_scores_another_split(encoder, senteval, name, split):
    train, dev, scored = (
        embedded(encoder, load(TaskName(name, which), senteval))
        for which in ("train", "dev", split)
    )
    predicted = fit(train, dev)(scored[0])
    records = evaluate(encoder, [name], data_dir=senteval, splits=[split], protocol="senteval")
    for record in records:
        expected = METRICS[record.metric](predicted, scored[1])
        assert record.value == pytest.approx(expected, abs=1e-5)
        assert record.regressor == "senteval"
    named = {(r.metric, r.aggregation) for r in records if r.protocol}
    assert named == {("pearson", "mean")}


def test_the_training_split_has_no_score_by_regressor_and_the_others_are_kept(encoder, senteval):
    asked = protocol("senteval")
    loaded = sts_tasks(["stsb-train", "stsb", "sts12"], senteval, protocol=asked)
    scores = loaded.records(EncoderUse(encoder), protocol=asked)
    (problem,) = scores.problems
    assert problem.task == "stsb-train"
    assert "fitted to the training split, so it has no score there" in problem.message
    assert "--no-regressor" in problem.message
    assert {(r.task, r.split) for r in scores.records} == {("stsb", "test"), ("sts12", "test")}


def test_mteb_scores_all_pairs_of_sick(encoder, senteval):
    splits = [load(TaskName("sickr", it), senteval).subsets[0] for it in ("train", "dev", "test")]
    cosines = np.concatenate(
        [
            pair_cosines(*([encoder.embed(s) for s in side] for side in (part.first, part.second)))
            for part in splits
        ]
    )
    gold = np.concatenate([part.gold for part in splits])
    records = evaluate(encoder, ["sickr", "stsb"], data_dir=senteval, protocol="mteb")
    found = {
        (r.task, r.split): r for r in records if (r.metric, r.aggregation) == ("spearman", "all")
    }
    assert set(found) == {("sickr", "all"), ("stsb", "test")}
    sick = found["sickr", "all"]
    assert sick.value == pytest.approx(METRICS["spearman"](cosines, gold), abs=1e-12)
    assert (sick.pairs, sick.protocol) == (len(gold), "mteb")
