"""ConSERT: NT-Xent, the edits of the embedding layer, and the joint objective, against loops."""

import copy
import dataclasses

import pytest
import torch
import transformers
from helpers import oracles
from helpers.padded import rows_of

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import consert

ROWS = [[2, 10, 11, 12, 13, 3], [2, 20, 21, 3], [2, 30, 31, 32, 33, 34, 35, 36, 37, 3], [2, 40, 3]]


@pytest.fixture
def mean_encoder(tiny_bert):
    return SentenceEncoder.load(tiny_bert, pooler="mean_top2", head="none", device="cpu")


def built(encoder, data_views=1, **settings):
    return objectives.build("consert", settings, width=16, data_views=data_views, encoder=encoder)


@pytest.mark.parametrize("keep_first", [False, True])
def test_shuffling_moves_tokens_within_their_sentences(keep_first):
    torch.manual_seed(0)
    seen = [rows_of(consert.shuffle_tokens(pack(ROWS), keep_first=keep_first)) for _ in range(40)]
    for rows in seen:
        assert [sorted(row) for row in rows] == [sorted(row) for row in ROWS]
    firsts = {tuple(row[0] for row in rows) for rows in seen}
    assert (firsts == {(2, 2, 2, 2)}) == keep_first
    assert len({tuple(rows[2]) for rows in seen}) > 35
    if not keep_first:
        assert {rows[3][0] for rows in seen} == {2, 40, 3}


def test_feature_cut_off_takes_the_same_features_of_all_tokens_of_a_sentence():
    torch.manual_seed(0)
    batch = pack(ROWS)
    factors = consert.cut_off(batch, "feature_cutoff", 0.2, 16)
    assert factors.shape == (len(batch.token_ids), 16)
    parts = torch.split(factors, batch.lengths.tolist())
    assert all((part == part[0]).all() and part[0].sum() == 13 for part in parts)
    assert len({tuple(part[0].tolist()) for part in parts}) == 4
    many = consert.cut_off(pack([[1]] * 4000), "feature_cutoff", 0.2, 16)
    torch.testing.assert_close(many.mean(0), torch.full((16,), 13 / 16), rtol=0, atol=0.03)


def test_token_cut_off_takes_a_share_of_each_sentence():
    torch.manual_seed(0)
    batch = pack(ROWS)
    factors = consert.cut_off(batch, "token_cutoff", 0.35, 16)
    cut = [int((part == 0).sum()) for part in torch.split(factors, batch.lengths.tolist())]
    assert cut == [2, 1, 3, 1] and factors.shape == (len(batch.token_ids), 1)
    many = consert.cut_off(pack([[1, 2, 3, 4]] * 4000), "token_cutoff", 0.25, 16)
    torch.testing.assert_close(many.view(-1, 4).mean(0), torch.full((4,), 0.75), rtol=0, atol=0.03)


@pytest.mark.parametrize("edit", ["feature_cutoff", "token_cutoff", "shift"])
def test_edits_change_what_the_embedding_layer_gives(edit, tiny_bert, rng):
    """Against transformers' own forward on embeddings that were changed by hand."""
    model = transformers.AutoModel.from_pretrained(tiny_bert).eval()
    backbone = PackedBert(copy.deepcopy(model))
    torch.manual_seed(0)
    batch = pack(ROWS)
    if edit == "shift":
        batch = dataclasses.replace(batch, embedding_shift=rng(len(batch.token_ids), 16))
    else:
        mask = consert.cut_off(batch, edit, 0.3, 16)
        batch = dataclasses.replace(batch, embedding_mask=mask)
    ours = backbone.eval()(batch, [0, 1, -1])
    start = 0
    for row in ROWS:
        end = start + len(row)
        state = model.embeddings(torch.tensor([row]))
        if edit == "shift":
            state = state + batch.embedding_shift[start:end]
        else:
            state = state * batch.embedding_mask[start:end]
        torch.testing.assert_close(ours[0][start:end], state[0], rtol=1e-4, atol=1e-5)
        last = model.encoder(state).last_hidden_state[0]
        torch.testing.assert_close(ours[-1][start:end], last, rtol=1e-4, atol=1e-5)
        start = end


@pytest.mark.parametrize("exclude", [False, True])
def test_joint_is_the_classifier_beside_the_contrast_of_both_sentences(exclude, mean_encoder, rng):
    """With repeated texts left out of each side alone."""
    premises, hypotheses = [ROWS[0], ROWS[1], ROWS[0]], [ROWS[2], ROWS[3], ROWS[3]]
    settings = {"classify": True, "weight": 0.3, "exclude_duplicates": exclude}
    objective, labels = built(mean_encoder, 2, **settings), torch.tensor([0, 1, 2])
    batch = objective.prepare(
        dataclasses.replace(pack(premises + hypotheses, 2), columns={Need.LABELS: labels})
    )
    assert (batch.views, batch.examples) == (4, 3) and batch.column(Need.LABELS).equal(labels)
    pooled, contrasts = rng(4, 3, 16), []
    terms = objective(Encoded(pooled, {}), batch)
    for side, texts in enumerate(([0, 1, 0] * 2, [2, 3, 3] * 2)):
        excluded = [[exclude and a == b for b in texts] for a in texts]
        contrasts.append(oracles.nt_xent(pooled[side], pooled[side + 2], 0.1, excluded))
    torch.testing.assert_close(terms["contrast"], 0.3 * sum(contrasts) / 2)
    linear = objective.classifier.linear
    features = ["u", "v", "difference", "max_square"]
    expected = oracles.pair_classes(*pooled[:2], labels, linear.weight, linear.bias, features)
    torch.testing.assert_close(terms["nli"], expected)


def test_an_adversarial_view_makes_the_classifier_worse_as_fast_as_can_be(mean_encoder):
    """Each token goes one step along its gradient, so the loss rises by the sum of their norms."""
    labels = {Need.LABELS: torch.tensor([1, 2])}
    batch = dataclasses.replace(pack(ROWS, views=2), columns=labels)
    settings = {"first": "none", "second": "adversarial", "classify": True}
    torch.manual_seed(0)
    objective = built(mean_encoder.eval(), 2, **settings, step=0.5)
    edited = objective.prepare(batch)
    unedited, shift = edited.embedding_shift.split(len(batch.token_ids))
    assert not unedited.any() and not shift.requires_grad
    assert all(it.grad is None for it in mean_encoder.parameters())
    torch.testing.assert_close(shift.norm(dim=-1), torch.full((23,), 0.5))

    def loss(change):
        change = change.requires_grad_()
        pooled = mean_encoder(dataclasses.replace(batch, embedding_shift=change)).pooled
        value = objective.classifier(*pooled, batch)["nli"]
        return value.item(), torch.autograd.grad(value, change)[0]

    _, gradient = loss(torch.zeros(23, 16))
    small = 1e-2
    rise = loss(small * shift)[0] - loss(-small * shift)[0]
    assert rise == pytest.approx(small * gradient.norm(dim=-1).sum().item(), rel=1e-2)
