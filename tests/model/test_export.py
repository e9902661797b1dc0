"""Exports, loaded by the libraries that they are for, give the encoder's vectors."""

import json

import numpy as np
import pytest
import torch
from helpers.tiny_sentences import sentence
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from transformers import AutoModel, AutoTokenizer

from contrasent.errors import CheckpointError, DataError
from contrasent.model import formats
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.formats import export
from contrasent.model.loading import load_encoder
from contrasent.search.index import Index

SENTENCES = [sentence(n, 2 + n % 9) for n in range(40)]


@pytest.fixture
def encoder(uploaded):
    return SentenceEncoder.load(uploaded, pooler="cls", head="mlp", device="cpu")


def test_simcse_layout(encoder, tmp_path):
    """`AutoModel(...).pooler_output` is the headed [CLS], though the stored head was another."""
    torch.nn.init.normal_(encoder.head.linear.weight)
    encoder.save(tmp_path / "out")
    model, tokenizer = (it.from_pretrained(tmp_path / "out") for it in (AutoModel, AutoTokenizer))
    with torch.no_grad():
        rows = model(**tokenizer(SENTENCES, padding=True, return_tensors="pt")).pooler_output
    expected = encoder.encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(rows.numpy(), expected, atol=1e-5)
    again = SentenceEncoder.load(tmp_path / "out", pooler="cls", head="mlp", device="cpu")
    np.testing.assert_allclose(again.encode(SENTENCES, precision="fp32"), expected, atol=1e-5)


