"""Encoding and training on a CUDA device, against the CPU."""

import copy
import itertools

import pytest
import torch
from helpers.tiny_models import SENTENCES, WORDS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.backbones import kernels as packing
from contrasent.model.backbones.base import FULL_FP32, matrix_precision
from contrasent.model.backbones.kernels import packed_attention_available
from contrasent.model.encoder import SentenceEncoder
from contrasent.training.embedding import GradientCache

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")


@pytest.fixture
def encoder(tiny_bert):
    """On the CPU, without dropout."""
    found = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")
    found.backbone.set_dropout(0.0)
    return found


def batch_of(count=8, first=0):
    """Pairs of sentences of unlike lengths."""
    ids = [
        [5 + (first + n * 7 + k) % (len(WORDS) - 5) for k in range(1 + (n * 5 + first) % 12)]
        for n in range(2 * count)
    ]
    return pack(ids, views=2)


class Steps:
    """Training steps of an encoder, as the training loop makes them."""

    def __init__(self, encoder, device, precision):
        self.device, self.precision = device, precision
        self.encoder = copy.deepcopy(encoder).to(device).train()
        torch.manual_seed(0)
        self.objective = objectives.build("simcse", {}, width=16, data_views=2).to(device)
        self.parameters = [*self.encoder.parameters(), *self.objective.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, fused=True)

    def step(self, batch):
        """One update; the loss, still on the device."""
        with FULL_FP32:
            with matrix_precision(self.precision, self.device):
                batch = self.objective.prepare(batch)
                encoded = self.encoder(batch, self.objective.layers)
                terms = self.objective(encoded, batch)
            loss = torch.stack(list(terms.values())).sum()
            loss.backward()
        clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def curve(self, steps=20):
        losses = [self.step(batch_of(first=n).to(self.device)) for n in range(steps)]
        return torch.stack(losses).cpu()


@pytest.mark.parametrize("pooler", ["cls", "mean"])
@pytest.mark.parametrize(("precision", "bar"), [("fp32", 1 - 1e-6), ("bf16", 0.999)])
def test_it_encodes_as_the_cpu_does(precision, bar, pooler, tiny_bert, cuda):
    expected = SentenceEncoder.load(tiny_bert, pooler=pooler, head="none", device="cpu").encode(
        SENTENCES, precision="fp32", normalize=True
    )
    got = SentenceEncoder.load(tiny_bert, pooler=pooler, head="none", device=cuda).encode(
        SENTENCES, precision=precision, normalize=True
    )
    assert (got * expected).sum(1).min() > bar


@pytest.mark.parametrize("first_only", [False, True])
def test_the_varlen_route_is_the_padded_one(first_only, encoder, cuda):
    assert packed_attention_available(cuda, torch.bfloat16, 8)
    backbone, batch = encoder.backbone.to(cuda).train(), batch_of().to(cuda)
    parameters = [p for p in backbone.parameters() if p.requires_grad]

    def state_and_gradient():
        with matrix_precision("bf16", cuda):
            state = backbone(batch, (-1,), first_only=first_only)[-1].float()
        weights = torch.randn(state.shape, generator=torch.Generator().manual_seed(1)).to(cuda)
        found = torch.autograd.grad((state * weights).sum(), parameters, allow_unused=True)
        return state, torch.cat([g.float().flatten() for g in found if g is not None])

    got = state_and_gradient()
    with sdpa_kernel(SDPBackend.MATH):
        expected = state_and_gradient()
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > 0.999


def test_the_losses_are_those_of_the_cpu(encoder, cuda):
    exact = Steps(encoder, CPU, "fp32").curve()
    torch.testing.assert_close(Steps(encoder, cuda, "fp32").curve(), exact, rtol=0, atol=1e-3)
    noise = (Steps(encoder, CPU, "bf16").curve() - exact).abs().max()
    assert (Steps(encoder, cuda, "bf16").curve() - exact).abs().max() < 3 * noise


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_waits_for_nothing(precision, tiny_encoder, cuda):
    steps = Steps(tiny_encoder, cuda, precision)
    ready = [batch_of(first=n).pin() for n in range(3)]
    steps.step(ready[0].to(cuda))  # what is asked once, and the first allocations
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [steps.step(batch.to(cuda)) for batch in ready]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(losses).isfinite().all()


@pytest.mark.parametrize(("precision", "bar"), [("fp32", 1 - 1e-6), ("bf16", 0.999)])
def test_a_graph_is_its_kernels_launched_one_by_one(precision, bar, encoder, cuda):
    encoder = encoder.to(cuda).train()
    weights = [it for it in encoder.parameters() if it.requires_grad]
    cache = GradientCache(encoder, None, precision, (-1,))

    def numbers(encode, batch):
        with matrix_precision(precision, cuda):
            encoded = encode(batch)
        made = [encoded.pooled.flatten(0, 1), encoded.states[-1].float()]
        loss = sum((it * it.detach().cos()).sum() for it in made)
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        return [it.clone() for it in (*made, *found) if it is not None]

    for count in [8, 9, 30] * 9:  # those of a shape by its graph, in the end
        batch = batch_of(count).to(cuda)
        got = numbers(lambda it: cache.embed(it)[0], batch)
        wanted = numbers(lambda it: encoder(it, (-1,)), batch)
        for mine, theirs in zip(got, wanted, strict=True):
            assert torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > bar
            assert (mine - theirs).norm() < 0.05 * theirs.norm() + 1e-6
    assert 2 <= len(cache._graphs) <= 3


def test_a_graph_draws_anew_and_what_would_be_drawn_without_it(tiny_encoder, monkeypatch, cuda):
    encoder, batch = tiny_encoder.to(cuda).train(), batch_of().to(cuda)
    encoder.backbone.set_dropout(0.3)
    rows = []
    for worth in (1, 3, 100):  # from the first batch on, from the third, and never
        monkeypatch.setattr("contrasent.training.embedding._WORTH", worth)
        cache = GradientCache(encoder, None, "fp32")
        torch.manual_seed(1)
        rows.append([cache.embed(batch)[0].pooled.detach() for _ in range(4)])
    for one, two, three in zip(*rows, strict=True):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, three)
    assert not any(torch.allclose(*both) for both in itertools.pairwise(rows[0]))


HEADS = 3


def kept_weights(length, sentences, rate, device):
    """Attention weights after dropout, ``(sentences, H, length, length)``.

    With the unit vectors as values, what comes out is the weights themselves.
    """
    width, rows = 64, length * sentences
    runs = packing.Runs.of(pack([[1] * length] * sentences).to(device))
    packed = torch.zeros(rows, 3, HEADS, width, device=device, dtype=torch.bfloat16)
    packed[:, 2] = torch.eye(length, width, device=device).repeat(sentences, 1).unsqueeze(1)
    mixed = packing.packed_attention(packed.flatten(1), HEADS, runs, rate)
    return mixed.view(sentences, length, HEADS, width)[..., :length].transpose(1, 2)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_weights_are_dropped_at_the_rate_and_scaled(rate, cuda):
    weights = kept_weights(32, 200, rate, cuda)
    dropped = (weights == 0).double()
    error = (rate * (1 - rate) / dropped.numel()) ** 0.5
    assert abs(dropped.mean().item() - rate) < 5 * error + 1 / 256
    kept = weights[weights != 0].float()
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 32 / (1 - rate)), rtol=1e-2, atol=0)
    assert len({tuple(row) for row in dropped.flatten(2).flatten(0, 1).tolist()}) == 200 * HEADS
