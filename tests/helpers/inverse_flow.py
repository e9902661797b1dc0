"""The inverse of a flow, made of its parts: the package never maps back."""

import torch


def inverse_actnorm(norm, rows):
    return rows * torch.exp(-3 * norm.log_scale) - norm.shift


def inverse_flow(flow, rows):
    """The embeddings that ``flow`` maps to ``rows``."""
    done, rest = [], rows
    for _ in range(flow.levels - 1):
        second, rest = rest.tensor_split([rest.shape[1] // 2], dim=1)
        done.append(second)
    for level in reversed(range(flow.levels)):
        for step in reversed(flow.steps[level]):
            first, second = rest.chunk(2, dim=1)
            coupled = torch.cat([first, second - step.coupling.shift_of_second(first)], dim=1)
            rest = inverse_actnorm(step.norm, coupled.flip(1))
        if level:
            rest = torch.cat([rest, done.pop()], dim=1)
    return rest
