"""Real training from a small masked language model, against what the reference code reaches.

The reference reached 70.9 and 71.0 (unsupervised, two seeds) and 74.7 (supervised) from this
start, which has 67.2, on this data: mean of the seven STS test sets, Spearman, all, x 100. One seed
of ours varies by some tenths; three seeds must reach 70.7 and 74.5 in the mean, one must not be far
below. Half of the unsupervised steps reach 70.0.
"""

import pytest

from contrasent import evaluate
from contrasent.recipe import load_recipe
from contrasent.training.run import train

WIKI, NLI = "wiki/wiki1m_for_simcse.head11914.txt", "nli/nli_triplets.csv"


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("recipe", "text", "settings", "least"),
    [
        pytest.param(
            *("unsup-simcse-bert-base", WIKI, {"train.max_steps": 93}, 69.6),
            id="half",
            marks=pytest.mark.acceptance,
        ),
        pytest.param(
            *("unsup-simcse-bert-base", WIKI, {}, 70.4), id="unsup", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            *("sup-simcse", NLI, {"encoder.pooler": "cls"}, 74.2),
            id="sup",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_training_reaches_the_reference(recipe, text, settings, least, shared, tmp_path):
    data_dir = shared / "data" / "senteval"
    common = {
        "encoder.name": str(shared / "data" / "weights" / "minilm-mlm"),
        "data.file": str(shared / "data" / text),
        "evaluation.data_dir": str(data_dir),
        "evaluation.final": "none",
    }
    result = train(load_recipe(recipe, {**common, **settings}), tmp_path / "run")
    records = evaluate(str(result.best), ["sts"], data_dir=data_dir)
    values = [r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")]
    assert len(values) == 7
    assert sum(values) / 7 * 100 >= least
