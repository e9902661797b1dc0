"""Sentences of the tiny encoder's words, enough of them to whiten its 16 dimensions."""

import numpy as np
import pytest
from helpers.tiny_models import WORDS

from contrasent.model.encoder import SentenceEncoder


def sentences(count=150, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(3, 12))) for _ in range(count)]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences()) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny_folder(tiny_bert, tmp_path_factory):
    """A saved encoder, so that no command has to be told its pooler."""
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean_first_last", head="none", device="cpu")
    encoder.save(folder, {"recipe": "of a test"})
    return folder
