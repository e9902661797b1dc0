"""Fifty sentences, and their embeddings by an encoder without a model."""

import numpy as np
import pytest
from helpers.dummy_encoder import DummyEncoder

from contrasent.encode.shards import open_sentences, write_embeddings
from contrasent.options import Sharding


@pytest.fixture
def texts():
    return [f"sentence {i} " + "word " * (i % 7) + "end" for i in range(50)]


@pytest.fixture
def expected(texts):
    return np.stack([DummyEncoder().vector(text) for text in texts])


@pytest.fixture
def source(tmp_path, texts):
    path = tmp_path / "in" / "texts.txt"
    path.parent.mkdir()
    path.write_text("\n".join(texts) + "\n")
    return path


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "rows.npy"


@pytest.fixture
def write(source, output):
    """Write the embeddings in shards of six to a file beside ``output``."""

    def run(encoder=None, *, name=output.name, overwrite=False, worker=None, **settings):
        with open_sentences(str(source)) as sentences:
            how = Sharding(**{"shard_size": 6, **settings})
            given = {"overwrite": overwrite, "worker": worker}
            path = output.with_name(name)
            return write_embeddings(encoder or DummyEncoder(), sentences, path, how, **given)

    return run
