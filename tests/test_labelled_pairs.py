"""Objectives of labels, scores and scored lists, against sentence-transformers; and Matryoshka."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.command_line import worked
from helpers.tiny_runs import write_data
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import pairwise_cos_sim

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.data.examples import open_training
from contrasent.errors import DataError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded


@pytest.mark.parametrize("product", [False, True])
def test_classes_are_those_of_sentence_transformers(product, sentence_encoder):
    """The same folder in both libraries, the same pairs and the same classifier."""
    encoder = SentenceEncoder.load(sentence_encoder, device="cpu")
    theirs = SentenceTransformer(str(sentence_encoder), device="cpu")
    loss = losses.SoftmaxLoss(theirs, 16, 3, concatenation_sent_multiplication=product)
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
    classifiers = objective.classifier.linear.weight.grad, loss.classifier.weight.grad
    torch.testing.assert_close(*classifiers, rtol=1e-4, atol=1e-6)
    name = "embeddings.word_embeddings.weight"
    ours_of = dict(encoder.backbone.model.named_parameters())[name].grad
    theirs_of = next(p.grad for n, p in theirs.named_parameters() if n.endswith(name))
    torch.testing.assert_close(ours_of, theirs_of, rtol=1e-4, atol=1e-6)


def given(rng, width=6, pairs=5):
    pooled = rng(2, pairs, width).requires_grad_()
    scores = torch.tensor([0.2, 1.0, 0.0, 0.2, 0.7])[:pairs]
    batch = pack([[2, 4 + n, 3] for n in range(2 * pairs)], 2)
    return pooled, dataclasses.replace(batch, columns={Need.SCORES: scores[:, None]})


def terms_of(name, pooled, batch, **settings):
    width = pooled.shape[-1]
    objective = objectives.build(name, settings, width=width, data_views=len(pooled))
    return objective, objective(Encoded(pooled, {}), batch)


KINDS = {
    "cosent": losses.CoSENTLoss,
    "angle": losses.AnglELoss,
    "cosine": losses.CosineSimilarityLoss,
    "contrastive": losses.ContrastiveLoss,
}


@pytest.mark.parametrize("loss", KINDS)
def test_losses_of_scores_are_those_of_sentence_transformers(loss, rng):
    pooled, batch = given(rng)
    scores = batch.columns[Need.SCORES][:, 0]
    if loss == "contrastive":
        scores = (scores > 0.5).float()
    ours = terms_of("scored_pairs", pooled, batch, loss=loss)[1][loss]
    theirs = KINDS[loss](torch.nn.Identity())
    expected = theirs.compute_loss_from_embeddings(list(pooled), scores)
    torch.testing.assert_close(ours, expected)
    oracles.equal_gradients(ours, expected, [pooled])


HEAT = {"student_temperature": 0.5, "teacher_temperature": 2.0}
LISTS = {
    "ranking": (0.5, {"teacher_temperature": 2.0}, partial(losses.DistillKLDivLoss, **HEAT)),
    "margin": (1.0, {"margin_weight": 1.0}, losses.MarginMSELoss),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_followed_as_in_sentence_transformers(name, rng):
    temperature, settings, kind = LISTS[name]
    pooled, scores = rng(4, 5, 6).requires_grad_(), rng(5, 3)
    batch = pack([[2, 4 + n % 9, 3] for n in range(20)], 4)
    batch = dataclasses.replace(batch, columns={Need.CANDIDATE_SCORES: scores})
    terms = terms_of("rank_distil", pooled, batch, temperature=temperature, **settings)[1]
    theirs = kind(torch.nn.Identity(), pairwise_cos_sim)
    expected = theirs.compute_loss_from_embeddings(list(pooled), scores) / temperature**2
    torch.testing.assert_close(terms[name], expected)
    oracles.equal_gradients(terms[name], expected, [pooled])
    first = torch.cosine_similarity(pooled[:1], pooled[1:], dim=-1).argmax(0)
    assert terms.measures["first_agreed"] == (first == scores.argmax(1)).sum() / 5


def test_scores_of_lists_are_divided_by_their_spread(tmp_path):
    path = tmp_path / "lists.jsonl"

    def column(*scores):
        rows = [{"query": f"q {n}", "positive": "a", "negative": "b"} for n in range(len(scores))]
        lines = [json.dumps({**row, "scores": it}) for row, it in zip(rows, scores, strict=True)]
        path.write_text("\n".join(lines))
        objective = objectives.build("rank_distil", {}, width=4, data_views=3)
        return objective.columns(open_training(str(path), "lists"))[Need.CANDIDATE_SCORES]

    np.testing.assert_allclose(column([5, 1], [0, 8]), np.array([[5, 1], [0, 8]]) / 3)
    with pytest.raises(DataError, match="has the same score for all candidates of a list"):
        column([1, 1], [2, 2])


def test_an_odd_width_has_one_more_dimension_of_zeros(rng):
    pooled, batch = given(rng, 5)
    found, padded = (
        terms_of("scored_pairs", rows, batch, loss="angle")[1]["angle"]
        for rows in (pooled, torch.nn.functional.pad(pooled, (0, 1)))
    )
    torch.testing.assert_close(found, padded)


def test_scores_are_read_and_brought_to_one(tmp_path):
    path = tmp_path / "pairs.tsv"

    def column(text, **settings):
        path.write_text(text)
        objective = objectives.build("scored_pairs", settings, width=4, data_views=2)
        return objective.columns(open_training(str(path), "scores"))[Need.SCORES][:, 0]

    text = "a dog\ta cat\t2\na\tb\t5\n\tempty\t1\n"
    np.testing.assert_allclose(column(text, loss="cosent"), [2, 5])
    np.testing.assert_allclose(column(text, loss="cosine"), [0.4, 1.0])
    np.testing.assert_allclose(column(text, loss="contrastive", top_score=10), [0.2, 0.5])


@pytest.mark.parametrize("name", ["scored_pairs", "simcse"])
def test_matryoshka_is_a_sum_over_dimensions(name, rng):
    pooled, batch = given(rng, 8)
    head = {"head": "none"} if name == "simcse" else {}
    settings = {"matryoshka": [2, 4], "matryoshka_weights": [0.5, 2.0]}
    _, terms = terms_of(name, pooled, batch, **head, **settings)
    expected = 0.0
    for size, weight in ((2, 0.5), (4, 2.0), (8, 1.0)):
        _, of_size = terms_of(name, pooled[..., :size], batch, **head)
        expected = expected + weight * sum(of_size.values())
    torch.testing.assert_close(sum(terms.values()), expected)


def test_each_dimension_has_a_head_of_its_own(rng):
    pooled, batch = given(rng, 8)
    objective, terms = terms_of("simcse", pooled, batch, matryoshka=[4], keep_head=True)
    widths = {part.head.linear.in_features for part in objective.parts.values()}
    assert widths == {4, 8} and set(terms) == {"contrast_4", "contrast_8"}
    kept = []
    encoder = SimpleNamespace(save=lambda *_, kept_head: kept.append(kept_head))
    objective.save(encoder, "folder", {"step": 5})
    assert kept == [objective.parts["8"].head]


def test_a_run_on_scored_pairs_with_matryoshka(tiny_bert, tmp_path):
    data, run = write_data(tmp_path / "scored.csv"), tmp_path / "run"
    command = ["train", "scored-pairs", "--encoder", str(tiny_bert), "--data", str(data)]
    command += ["--data.max_tokens", "32", "--max-steps", "2", "--output", str(run)]
    command += ["--evaluation.task", "none", "--evaluation.final", "none"]
    worked(*command, "--objective.matryoshka", "[4, 8]")
    assert "matryoshka" in (run / "recipe.yaml").read_text()
    shown = worked("evaluate", run, "--tasks", data, "--truncate-dim", 4, "--json", "-").out
    assert '"dimensions": 4' in shown
