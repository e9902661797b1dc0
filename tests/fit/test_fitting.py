"""Fitting on an encoder's embeddings, and the text that it is of."""

import hashlib
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.building import write
from helpers.command_line import worked
from helpers.oracles import inverse_flow
from sentence_transformers import SentenceTransformer

import contrasent
from contrasent import fitting
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.fitting import FITTERS, _batches, fit_flow, open_fitting_text
from contrasent.model.encoder import SentenceEncoder, embed
from contrasent.model.hub import published_files
from contrasent.model.loading import load_encoder
from contrasent.model.transforms import Flow
from contrasent.records import read_records
from contrasent.settings import FlowSettings, WhiteningSettings

TEN = WhiteningSettings(dimensions=10)
fit_whitening = FITTERS["whitening"].fit
fit_glow = FITTERS["flow"].fit


@pytest.fixture
def encoder(tiny_folder):
    return SentenceEncoder.load(tiny_folder, device="cpu")


@pytest.fixture
def text(text_file):
    return open_fitting_text([str(text_file)])


def rows_of(encoder, text):
    return encoder.encode(list(text), precision="fp32", normalize=False).astype("f8")


def test_the_covariance_of_what_it_was_fitted_on_becomes_the_identity(encoder, text):
    encoder.normalize = True
    _, fitted = fit_whitening(encoder, text)
    rows = rows_of(encoder, text)
    width = fitted["transform"]["dimensions"]
    assert width in (15, 16)
    assert np.abs(np.cov(rows.T) - np.eye(width)).max() < 1e-4
    assert np.abs(rows.mean(0)).max() < 1e-3


def test_the_limit_of_tokens_is_of_the_fit_only(encoder, text):
    own = encoder.max_tokens
    with pytest.warns(UserWarning, match="were cut at 6 tokens"):
        _, cut = fit_whitening(encoder, text, TEN, max_tokens=6)
    assert encoder.max_tokens == own
    assert cut["transform"]["max_tokens"] == 6
    weight, encoder.transform = encoder.transform.weight, None
    _, uncut = fit_whitening(encoder, text, TEN, max_tokens=5000)
    assert uncut["transform"]["max_tokens"] == own
    assert not torch.allclose(encoder.transform.weight, weight)


def test_the_limit_comes_back_after_an_error(encoder, text):
    own = encoder.max_tokens
    with torch.no_grad():
        next(encoder.backbone.parameters()).fill_(float("nan"))
    with pytest.raises(CheckpointError, match="numbers that are not finite"):
        fit_whitening(encoder, text, max_tokens=6)
    assert encoder.max_tokens == own


def test_too_few_sentences_are_told_before_any_is_embedded(encoder, text, tmp_path, monkeypatch):
    (tmp_path / "few.txt").write_text("a dog\na cat\n")
    monkeypatch.setattr(SentenceEncoder, "encode_stream", None)
    few = open_fitting_text([str(tmp_path / "few.txt")])
    with pytest.raises(DataError, match="2 sentences have a covariance of rank 1 at most"):
        fit_whitening(encoder, few)
    with pytest.raises(DataError, match="the encoder 16 dimensions: too few to whiten 17"):
        fit_whitening(encoder, text, WhiteningSettings(dimensions=17))


def test_nothing_is_fitted_twice(encoder, text):
    fit_whitening(encoder, text)
    for fit in (fit_whitening, fit_glow):
        with pytest.raises(ConfigError, match=r"has a transform already .whitening to"):
            fit(encoder, text)
    table, _ = FITTERS["static"].fit(encoder, text)  # which follows the encoder with its map
    assert table.width == encoder.width
    encoder.transform, encoder.truncate_dim = None, 3
    with pytest.raises(ConfigError, match=r"keeps 3 of \d+ dimensions; fit on the encoder"):
        fit_whitening(encoder, text)


SETTINGS = FlowSettings(levels=2, depth=2, coupling_width=8, batch_size=16, epochs=6)


