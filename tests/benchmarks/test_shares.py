"""Operators are told apart by their names, and their shares add up."""

import pytest

from benchmarks.shares import OUTSIDE, kind_of, kind_shares


@pytest.mark.parametrize(
    ("operator", "kind"),
    {
        "aten::mm": "matrix products",
        "aten::addmm": "matrix products",
        "mkldnn::_linear_pointwise": "matrix products",
        "aten::bmm": "attention products",
        "aten::baddbmm": "attention products",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "attention products",
        "aten::_softmax_backward_data": "softmax",
        "aten::native_dropout": "dropout",
        "aten::random_": "dropout",
        "aten::_to_copy": "casts and copies",
        "aten::cat": "casts and copies",
        "aten::index_select": "lookups and gathers",
        "aten::_fused_adamw_": "optimiser",
        "Optimizer.step#AdamW.step": "optimiser",
        "aten::zero_": "zero fills",
        "aten::gelu_backward": "activation",
        "aten::native_layer_norm": "normalisation",
        "aten::add_": "arithmetic",
        "autograd::engine::evaluate_function: MmBackward0": OUTSIDE,
        "_Attention": OUTSIDE,
        "aten::sort": "other",
    }.items(),
)
def test_operators_are_told_apart_by_their_names(operator, kind):
    assert kind_of(operator) == kind


def test_kinds_add_up_to_the_time_that_passed():
    shares = kind_shares([("aten::mm", 0.5), ("aten::addmm", 1.5), ("aten::add", 1.0)], 4.0)
    assert shares == {"matrix products": 0.5, "arithmetic": 0.25, OUTSIDE: 0.25}
    assert next(iter(shares)) == "matrix products"


def test_operators_on_several_threads_leave_nothing_outside():
    assert list(kind_shares([("aten::mm", 3.0)], 2.0)) == ["matrix products"]
