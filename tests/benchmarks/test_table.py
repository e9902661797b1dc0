"""Results as JSON and as tables."""

import re
from pathlib import Path

import pytest
import torch
from helpers.tiny_models import config_of, transformer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import table
from benchmarks.all import COMMANDS, GPU
from benchmarks.flops import Model, forward_flops, step_flops
from benchmarks.results import Entry, Result, read, write
from contrasent.errors import DataError

DOCS = Path(__file__).parents[2] / "docs"


def made():
    def rounds(*seconds):
        return [{"sentences": 100, "seconds": taken} for taken in seconds]

    ours = Entry("ours", rounds(0.5, 0.25, 0.5), kinds={"matrix products": 0.5, "softmax": 0.2})
    ours.kinds["attention products"] = 0.1
    ours.facts, ours.memory = {"bits": 16, "lowest cosine": 0.99987}, 512_000_000
    return Result(
        title="encoding",
        setting={"encoder": "m"},
        references=["default", "fast"],
        entries=[ours, Entry("default", rounds(2, 2, 2)), Entry("fast", rounds(1, 1, 0.5))],
        flops=[2e9, 2e9, 2e9],
        peaks=[{"bf16": 8e9, "fp32": 2e9}] * 3,
        left_out={"other": "No module named 'other'"},
    )


def test_a_table_has_the_columns_that_have_something():
    assert table.table(made()) == (
        "|  | sentences/s | slowest - fastest | to default | to fast | of the peak "
        "| in matrix products | lowest cosine | peak memory, MB |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| ours | 200 | 200 - 400 | 4.00 | 2.00 | 0.50 | 0.60 | 0.99987 | 512 |\n"
        "| default | 50 | 50 - 50 | 1.00 | 0.50 |  |  |  |  |\n"
        "| fast | 100 | 100 - 200 | 2.00 | 1.00 |  |  |  |  |\n"
    )
    assert table.setting_line(made()) == (
        "encoder m; peak bf16 8 GFLOP/s; peak fp32 2 GFLOP/s; "
        "without other (No module named 'other')"
    )


def test_a_page_gets_new_tables_and_keeps_its_words(tmp_path, capsys):
    write(made(), tmp_path / "a.json")
    page = tmp_path / "page.md"
    page.write_text("words\n<!-- table: a.json -->\nold\n<!-- end of table -->\nmore\n")
    for _ in range(2):
        table.main(["--update", str(page)])
        text = page.read_text(encoding="utf-8")
        assert text.startswith("words\n<!-- table: a.json -->\n|  | sentences/s")
        assert text.endswith("<!-- end of table -->\nmore\n")
        assert "old" not in text
    assert read(tmp_path / "a.json") == made()
    table.main([str(tmp_path / "a.json")])
    assert table.table(made()) in capsys.readouterr().out
    (tmp_path / "b.json").write_text('{"title": "x"}', encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.json is not a result"):
        read(tmp_path / "b.json")


def test_the_page_of_the_project_shows_its_results():
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert table.updated(page, DOCS) == page
    results = {path.stem for path in (DOCS / "results").glob("*.json")}
    assert {*re.findall(r"<!-- table: results/(\S+)\.json -->", page)} == results
    assert results <= {*COMMANDS, *GPU}


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
