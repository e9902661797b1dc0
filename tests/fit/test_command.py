"""``contrasent fit`` from text to a folder that every command understands."""

import json
import re

import numpy as np
import pytest
from helpers.command_line import worked

from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records


def fit(kind, folder, data, output, *more):
    few = ("--levels", "2", "--epochs", "2") if kind == "flow" else ()
    return worked("fit", kind, folder, "--data", data, "--output", output, *few, *more)


@pytest.mark.parametrize("kind", ["whitening", "flow"])
def test_a_folder_knows_where_it_comes_from(kind, tiny_folder, text_file, tmp_path):
    source = SentenceEncoder.load(tiny_folder)
    said = fit(kind, tiny_folder, text_file, tmp_path / "fitted", "--max-tokens", "9")
    assert f"fitted: {kind} " in said.out
    assert "fitted on text.txt" in said.out
    assert "text.txt: 150 sentences" in said.err
    info = json.loads((tmp_path / "fitted" / "contrasent.json").read_text())
    found = info["transform"]
    assert (found["name"], found["sentences"], found["target"]) == (kind, 150, False)
    assert (found["max_tokens"], found["precision"]) == (9, "fp32")
    assert found["text"][0]["source"] == "text.txt"
    assert found["encoder"]["fingerprint"] == source.fingerprint()
    assert found["encoder"]["contrasent"]["recipe"] == "of a test"
    assert (found["encoder"]["pooler"], info["pooler"]) == ("mean_first_last",) * 2
    assert info["max_tokens"] == source.max_tokens
    assert "torch" in info["versions"]
    if kind == "flow":
        assert (found["levels"], found["epochs"], found["seed"]) == (2, 2, 1234)
        assert found["bits_per_dimension"]["after"] < found["bits_per_dimension"]["before"]
        assert "bits_per_dimension: " in said.err
    else:
        assert re.search(r"variance_kept: (1\.0|0\.9999)", said.err)


@pytest.mark.precision
@pytest.mark.parametrize("kind", ["whitening", "flow"])
def test_other_commands_apply_it(kind, tiny_folder, text_file, tmp_path):
    fit(kind, tiny_folder, text_file, tmp_path / "fitted")
    encoder = SentenceEncoder.load(tmp_path / "fitted", device="cpu")
    (tmp_path / "in.txt").write_text("a dog runs\nthe old man\n")
    worked("encode", tmp_path / "fitted", tmp_path / "in.txt", tmp_path / "out.npy")
    rows = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(rows, encoder.encode(["a dog runs", "the old man"]), atol=1e-6)
    plain = SentenceEncoder.load(tiny_folder).encode(["a dog runs", "the old man"])
    assert rows.shape != plain.shape or np.abs(rows - plain).max() > 0.1
    (tmp_path / "pairs.tsv").write_text("a dog\ta cat\t1\nthe man\tthe bird\t5\nno\tred tree\t3\n")
    pairs = tmp_path / "pairs.tsv"
    shown = worked(
        "evaluate", tmp_path / "fitted", "--tasks", pairs, "--json", tmp_path / "records.jsonl"
    ).out
    record = read_records(tmp_path / "records.jsonl")[0]
    assert record.transform == encoder.transform_described
    assert record.transform.startswith(f"{kind} ")
    assert record.transform in " ".join(shown.split())
