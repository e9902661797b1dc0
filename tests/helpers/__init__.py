"""Material that test modules share: no test module imports from another."""

import pytest

pytest.register_assert_rewrite(
    "helpers.command_line", "helpers.dummy_encoder", "helpers.html_reader", "helpers.oracles"
)
