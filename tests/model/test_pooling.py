import pytest
import torch

from contrasent.data.batch import pack
from contrasent.model.heads import POOLERS

SENTENCES = [[5, 6], [7, 8, 9, 10], [11]]
DEPTH = 4
FROM_THE_FRONT = {name: [4] for name in ("cls", "mean", "max", "last")}
FROM_THE_FRONT |= {"mean_top2": [3, 4], "mean_first_last": [1, 4], "mean_embed_last": [0, 4]}


@pytest.mark.parametrize("name", POOLERS)
def test_a_pooler_is_its_loop(name, rng):
    batch, states = pack(SENTENCES), [rng(7, 6) for _ in range(DEPTH + 1)]  # 0: the embeddings
    rows = []
    start = 0
    for sentence in SENTENCES:
        end = start + len(sentence)
        tokens = {"cls": [start], "last": [end - 1]}.get(name, range(start, end))
        row = torch.zeros(6)
        for layer in FROM_THE_FRONT[name]:
            for token in tokens:
                row += states[layer][token] / len(tokens) / len(FROM_THE_FRONT[name])
        if name == "max":
            row = torch.stack([max(states[4][t][d] for t in tokens) for d in range(6)])
        rows.append(row)
        start += len(sentence)
    given = {layer: states[layer] for layer in POOLERS[name].layers}
    torch.testing.assert_close(POOLERS[name](given, batch), torch.stack(rows))
