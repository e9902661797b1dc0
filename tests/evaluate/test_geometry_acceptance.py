"""Geometry of a published encoder on STS-B against numpy and scipy, in float64."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import measure
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.model.encoder import SentenceEncoder

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


def test_all_minilm_on_the_dev_pairs_rated_above_4(shared, monkeypatch):
    pairs = RatedPairs.read("stsb-dev>4", shared / "data" / "senteval")
    encoder = SentenceEncoder.load("all-MiniLM-L6-v2", pooler="mean")
    rows = encoder.encode(pairs.sentences, precision="fp32")
    monkeypatch.setattr(encoder, "encode", lambda sentences, **_: rows[: len(sentences)])
    found = measure(EncoderUse(encoder), pairs)
    rows = rows.astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    close = unit[pairs.first[pairs.positive]] - unit[pairs.second[pairs.positive]]
    distances = pdist(unit, "sqeuclidean")
    assert (found.records[0].pairs, found.rated, found.sentences) == (208, 1500, 2909)
    assert found.value("alignment") == pytest.approx((close**2).sum(axis=1).mean(), rel=1e-5)
    assert found.value("uniformity") == pytest.approx(np.log(np.exp(-2 * distances).mean()), 1e-5)
    assert found.value("mean_cosine") == pytest.approx(1 - distances.mean() / 2, abs=1e-7)
    values = np.linalg.svd(unit, compute_uv=False)
    assert found.spectrum == pytest.approx(values / values[0], abs=1e-6)
    assert found.value("spearman") == pytest.approx(0.867, abs=0.001)
