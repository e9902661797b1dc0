"""DiffCSE's conditional tasks in loops: what is edited, what is known of it, what is asked."""

from itertools import pairwise

import pytest
import torch
from helpers import oracles
from helpers.tiny_diffcse import Noted, batch_of, build, scored, sentences, still_encoder
from torch.testing import assert_close

from contrasent.data.batch import Batch
from contrasent.objectives import diffcse

OPERATIONS = ["replace", "insert", "delete"]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def encoder(tiny_masked_lm):
    return still_encoder(tiny_masked_lm)


@pytest.fixture
def noted(monkeypatch):
    found = Noted()
    found.operations(monkeypatch)
    return found


def states_of(objective, batch, embeddings):
    """The transformer one sentence at a time: no packing, no repetition, no order to go wrong."""
    conditional = objective.difference.conditional
    parts = []
    for s, (start, end) in enumerate(pairwise(batch.offsets.tolist())):
        alone = Batch(batch.token_ids[start:end], torch.tensor([0, end - start]))
        parts.append(conditional.transformer(alone, first_state=embeddings[s : s + 1])[-1])
    return torch.cat(parts).double()


def linear(objective, head, states):
    layer = objective.difference.conditional.heads[head]
    return states @ layer.weight.T.double() + layer.bias.double()


# What the transformer is given


@pytest.mark.parametrize("source", ["same", "next", "both"])
@pytest.mark.parametrize("task", ["rtd", "cmlm", "corrective"])
@pytest.mark.parametrize("data_views", [1, 3])
def test_which_sentences_are_edited_for_which_embedding(
    data_views, task, source, encoder, noted, monkeypatch
):
    """Each view of a sentence has to help with an edit of its own sentence, or of the next."""
    objective = build(encoder, data_views, task=task, edit_source=source, rtd_embedding="pooled")
    edited = []
    for name in ("replace", "mask_tokens"):
        original = getattr(diffcse, name)

        def noting(batch, *given, original=original):
            edited.append(batch)
            return original(batch, *given)

        monkeypatch.setattr(diffcse, name, noting)
    batch = batch_of(encoder, views=objective.views)
    encoded, _ = scored(encoder, noted.transformer(objective), batch)
    edited += [source_batch for _, source_batch, _ in noted.edits]
    (edited,) = edited
    own, after = sentences(batch), sentences(batch.next_sentences) * objective.views
    wanted = {"same": own, "next": after, "both": own + after}[source]
    assert sentences(edited) == wanted
    given, embeddings = noted.call
    assert [len(ids) for ids in sentences(given)] == [len(ids) for ids in wanted]
    rows = [encoded.pooled[s // batch.examples, s % batch.examples] for s in range(len(own))]
    assert_close(embeddings, torch.stack(rows * (2 if source == "both" else 1)))


# Replaced tokens


@pytest.mark.parametrize("padding", ["ignored", "as_reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("operation", [*OPERATIONS, "all"])
def test_edits_are_told_by_heads_of_their_own(operation, reduction, padding, encoder, noted):
    objective = build(
        encoder,
        edit_operation=operation,
        rtd_reduction=reduction,
        rtd_padding=padding,
        rtd_weight=0.25,
        mask_rate=0.4,
    )
    names = OPERATIONS if operation == "all" else [operation]
    assert list(objective.difference.conditional.heads) == names
    batch = batch_of(encoder)
    _, terms = scored(encoder, noted.transformer(objective), batch)
    _, embeddings = noted.call
    assert [name for name, _, _ in noted.edits] == names
    total, right = 0.0, {True: [], False: []}
    for name, _, edit in noted.edits:
        states = states_of(objective, edit.batch, embeddings[: batch.sentences])
        logits = linear(objective, name, states)
        total = total + oracles.replaced_token_loss(
            logits, edit.edited, edit.batch.lengths.tolist(), reduction, padding
        )
        for row, was_edited in zip(logits, edit.edited.tolist(), strict=True):
            right[was_edited].append(bool(row[1] > row[0]) == was_edited)
    assert_close(terms["rtd"].double(), 0.25 * total / len(names), rtol=1e-4, atol=1e-6)
    measures = {name: value.item() for name, value in terms.measures.items()}
    tokens = len(right[True]) + len(right[False])
    assert measures == pytest.approx(
        {
            "rtd_accuracy_edited": sum(right[True]) / len(right[True]),
            "rtd_accuracy_original": sum(right[False]) / len(right[False]),
            "share_edited": len(right[True]) / tokens,
        }
    )


# Conditional and corrective language models


def predicted(objective, states):
    """Logits over the vocabulary; the head is transformers' own."""
    return objective.difference.conditional.heads["vocabulary"](states.float()).double()


@pytest.mark.parametrize("source", ["same", "both"])
def test_conditional_masked_language_modelling(source, encoder, noted, monkeypatch):
    objective = build(encoder, task="cmlm", edit_source=source, rtd_weight=0.25, mask_rate=0.4)
    assert objective.difference.editing.generator is None
    masks, mask_tokens = [], diffcse.mask_tokens

    def noting(batch, rate, *given):
        assert rate == 0.4
        masks.append((batch, mask_tokens(batch, rate, *given)))
        return masks[-1][1]

    monkeypatch.setattr(diffcse, "mask_tokens", noting)
    _, terms = scored(encoder, noted.transformer(objective), batch_of(encoder))
    ((original, masked),) = masks
    given, embeddings = noted.call
    assert torch.equal(given.token_ids, masked.token_ids)
    states = states_of(objective, given, embeddings)
    places = [t for t in range(len(states)) if masked.chosen[t]]
    logits, wanted = predicted(objective, states[places]), original.token_ids[places]
    expected = 0.25 * oracles.masked_cross_entropy(logits, wanted)
    assert_close(terms["cmlm"].double(), expected, **CLOSE)
    right = [int(row.argmax()) == int(word) for row, word in zip(logits, wanted, strict=True)]
    assert terms.measures["cmlm_accuracy"].item() == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("positions", ["all", "masked"])
@pytest.mark.parametrize("copy_weight", [50.0, 2.0, 0.0])
def test_corrective_language_modelling(copy_weight, positions, encoder, noted, monkeypatch):
    objective = build(
        encoder,
        task="corrective",
        copy_weight=copy_weight,
        rtd_weight=0.25,
        mask_rate=0.4,
        edit_positions=positions,
    )
    edits, replace = [], diffcse.replace

    def noting(batch, editing):
        edits.append((batch, replace(batch, editing)))
        return edits[-1][1]

    monkeypatch.setattr(diffcse, "replace", noting)
    _, terms = scored(encoder, noted.transformer(objective), batch_of(encoder))
    ((original, edit),) = edits
    given, embeddings = noted.call
    assert torch.equal(given.token_ids, edit.batch.token_ids)
    states = states_of(objective, given, embeddings)
    copies = linear(objective, "copy", states)[:, 0]
    places = [t for t in range(len(states)) if edit.chosen[t]]
    edited, chosen = edit.edited.tolist(), edit.chosen.tolist()
    corrected, copying = oracles.corrective_lm(
        predicted(objective, states[places]), original.token_ids[places], copies, edited, chosen
    )
    assert_close(terms["corrective"].double(), 0.25 * corrected, **CLOSE)
    assert_close(terms["copy"].double(), 0.25 * copy_weight * copying, **CLOSE)
    right = [bool(score > 0) != was for score, was in zip(copies, edited, strict=True)]
    assert terms.measures["copy_accuracy"].item() == pytest.approx(sum(right) / len(right))
    assert terms.measures["share_edited"].item() == pytest.approx(sum(edited) / len(edited))
