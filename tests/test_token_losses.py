"""Losses over the tokens of packed sentences, against loops."""

import pytest
import torch
from helpers import oracles
from helpers.oracles import compare

from contrasent.functional import corrective_lm, masked_cross_entropy, replaced_token_loss

SETTINGS = [
    {"reduction": reduction, "padding": padding}
    for reduction in ("mean", "sum")
    for padding in ("ignored", "as_reference")
]


def drawn(tokens, share=0.4, seed=0):
    """True for about a ``share`` of the tokens, of which at least one is and one is not."""
    generator = torch.Generator().manual_seed(seed)
    marks = torch.rand(tokens, generator=generator) < share
    marks[0], marks[-1] = True, False
    return marks


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s.values()))
@pytest.mark.parametrize("lengths", [[2], [3, 1, 7, 2], [4, 4, 4]], ids=str)
def test_detection_is_the_formula(lengths, settings, rng):
    edited = drawn(sum(lengths))
    compare(
        lambda logits: replaced_token_loss(logits, edited, torch.tensor(lengths), **settings),
        lambda logits: oracles.replaced_token_loss(logits, edited.tolist(), lengths, **settings),
        rng(sum(lengths), 2),
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s.values()))
def test_the_order_of_sentences_does_not_matter_for_detection(settings, rng):
    lengths, order = [3, 1, 7, 2], [2, 0, 3, 1]
    logits, edited = rng(13, 2), drawn(13)
    places = torch.arange(13).split(lengths)
    moved = torch.cat([places[s] for s in order])
    shuffled = torch.tensor([lengths[s] for s in order])
    torch.testing.assert_close(
        replaced_token_loss(logits[moved], edited[moved], shuffled, **settings),
        replaced_token_loss(logits, edited, torch.tensor(lengths), **settings),
    )


def test_the_references_mean_is_that_over_padded_sentences_that_are_detected_for_sure(rng):
    lengths = [3, 1, 7, 2]
    logits, edited = rng(13, 2), drawn(13)
    padded = torch.tensor([40.0, -40.0]).repeat(4, 7, 1)
    labels = torch.zeros(4, 7, dtype=torch.int64)
    for s, place in enumerate(torch.arange(13).split(lengths)):
        padded[s, : len(place)], labels[s, : len(place)] = logits[place], edited[place].long()
    expected = torch.nn.functional.cross_entropy(padded.view(-1, 2), labels.view(-1))
    loss = replaced_token_loss(logits, edited, torch.tensor(lengths), padding="as_reference")
    torch.testing.assert_close(loss, expected)
    ignored = replaced_token_loss(logits, edited, torch.tensor(lengths))
    torch.testing.assert_close(loss * 28, ignored * 13)


@pytest.mark.parametrize("targets", [[4, 0, 4, 2], [3]], ids=str)
def test_the_cross_entropy_of_masked_tokens_is_the_formula(targets, rng):
    targets = torch.tensor(targets)
    compare(
        lambda logits: masked_cross_entropy(logits, targets),
        lambda logits: oracles.masked_cross_entropy(logits, targets),
        rng(len(targets), 5),
    )


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


def test_recovery_does_not_train_copying(rng):
    edited, chosen = drawn(6), torch.ones(6, dtype=torch.bool)
    logits, copy_logits = rng(6, 5).requires_grad_(), rng(6).requires_grad_()
    targets = torch.arange(6) % 5
    recovery, copying = corrective_lm(logits, targets, copy_logits, edited, chosen)
    assert torch.autograd.grad(recovery, copy_logits, allow_unused=True, retain_graph=True) == (
        None,
    )
    assert torch.autograd.grad(copying, logits, allow_unused=True) == (None,)


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
    loss = masked_cross_entropy(logits, targets)
    loss.backward()
    assert loss == 0
    recovery, copying = corrective_lm(logits, targets, rng(4), none, none)
    assert recovery == 0
    assert copying.isfinite()


def test_half_precision_logits_are_scored_in_fp32(rng):
    logits, edited, lengths = rng(6, 2).bfloat16(), drawn(6), torch.tensor([6])
    expected = replaced_token_loss(logits.float(), edited, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        assert replaced_token_loss(logits, edited, lengths) == expected
        assert masked_cross_entropy(logits, edited.long()) == expected
