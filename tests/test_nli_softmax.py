"""SBERT's objective against its formula and against sentence-transformers' loss."""

import dataclasses

import pytest
import torch
from helpers import oracles
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded

FEATURES = [
    ["u", "v", "difference"],
    ["u", "v"],
    ["product"],
    ["difference", "product"],
    ["u", "v", "difference", "max_square"],
]
LABELS = [2, 0, 1, 0]


def built(**settings):
    return objectives.build("nli_softmax", settings, width=6, data_views=2)


def labelled(labels=LABELS):
    batch = pack([[1, 2]] * 2 * len(labels), views=2)
    return dataclasses.replace(batch, columns={Need.LABELS: torch.tensor(labels)})


@pytest.mark.parametrize("features", FEATURES, ids=" ".join)
def test_the_loss_and_its_gradients_are_those_of_the_formula(features, rng):
    objective = built(features=features)
    pooled = rng(2, 4, 6).requires_grad_()
    ours = objective(Encoded(pooled, {}), labelled())["nli"]
    linear = objective.classifier.linear
    expected = oracles.pair_classes(*pooled, LABELS, linear.weight, linear.bias, features)
    torch.testing.assert_close(ours, expected)
    oracles.equal_gradients(ours, expected, [pooled, linear.weight, linear.bias])


@pytest.mark.parametrize("product", [False, True])
def test_it_is_the_loss_of_sentence_transformers(product, tiny_bert, tmp_path):
    """The same folder in both libraries, the same pairs and the same classifier."""
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    encoder.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    loss = SoftmaxLoss(theirs, 16, 3, concatenation_sent_multiplication=product)
    features = ["u", "v", "difference", *(["product"] if product else [])]
    objective = objectives.build("nli_softmax", {"features": features}, width=16, data_views=2)
    objective.classifier.linear.load_state_dict(loss.classifier.state_dict())

    sides = ["a dog runs", "the old man"], ["the dog is in the street", "music"]
    labels = torch.tensor([1, 2])
    ids = [row for side in sides for row in encoder.tokenizer.ids(side, None)[0]]
    batch = dataclasses.replace(pack(ids, views=2), columns={Need.LABELS: labels})
    ours = objective(encoder(batch), batch)["nli"]
    expected = loss([theirs.preprocess(side) for side in sides], labels)
    torch.testing.assert_close(ours, expected)
    ours.backward()
    expected.backward()
    torch.testing.assert_close(
        objective.classifier.linear.weight.grad, loss.classifier.weight.grad, rtol=1e-4, atol=1e-6
    )
    name = "embeddings.word_embeddings.weight"
    ours_of = dict(encoder.backbone.model.named_parameters())[name].grad
    theirs_of = next(p.grad for n, p in theirs.named_parameters() if n.endswith(name))
    torch.testing.assert_close(ours_of, theirs_of, rtol=1e-4, atol=1e-6)
