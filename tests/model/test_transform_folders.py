"""An encoder with a transform: saved, and loaded by us and by sentence-transformers."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES, shaken

from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.backbones import base as base
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.transforms import Flow, Whitening, known_transforms


def drawn(transform, seed=0):
    """With weights that are not those of a new one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in transform.state_dict().values():
            tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
    return transform.requires_grad_(False).eval()


KINDS = {
    **{
        name: lambda kind=kind: drawn(kind(16, 16))
        for name, kind in known_transforms().items()
        if kind.is_dense and kind.__module__.startswith("contrasent.")
    },
    "shorter": lambda: drawn(Whitening(16, 5)),
    "flow": lambda: drawn(Flow(16, 2, 2, 6)),
}


def encoded(encoder, **how):
    return encoder.encode(SENTENCES, precision="fp32", **how)


def encoder_with(tiny_encoder, kind, head=False, normalize=False):
    if head:
        tiny_encoder.head = shaken(MlpHead(16))
    tiny_encoder.transform = KINDS[kind]()
    tiny_encoder.normalize = normalize
    return tiny_encoder


@pytest.mark.precision
@pytest.mark.parametrize("kind", KINDS)
def test_auto_is_fp32_with_it(kind, tiny_encoder, monkeypatch):
    """Whitening scales a direction by up to 1 / 1e-5: rounded to bf16, that one would be noise."""
    monkeypatch.setattr(base, "torch_precisions", lambda _: ("bf16", "fp32"))
    assert tiny_encoder.resolve_precision("auto") == "bf16"
    encoder = encoder_with(tiny_encoder, kind)
    fitted = not encoder.transform.is_trained
    assert encoder.resolve_precision("auto") == ("fp32" if fitted else "bf16")
    assert encoder.resolve_precision("bf16") == "bf16"
    if fitted:
        np.testing.assert_array_equal(encoder.encode(SENTENCES), encoded(encoder))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_it_gives_the_same_bits_and_in_sentence_transformers_the_same(
    kind, head, normalize, tiny_encoder, tmp_path
):
    st = pytest.importorskip("sentence_transformers")
    before = encoded(tiny_encoder)
    encoder = encoder_with(tiny_encoder, kind, head, normalize)
    rows = encoded(encoder)
    assert rows.shape == (len(SENTENCES), encoder.width)
    assert encoder.width == (5 if kind == "shorter" else 16)
    if encoder.width == 16:
        assert np.abs(rows - before).max() > 0.1
    encoder.save(tmp_path / "saved", {"transform": {"described": "of a test"}})
    loaded = SentenceEncoder.load(tmp_path / "saved", device="cpu")
    assert np.array_equal(encoded(loaded), rows)
    assert loaded.fingerprint() == encoder.fingerprint()
    assert type(loaded.transform) is type(encoder.transform)
    assert loaded.transform_described == "of a test"
    parameters = loaded.transform.parameters()
    assert all(it.requires_grad == loaded.transform.is_trained for it in parameters)
    if kind == "flow" and not head:
        with pytest.raises(ValueError, match=r"contrasent\.model\.st_modules\.FittedTransform"):
            st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    trusted = {"trust_remote_code": True} if kind == "flow" else {}
    model = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu", **trusted)
    theirs = model.encode(SENTENCES, convert_to_numpy=True, show_progress_bar=False)
    assert np.abs(theirs - rows).max() <= 1e-5
    assert model.get_embedding_dimension() == encoder.width
    model.save(str(tmp_path / "theirs"))
    again = SentenceEncoder.load(tmp_path / "theirs", device="cpu")
    assert np.abs(encoded(again) - rows).max() <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_transforms_change_the_fingerprint(kind, tiny_encoder):
    bare = tiny_encoder.fingerprint()
    with_it = encoder_with(tiny_encoder, kind).fingerprint()
    next(iter(tiny_encoder.transform.state_dict().values())).add_(1)
    assert len({bare, with_it, tiny_encoder.fingerprint()}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_another_pooler_or_head_is_refused(kind, tiny_encoder, tmp_path):
    encoder_with(tiny_encoder, kind, head=True).save(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"fitted on embeddings of pooler 'cls', .* 'mean'"):
        SentenceEncoder.load(tmp_path / "saved", pooler="mean")
    with pytest.raises(ConfigError, match=r"fitted on embeddings of head 'mlp', .* head 'none'"):
        SentenceEncoder.load(tmp_path / "saved", head="none")
    SentenceEncoder.load(tmp_path / "saved", pooler="cls", head="mlp")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"damaged"),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text('{"transform": "glow"}'),
        lambda folder: (folder / "config.json").write_text('{"transform": "flow", "wide": 3}'),
        lambda folder: (folder / "config.json").write_text('{"transform": "flow", "width": 8}'),
    ],
)
def test_a_damaged_transform_is_named(change, tiny_encoder, tmp_path):
    encoder_with(tiny_encoder, "flow").save(tmp_path / "saved")
    change(tmp_path / "saved" / "2_FittedTransform")
    with pytest.raises(CheckpointError, match=r"2_FittedTransform cannot be read"):
        SentenceEncoder.load(tmp_path / "saved")
