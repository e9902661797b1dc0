from math import log

import pytest
import torch
from helpers import oracles
from helpers.oracles import compare

from contrasent.functional import alignment, cosine_matrix, dot_matrix, info_nce, uniformity


def test_cosine_matrix_is_the_cosine_of_every_pair(rng):
    a, b = rng(3, 8), rng(5, 8)
    expected = torch.stack([torch.stack([oracles.cosine(u, v) for v in b]) for u in a])
    torch.testing.assert_close(cosine_matrix(a, b), expected)


def test_dot_matrix_is_the_dot_product_of_every_pair(rng):
    a, b = rng(3, 8), rng(5, 8)
    expected = torch.stack([torch.stack([oracles.dot(u, v) for v in b]) for u in a])
    torch.testing.assert_close(dot_matrix(a, b), expected)


@pytest.mark.parametrize("hard_negatives", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_info_nce_is_eq_1_and_eq_5(hard_negatives, temperature, rng):
    compare(
        lambda a, c: info_nce(a, c, temperature),
        lambda a, c: oracles.info_nce(a, c, temperature),
        rng(4, 8),
        rng(4 * (1 + hard_negatives), 8),
    )


@pytest.mark.parametrize("hard_negatives", [0, 2])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_info_nce_with_the_dot_product(hard_negatives, alpha, rng):
    compare(
        lambda a, c: info_nce(a, c, 2.0, similarity="dot", own_weight=alpha),
        lambda a, c: oracles.info_nce(a, c, 2.0, alpha, similarity=oracles.dot),
        rng(4, 8),
        rng(4 * (1 + hard_negatives), 8),
    )


@pytest.mark.parametrize("hard_negatives", [1, 2])
@pytest.mark.parametrize("alpha", [0.5, 2.0, 10.0])
def test_own_weight_is_alpha_of_eq_8(hard_negatives, alpha, rng):
    compare(
        lambda a, c: info_nce(a, c, 0.2, own_weight=alpha),
        lambda a, c: oracles.info_nce(a, c, 0.2, own_weight=alpha),
        rng(4, 8),
        rng(4 * (1 + hard_negatives), 8),
    )


def test_own_weight_acts_on_an_anchors_own_hard_negatives_only(rng):
    anchor, candidates = rng(3, 8), rng(6, 8)
    others = torch.ones(3, 6, dtype=torch.bool)
    others[:, :3] = False
    others[torch.arange(3), torch.arange(3) + 3] = False  # an anchor's own stays
    foreign = torch.zeros(3, 6, dtype=torch.bool)
    foreign[torch.arange(3), torch.arange(3) + 3] = True  # an anchor's own goes
    without_own = info_nce(anchor, candidates, 0.1, excluded=foreign)
    assert info_nce(anchor, candidates, 0.1, excluded=foreign, own_weight=9.0) == without_own
    only_own = info_nce(anchor, candidates, 0.1, excluded=others)
    assert info_nce(anchor, candidates, 0.1, excluded=others, own_weight=9.0) > only_own


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_excluded_candidates_are_left_out_and_the_positive_stays(alpha, rng):
    generator = torch.Generator().manual_seed(1)
    excluded = torch.rand(4, 8, generator=generator) < 0.5
    excluded[torch.arange(4), torch.arange(4)] = torch.tensor([True, False, True, False])
    compare(
        lambda a, c: info_nce(a, c, 0.1, own_weight=alpha, excluded=excluded),
        lambda a, c: oracles.info_nce(a, c, 0.1, own_weight=alpha, excluded=excluded.tolist()),
        rng(4, 8),
        rng(8, 8),
    )


def test_an_excluded_candidate_gets_no_gradient(rng):
    anchor, candidates = rng(2, 8), rng(4, 8).requires_grad_()
    excluded = torch.zeros(2, 4, dtype=torch.bool)
    excluded[:, 3] = True
    info_nce(anchor, candidates, 0.1, excluded=excluded).backward()
    assert candidates.grad[3].abs().max() == 0
    assert candidates.grad[:3].abs().amin(dim=1).min() > 0


def test_with_every_negative_excluded_the_loss_is_0_and_finite(rng):
    anchor, candidates = rng(3, 8).requires_grad_(), rng(6, 8)
    loss = info_nce(anchor, candidates, 0.05, excluded=torch.ones(3, 6, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert anchor.grad.isfinite().all()


@pytest.mark.parametrize("count", [1, 5, 64])
def test_info_nce_of_identical_embeddings_is_log_of_the_number_of_candidates(count):
    same = torch.ones(count, 3)
    assert info_nce(same, same, 0.05).item() == pytest.approx(log(count), abs=1e-6)


def test_the_length_of_an_embedding_does_not_matter(rng):
    anchor, candidates, sizes = rng(4, 8), rng(8, 8), rng(8, 1).exp()
    changed = info_nce(anchor * 100, candidates * sizes, 0.05)
    torch.testing.assert_close(changed, info_nce(anchor, candidates, 0.05))
    pairs = alignment(anchor, candidates[:4])
    torch.testing.assert_close(alignment(anchor * 3, candidates[:4] * sizes[:4]), pairs)
    torch.testing.assert_close(uniformity(candidates * sizes), uniformity(candidates))


def test_the_order_of_examples_does_not_matter(rng):
    anchor, positive = rng(6, 8), rng(6, 8)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = info_nce(anchor[order], positive[order], 0.05)
    torch.testing.assert_close(shuffled, info_nce(anchor, positive, 0.05))


def test_half_precision_embeddings_are_scored_in_fp32(rng):
    anchor, candidates = rng(4, 8).bfloat16(), rng(8, 8).bfloat16()
    expected = info_nce(anchor.float(), candidates.float(), 0.05)
    assert info_nce(anchor, candidates, 0.05) == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert info_nce(anchor, candidates, 0.05) == expected
        assert cosine_matrix(anchor, candidates).dtype == torch.float32
        assert dot_matrix(anchor, candidates).dtype == torch.float32


def test_alignment_and_uniformity_are_those_of_wang_and_isola(rng):
    compare(alignment, oracles.alignment, rng(5, 8), rng(5, 8))
    compare(uniformity, oracles.uniformity, rng(6, 8))


def test_uniformity_of_many_rows_is_that_of_all_pairs(rng):
    rows = torch.nn.functional.normalize(rng(2500, 8), dim=-1)
    expected = torch.pdist(rows.double()).square().mul(-2).exp().mean().log()
    torch.testing.assert_close(uniformity(rows).double(), expected, rtol=0, atol=1e-6)


def test_alignment_and_uniformity_at_their_ends():
    x, y = torch.eye(2)
    both = torch.stack([x, x])
    assert alignment(both, both) == 0
    assert alignment(both, -both) == 4
    assert uniformity(both) == 0
    assert uniformity(torch.stack([x, -x])).item() == pytest.approx(-8)
    assert uniformity(torch.stack([x, y])).item() == pytest.approx(-4)
