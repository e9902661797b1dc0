"""What holds for every engine that only encodes, and how an engine is chosen."""

import asyncio
import json
import shutil

import numpy as np
import pytest
import torch
from helpers.command_line import refused, worked
from helpers.serving import batcher_of
from helpers.tiny_models import SENTENCES, save_tiny

from contrasent.data.batch import pack
from contrasent.errors import ConfigError, MissingExtraError
from contrasent.metrics import pair_cosines
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.engines import base as engines
from contrasent.model.engines import runtimes
from contrasent.model.heads import Convolutions
from contrasent.records import read_records
from contrasent.serve.batching import computing_thread


@pytest.fixture
def load(tiny_bert):
    def load(engine="onnx", **how):
        return SentenceEncoder.load(
            tiny_bert, **{"pooler": "mean", "head": "none", "engine": engine, **how}
        )

    return load


def test_a_fingerprint_tells_engines_and_weights_apart(load, tmp_path):
    other = save_tiny(tmp_path / "other", seed=1)
    names = ("torch", "onnx", "openvino")
    mine = [load(name).fingerprint() for name in names]
    others = [
        SentenceEncoder.load(other, pooler="mean", head="none", engine=name).fingerprint()
        for name in names
    ]
    assert len({*mine, *others}) == 6
    assert [load(name).fingerprint() for name in names] == mine


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_a_server_computes_with_the_threads_that_it_was_given(load, engine, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        encoder = load(engine)
        batcher = batcher_of(encoder, computer=computing_thread(2))
        batcher.warm_up()
        used = []
        if engine == "openvino":
            import openvino

            compiled = openvino.Core.compile_model

            def noted(self, model, device, settings):
                used.append(settings["INFERENCE_NUM_THREADS"])
                return compiled(self, model, device, settings)

            monkeypatch.setattr(openvino.Core, "compile_model", noted)

        async def work():
            await batcher.start()
            await batcher.embed(["a dog"])
            await batcher.close()

        asyncio.run(work())
        if engine == "onnx":
            used.append(encoder.backbone._session.get_session_options().intra_op_num_threads)
        assert used == [2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("engine", "absent"), [("onnx", "onnxruntime"), ("openvino", "openvino"), ("onnx", "onnx")]
)
def test_a_missing_package_names_the_extra(load, engine, absent, monkeypatch):
    find = engines.find_spec
    monkeypatch.setattr(engines, "find_spec", lambda n: None if n == absent else find(n))
    said = rf"'{engine}' needs {absent}: pip install '.*\[{engine}\]'"
    with pytest.raises(MissingExtraError, match=said):
        load(engine)


def test_other_engines_compute_on_the_cpu_only(load):
    with pytest.raises(ConfigError, match="'onnx' computes on the CPU, not on 'cuda'"):
        load(device="cuda")
    assert load(device=torch.device("cpu")).device == torch.device("cpu")


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_only_torch_trains_and_saves(load, engine, tmp_path):
    encoder = load(engine)
    backbone, batch = encoder.backbone, pack([[2, 3]])
    for work in (
        encoder.train,
        lambda: backbone.set_dropout(0.1),
        backbone.require_first_state,
        lambda: backbone(batch, first_state=torch.zeros(1, backbone.width)),
    ):
        with pytest.raises(ConfigError, match=f"{engine}' only encodes; to train, load with"):
            work()
    with pytest.raises(ConfigError, match=f"'{engine}' cannot be saved: .* engine 'torch'"):
        encoder.save(tmp_path / "encoder")
    assert not any(tmp_path.iterdir())


def test_a_precision_that_an_engine_does_not_have_is_refused(load):
    encoder = load()
    with pytest.raises(ConfigError, match="'onnx' computes in fp32, not in bf16; leave"):
        encoder.encode(SENTENCES, precision="bf16")
    with pytest.raises(ConfigError, match="unknown precision 'fp23'"):
        encoder.encode(SENTENCES, precision="fp23")
    np.testing.assert_array_equal(
        encoder.encode(SENTENCES, precision="fp32"), encoder.encode(SENTENCES)
    )


@pytest.fixture(scope="module")
def convolved(tmp_path_factory):
    """The folder of an encoder with convolutions, as IS-BERT trains them."""
    folder = tmp_path_factory.mktemp("is-bert")
    bert = save_tiny(folder / "bert", hidden_size=32, num_attention_heads=2)
    encoder = SentenceEncoder.load(bert, pooler="mean", head="none", device="cpu")
    torch.manual_seed(0)
    encoder.convolutions = Convolutions(32, [1, 3, 5], 8)
    encoder.save(folder / "encoder")
    return folder / "encoder"


@pytest.mark.precision
@pytest.mark.parametrize(
    ("engine", "precision", "least"),
    [
        ("onnx", "fp32", 1 - 1e-6),
        ("openvino", "fp32", 1 - 1e-6),
        ("openvino", "auto", 0.999),
        ("int8", "auto", 0.99),
    ],
)
def test_convolutions_are_computed_behind_every_engine(
    convolved, engine, precision, least, tmp_path, request
):
    """Of other sentences the cosine is far below ``least``, so it is they that are embedded."""
    if engine == "int8":
        request.getfixturevalue("int8_products")
    expected = SentenceEncoder.load(convolved, device="cpu").encode(SENTENCES, precision="fp32")
    encoder = SentenceEncoder.load(convolved, engine=engine)
    assert (encoder.engine, encoder.width) == (engine, 24)
    rows = encoder.encode(SENTENCES, precision=precision)
    assert pair_cosines(rows, expected).min() > least
    text = "".join(f"{sentence}\n" for sentence in SENTENCES)
    how = ("--engine", engine, "--precision", precision)
    worked("encode", convolved, "-", tmp_path / "rows.npy", *how, stdin=text)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), rows)


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """An empty cache, and the files that were exported to it."""
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path))
    made, write = [], runtimes.export_onnx

    def counting(backbone, path):
        made.append(path)
        write(backbone, path)

    monkeypatch.setattr(runtimes, "export_onnx", counting)
    return made


