"""Every loss against loops over single numbers: its value, its gradients, its ends."""

from dataclasses import replace

import pytest
import torch
from helpers import oracles
from helpers.oracles import compare

from contrasent import functional, objectives
from contrasent.data.batch import Need, pack
from contrasent.model.protocol import Encoded
from contrasent.objectives.is_bert import jensen_shannon


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("hard_negatives", [0, 1, 3])
@pytest.mark.parametrize(("temperature", "alpha"), [(0.2, 1.0), (1.0, 0.5), (0.5, 10.0)])
def test_info_nce_is_eq_1_eq_5_and_eq_8(similarity, hard_negatives, temperature, alpha, rng):
    compare(
        lambda a, c: functional.info_nce(
            a, c, temperature, similarity=similarity, own_weight=alpha
        ),
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
        lambda a, c: functional.info_nce(a, c, 0.1, own_weight=alpha, excluded=excluded),
        lambda a, c: oracles.info_nce(a, c, 0.1, own_weight=alpha, excluded=excluded.tolist()),
        rng(4, 8),
        rng(8, 8),
    )


def test_with_every_negative_excluded_the_loss_is_0_and_finite(rng):
    anchor, candidates = rng(3, 8).requires_grad_(), rng(6, 8)
    loss = functional.info_nce(
        anchor, candidates, 0.05, excluded=torch.ones(3, 6, dtype=torch.bool)
    )
    loss.backward()
    assert loss == 0
    assert anchor.grad.isfinite().all()


def test_half_precision_embeddings_are_scored_in_fp32(rng):
    anchor, candidates = rng(4, 8).bfloat16(), rng(8, 8).bfloat16()
    expected = functional.info_nce(anchor.float(), candidates.float(), 0.05)
    assert functional.info_nce(anchor, candidates, 0.05) == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.info_nce(anchor, candidates, 0.05) == expected
        assert functional.cosine_matrix(anchor, candidates).dtype == torch.float32
        assert functional.dot_matrix(anchor, candidates).dtype == torch.float32


def test_alignment_and_uniformity_are_those_of_wang_and_isola(rng):
    compare(functional.alignment, oracles.alignment, rng(5, 8), rng(5, 8))
    compare(functional.uniformity, oracles.uniformity, rng(6, 8))
    rows = torch.nn.functional.normalize(rng(2500, 8), dim=-1)
    expected = torch.pdist(rows.double()).square().mul(-2).exp().mean().log()
    torch.testing.assert_close(functional.uniformity(rows).double(), expected, rtol=0, atol=1e-6)


def test_corrective_language_modelling_is_the_formula(rng):
    edited = torch.tensor([1, 0, 1, 0, 1, 0, 0, 0, 1]) == 1
    chosen = torch.tensor([1, 1, 0, 0, 1, 1, 0, 0, 0]) == 1
    targets, logits, copy_logits = torch.tensor([4, 0, 4, 2]), rng(4, 5), rng(9)
    compare(
        lambda *given: functional.corrective_lm(given[0], targets, given[1], edited, chosen),
        lambda *given: oracles.corrective_lm(given[0], targets, given[1], edited, chosen),
        logits,
        copy_logits,
    )


def test_certain_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4], [1e4, -1e4]], requires_grad=True)
    copy_logits = torch.tensor([-1e4, 1e4], requires_grad=True)
    edited, chosen = torch.tensor([False, True]), torch.tensor([True, True])
    terms = functional.corrective_lm(logits, torch.tensor([1, 0]), copy_logits, edited, chosen)
    sum(terms).backward()
    assert all(term.isfinite() for term in terms)
    assert logits.grad.isfinite().all()
    assert copy_logits.grad.isfinite().all()


