"""IS-BERT: its formula in loops, its convolutions, and the folder with them."""

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.tiny_models import SENTENCES

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import Convolutions, MlpHead

ROWS = [[2, 10, 11, 3], [5], [2, 20, 21, 22, 30, 31, 3], [2, 3]]


@pytest.fixture
def encoder(tiny_bert):
    """With convolutions of widths 1, 3 and 5, of 4 channels each."""
    made = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    torch.manual_seed(0)
    made.convolutions = Convolutions(16, [1, 3, 5], 4)
    return made


def test_a_step_is_computed_as_the_paper_says(encoder):
    objective = objectives.build("is_bert", {}, width=12, data_views=1, encoder=encoder)
    batch, applied, local = pack(ROWS), torch.nn.functional.conv1d, []
    for row in ROWS:  # alone, with zeros beyond its ends
        states = encoder.backbone.model(torch.tensor([row])).last_hidden_state[0].T
        convs = encoder.convolutions.convs
        parts = [applied(states, it.weight, it.bias, padding="same") for it in convs]
        local.append(torch.cat(parts).T)
    means = torch.stack([one.mean(0) for one in local])
    encoded = encoder(batch, objective.layers)
    torch.testing.assert_close(encoded.pooled[0], means, rtol=1e-4, atol=1e-5)
    expected, right = oracles.jensen_shannon(torch.cat(local), means, batch.lengths.tolist())
    terms = objective(encoded, batch)
    torch.testing.assert_close(terms["information"], expected, rtol=1e-4, atol=1e-5)
    assert terms.measures["token_accuracy"].item() == pytest.approx(right)
    terms["information"].backward()
    assert all(p.grad.abs().max() > 0 for p in encoder.parameters())


@pytest.mark.parametrize("head", [None, 5])
def test_the_folder_is_read_by_sentence_transformers_and_by_us(encoder, head, tmp_path):
    """Theirs convolves the states of padding too, so sentences go one at a time."""
    st = pytest.importorskip("sentence_transformers")
    encoder.head = MlpHead(12, head) if head else None
    encoder.save(tmp_path / "saved")
    theirs = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    expected = theirs.encode(SENTENCES, batch_size=1, show_progress_bar=False)
    found = encoder.encode(SENTENCES, precision="fp32")
    assert found.shape == (len(SENTENCES), head or 12)
    assert np.abs(found - expected).max() <= 1e-6
    again = SentenceEncoder.load(tmp_path / "saved", device="cpu")
    assert (again.convolutions.widths, again.convolutions.channels) == ((1, 3, 5), 4)
    assert (again.encode(SENTENCES, precision="fp32") == found).all()
    assert again.fingerprint() == encoder.fingerprint()
    (one,) = encoder.encode(SENTENCES[:1], precision="fp32")
    assert np.abs(one - found[0]).max() <= 1e-6


def test_a_folder_of_sentence_transformers_is_read(tiny_bert, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    torch.manual_seed(0)
    parts = [models.Transformer(str(tiny_bert)), models.CNN(16, 3, [1, 7]), models.Pooling(6)]
    model = st.SentenceTransformer(modules=parts, device="cpu")
    model.save(str(tmp_path / "theirs"))
    expected = model.encode(SENTENCES, batch_size=1, show_progress_bar=False)
    encoder = SentenceEncoder.load(tmp_path / "theirs", device="cpu")
    found = encoder.encode(SENTENCES, precision="fp32")
    assert np.abs(found - expected).max() <= 1e-6
