"""Benchmarks from their options to their tables, in this process, with a tiny encoder."""

import json
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.tiny_models import config_of, save_tiny_masked_lm, transformer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import __main__ as benchmarks
from benchmarks import authors, results
from benchmarks.flops import Model, forward_flops, step_flops
from benchmarks.jobs import padded
from benchmarks.material import Material, random_masked_lm
from benchmarks.races import race_of
from benchmarks.results import Entry, Result, read, write
from benchmarks.worker import Worker, answer
from contrasent.errors import ConfigError, DataError
from contrasent.model.masked_lm import MaskedLm
from contrasent.reproduce import document, read_records, verdicts

MINE = {"contrasent bf16", "contrasent fp32"}


class Here:
    """A worker in this process."""

    def __init__(self, _python):
        self.worker = Worker()

    def ask(self, request):
        return json.loads(json.dumps(answer(self.worker, dict(request))))

    def close(self):
        self.worker.job = None


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    animals, verbs = ("dog", "cat", "bird", "horse"), ("runs", "sits", "eats", "sees", "reads")
    path.write_text("".join(f"the {a} {v} .\n" for a in animals for v in verbs), encoding="utf-8")
    return path


@pytest.fixture
def raced(tiny_encoder, text, tmp_path, capsys):
    """Run a benchmark; the result that it wrote, and the table that it printed."""
    tiny_encoder.save(tmp_path / "encoder")

    def run(name, *words, code=0):
        fixed = ["--encoder", str(tmp_path / "encoder"), "--data", str(text), "--rounds", "2"]
        words = [name, "--results", str(tmp_path), *fixed, *words]
        assert benchmarks.main(words, start=Here) == code
        result = read(tmp_path / f"{name}.json")
        printed = capsys.readouterr().out
        assert results.table(result) in printed
        assert result.machine["processor"] and result.machine["date"]
        return result, printed

    return run


def test_training(raced):
    size = ["--batch-size", "2", "--steps", "2", "--only", "contrasent*,*padded*"]
    result, table = raced("train-cls", *size)
    names = {entry.name for entry in result.entries}
    assert names == MINE | {"transformers padded bf16", "transformers padded fp32"}
    for entry in result.entries:
        assert [values["sentences"] for values in entry.rounds] == [4, 4]
        assert 0.9 < sum(entry.kinds.values()) <= 1.01
        assert torch.__version__.split("+")[0] == entry.versions["torch"].split("+")[0]
    # 4 sentences of 6 tokens ([CLS] the dog runs . [SEP]), two views each, in every round.
    assert result.flops[0] == result.flops[1] > 0
    assert all(peak["bf16"] > 0 < peak["fp32"] for peak in result.peaks)
    cells = re.search(r"\| contrasent fp32 \|.*", table)[0].split(" | ")
    assert 0 < float(cells[-2]) < 1  # in matrix products


def test_what_objectives_cost(raced, tmp_path):
    folder = str(save_tiny_masked_lm(tmp_path / "m"))
    size = ["--batch-size", "2", "--steps", "1", "--encoder", folder]
    result, table = raced("objectives", *size)
    own = {"encoder", "backward", "update"}
    more = {"generator", "vocabulary", "discriminator"}
    assert {entry.name: set(entry.parts) for entry in result.entries} == {
        "simcse": own,
        "simcse, supervised": own,
        "simcse, mlm_weight 0.1": own,
        "diffcse": own | more,
        "diffcse, as the authors' code": own | more,
    }
    for entry in result.entries:
        assert 0.3 < sum(entry.parts.values()) <= 1
    assert "| times simcse | encoder, ms |" in table


def test_encoding(raced):
    only = ["--only", "contrasent auto,contrasent fp32"]
    result, table = raced("encode", "--sentences", "20", *only)
    assert [entry.name for entry in result.entries] == ["contrasent auto", "contrasent fp32"]
    assert [values["sentences"] for values in result.entries[0].rounds] == [20, 20]
    assert all(0 < values["tokenising"] < 9 for values in result.entries[0].rounds)
    assert result.entries[1].facts["lowest cosine"] == pytest.approx(1)
    assert result.entries[0].facts["lowest cosine"] > 0.99
    assert "| tokenising alone | lowest cosine |" in table