def entry(tmp_path):
    (folder,) = (path for path in (tmp_path / "onnx").iterdir() if path.is_dir())
    return folder


def test_a_converted_file_is_made_once_for_all_engines_and_poolers(load, counted, tmp_path):
    expected = load().encode(SENTENCES)
    np.testing.assert_array_equal(load().encode(SENTENCES), expected)
    load("openvino")
    load("onnx", pooler="cls")
    assert len(counted) == 1
    assert {file.name for file in entry(tmp_path).iterdir()} == {"manifest.json", "model.onnx"}


def truncated(folder):
    file = folder / "model.onnx"
    file.write_bytes(file.read_bytes()[:-100])


def flipped(folder):
    file = folder / "model.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def without_model(folder):
    (folder / "model.onnx").unlink()


def with_empty_manifest(folder):
    (folder / "manifest.json").write_text("{}")


def with_torn_manifest(folder):
    (folder / "manifest.json").write_text('{"sha256": {"model')


@pytest.mark.parametrize(
    "damage", [truncated, flipped, without_model, with_empty_manifest, with_torn_manifest]
)
def test_a_damaged_file_is_made_again(load, counted, tmp_path, damage):
    expected = load().encode(SENTENCES)
    damage(entry(tmp_path))
    np.testing.assert_array_equal(load().encode(SENTENCES), expected)
    assert len(counted) == 2


@pytest.fixture
def shelf(tmp_path, tiny_bert):
    """A text file, scored pairs, and an encoder that says how it embeds."""
    (tmp_path / "text.txt").write_text("".join(f"{s}\n" for s in SENTENCES))
    pairs = [
        f"{a}\t{b}\t{n % 4}\n"
        for n, (a, b) in enumerate(zip(SENTENCES, SENTENCES[::-1], strict=True))
    ]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    encoder.save(tmp_path / "encoder")
    return tmp_path


def test_the_command_line_encodes_and_evaluates_with_an_engine(shelf):
    model, engine = shelf / "encoder", ("--engine", "onnx")
    worked("encode", model, shelf / "text.txt", shelf / "rows.npy", *engine)
    expected = SentenceEncoder.load(model, device="cpu").encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(np.load(shelf / "rows.npy"), expected, rtol=0, atol=1e-4)

    for words in (engine, ()):
        tasks = ("--tasks", shelf / "pairs.tsv", "--json", shelf / f"{len(words)}.jsonl")
        worked("evaluate", model, *tasks, *words)
    torches, onnx = (read_records(shelf / f"{n}.jsonl") for n in (0, 2))
    assert {(r.engine, r.precision) for r in onnx} == {("onnx", "fp32")}
    assert {(r.engine, r.precision) for r in torches} == {(None, "fp32")}
    assert all("onnxruntime" in r.versions for r in onnx)
    assert not any("onnxruntime" in r.versions for r in torches)
    assert [r.value for r in onnx] == pytest.approx([r.value for r in torches], abs=1e-6)

    told = json.loads(worked("similarity", model, "a dog", "the cat", "--json", *engine).out)
    assert (told["engine"], told["precision"]) == ("onnx", "fp32")
    said = refused("encode", model, shelf / "text.txt", shelf / "b.npy", "--engine", "opnvino")
    assert "Did you mean 'openvino'?" in said
    said = refused("evaluate", model, "--tasks", shelf / "pairs.tsv", "--engine", "opnvino")
    assert "Did you mean 'openvino'?" in said


def test_an_index_is_searched_with_the_engine_that_built_it(shelf):
    index = shelf / "index"
    worked("index", "build", shelf / "encoder", shelf / "text.txt", index, "--engine", "onnx")
    assert json.loads(worked("index", "info", index, "--json").out)["engine"] == "onnx"
    worked("index", "add", index, "-", stdin="a red bird\n")
    hit = json.loads(worked("search", index, "a red bird", "--top-k", "1", "--json").out)
    assert hit["text"] == "a red bird"
    assert hit["score"] == pytest.approx(1)


def test_shards_of_another_engine_are_not_continued(shelf, monkeypatch):
    from contrasent.search import shards

    words = ("encode", shelf / "encoder", shelf / "text.txt", shelf / "rows.npy")
    with monkeypatch.context() as patched:

        def killed(*_, **__):
            raise KeyboardInterrupt

        patched.setattr(shards, "_finish", killed)
        with pytest.raises(AssertionError):
            worked(*words, "--precision", "fp32")
    said = refused(*words, "--precision", "fp32", "--engine", "onnx")
    assert "shards of an unfinished run with another encoder" in said
    shutil.rmtree(shelf / ".rows.npy.parts")
