"""Operations counted from shapes, against a count by hand and against torch's own counter."""

import pytest
import torch
from helpers.tiny_models import config_of, transformer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import Model, forward_flops, step_flops

TINY = Model(width=16, inner=24, depth=2)  # as tiny_models.SIZES


def by_hand(model, lengths, first_only):
    """Product by product, sentence by sentence."""
    width, inner = model.width, model.inner
    total = 0
    for layer in range(model.depth):
        cut = first_only and layer == model.depth - 1
        for length in lengths:
            queries = 1 if cut else length
            products = [
                (queries, width, width),  # query
                (length, width, width),  # key
                (length, width, width),  # value
                (queries, width, length),  # scores
                (queries, length, width),  # mix
                (queries, width, width),  # output
                (queries, width, inner),
                (queries, inner, width),
            ]
            total += sum(2 * m * k * n for m, k, n in products)
    return total


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("lengths", [[1], [5, 5], [3, 9, 4]])
def test_the_formula_is_the_count_by_hand(lengths, first_only):
    found = forward_flops(TINY, lengths, first_only=first_only)
    assert found == by_hand(TINY, lengths, first_only)
    assert step_flops(TINY, lengths, first_only=first_only) == 3 * found


def test_the_formula_is_what_torch_counts_where_nothing_is_padded():
    model = transformer(config_of("bert", 40), attn_implementation="eager", add_pooling_layer=False)
    ids, lengths = torch.arange(15).view(3, 5), [5, 5, 5]
    with FlopCounterMode(display=False) as counter:
        states = model(input_ids=ids).last_hidden_state
    assert counter.get_total_flops() == forward_flops(TINY, lengths, first_only=False)
    with counter:
        model(input_ids=ids).last_hidden_state.square().sum().backward()
    assert counter.get_total_flops() == step_flops(TINY, lengths, first_only=False)
    assert states.shape == (3, 5, 16)


def test_the_shape_is_read_from_the_folder(tmp_path):
    for kind in ("bert", "distilbert"):
        config_of(kind, 40).save_pretrained(tmp_path / kind)
        assert Model.of(tmp_path / kind) == TINY
