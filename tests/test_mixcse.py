"""MixCSE: its loss in loops, and that mixtures have no gradient."""

import torch
from helpers import oracles

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.protocol import Encoded


def in_loops(first, second, temperature, share):
    """Cross-entropy with all mixtures as candidates; those of an own positive count e^0."""
    count, total = len(first), 0.0

    def weight(u, v, own):
        cosine = torch.zeros(()) if own else oracles.cosine(u, v)
        return torch.exp(cosine / temperature)

    def mixed(rows, i):
        return (share * rows[i] + (1 - share) * rows[(i + 1) % count]).detach()

    for i in range(count):
        rest = sum(weight(first[i], second[j], own=False) for j in range(count))
        for j in range(count):
            rest = rest + weight(first[i], mixed(second, j), own=(j + 1) % count == i)
            rest = rest + weight(mixed(first, i), second[j], own=(i + 1) % count == j)
        total = total - torch.log(weight(first[i], second[i], own=False) / rest)
    return total / count


def test_the_loss_and_its_gradient_are_those_of_the_loops(rng):
    pooled = rng(2, 4, 5).requires_grad_()
    settings = {"temperature": 0.5, "mix": 0.3}
    objective = objectives.build("mixcse", settings, width=5, data_views=1)
    batch = pack([[2, 5 + n, 3] for n in range(4)] * 2, 2)
    loss = objective(Encoded(pooled, {}), batch)["contrast"]
    expected = in_loops(*pooled, 0.5, 0.3)
    torch.testing.assert_close(loss, expected)
    gradients = (torch.autograd.grad(it, pooled)[0] for it in (loss, expected))
    torch.testing.assert_close(*gradients)
