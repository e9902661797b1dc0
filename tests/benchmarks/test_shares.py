"""Operators are told apart by their names, and their shares add up."""

import pytest

from benchmarks.shares import OUTSIDE, kind_of, kind_shares


@pytest.mark.parametrize(
    ("operator", "kind"),
    {
        "aten::mm": "matrix products",
        "aten::bmm": "attention products",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "attention products",
        "aten::native_dropout": "dropout",
        "aten::_to_copy": "casts and copies",
        "aten::_fused_adamw_": "optimiser",
        "aten::add_": "arithmetic",
        "autograd::engine::evaluate_function: MmBackward0": OUTSIDE,
        "aten::sort": "other",
    }.items(),
)
def test_operators_are_told_apart_by_their_names(operator, kind):
    assert kind_of(operator) == kind


def test_kinds_add_up_to_the_time_that_passed():
    shares = kind_shares([("aten::mm", 0.5), ("aten::addmm", 1.5), ("aten::add", 1.0)], 4.0)
    assert shares == {"matrix products": 0.5, "arithmetic": 0.25, OUTSIDE: 0.25}
    assert next(iter(shares)) == "matrix products"
    assert list(kind_shares([("aten::mm", 3.0)], 2.0)) == ["matrix products"]  # several threads
