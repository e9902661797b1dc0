"""Published InferSent weights, as hand-made files of the same form."""

import pickle

import numpy as np
import pytest
import torch
from helpers.command_line import refused, worked
from helpers.tiny_glove import MARKS, save_glove
from torch import nn

from contrasent.errors import CheckpointError
from contrasent.model.loading import load_encoder
from contrasent.model.word_encoder import read_infersent

TEXTS = ["a dog runs .", "the old man reads", "no stone"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def glove(tmp_path):
    return save_glove(tmp_path / "glove.txt")


@pytest.fixture
def lstm():
    torch.manual_seed(3)
    return nn.LSTM(6, 5, bidirectional=True)


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def weights(lstm, tmp_path, request):
    """A state dict, as torch saves it now, and as it did in 2017."""
    path = tmp_path / "infersent1.pkl"
    state = {f"enc_lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}
    torch.save(state, path, _use_new_zipfile_serialization=request.param)
    return path


def published(lstm, store, text, marks=MARKS):
    """Conneau et al.'s encoder of one sentence, without padding."""
    rows = store.rows([*marks, *text.split()])
    words = [rows[word] for word in (marks[0], *text.split(), marks[1])]
    with torch.no_grad():
        outputs, _ = lstm(torch.from_numpy(store.vectors[words]).unsqueeze(1))
    return outputs.squeeze(1).amax(0).numpy()


def test_a_sentence_gets_the_vector_of_the_published_encoder(weights, lstm, glove):
    encoder = read_infersent(weights, glove, 1)
    store = encoder.tokenizer.store
    expected = [published(lstm, store, text) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)


def test_the_command_writes_an_encoder(weights, lstm, glove, tmp_path):
    made = worked("import", "infersent", weights, glove, "--output", tmp_path / "out")
    assert made.out == f"{tmp_path / 'out'}: 10 dimensions, over glove.txt\n"
    encoder = load_encoder(tmp_path / "out")
    expected = [published(lstm, encoder.tokenizer.store, text) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    again = refused("import", "infersent", weights, glove, "--output", tmp_path / "out")
    assert "name another folder with --output, or remove it" in again


def test_version_2_has_marks_of_its_own(weights, lstm, glove, tmp_path):
    with pytest.raises(CheckpointError, match=r"glove\.txt lack a word of the marks <p>, </p>"):
        read_infersent(weights, glove, 2)
    other = save_glove(tmp_path / "crawl.vec", ("<p>", "</p>", *MARKS))
    encoder = read_infersent(weights, other, 2)
    expected = published(lstm, encoder.tokenizer.store, TEXTS[0], ("<p>", "</p>"))
    np.testing.assert_allclose(encoder.encode(TEXTS[:1])[0], expected, atol=1e-6)


class Malicious:
    """What a pickle may hold: a call that is made while it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_pickle_with_a_call_in_it_is_refused_and_not_run(form, glove, tmp_path):
    path, trace = tmp_path / "infersent1.pkl", tmp_path / "was-run"
    state = {"enc_lstm.weight_hh_l0": Malicious(trace)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(state))
    else:
        torch.save(state, path)
    message = refused("import", "infersent", path, glove, "--output", tmp_path / "out")
    assert message.startswith(f"{path} cannot be read as torch tensors and nothing else (")
    assert message.endswith("nothing in it was run")
    assert not trace.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"enc_lstm.weight_hh_l0": None}, "holds no enc_lstm.weight_hh_l0, so it is no InferSent"),
        ({"enc_lstm.bias_ih_l0_reverse": None}, "has nothing for bias_ih_l0_reverse"),
        (
            {"enc_lstm.weight_ih_l0": torch.zeros(20, 7)},
            r"has \[20, 7\] for weight_ih_l0, where an LSTM of 5 dimensions for each direction "
            r"over vectors of 6 needs \[20, 6\]",
        ),
        ({"enc_lstm.bias_hh_l0": torch.full((20,), torch.nan)}, "bias_hh_l0 has a NaN"),
    ],
    ids=["not-infersent", "missing", "shape", "nan"],
)
def test_weights_that_do_not_fit_are_refused(change, said, lstm, glove, tmp_path):
    path = tmp_path / "infersent1.pkl"
    state = {f"enc_lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}
    state = {name: t for name, t in {**state, **change}.items() if t is not None}
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=said):
        read_infersent(path, glove, 1)


def test_a_missing_file_is_named(glove, tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no file .*infersent1\.pkl"):
        read_infersent(tmp_path / "infersent1.pkl", glove, 1)
