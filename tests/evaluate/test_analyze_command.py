"""``contrasent analyze`` through its command function, with the encoder of words."""

import pytest

from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import measure, read_geometry
from contrasent.evaluation.sts_data import RatedPairs
from contrasent.report.figures import figure_kinds

FIGURES = [kind.name for kind in figure_kinds() if not kind.of_runs]


@pytest.fixture
def command(runner):
    return runner("analyze")


def test_the_table_says_what_was_measured_on_what(command, encoder, senteval):
    result = command("org/model", "--pairs", "stsb>3")
    assert result.exit_code == 0, result.output
    table, _, said = result.stdout.partition("\n\n")
    found = measure(EncoderUse(encoder), RatedPairs.read("stsb>3", senteval))
    values = [f"{found.value(name):.4f}" for name in ("alignment", "uniformity")]
    row = table.split("\n")[2].split()
    assert row[:3] == ["model", *values]
    assert row[-1] == f"{100 * found.value('spearman'):.2f}"
    positive = found.records[0].pairs
    assert f"STS-B all (train, dev and test): alignment over the {positive} of 24 pairs" in said
    assert f"over the {found.sentences} distinct sentences" in said
    assert "model: pooler mean, fp32, encoder org/model." in said


def test_figures_are_drawn_again_from_the_json_alone(command, tmp_path):
    json_file, first, again = tmp_path / "g.jsonl", tmp_path / "first", tmp_path / "again"
    options = ("--json", json_file, "--figures", first)
    result = command("a/one", "b/two", "--pairs", "stsb-dev>2", *options)
    assert result.exit_code == 0, result.output
    assert [found.encoder for found in read_geometry(json_file)] == ["a/one", "b/two"]
    names = sorted(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png"))
    assert sorted(path.name for path in first.iterdir()) == names
    assert all(str(first / name) in result.stderr for name in names)
    again_result = command("--from", json_file, "--figures", again)
    assert again_result.stdout == result.stdout
    for name in names:
        assert (again / name).read_bytes() == (first / name).read_bytes()
