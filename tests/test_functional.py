import pytest
import torch
from helpers import oracles
from helpers.oracles import compare

from contrasent.functional import (
    alignment,
    corrective_lm,
    cosine_matrix,
    dot_matrix,
    info_nce,
    uniformity,
)


def test_cosine_matrix_is_the_cosine_of_every_pair(rng):
    a, b = rng(3, 8), rng(5, 8)
    expected = torch.stack([torch.stack([oracles.cosine(u, v) for v in b]) for u in a])
    torch.testing.assert_close(cosine_matrix(a, b), expected)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("hard_negatives", [0, 1, 3])
@pytest.mark.parametrize(("temperature", "alpha"), [(0.2, 1.0), (1.0, 0.5), (0.5, 10.0)])
def test_info_nce_is_eq_1_eq_5_and_eq_8(similarity, hard_negatives, temperature, alpha, rng):
    compare(
        lambda a, c: info_nce(a, c, temperature, similarity=similarity, own_weight=alpha),
        lambda a, c: oracles.info_nce(
            a, c, temperature, alpha, similarity=getattr(oracles, similarity)
        ),
        rng(4, 8),
        rng(4 * (1 + hard_negatives), 8),
    )


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


def test_with_every_negative_excluded_the_loss_is_0_and_finite(rng):
    anchor, candidates = rng(3, 8).requires_grad_(), rng(6, 8)
    loss = info_nce(anchor, candidates, 0.05, excluded=torch.ones(3, 6, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert anchor.grad.isfinite().all()


def test_the_length_of_an_embedding_does_not_matter(rng):
    anchor, candidates, sizes = rng(4, 8), rng(8, 8), rng(8, 1).exp()
    changed = info_nce(anchor * 100, candidates * sizes, 0.05)
    torch.testing.assert_close(changed, info_nce(anchor, candidates, 0.05))
    pairs = alignment(anchor, candidates[:4])
    torch.testing.assert_close(alignment(anchor * 3, candidates[:4] * sizes[:4]), pairs)
    torch.testing.assert_close(uniformity(candidates * sizes), uniformity(candidates))


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


# Corrective language modelling


def drawn(tokens, share=0.4, seed=0):
    """True for about a ``share`` of the tokens, of which at least one is and one is not."""
    generator = torch.Generator().manual_seed(seed)
    marks = torch.rand(tokens, generator=generator) < share
    marks[0], marks[-1] = True, False
    return marks


def test_corrective_language_modelling_is_the_formula(rng):
    edited = torch.tensor([1, 0, 1, 0, 1, 0, 0, 0, 1]) == 1
    chosen = torch.tensor([1, 1, 0, 0, 1, 1, 0, 0, 0]) == 1
    targets, logits, copy_logits = torch.tensor([4, 0, 4, 2]), rng(4, 5), rng(9)
    compare(
        lambda logits: corrective_lm(logits, targets, copy_logits, edited, chosen)[0],
        lambda logits: oracles.corrective_lm(logits, targets, copy_logits, edited, chosen)[0],
        logits,
    )
    compare(
        lambda copy_logits: corrective_lm(logits, targets, copy_logits, edited, chosen)[1],
        lambda copy_logits: oracles.corrective_lm(logits, targets, copy_logits, edited, chosen)[1],
        copy_logits,
    )


def test_certain_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4], [1e4, -1e4]], requires_grad=True)
    copy_logits = torch.tensor([-1e4, 1e4], requires_grad=True)
    edited, chosen = torch.tensor([False, True]), torch.tensor([True, True])
    terms = corrective_lm(logits, torch.tensor([1, 0]), copy_logits, edited, chosen)
    sum(terms).backward()
    assert all(term.isfinite() for term in terms)
    assert logits.grad.isfinite().all()
    assert copy_logits.grad.isfinite().all()


def test_without_a_masked_token_there_is_nothing_to_recover(rng):
    none, logits = torch.zeros(4, dtype=torch.bool), torch.zeros(0, 5, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.int64)
    recovery, copying = corrective_lm(logits, targets, rng(4), none, none)
    assert recovery == 0
    assert copying.isfinite()