def rows_of_graph(folder, name, encoder):
    """What a graph and the tokenizer beside it give, behind the encoder's head."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="np")
    assert [one.name for one in session.get_outputs()] == ["last_hidden_state"]
    wanted = {one.name: inputs[one.name].astype(np.int64) for one in session.get_inputs()}
    states = session.run(None, wanted)[0]
    return encoder.head(torch.from_numpy(states[:, 0])).detach().numpy()


def test_a_graph_gives_the_states_and_the_folder_the_rest(encoder, tmp_path):
    encoder.max_tokens = 20
    parity = export(encoder, tmp_path / "onnx", "onnx")
    assert parity.largest_gap < 1e-6 and parity.sentences > 200
    limits = json.loads((tmp_path / "onnx/tokenizer_config.json").read_text())
    assert (limits["model_max_length"], limits.get("max_length")) == (encoder.max_tokens, None)
    headed = rows_of_graph(tmp_path / "onnx", "onnx/model.onnx", encoder)
    np.testing.assert_allclose(headed, encoder.encode(SENTENCES, precision="fp32"), atol=1e-4)
    kept = json.loads((tmp_path / "onnx/contrasent.json").read_text())
    assert kept["export"]["largest_gap"] == parity.largest_gap
    assert json.loads((tmp_path / "onnx/special_tokens_map.json").read_text())["cls_token"]


def test_a_graph_needs_no_special_tokens(encoder, tmp_path):
    encoder.save(tmp_path / "plain")
    plain = {"post_processor": None}, {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, changed in zip(("tokenizer.json", "tokenizer_config.json"), plain, strict=True):
        path = tmp_path / "plain" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    parity = export(SentenceEncoder(tmp_path / "plain", pooler="mean"), tmp_path / "onnx", "onnx")
    assert parity.largest_gap < 1e-6


def test_a_quantized_graph_is_exact_where_16_bits_would_overflow(tmp_path):
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    columns = np.sign(np.random.default_rng(0).standard_normal((256, 6))).astype(np.float32)
    columns[:, 0] = 1.0
    columns[:, 1] = -1.0
    ends = [onnx.helper.make_tensor_value_info(n, 1, [4, it]) for n, it in (("x", 256), ("y", 6))]
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = [onnx.numpy_helper.from_array(columns, "w")]
    graph = onnx.helper.make_graph([product], "product", ends[:1], ends[1:], weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    path = formats.quantize(tmp_path / "model.onnx")
    kept = [onnx.numpy_helper.to_array(it) for it in onnx.load(path).graph.initializer]
    whole = next(it for it in kept if it.shape == columns.shape)
    scales = next(it for it in kept if it.shape == (6,) and it.dtype == np.float32)
    for column in whole.T:  # what AVX2 adds in 16 bits, at its worst
        for pair in column.reshape(-1, 2).astype(int):
            assert abs(255 * pair.sum()) < 2**15
    x = np.ones((4, 256), np.float32)  # each becomes 255, of which 0 is a part
    x[1, ::3], x[2, 128:] = 0, 0
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {"x": x})
    exact = [
        [sum(int(255 * a) * int(w) for a, w in zip(r, c, strict=True)) for c in whole.T] for r in x
    ]
    np.testing.assert_allclose(found, np.array(exact) * scales / 255, rtol=1e-6)


def test_a_quantized_graph_stands_beside_the_plain_one(encoder, tmp_path):
    parity = export(encoder, tmp_path / "out", "onnx-int8")
    assert 1e-6 < parity.largest_gap < 0.05
    assert (tmp_path / "out/onnx/model.onnx").is_file()
    headed = rows_of_graph(tmp_path / "out", "onnx/model_quantized.onnx", encoder)
    expected = encoder.encode(SENTENCES, precision="fp32")
    cosines = (headed * expected).sum(1) / np.linalg.norm(headed, axis=1)
    assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.95


@pytest.mark.parametrize("factor", [0.9, torch.nan])
def test_an_export_with_other_vectors_is_not_written(factor, encoder, tmp_path, monkeypatch):
    whole = formats.export_onnx

    def other(backbone, path):
        with torch.no_grad():
            before = backbone.model.embeddings.word_embeddings.weight.clone()
            backbone.model.embeddings.word_embeddings.weight.mul_(factor)
            whole(backbone, path)
            backbone.model.embeddings.word_embeddings.weight.copy_(before)

    monkeypatch.setattr(formats, "export_onnx", other)
    with pytest.raises(CheckpointError, match=r"not within 1e-07; nothing was written"):
        export(encoder, tmp_path / "out", "onnx", tolerance=1e-7)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def static(encoder, tmp_path):
    """A table that sentence-transformers saves."""
    table = torch.randn(encoder.tokenizer.vocabulary, 6).numpy()
    pieces = st.StaticEmbedding(AutoTokenizer.from_pretrained(encoder.name), table)
    SentenceTransformer(modules=[pieces, st.Normalize()], device="cpu").save(
        str(tmp_path / "static")
    )
    return tmp_path / "static"


def static_rows(folder):
    return SentenceTransformer(str(folder), device="cpu").encode([*SENTENCES, ""])


@pytest.mark.filterwarnings("ignore:.*no known word piece:UserWarning")
def test_a_static_folder_is_read_and_searched(static, tmp_path):
    ours = load_encoder(static)
    np.testing.assert_allclose(ours.encode([*SENTENCES, ""]), static_rows(static), atol=1e-6)
    index = Index.build(ours, SENTENCES, tmp_path / "index")
    assert index.encoder().fingerprint() == ours.fingerprint()
    assert index.search(ours, SENTENCES[:1], 1)[0][0].text == SENTENCES[0]


@pytest.mark.filterwarnings("ignore:.*no known word piece:UserWarning")
def test_a_static_table_of_model2vec_shares_rows_and_weighs_them(encoder, static):
    count = encoder.tokenizer.vocabulary
    tensors = {
        "embeddings": torch.randn(5, 6),
        "mapping": torch.arange(count) % 5,
        "weights": torch.rand(count, dtype=torch.float64),
    }
    save_file(tensors, next(static.rglob("model.safetensors")))
    found = load_encoder(static).encode([*SENTENCES, ""])
    np.testing.assert_allclose(found, static_rows(static), atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False, None])
def test_model2vec_without_modules_leaves_unknown_pieces_out(encoder, normalize, tmp_path):
    folder, tokenizer = tmp_path / "m2v", encoder.tokenizer
    folder.mkdir()
    tokenizer.save(folder)
    (folder / "tokenizer_config.json").unlink()
    table = torch.randn(tokenizer.vocabulary, 4)
    save_file({"embeddings": table}, folder / "model.safetensors")
    config = {"model_type": "model2vec", "normalize": normalize}
    (folder / "config.json").write_text(json.dumps(config))
    static = load_encoder(folder)
    unknown = tokenizer.vocabulary_map[tokenizer.special_names["unk_token"]]
    texts = ["a dog runs", "a dog \u4e16 runs", "\u4e16"]
    rows = []
    for text in texts:
        pieces = [it for it in tokenizer.pieces([text])[0].tolist() if it != unknown]
        mean = table[pieces].mean(0) if pieces else torch.zeros(4)
        rows.append(torch.nn.functional.normalize(mean, dim=0) if normalize else mean)
    with pytest.warns(UserWarning, match="1 of 3 sentences have no known word piece"):
        given = static.encode(texts)
    np.testing.assert_allclose(given, torch.stack(rows), atol=1e-6)
    assert np.array_equal(given[0], given[1])
    with pytest.raises(CheckpointError, match=r"static table.*contrasent\.load_encoder"):
        SentenceEncoder(folder)


@pytest.mark.filterwarnings("ignore:.*no known word piece:UserWarning")
def test_a_static_folder_says_how_it_is_used(static):
    plain = load_encoder(static)
    use = {"prompts": {"q": "dog "}, "default_prompt_name": "q", "truncate_dim": 4}
    (static / "config_sentence_transformers.json").write_text(json.dumps(use))
    tokenizer = next(static.rglob("tokenizer.json"))
    limit = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content = json.loads(tokenizer.read_text())
    tokenizer.write_text(json.dumps({**content, "truncation": limit}))
    ours, theirs = load_encoder(static), static_rows(static)
    rows = ours.encode([*SENTENCES, ""], on_overflow="truncate")
    np.testing.assert_allclose(rows, theirs, atol=1e-6)
    assert ours.fingerprint() != plain.fingerprint()
    with pytest.warns(UserWarning, match="1 of 2 sentences were cut at 3 tokens"):
        ours.encode(["a dog", "a dog runs and runs"], prompt="")
    with pytest.raises(DataError, match="1 of the sentences 0 to 1 are longer than 3 tokens"):
        ours.encode(["a cat", "a dog runs and runs"], prompt="", on_overflow="error")
    ours.encode(["a dog runs"], prompt="", on_overflow="error")