def test_without_a_masked_token_there_is_nothing_to_recover(rng):
    none, logits = torch.zeros(4, dtype=torch.bool), torch.zeros(0, 5, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.int64)
    recovery, copying = functional.corrective_lm(logits, targets, rng(4), none, none)
    assert recovery == 0
    assert copying.isfinite()


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(
    ("name", "texts", "shape"), [("nt_xent", 8, (4, 6)), ("self_guided", 4, (3, 4, 6))]
)
def test_contrasts_with_and_without_repeated_texts(name, texts, shape, repeated, temperature, rng):
    numbers = [0, 1, 0, 3, 0, 1, 0, 3][:texts]
    excluded = [[a == b for b in numbers] for a in numbers] if repeated else None
    mask = torch.tensor(excluded) if repeated else None
    compare(
        lambda *rows: getattr(functional, name)(*rows, temperature, excluded=mask),
        lambda *rows: getattr(oracles, name)(*rows, temperature, excluded),
        rng(4, 6),
        rng(*shape),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_contrastive_tension_is_the_formula(reduction, rng):
    same = [1, 0, 0, -1, 1, -1]
    compare(
        lambda *sides: functional.contrastive_tension(
            *sides, torch.tensor(same), reduction=reduction
        ),
        lambda *sides: oracles.contrastive_tension(*sides, same, reduction),
        rng(6, 4),
        rng(6, 4),
    )


@pytest.mark.parametrize("own_score", [True, False])
@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("places", [[3, 4, 5, 6, 7], [3, 4, 105, 106, 107], [3, 104, 7, 4, 6]])
def test_quick_thoughts_is_the_formula(places, left_out, context, own_score, rng):
    """In one document, at a border between two, and out of order with a sentence alone."""
    near = [[0 < abs(a - b) <= context for b in places] for a in places]
    excluded = [[left_out and (i == j or {i, j} == {0, 3}) for j in range(5)] for i in range(5)]
    mask = torch.tensor(excluded)
    compare(
        lambda *sides: functional.neighbours(
            *sides, torch.tensor(near), own_score=own_score, excluded=mask
        ),
        lambda *sides: oracles.neighbours(*sides, near, own_score, excluded),
        rng(5, 4),
        rng(5, 4),
    )


@pytest.mark.parametrize("own_score", [True, False])
def test_without_any_neighbour_there_is_nothing_to_learn(own_score, rng):
    first, second = rng(3, 4).requires_grad_(), rng(3, 4).requires_grad_()
    none = torch.zeros(3, 3).bool()
    loss, right = functional.neighbours(first, second, none, own_score=own_score)
    loss.backward()
    assert loss == 0 and right == 0
    assert not first.grad.any() and not second.grad.any()


@pytest.mark.parametrize("left_out", [False, True])
def test_is_bert_is_the_formula(left_out, rng):
    lengths = [4, 1, 7, 2]
    excluded = [[left_out and {i, j} in ({0, 3}, {1}) for j in range(4)] for i in range(4)]
    mask = torch.tensor(excluded)
    compare(
        lambda *given: jensen_shannon(*given, torch.tensor(lengths), excluded=mask),
        lambda *given: oracles.jensen_shannon(*given, lengths, excluded),
        rng(14, 5),
        rng(4, 5),
    )


@pytest.mark.parametrize("name", ["list_net", "list_mle"])
def test_rankings_are_those_of_the_loops(name, rng):
    teacher = rng(5, 5)
    compare(
        lambda student: getattr(functional, name)(student, teacher),
        lambda student: getattr(oracles, name)(student, teacher),
        rng(5, 5),
    )


def scored(name, batch, term, data_views=1, **settings):
    """The objective, and its term as a function of the embeddings ``(V, B, 6)``."""
    objective = objectives.build(name, settings, width=6, data_views=data_views)
    return objective, lambda pooled: objective(Encoded(pooled, {}), batch)[term]


def batch_of(views, examples=4, **columns):
    ids = [[2, 5 + n, 3] for n in range(views * examples)]
    return replace(pack(ids, views), columns={Need[name]: it for name, it in columns.items()})


def test_mixcse_is_the_formula(rng):
    _, formula = scored("mixcse", batch_of(2), "contrast", temperature=0.5, mix=0.3)
    compare(formula, lambda views: oracles.mixed_contrast(*views, 0.5, 0.3), rng(2, 4, 6))


@pytest.mark.parametrize(
    "features",
    [["u", "v", "difference"], ["u", "v"], ["difference", "product"], ["v", "max_square"]],
    ids=" ".join,
)
def test_classes_of_pairs_are_the_formula(features, rng):
    labels = [2, 0, 1, 0]
    batch = batch_of(2, LABELS=torch.tensor(labels))
    objective, formula = scored("nli_softmax", batch, "nli", 2, features=features)
    linear = objective.classifier.linear
    compare(
        formula,
        lambda views: oracles.pair_classes(*views, labels, linear.weight, linear.bias, features),
        rng(2, 4, 6),
    )


@pytest.mark.parametrize(("anchors", "positives"), [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_declutr_is_the_formula(anchors, positives, rng):
    """Anchor a of document b is row (a, b); its positives are the views behind the anchors."""
    settings = {"anchors": anchors, "positives": positives, "mlm_weight": 0.0, "temperature": 0.2}
    views, documents = anchors * (1 + positives), 3
    objective, formula = scored("declutr", batch_of(views, documents), "contrast", **settings)
    assert objective.views == views and objective.aligned == (anchors == 1)

    def loop(pooled):
        first, second = [], []
        for a in range(anchors):
            for b in range(documents):
                own = [pooled[anchors + a * positives + p, b] for p in range(positives)]
                first.append(pooled[a, b])
                second.append(sum(own) / positives)
        return oracles.nt_xent(first, second, 0.2)

    compare(formula, loop, rng(views, documents, 6))