def test_latency_and_memory(raced):
    result, _ = raced("latency", "--only", "contrasent auto*", "--calls", "3")
    assert [len(values["calls"]) for values in result.entries[0].rounds] == [3, 3]
    result, table = raced("memory", "--only", "contrasent", "--sizes", "10,20")
    titles = ["10, matrix", "10, index", "20, matrix", "20, index"]
    assert [entry.part for entry in result.entries] == titles
    assert [entry.rounds[1]["sentences"] for entry in result.entries] == [10, 10, 20, 20]
    assert all(entry.memory for entry in result.entries)
    assert "| contrasent, 20, index |" in table


def test_search(raced):
    size = ["--rows", "900", "--sentences", "40", "--calls", "4", "--only", "flat,hnsw"]
    result, table = raced("search", *size)
    alone, together = result.entries[2:4]
    assert (alone.title, together.title) == ("hnsw", "hnsw, in one call")
    assert alone.facts["recall@10"] == together.facts["recall@10"] >= 0.9
    assert alone.facts["build memory, MB"] > 1 and "| build, s |" in table
    assert len(alone.rounds[0]["calls"]) == 4 and "calls" not in together.rounds[0]


def test_a_server_under_load(raced):
    loads = ["--loads", "2,zipf", "--seconds", "1", "--rate", "20", "--rounds", "1"]
    result, table = raced("serve", *loads, "--only", "contrasent,infinity*")
    clients, zipf = result.entries
    assert (clients.title, zipf.title) == ("contrasent, 2 clients", "contrasent, zipf")
    assert clients.memory > 1e8 and clients.rates[0] > 0 and "| p99, ms |" in table
    assert zipf.rounds[0]["sentences"] == 20 and zipf.rounds[0]["failed"] == 0
    assert all("infinity_emb" in reason for reason in result.left_out.values())


def test_a_contestant_that_fails_is_named_and_the_others_go_on(raced, monkeypatch):
    monkeypatch.setattr(padded.Train, "loss", Mock(side_effect=ValueError("out of order")))
    size = ["--batch-size", "2", "--steps", "1", "--only", "*ent fp32,*padded fp32"]
    result, table = raced("train-cls", *size, code=1)
    assert result.failed == {"transformers padded fp32": "ValueError: out of order"}
    assert [entry.name for entry in result.entries] == ["contrasent fp32"]
    assert "transformers padded fp32 failed (ValueError: out of order)" in table
    assert benchmarks.main(["encode", "--only", "nobody"], start=Here) == 2


def test_every_benchmark_has_contestants(tiny_encoder, text, tmp_path):
    tiny_encoder.save(tmp_path / "encoder")
    for name in benchmarks.NAMES:
        place = tmp_path / name
        place.mkdir()
        options = benchmarks.options_of(name, {"rows": 5, "sizes": "2", "sentences": 9, "steps": 1})
        race = race_of(options, Material(tmp_path / "encoder", str(text), place))
        assert {spec.name for spec in race.specs} >= set(race.references)
        assert len(race.specs) > 1
    with pytest.raises(ConfigError, match="no-such"):
        benchmarks.options_of("no-such-benchmark", {})


@pytest.mark.exhaustive
def test_everything_for_a_gpu_is_tried_in_one_call(text):
    script = Path(benchmarks.__file__).with_name("gpu.sh")
    said = subprocess.run(
        [script, "--tiny", text], capture_output=True, text=True, timeout=1800, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert re.search("sentence-transformers (fp32|bf16)", said.stdout)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("name", "size"), [("bert-base-random", (768, 12)), ("minilm-random", (384, 6))]
)
def test_a_random_encoder_is_a_masked_language_model_of_its_shape(name, size, tmp_path):
    masked_lm = MaskedLm.load(random_masked_lm(name, tmp_path / name))
    assert (masked_lm.backbone.width, masked_lm.backbone.depth) == size
    assert masked_lm.head.decoder.weight.shape == (30522, size[0])


DOCS = Path(__file__).parents[2] / "docs"


def made():
    def rounds(*seconds):
        return [{"sentences": 100, "seconds": taken} for taken in seconds]

    ours = Entry("ours", rounds(0.5, 0.25, 0.5), kinds={"matrix products": 0.5, "softmax": 0.2})
    ours.kinds["aten::bmm"] = 0.1
    ours.facts, ours.memory = {"bits": 16, "lowest cosine": 0.99987}, 512_000_000
    return Result(
        title="encoding",
        setting={"encoder": "m"},
        references=["default", "fast"],
        entries=[ours, Entry("default", rounds(2, 2, 2)), Entry("fast", rounds(1, 1, 0.5))],
        flops=[2e9, 2e9, 2e9],
        peaks=[{"bf16": 8e9, "fp32": 2e9}] * 3,
        left_out={"other": "No module named 'other'"},
        failed={"worse": "out of memory"},
        machine={"processor": "P", "accelerator": None, "date": "2026-11-26"},
    )


