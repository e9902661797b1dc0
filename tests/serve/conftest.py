import pytest
from helpers.tiny_models import SENTENCES

from contrasent.model.encoder import SentenceEncoder


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")


@pytest.fixture(scope="module")
def expected(encoder):
    return encoder.encode(SENTENCES, normalize=True, precision="fp32")
