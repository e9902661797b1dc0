"""Whitening and the flow, each against its definition, and folders with a transform."""

import math

import numpy as np
import pytest
import torch
from helpers.oracles import inverse_flow
from helpers.tiny_models import SENTENCES, shaken

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.model.backbones import base as base
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.transforms import TRANSFORMS, Flow, Moments, Whitening
from contrasent.model.transforms import fit_whitening as fit
from contrasent.settings import EncoderSettings
from contrasent.training.setup import start_encoder


def rows_of(count=400, width=12, seed=0):
    """Correlated rows far from 0, some directions a hundred times wider than others."""
    draw = np.random.default_rng(seed)
    mixed = draw.normal(size=(width, width)) * np.logspace(-1, 1, width)[:, None]
    return (draw.normal(size=(count, width)) @ mixed + 2 * draw.normal(size=width)).astype("f4")


def moments_of(rows, parts=1):
    found = Moments(rows.shape[1])
    for part in np.array_split(rows, parts):
        found.add(part)
    return found


def applied(transform, rows):
    return transform(torch.from_numpy(rows)).numpy()


@pytest.mark.parametrize("parts", [1, 3, 399, 500])
def test_moments_do_not_depend_on_the_parts(parts):
    rows = rows_of()
    found = moments_of(rows, parts)
    np.testing.assert_allclose(found.mean, rows.astype("f8").mean(0), rtol=1e-12)
    expected = np.cov(rows.astype("f8").T)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-11 * np.abs(expected).max())
    second = rows.astype("f8").T @ rows.astype("f8")
    np.testing.assert_allclose(found.second, second, atol=1e-11 * np.abs(second).max())


def test_moments_keep_their_digits_far_from_zero():
    rows = (np.random.default_rng(0).normal(size=(1000, 2)) + 1e6).astype("f8")
    np.testing.assert_allclose(moments_of(rows, 7).covariance, np.cov(rows.T), rtol=1e-6)


def test_it_is_the_definition():
    """``(x - mu) W`` with ``W = U diag(1 / sqrt(S))`` from the published code's SVD."""
    rows = rows_of().astype("f8")
    u, s, _ = np.linalg.svd(np.cov(rows.T))
    expected = (rows - rows.mean(0)) @ u @ np.diag(1 / np.sqrt(s))
    found = applied(fit(moments_of(rows_of()))[0], rows_of())
    signs = np.sign((expected * found).sum(0))
    np.testing.assert_allclose(found, expected * signs, atol=2e-4)


def test_fewer_dimensions_are_those_of_the_largest_variance():
    rows = rows_of()
    whole, some = (applied(fit(moments_of(rows), k)[0], rows) for k in (None, 4))
    np.testing.assert_allclose(some, whole[:, :4], atol=1e-5)
    variances = np.sort(np.linalg.eigvalsh(np.cov(rows.astype("f8").T)))[::-1]
    share = fit(moments_of(rows), 4)[2]
    assert share == pytest.approx(variances[:4].sum() / variances.sum(), rel=1e-9)


def test_one_constant_direction_is_left_out_unasked_and_refused_when_asked_for():
    rows = rows_of(width=11)
    rows = np.concatenate([rows, rows[:, :1] * 2 - rows[:, 1:2] + 3], axis=1)
    transform, rank, _ = fit(moments_of(rows))
    assert (rank, transform.width) == (11, 11)
    white = applied(transform, rows).astype("f8")
    assert np.abs(np.cov(white.T) - np.eye(11)).max() < 1e-4
    with pytest.raises(DataError, match="rank 11 of 12"):
        fit(moments_of(rows), 12)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_covariance_of_low_rank_is_named(rank):
    moments = moments_of(np.tile(rows_of(rank + 1), (20, 1)))
    with pytest.raises(DataError, match=rf"rank {rank} of 12; give sentences that differ more"):
        fit(moments)
    if rank:
        assert fit(moments, rank)[0].width == rank


@pytest.mark.parametrize("sizes", [(16, 3, 3), (8, 1, 2), (12, 2, 1), (2, 1, 1)])
def test_inverse_of_forward_is_the_identity(sizes, rng):
    flow, rows = shaken(Flow(*sizes)), 3 * rng(20, sizes[0])
    assert not torch.allclose(flow(rows), rows, atol=0.1)
    torch.testing.assert_close(inverse_flow(flow, flow(rows)), rows, rtol=0, atol=1e-4)
    torch.testing.assert_close(flow(inverse_flow(flow, rows)), rows, rtol=0, atol=1e-4)