def test_a_table_has_the_columns_that_have_something():
    assert results.table(made()) == (
        "|  | sentences/s | slowest - fastest | to default | to fast | of the peak "
        "| in matrix products | lowest cosine | peak memory, MB |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| ours | 200 | 200 - 400 | 4.00 | 2.00 | 0.50 | 0.60 | 0.99987 | 512 |\n"
        "| default | 50 | 50 - 50 | 1.00 | 0.50 |  |  |  |  |\n"
        "| fast | 100 | 100 - 200 | 2.00 | 1.00 |  |  |  |  |\n"
    )
    assert results.setting_line(made()) == (
        "encoder m; peak bf16 8 GFLOP/s; peak fp32 2 GFLOP/s; "
        "without other (No module named 'other'); worse failed (out of memory); P; 2026-11-26"
    )


def test_a_page_gets_new_tables_and_keeps_its_words(tmp_path, capsys):
    write(made(), tmp_path / "a.json")
    page = tmp_path / "page.md"
    page.write_text("words\n<!-- table: a.json -->\nold\n<!-- end of table -->\nmore\n")
    for _ in range(2):
        assert benchmarks.main([str(tmp_path / "a.json"), "--page", str(page)]) == 0
        text = page.read_text(encoding="utf-8")
        assert text.startswith("words\n<!-- table: a.json -->\n|  | sentences/s")
        assert text.endswith("<!-- end of table -->\nmore\n")
        assert "old" not in text
    assert read(tmp_path / "a.json") == made()
    assert results.table(made()) in capsys.readouterr().out
    (tmp_path / "b.json").write_text('{"title": "x"}', encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.json is not a result"):
        read(tmp_path / "b.json")


def test_the_page_of_the_project_shows_its_results():
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert results.updated(page, DOCS) == page
    saved = {path.stem for path in (DOCS / "results").glob("*.json")}
    assert {*re.findall(r"<!-- table: results/(\S+)\.json -->", page)} == saved
    assert saved <= {*benchmarks.NAMES}


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


THEIRS = """
from types import SimpleNamespace
from torch.nn import Linear, functional
from transformers.file_utils import add_start_docstrings
from transformers.models.bert.modeling_bert import BertModel, BertPreTrainedModel

class BertForCL(BertPreTrainedModel):
    def __init__(self, config, model_args):
        super().__init__(config)
        self.bert, self.temp = BertModel(config, add_pooling_layer=False), model_args.temp
        self.sim = Linear(config.hidden_size, 2)
        self.init_weights()

    def forward(self, input_ids, attention_mask, **_):
        ids, mask = (it.flatten(0, 1) for it in (input_ids, attention_mask))
        first = functional.normalize(self.bert(ids, mask).last_hidden_state[:, 0], dim=-1)
        one, other = first.view(*input_ids.shape[:2], -1).unbind(1)
        scores = one @ other.t() / self.temp
        return SimpleNamespace(loss=functional.cross_entropy(scores, scores.argmax(1) * 0 + 1))
"""


def test_the_authors_code_is_trained_and_told_beside_ours(tmp_path, capsys):
    (tmp_path / "simcse").mkdir()
    (tmp_path / "simcse" / "models.py").write_text(THEIRS)
    output, checkout = tmp_path / "out", ("--simcse", tmp_path, "--diffcse", tmp_path)
    words = (*checkout, "--output", output, "--scale", "smoke", "--seeds", 1, "--rows")
    authors.main([*map(str, words), "unsup SimCSE"])
    table = capsys.readouterr().out.partition("# Gao")[2]
    assert "| unsup SimCSE by the authors' code |" in table
    recorded = read_records(output)["simcse/authors"]
    ours, theirs = (row.cells["Avg"].results[0][0] for row in recorded.rows)
    assert document(recorded).strip() == f"# Gao{table}".strip()
    moved = [recorded.examples(it)["stsb"] for it in (ours, theirs)]
    assert np.abs(moved[0] - moved[1]).max() > 0
    assert verdicts([recorded])[0].number == "A1"
