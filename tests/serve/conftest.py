import pytest

from contrasent.model.encoder import SentenceEncoder


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
