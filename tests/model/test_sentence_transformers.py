"""sentence-transformers and this package read each other's folders and give the same vectors."""

import json

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES, save_tiny, shaken
from safetensors.torch import load_file

from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import POOLERS, MlpHead

pytestmark = pytest.mark.filterwarnings("ignore:.* have no word:UserWarning")

BAR = 1e-6
TEXTS = [*SENTENCES, "", " leading and trailing ", "dog " * 70, "ünknown 世界"]

st = pytest.importorskip("sentence_transformers")


def ours(encoder):
    return encoder.encode(TEXTS, precision="fp32", on_overflow="truncate")


def theirs(folder):
    model = st.SentenceTransformer(str(folder), device="cpu")
    return model.encode(TEXTS, convert_to_numpy=True, show_progress_bar=False)


def assert_same(mine, other):
    assert mine.shape == other.shape
    assert np.abs(mine - other).max() <= BAR


def test_sentence_transformers_pads_where_a_tokenizer_has_no_token_for_it(tmp_path):
    folder = save_tiny(tmp_path / "plain")
    path = folder / "tokenizer_config.json"
    changed = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    encoder = SentenceEncoder(folder, pooler="mean", head="none")
    saved = encoder.save(tmp_path / "saved") or tmp_path / "saved"
    assert_same(ours(encoder), theirs(saved))
    assert SentenceEncoder(saved).fingerprint() == encoder.fingerprint()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("head", [None, 5])
@pytest.mark.parametrize("pooler", POOLERS)
def test_sentence_transformers_reads_what_we_save(pooler, head, normalize, tmp_path):
    folder = save_tiny(tmp_path / "plain", num_hidden_layers=3)
    encoder = SentenceEncoder.load(folder, pooler=pooler, head="none", device="cpu")
    encoder.normalize = normalize
    if head:
        encoder.head = shaken(MlpHead(16, head))
    encoder.save(tmp_path / "saved")
    rows, again = ours(encoder), SentenceEncoder.load(tmp_path / "saved", device="cpu")
    assert_same(rows, theirs(tmp_path / "saved"))
    assert np.array_equal(ours(again), rows)
    assert (again.pooler, again.head_name) == (pooler, "mlp" if head else "none")
    assert (again.normalize, again.max_tokens, again.width) == (normalize, 64, head or 16)
    assert again.fingerprint() == encoder.fingerprint()


def made_by_them(folder, target, pooling="mean", limit=20, *, dense=False, normalize=False):
    """A folder that sentence-transformers saves itself."""
    from sentence_transformers import models

    parts = [models.Transformer(str(folder), max_seq_length=limit)]
    parts.append(models.Pooling(16, pooling))
    if dense:
        torch.manual_seed(4)
        parts.append(models.Dense(16, 12))
    if normalize:
        parts.append(models.Normalize())
    st.SentenceTransformer(modules=parts, device="cpu").save(str(target))
    return target


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_we_read_what_sentence_transformers_saves(pooling, dense, normalize, tiny_bert, tmp_path):
    folder = made_by_them(tiny_bert, tmp_path / "theirs", pooling, dense=dense, normalize=normalize)
    encoder = SentenceEncoder.load(folder, device="cpu")
    assert (encoder.pooler, encoder.head_name) == (pooling, "mlp" if dense else "none")
    assert (encoder.normalize, encoder.max_tokens) == (normalize, 20)
    assert_same(ours(encoder), theirs(folder))


def test_weighted_layers_of_theirs_are_a_pooler_of_ours(tmp_path):
    from sentence_transformers import models

    plain = save_tiny(tmp_path / "plain", num_hidden_layers=3)
    config = {"output_hidden_states": True}
    transformer = models.Transformer(str(plain), config_kwargs=config)
    layers = models.WeightedLayerPooling(
        16, num_hidden_layers=3, layer_start=1, layer_weights=torch.nn.Parameter(torch.ones(3))
    )
    with torch.no_grad():
        layers.layer_weights[1] = 0
    parts = [transformer, layers, models.Pooling(16, "mean")]
    st.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "theirs"))
    encoder = SentenceEncoder.load(tmp_path / "theirs", device="cpu")
    assert encoder.pooler == "mean_first_last"
    assert_same(ours(encoder), theirs(tmp_path / "theirs"))


@pytest.mark.filterwarnings("ignore:Importing from 'sentence_transformers:DeprecationWarning")
def test_the_layout_of_older_versions(tiny_bert, tmp_path):
    """Transformer in a folder of its own, pooling as flags, a pickled Dense, an odd config name."""
    new = made_by_them(tiny_bert, tmp_path / "theirs", "cls", dense=True)
    expected = theirs(new)
    inner = new / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (new / name).rename(inner / name)
    (new / "sentence_bert_config.json").unlink()
    limit = {"max_seq_length": 20, "do_lower_case": False}
    (inner / "sentence_roberta_config.json").write_text(json.dumps(limit))
    settings = json.loads((inner / "tokenizer_config.json").read_text())
    settings["model_max_length"] = 64
    (inner / "tokenizer_config.json").write_text(json.dumps(settings))
    flags = {f"pooling_mode_{m}": m == "cls_token" for m in ("cls_token", "mean_tokens")}
    flags["pooling_mode_max_tokens"] = flags["pooling_mode_mean_sqrt_len_tokens"] = False
    pooling = {"word_embedding_dimension": 16, **flags}
    (new / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = json.loads((new / "modules.json").read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[-1]
    modules[0]["path"] = "0_Transformer"
    (new / "modules.json").write_text(json.dumps(modules))
    dense = new / "2_Dense"
    torch.save(load_file(dense / "model.safetensors"), dense / "pytorch_model.bin")
    (dense / "model.safetensors").unlink()
    encoder = SentenceEncoder.load(new, device="cpu")
    assert (encoder.pooler, encoder.head_name, encoder.max_tokens) == ("cls", "mlp", 20)
    assert_same(ours(encoder), expected)
    assert_same(ours(encoder), theirs(new))
