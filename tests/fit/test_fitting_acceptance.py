"""Whitening and flow on a published encoder and real sentences."""

import csv
from itertools import islice

import numpy as np
import pytest

from contrasent.fitting import FITTERS, open_fitting_text, save_fitted
from contrasent.model.encoder import SentenceEncoder

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@pytest.fixture
def text(shared, tmp_path):
    with (shared / "data/nli/nli_triplets.csv").open(newline="", encoding="utf-8") as file:
        rows = list(islice(csv.reader(file), 500))
    with (tmp_path / "nli.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return open_fitting_text([str(tmp_path / "nli.csv")])


@pytest.fixture
def encoder():
    return SentenceEncoder.load("all-MiniLM-L6-v2", device="cpu")


def rows_of(encoder, sentences):
    return encoder.encode(sentences, precision="fp32", normalize=False)


def test_whitened_embeddings_have_the_identity_as_covariance_there_too(encoder, text, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    fitted = FITTERS["whitening"].fit(encoder, text)
    # Three components of this encoder are the same for every sentence.
    assert fitted["transform"]["rank"] == encoder.width == 381
    rows = rows_of(encoder, list(text)).astype("f8")
    assert np.abs(np.cov(rows.T) - np.eye(381)).max() < 1e-4
    save_fitted(encoder, fitted, tmp_path / "saved")
    sentences = list(text)[:40]
    theirs = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(sentences)
    ours = SentenceEncoder.load(tmp_path / "saved", device="cpu").encode(
        sentences, precision="fp32"
    )
    assert np.abs(theirs - ours).max() <= 1e-5