def test_the_likelihood_rises(encoder, text):
    _, fitted = fit_glow(encoder, text, SETTINGS)
    likelihood = fitted["transform"]["bits_per_dimension"]
    assert likelihood["after"] < likelihood["before"] - 0.01
    assert likelihood["sentences"] == 150
    plain = rows_of(encoder, text)
    flow, encoder.transform = encoder.transform, None
    rows = torch.from_numpy(rows_of(encoder, text).astype("f4"))
    assert flow.bits_per_dimension(rows).item() == pytest.approx(likelihood["after"], abs=1e-4)
    np.testing.assert_allclose(flow(rows).numpy(), plain, atol=1e-4)
    torch.testing.assert_close(inverse_flow(flow, flow(rows)), rows, rtol=0, atol=1e-4)
    assert not encoder.training


def weights(encoder, text, **changes):
    flow, *_ = fit_flow(encoder, text, replace(SETTINGS, epochs=1, **changes))
    return torch.cat([parameter.flatten() for parameter in flow.parameters()])


def test_a_seed_decides_everything(encoder, text):
    state = torch.get_rng_state()
    first = weights(encoder, text)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(weights(encoder, text), first)
    assert not torch.equal(weights(encoder, text, seed=1), first)


def test_before_is_with_scales_set_from_the_first_batch(rng, monkeypatch):
    settings = FlowSettings(batch_size=16, levels=2, depth=1, coupling_width=4)
    rows = 5 * rng(40, 8) + 3
    torch.manual_seed(settings.seed)
    expected = Flow(8, 2, 1, 4)
    expected.start(rows[_batches(40, settings)[0]])
    bits = expected.bits_per_dimension(rows).item()
    monkeypatch.setattr("contrasent.fitting.stored_rows", lambda *_: rows.numpy())
    *_, facts = fit_flow(SimpleNamespace(width=8, device="cpu"), range(40), settings)
    assert facts["bits_per_dimension"]["before"] == pytest.approx(bits)


def test_a_likelihood_that_is_not_finite_ends_the_fit(encoder, text):
    with pytest.raises(DataError, match=r"likelihood of step \d+ of .* is not finite"):
        fit_flow(encoder, text, replace(SETTINGS, learning_rate=1e20))


def test_every_sentence_of_a_row_is_taken_in_the_order_of_the_files(tmp_path):
    (tmp_path / "a.csv").write_text("sent0,sent1,hard_neg\na,b,c\nd,e,f\n\n")
    (tmp_path / "b.txt").write_text("g\n\nh\ng\n")
    text = open_fitting_text([str(tmp_path / "a.csv"), str(tmp_path / "b.txt")])
    assert list(text) == list(text) == list("abcdefghg")
    assert len(text) == 9
    assert not text.facts()["target"]
    assert text.described == "a.csv and b.txt"
    first, second = text.facts()["text"]
    assert (first["source"], first["sentences"], first["target"]) == ("a.csv", 6, False)
    assert "sent0 as anchor" in first["columns"]
    assert (second["source"], second["sentences"]) == ("b.txt", 3)
    assert len({first["sha256"], second["sha256"]}) == 2


@pytest.fixture
def senteval(tmp_path):
    root = tmp_path / "senteval"
    for split in ("train", "dev", "test"):
        rows = [f"g\tf\ty\t{n}\t{n}.5\t{split} {n} a\t{split} {n} b\n" for n in range(2)]
        write(root / "STS" / "STSBenchmark" / f"sts-{split}.csv", "".join(rows))
    for subset in ("FNWN", "headlines", "OnWN"):
        folder = root / "STS" / "STS13-en-test"
        write(folder / f"STS.input.{subset}.txt", f"{subset} a\t{subset} b\nx\ty\n")
        write(folder / f"STS.gs.{subset}.txt", "1.0\n\n")
    return root


def test_a_task_is_the_text_of_all_its_splits(senteval):
    text = open_fitting_text(["stsb"], data_dir=senteval)
    expected = [f"{s} {n} {side}" for s in ("train", "dev", "test") for n in "01" for side in "ab"]
    assert sorted(text) == sorted(expected)
    assert text.facts()["target"]
    assert text.described == "target text (STS-B all): the test sentences were seen"
    assert [origin.target for origin in text.origins] == [True]
    digests = [
        hashlib.sha256((senteval / "STS" / "STSBenchmark" / f"sts-{s}.csv").read_bytes())
        for s in ("train", "dev", "test")
    ]
    joined = hashlib.sha256(" ".join(d.hexdigest() for d in digests).encode())
    assert text.origins[0].sha256 == joined.hexdigest()


