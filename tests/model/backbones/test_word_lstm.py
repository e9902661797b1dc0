"""The LSTM over words: against its equations, torch's padded form, and other company."""

import pytest
import torch
from helpers.tiny_glove import save_glove

from contrasent.data.batch import pack
from contrasent.data.word_vectors import open_words
from contrasent.model.backbones.word_lstm import WordLstm

SENTENCES = [[3, 1, 4], [1], [5, 9, 2, 6, 5], [3, 5], [8, 9, 7, 9, 3], [2]]


@pytest.fixture
def backbone(tmp_path):
    torch.manual_seed(0)
    return WordLstm(open_words(save_glove(tmp_path / "glove.txt")), 4)


def one_direction(lstm, words, suffix):
    """Hochreiter and Schmidhuber's cell with forget gates, word by word; gates i, f, g, o."""
    take = {n: getattr(lstm, f"{n}_l0{suffix}") for n in ("weight_ih", "weight_hh", "bias_ih")}
    bias = take["bias_ih"] + getattr(lstm, f"bias_hh_l0{suffix}")
    h, c, found = torch.zeros(4), torch.zeros(4), []
    for word in words:
        gates = take["weight_ih"] @ word + take["weight_hh"] @ h + bias
        i, f, g, o = gates[:4], gates[4:8], gates[8:12], gates[12:]
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        found.append(h)
    return torch.stack(found)


def test_the_states_are_those_of_the_equations(backbone):
    states = backbone(pack(SENTENCES), (0, 1, -1))
    vectors = [torch.from_numpy(backbone.store.vectors[sentence]) for sentence in SENTENCES]
    torch.testing.assert_close(states[0], torch.cat(vectors), rtol=0, atol=0)
    expected = []
    for words in vectors:
        forwards = one_direction(backbone.lstm, words, "")
        backwards = one_direction(backbone.lstm, words.flip(0), "_reverse").flip(0)
        expected.append(torch.cat([forwards, backwards], dim=1))
    torch.testing.assert_close(states[1], torch.cat(expected))
    assert states[-1] is states[1]