def test_bits_per_dimension_are_the_change_of_variables(rng):
    flow, rows = shaken(Flow(16, levels=3, depth=2, coupling_width=6)), rng(5, 16)
    total = 0.0
    for row in rows:
        mapped = flow(row.unsqueeze(0))[0]
        jacobian = torch.autograd.functional.jacobian(lambda it: flow(it.unsqueeze(0))[0], row)
        normal = sum(-0.5 * z.item() ** 2 - 0.5 * math.log(2 * math.pi) for z in mapped)
        total += normal + torch.linalg.slogdet(jacobian)[1].item()
    expected = -total / 5 / 16 / math.log(2)
    assert flow.bits_per_dimension(rows).item() == pytest.approx(expected, rel=1e-5)


def test_a_step_written_out(rng):
    """ActNorm, reversed components, additive coupling, for one sentence in plain loops."""
    flow = shaken(Flow(4, levels=1, depth=1, coupling_width=3))
    state = flow.state_dict()

    def weight(name):
        return state[f"steps.0.0.{name}"].tolist()

    def normed(values, name):
        shift, scale = weight(f"{name}.shift"), weight(f"{name}.log_scale")
        return [(v + b) * math.exp(3 * s) for v, b, s in zip(values, shift, scale, strict=True)]

    def product(matrix, values):
        return [sum(w * v for w, v in zip(row, values, strict=True)) for row in matrix]

    x = rng(1, 4)
    y = normed(x[0].tolist(), "norm")[::-1]
    hidden = y[:2]
    for part in ("inner", "middle"):
        sums = product(weight(f"coupling.{part}.weight"), hidden)
        hidden = [max(it, 0) for it in normed(sums, f"coupling.{part}_norm")]
    outer = product(weight("coupling.outer.weight"), hidden)
    added = [
        (o + b) * math.exp(3 * s)
        for o, b, s in zip(
            outer, weight("coupling.outer.bias"), weight("coupling.log_scale"), strict=True
        )
    ]
    expected = [*y[:2], y[2] + added[0], y[3] + added[1]]
    torch.testing.assert_close(flow(x)[0], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_a_new_flow_starts_with_unit_variance(rng):
    rows = rng(500, 16) @ rng(16, 16) + 5
    flow = Flow(16, levels=2, depth=2)
    flow.start(rows)
    mapped = flow(rows)
    torch.testing.assert_close(mapped.mean(0), torch.zeros(16), rtol=0, atol=1e-4)
    torch.testing.assert_close(mapped.square().mean(0), torch.ones(16), rtol=0, atol=1e-3)
    coupling = flow.steps[1][1].coupling
    inner = coupling.inner_norm(coupling.inner(rng(50, 4)))
    assert not torch.equal(coupling.inner_norm.log_scale, torch.zeros(32)), inner


def test_a_constant_component_is_not_blown_up(rng):
    rows = rng(200, 8) + 3
    rows[:, 5] = 1.75
    flow = Flow(8, levels=1, depth=3)
    flow.start(rows)
    flow.bits_per_dimension(rows + 1e-6 * rng(200, 8)).backward()
    largest = max(parameter.grad.norm() for parameter in flow.parameters())
    assert largest < 1
    assert flow(rows).abs().max() < 10


@pytest.mark.parametrize(("width", "levels"), [(300, 3), (15, 1)])
def test_a_width_that_cannot_be_halved_so_often(width, levels):
    with pytest.raises(ConfigError, match=f"halves .* {levels} times: set fewer --levels"):
        Flow(width, levels)


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
        for name, kind in TRANSFORMS.items()
        if kind is not Flow
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
    with pytest.raises(ConfigError, match=r"map of embeddings of pooler 'cls', .* 'mean'"):
        SentenceEncoder.load(tmp_path / "saved", pooler="mean")
    with pytest.raises(ConfigError, match=r"map of embeddings of head 'mlp', .* head 'none'"):
        SentenceEncoder.load(tmp_path / "saved", head="none")
    whole = SentenceEncoder.load(tmp_path / "saved", pooler="cls", head="mlp")
    if not whole.transform.is_trained:
        with pytest.raises(ConfigError, match="saved ends with a map that is not trained"):
            start_encoder(EncoderSettings(name=str(tmp_path / "saved")))


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