def test_a_split_or_a_task_with_one_split(senteval):
    assert len(open_fitting_text(["stsb-dev"], data_dir=senteval)) == 4
    assert len(open_fitting_text(["STS-B-test", "stsb-dev"], data_dir=senteval)) == 8
    assert len(open_fitting_text(["stsb", "stsb-dev", "stsb-test"], data_dir=senteval)) == 12
    assert sorted(set(open_fitting_text(["sts13"], data_dir=senteval))) == sorted(
        f"{subset} {side}" for subset in ("FNWN", "headlines", "OnWN") for side in "ab"
    )


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


def test_a_static_table_that_is_no_use_is_told_and_few_sentences_do_not_make_one(
    encoder, text_file, tmp_path, monkeypatch
):
    encoder.save(tmp_path / "encoder")
    lines = text_file.read_text().splitlines()
    text_file.write_text("\n".join(lines[:17]))  # 16 to fit on, as many as dimensions
    fit("static", tmp_path / "encoder", text_file, tmp_path / "table")
    kept = json.loads((tmp_path / "table" / "contrasent.json").read_text())["transform"]
    monkeypatch.setattr(fitting, "_MAP_RIDGE", 1e-12)
    said = fit("static", tmp_path / "encoder", text_file, tmp_path / "worse")
    worse = json.loads((tmp_path / "worse" / "contrasent.json").read_text())["transform"]
    assert kept["held_out_cosine"] > worse["held_out_cosine"]
    assert "no use: no nearer than unfitted" in said.out and "no use" in worse["described"]


def test_a_static_table_is_the_ridge_regression_of_embeddings(encoder, text_file, tmp_path):
    encoder.save(tmp_path / "encoder")
    said = fit("static", tmp_path / "encoder", text_file, tmp_path / "table", "--ridge", "0.05")
    sentences, tokenizer = text_file.read_text().splitlines(), encoder.tokenizer
    table = contrasent.load_encoder(tmp_path / "table")
    assert table.max_tokens == encoder.max_tokens - tokenizer.specials
    content = json.loads(next((tmp_path / "table").rglob("tokenizer.json")).read_text())
    assert content["truncation"]["max_length"] == table.max_tokens
    held_out = set(np.linspace(0, 149, 8).astype(int))
    shares = np.zeros((150, tokenizer.vocabulary))
    for row, sentence in enumerate(sentences):
        pieces, _ = tokenizer.pieces([sentence])
        for piece in pieces:
            shares[row, piece] += 1 / len(pieces)
    first, *_, last = tokenizer.ids(["a"], None)[0][0]
    singles = [np.array([first, piece, last], "i4") for piece in range(tokenizer.vocabulary)]
    alone = embed(encoder, singles, 999, "fp32", int).astype("f8")
    alone /= np.linalg.norm(alone, axis=1, keepdims=True)
    wanted = encoder.encode(sentences, precision="fp32", normalize=True).astype("f8")
    used = [row for row in range(150) if row not in held_out]
    x, y = shares[used], wanted[used]
    means = x @ alone
    start = alone @ np.linalg.solve(means.T @ means + 0.01 * np.eye(16), means.T @ y)
    rows = np.linalg.solve(x.T @ x + 0.05 * np.eye(len(start)), x.T @ y + 0.05 * start)
    table = load_encoder(tmp_path / "table")
    assert table.table.numpy() == pytest.approx(rows, abs=1e-3)
    means = (shares @ rows)[sorted(held_out)]
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosine = (means * wanted[sorted(held_out)]).sum(axis=1).mean()
    found = json.loads((tmp_path / "table" / "contrasent.json").read_text())["transform"]
    assert (found["held_out"], found["name"], found["ridge"]) == (8, "static", 0.05)
    assert found["held_out_cosine"] == pytest.approx(cosine, abs=1e-4)
    assert f"held_out_cosine: {found['held_out_cosine']}" in said.err
    assert "no use" not in said.out + found["described"]
    assert (tmp_path / "table/README.md").is_file()
    assert b"16 dimensions" in published_files(tmp_path / "table", "me/table")[1]["README.md"]
    theirs = SentenceTransformer(str(tmp_path / "table"), device="cpu").encode(sentences)
    assert theirs == pytest.approx(table.encode(sentences), abs=1e-6)
    again = contrasent.fit(encoder, "static", data=text_file, ridge=0.05)
    assert torch.equal(again.table, table.table)
