"""Real training from a small masked language model, against what the reference code reaches.

The reference reached 70.9 and 71.0 (unsupervised, two seeds) and 74.7 (supervised) from this
start on this data: mean of the seven STS test sets, Spearman, all, x 100. One seed of ours varies
by some tenths; three seeds must reach 70.7 and 74.5 in the mean, one must not be far below.
"""

import pytest

from contrasent.recipe import load_recipe
from contrasent.training.run import train

UNSUPERVISED = "unsup-simcse-bert-base", "wiki/wiki1m_for_simcse.head11914.txt", {}, 70.4
SUPERVISED = "sup-simcse", "nli/nli_triplets.csv", {"encoder.pooler": "cls"}, 74.2


def mean_of_tasks(records):
    values = [r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")]
    assert len(values) == 7
    return sum(values) / 7 * 100


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("recipe", "text", "settings", "least"),
    [
        pytest.param(*UNSUPERVISED, id="unsup", marks=pytest.mark.acceptance),
        pytest.param(*SUPERVISED, id="sup", marks=pytest.mark.exhaustive),
    ],
)
def test_one_epoch_reaches_what_the_reference_reaches(
    recipe, text, settings, least, shared, tmp_path
):
    loaded = load_recipe(
        recipe,
        {
            "encoder.name": str(shared / "data" / "weights" / "minilm-mlm"),
            "data.file": str(shared / "data" / text),
            "evaluation.data_dir": str(shared / "data" / "senteval"),
            "evaluation.final": "sts",
            **settings,
        },
    )
    result = train(loaded, tmp_path / "run")
    before, after = mean_of_tasks(result.before), mean_of_tasks(result.after)
    assert before == pytest.approx(67.2, abs=0.1)
    assert after >= least
