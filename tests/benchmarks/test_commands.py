"""Every benchmark from its options to its table, in this process, with a tiny encoder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.tiny_models import save_tiny_masked_lm

from benchmarks import all as all_of_them
from benchmarks import encode, latency, memory, objectives, race, train, transfer
from benchmarks.material import RANDOM_BASE, RANDOM_MINILM, random_masked_lm
from benchmarks.remote import Here
from benchmarks.results import read
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
