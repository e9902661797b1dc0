"""Operations counted from shapes, against a count by hand and against torch's own counter."""

import torch
from helpers.tiny_models import config_of, transformer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import Model, forward_flops, step_flops

TINY = Model(width=16, inner=24, depth=2)  # as tiny_models.SIZES


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
