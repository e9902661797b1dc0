import sys

import pytest
from helpers.command_line import refused

from contrasent.errors import MissingExtraError
from contrasent.evaluation.mteb_encoder import MtebEncoder, mteb_tasks


def test_without_mteb_the_extra_is_named(monkeypatch, tiny_encoder):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[mteb\]'"):
        MtebEncoder(tiny_encoder)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[mteb\]'"):
        mteb_tasks(["STSBenchmark"])
    assert "[mteb]" in refused("mteb", "nothing", "--tasks", "STSBenchmark")
