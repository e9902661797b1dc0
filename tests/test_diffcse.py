"""DiffCSE: edits as views, tasks in loops, refusals; fidelity/test_diffcse_reference.py has all."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch
from helpers import oracles
from helpers.padded import rows_of
from helpers.tiny_models import SENTENCES
from torch.testing import assert_close

from contrasent import objectives
from contrasent.data.batch import Batch, pack
from contrasent.errors import CheckpointError
from contrasent.model import masked_lm
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives import diffcse
from contrasent.objectives.diffcse import OPERATIONS

EDITS = ["replace", "insert", "delete"]
TASK = {"rtd_weight": 0.25, "mask_rate": 0.4}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
FOLLOWING = "the tree/happy people eat food/a cat !/not one bird reads/two dog s/water/the sad man"
FOLLOWING = FOLLOWING.split("/")


def still_encoder(folder):
    """An encoder in training, without dropout: two forward passes give the same states."""
    encoder = SentenceEncoder.load(folder, pooler="cls", head="none", device="cpu").train()
    encoder.backbone.set_dropout(0.0)
    return encoder


def build(encoder, data_views=1, **settings):
    torch.manual_seed(0)
    return objectives.build("diffcse", settings, width=16, data_views=data_views, encoder=encoder)


def batch_of(encoder, examples=4, views=2):
    """The first sentences, each with the sentence that follows it."""
    ids, _ = encoder.tokenizer.ids(SENTENCES[:examples], None)
    after, _ = encoder.tokenizer.ids(FOLLOWING[:examples], None)
    return replace(pack(ids * views, views=views), next_sentences=pack(after))


def scored(encoder, objective, batch):
    """Embeddings, which keep their gradient, and terms of a batch as the training makes them."""
    torch.manual_seed(7)
    prepared = objective.prepare(batch)
    encoded = encoder(prepared, objective.layers)
    encoded.pooled.retain_grad()
    return encoded, objective(encoded, prepared)


@dataclass
class Noted:
    """What was edited, ``(operation, batch, edit)``; and for what the transformer was called."""

    edits: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    @property
    def call(self):
        (only,) = self.calls
        return only

    def transformer(self, objective):
        """Note the batches and embeddings that the conditional transformer is given."""
        objective.difference.conditional.register_forward_pre_hook(
            lambda _, given: self.calls.append(given)
        )
        return objective

    def noting(self, name, operation):
        def edit(batch, *given):
            self.given = given
            self.edits.append((name, batch, operation(batch, *given)))
            return self.edits[-1][2]

        return edit


@pytest.fixture
def encoder(tiny_masked_lm):
    return still_encoder(tiny_masked_lm)


@pytest.fixture
def noted(monkeypatch):
    found = Noted()
    for name, operation in OPERATIONS.items():
        monkeypatch.setitem(OPERATIONS, name, found.noting(name, operation))
    for module, name in ((masked_lm, "replace"), (diffcse, "mask_tokens")):  # of the other tasks
        monkeypatch.setattr(module, name, found.noting(name, getattr(module, name)))
    return found


def test_without_weight_there_is_no_generator(tiny_bert):
    """So that a checkpoint without a masked-LM head will do."""
    encoder = still_encoder(tiny_bert)
    objective, batch = build(encoder, rtd_weight=0.0), batch_of(encoder)
    _, terms = scored(encoder, objective, batch)
    assert terms.keys() == {"contrast"} and objective.prepare(batch) is batch


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("operation", ["replace", "all"])
@pytest.mark.parametrize("role", ["positives", "negatives"])
@pytest.mark.parametrize("data_views", [1, 3])
def test_edits_join_the_contrast_in_their_role(data_views, role, operation, exclude, encoder):
    """As positives, each is one among the edits of its kind; as negatives, all are candidates."""
    settings = {"edit_role": role, "edit_operation": operation, "exclude_duplicates": exclude}
    settings |= {"temperature": 0.5, "mask_rate": 0.2, "projector": "mlp"}
    objective = build(encoder, data_views, **settings)
    batch = batch_of(encoder, examples=4, views=objective.views)
    twice = pack([rows_of(batch)[s] for s in (0, 5, 0, 3) * objective.views], objective.views)
    torch.manual_seed(7)
    prepared = objective.prepare(twice)
    encoded = encoder(prepared)
    terms = objective(encoded, prepared)
    assert terms.keys() == {"contrast"}
    texts = rows_of(prepared)
    views = [texts[n : n + 4] for n in range(0, len(texts), 4)]
    layer = objective.projector.linear
    rows = torch.tanh(encoded.pooled @ layer.weight.T + layer.bias).double()
    kept = objective.views
    groups = [list(range(1, kept))]
    if role == "positives":
        groups += [[number] for number in range(kept, len(views))]
    else:
        groups = [list(range(1, len(views)))]
    total = 0.0
    for group in groups:
        candidates = [text for number in group for text in views[number]]
        pairs = zip(views[0], views[1], strict=True)
        left_out = [[exclude and text in pair for text in candidates] for pair in pairs]
        total = total + oracles.info_nce(
            rows[0], torch.cat([rows[number] for number in group]), 0.5, excluded=left_out
        )
    expected = total / len(groups)
    torch.testing.assert_close(terms["contrast"].double(), expected, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("source", ["same", "next", "both"])
@pytest.mark.parametrize("task", ["rtd", "cmlm", "corrective"])
@pytest.mark.parametrize("data_views", [1, 3])
def test_what_is_edited_for_which_embedding(data_views, task, source, encoder, noted):
    """Each view of a sentence has to help with an edit of its own sentence, or of the next."""
    objective = build(encoder, data_views, task=task, edit_source=source, rtd_embedding="pooled")
    batch = batch_of(encoder, views=objective.views)
    encoded, _ = scored(encoder, noted.transformer(objective), batch)
    ((_, edited, _),) = noted.edits
    own, after = rows_of(batch), rows_of(batch.next_sentences) * objective.views
    wanted = {"same": own, "next": after, "both": own + after}[source]
    assert rows_of(edited) == wanted
    given, embeddings = noted.call
    assert [len(ids) for ids in rows_of(given)] == [len(ids) for ids in wanted]
    rows = [encoded.pooled[s // batch.examples, s % batch.examples] for s in range(len(own))]
    assert_close(embeddings, torch.stack(rows * (2 if source == "both" else 1)))


@pytest.mark.parametrize("padding", ["ignored", "as_reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("operation", [*EDITS, "all"])
def test_edits_are_told_by_heads_of_their_own(operation, reduction, padding, encoder, noted):
    objective = build(
        encoder, edit_operation=operation, rtd_reduction=reduction, rtd_padding=padding, **TASK
    )
    names = EDITS if operation == "all" else [operation]
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


def predicted(objective, states):
    """Logits over the vocabulary; the head is transformers' own."""
    return objective.difference.conditional.heads["vocabulary"](states.float()).double()


@pytest.mark.parametrize("source", ["same", "both"])
def test_conditional_masked_language_modelling(source, encoder, noted):
    objective = build(encoder, task="cmlm", edit_source=source, **TASK)
    assert objective.difference.editing.generator is None
    _, terms = scored(encoder, noted.transformer(objective), batch_of(encoder))
    ((_, original, masked),) = noted.edits
    assert noted.given[0] == 0.4
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
def test_corrective_language_modelling(copy_weight, positions, encoder, noted):
    objective = build(
        encoder, task="corrective", copy_weight=copy_weight, edit_positions=positions, **TASK
    )
    _, terms = scored(encoder, noted.transformer(objective), batch_of(encoder))
    ((_, original, edit),) = noted.edits
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


def test_an_encoder_without_a_head_is_no_generator_of_its_own(tiny_bert):
    for settings in ({}, {"task": "cmlm"}, {"edit_role": "positives"}):
        with pytest.raises(CheckpointError, match=r"has no masked-LM head.*contrasent pretrain"):
            build(still_encoder(tiny_bert), **settings)
    assert build(still_encoder(tiny_bert), edit_operation="delete").difference is not None
