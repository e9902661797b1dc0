"""Benchmarks from their options to their tables, in this process, with a tiny encoder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.tiny_models import config_of, save_tiny_masked_lm, transformer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import all as all_of_them
from benchmarks import encode, latency, memory, objectives, race, table, train, transfer
from benchmarks.all import COMMANDS, GPU
from benchmarks.flops import Model, forward_flops, step_flops
from benchmarks.material import RANDOM_BASE, RANDOM_MINILM, random_masked_lm
from benchmarks.remote import Here
from benchmarks.results import Entry, Result, read, write
from contrasent.errors import DataError
from contrasent.model.masked_lm import MaskedLm

MINE = {"contrasent bf16", "contrasent fp32"}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    animals, verbs = ("dog", "cat", "bird", "horse"), ("runs", "sits", "eats", "sees", "reads")
    path.write_text("".join(f"the {a} {v} .\n" for a in animals for v in verbs), encoding="utf-8")
    return path


@pytest.fixture
def words(tiny_encoder, text, tmp_path):
    tiny_encoder.save(tmp_path / "encoder")
    return ["--encoder", str(tmp_path / "encoder"), "--data", str(text), "--rounds", "2"]


def test_training(words, tmp_path, capsys):
    path = tmp_path / "train.json"
    peer = ["--peer", "transformers padded"]
    size = ["--batch-size", "2", "--steps", "2"]
    result = train.main([*words, *peer, *size, "--json", str(path)], start=Here)
    names = {entry.name for entry in result.entries}
    assert names == MINE | {"transformers padded bf16", "transformers padded fp32"}
    assert result.references == ["transformers padded fp32", "transformers padded bf16"]
    for entry in result.entries:
        assert [found["sentences"] for found in entry.rounds] == [4, 4]
        assert sum(entry.kinds.values()) >= 0.99
        assert entry.kinds["matrix products"] > 0
    # 4 sentences of 6 tokens ([CLS] the dog runs . [SEP]), two views each, in every round.
    assert result.flops[0] == result.flops[1] > 0
    assert all(peak["bf16"] >= peak["bf16_mix"] > 0 for peak in result.peaks)
    assert read(path) == result
    assert "| contrasent bf16 |" in capsys.readouterr().out


def test_what_objectives_cost(text, tmp_path, capsys):
    folder, generator = (save_tiny_masked_lm(tmp_path / name) for name in ("m", "g"))
    given = ["--encoder", str(folder), "--data", str(text), "--rounds", "1"]
    size = ["--batch-size", "2", "--steps", "2", "--generator", str(generator)]
    path = tmp_path / "objectives.json"
    result = objectives.main([*given, *size, "--json", str(path)], start=Here)
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
        assert [found["sentences"] for found in entry.rounds] == [4]
        assert 0.3 < sum(entry.parts.values()) <= 1
    assert read(path) == result
    assert "| times simcse | encoder, ms |" in capsys.readouterr().out


def test_encoding(words, capsys):
    more = ["--peer", "none", "--engine", "torch", "--sentences", "20"]
    result = encode.main([*words, *more], start=Here)
    assert [entry.name for entry in result.entries] == ["contrasent auto", "contrasent fp32"]
    assert [found["sentences"] for found in result.entries[0].rounds] == [20, 20]
    assert result.entries[1].facts["lowest cosine"] == pytest.approx(1)
    assert result.entries[0].facts["lowest cosine"] > 0.99
    assert "lowest cosine" in capsys.readouterr().out


def test_latency_and_memory(words):
    more = ["--peer", "none", "--engine", "torch", "--calls", "3"]
    result = latency.main([*words, *more], start=Here)
    assert [len(found["calls"]) for found in result.entries[0].rounds] == [3, 3]
    result = memory.main([*words, "--sizes", "10,20"], start=Here)
    assert [entry.name for entry in result.entries] == ["10 sentences", "20 sentences"]
    assert [entry.rounds[1]["sentences"] for entry in result.entries] == [10, 20]
    assert all(entry.memory for entry in result.entries)


def test_every_command_line_of_all_can_be_read(tmp_path, monkeypatch):
    commands = {"train": train, "encode": encode, "latency": latency}
    commands |= {"memory": memory, "objectives": objectives, "transfer": transfer}
    for name in (*all_of_them.COMMANDS, *all_of_them.GPU):
        line = all_of_them.command(name, tmp_path, data="d.txt", peer_python="python")
        assert line[:2] == [sys.executable, "-m"]
        module = commands[line[2].removeprefix("benchmarks.")]
        reached = []

        def stop(*found, reached=reached):
            reached.append(found)
            raise InterruptedError

        if module is transfer:
            monkeypatch.setattr(transfer.transfer, "load_transfer", stop)
        else:
            monkeypatch.setattr(memory if module is memory else race, "gathered", stop)
        with pytest.raises(InterruptedError):
            module.main(line[3:])
        assert reached and shlex.join(line)
    with pytest.raises(SystemExit):
        all_of_them.main(["no-such-benchmark"])


@pytest.mark.exhaustive
def test_everything_for_a_gpu_is_tried_in_one_call(text):
    script = Path(all_of_them.__file__).with_name("gpu.sh")
    said = subprocess.run(
        [script, "--tiny", text], capture_output=True, text=True, timeout=1800, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert re.search("sentence-transformers (fp32|bf16)", said.stdout)


@pytest.mark.acceptance
@pytest.mark.parametrize(("name", "size"), [(RANDOM_BASE, (768, 12)), (RANDOM_MINILM, (384, 6))])
def test_a_random_encoder_is_a_masked_language_model_of_its_shape(name, size, tmp_path):
    masked_lm = MaskedLm.load(random_masked_lm(name, tmp_path / name))
    assert (masked_lm.backbone.width, masked_lm.backbone.depth) == size
    assert masked_lm.head.decoder.weight.shape == (30522, size[0])


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
