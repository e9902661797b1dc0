"""Scored pairs and Matryoshka: formulas in loops, and the losses of sentence-transformers."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.command_line import refused, worked
from helpers.tiny_runs import write_data

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.data.examples import open_pairs
from contrasent.errors import ConfigError, DataError
from contrasent.model.protocol import Encoded

LOSSES = ("cosent", "angle", "cosine", "contrastive")


def given(rng, width=6, pairs=5, views=2):
    pooled = rng(views, pairs, width).requires_grad_()
    scores = torch.tensor([0.2, 1.0, 0.0, 0.2, 0.7])[:pairs]
    batch = pack([[2, 4 + n, 3] for n in range(views * pairs)], views)
    return pooled, dataclasses.replace(batch, columns={Need.SCORES: scores[:, None]})


def terms_of(name, pooled, batch, **settings):
    width = pooled.shape[-1]
    objective = objectives.build(name, settings, width=width, data_views=len(pooled))
    return objective, objective(Encoded(pooled, {}), batch)


@pytest.mark.parametrize("width", [6, 5])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_and_its_gradient_are_those_of_the_formula(loss, width, rng):
    pooled, batch = given(rng, width)
    _, terms = terms_of("scored_pairs", pooled, batch, loss=loss)
    expected = oracles.scored_pairs(*pooled, batch.columns[Need.SCORES][:, 0], loss)
    torch.testing.assert_close(terms[loss], expected)
    gradients = (torch.autograd.grad(it, pooled)[0] for it in (terms[loss], expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_that_of_sentence_transformers(loss, rng):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    kinds = {
        "cosent": losses.CoSENTLoss,
        "angle": losses.AnglELoss,
        "cosine": losses.CosineSimilarityLoss,
        "contrastive": losses.ContrastiveLoss,
    }
    pooled, batch = given(rng)
    scores = batch.columns[Need.SCORES][:, 0]
    if loss == "contrastive":
        scores = (scores > 0.5).float()
    _, terms = terms_of("scored_pairs", pooled, batch, loss=loss)
    theirs = kinds[loss](torch.nn.Identity())
    expected = theirs.compute_loss_from_embeddings(list(pooled), scores)
    torch.testing.assert_close(terms[loss], expected)


def test_scores_are_read_and_brought_to_one(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a dog\ta cat\t2\na\tb\t5\n\tempty\t1\n")
    examples = open_pairs(str(path), "scores")
    for loss, expected in {"cosent": [2, 5], "cosine": [0.4, 1.0]}.items():
        objective = objectives.build("scored_pairs", {"loss": loss}, width=4, data_views=2)
        column = objective.columns(examples)[Need.SCORES]
        np.testing.assert_allclose(column[:, 0], expected)
    given = {"loss": "contrastive", "top_score": 10}
    objective = objectives.build("scored_pairs", given, width=4, data_views=2)
    np.testing.assert_allclose(objective.columns(examples)[Need.SCORES][:, 0], [0.2, 0.5])
    given = {"loss": "cosine", "top_score": 4}
    objective = objectives.build("scored_pairs", given, width=4, data_views=2)
    with pytest.raises(DataError, match=r"to 5, but .* to objective\.top_score, 4;"):
        objective.columns(examples)
    path.write_text("a\tb\t-1\nc\td\t1\n")
    with pytest.raises(
        DataError, match=r"scores from -1 to 1, but loss cosine takes scores from 0"
    ):
        objective.columns(open_pairs(str(path), "scores"))
    path.write_text("a\tb\t3\nc\td\tmany\n")
    with pytest.raises(DataError, match=r"pairs.tsv:2: the score must be a number, not 'many'"):
        list(open_pairs(str(path), "scores"))


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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"matryoshka": [4, 4]}, "give different numbers of dimensions"),
        ({"matryoshka": [9]}, "needs no more than 8 dimensions, not 9"),
        ({"matryoshka": [4], "matryoshka_weights": [1, 2]}, "as many weights as there are"),
        ({"matryoshka": [4], "mlm_weight": 0.1}, "read embeddings only.*needs the"),
    ],
)
def test_dimensions_that_cannot_be(settings, said, tiny_masked_lm):
    from contrasent.model.encoder import SentenceEncoder

    encoder = SentenceEncoder(tiny_masked_lm, pooler="cls", head="none", device="cpu")
    with pytest.raises(ConfigError, match=said):
        objectives.build("simcse", settings, width=8, data_views=1, encoder=encoder)


def test_a_run_on_scored_pairs_with_matryoshka(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    data, run = write_data(tmp_path / "scored.csv"), tmp_path / "run"
    command = ["train", "scored-pairs", "--encoder", str(tiny_bert), "--data", str(data)]
    command += ["--data.max_tokens", "32", "--max-steps", "2", "--output", str(run)]
    command += ["--evaluation.task", "none", "--evaluation.final", "none"]
    worked(*command, "--objective.matryoshka", "[4, 8]")
    assert "matryoshka" in (run / "recipe.yaml").read_text()
    evaluate = ("evaluate", str(run), "--tasks", str(data), "--truncate-dim")
    assert '"dimensions": 4' in worked(*evaluate, "4", "--json", "-").out
    assert "truncate_dim is 17; give a number from 1 to 16" in refused(*evaluate, "17")
