"""Distillation and RankCSE: the embeddings of teachers, and RankCSE's terms in loops and SciPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.tiny_models import save_tiny
from helpers.tiny_runs import write_data
from helpers.tiny_tokenizers import Letters
from scipy.spatial.distance import jensenshannon
from sklearn.decomposition import PCA

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.data.examples import open_examples
from contrasent.data.loader import Draws
from contrasent.data.views import open_views
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import distil
from contrasent.settings import ViewSettings


@pytest.fixture
def text(tmp_path):
    return write_data(tmp_path / "text.txt")


@pytest.fixture
def teacher(tmp_path):
    """A function: the folder of a teacher of some width."""

    def save(width):
        plain = save_tiny(tmp_path / f"plain-{width}", hidden_size=width, seed=width)
        folder = tmp_path / f"teacher-{width}"
        SentenceEncoder.load(plain, pooler="mean", head="none", device="cpu").save(folder)
        return folder

    return save


def targets_of(text, name="distil", **settings):
    settings = {key: it if key == "teacher_share" else str(it) for key, it in settings.items()}
    objective = objectives.build(name, settings, width=16, data_views=1)
    return objective.columns(open_examples(str(text)))[Need.TARGETS]


@pytest.mark.parametrize("width", [8, 16, 24])
def test_a_teacher_of_any_width_gives_a_target_for_each_sentence(width, teacher, text, monkeypatch):
    folder = teacher(width)
    own = SentenceEncoder.load(folder, device="cpu").encode(text.read_text().splitlines())
    targets = targets_of(text, teacher=folder)
    if width <= 16:
        assert np.array_equal(targets, np.pad(own, ((0, 0), (0, 16 - width))))
    else:
        axes = PCA(16).fit(own).components_
        signs = np.sign((axes * distil.principal_axes(own, 16)).sum(1))
        np.testing.assert_allclose(targets, own @ (signs[:, None] * axes).T, atol=1e-4)
    monkeypatch.setattr(distil, "write_rows", None)  # they are computed once
    assert np.array_equal(targets_of(text, teacher=folder), targets)


def test_sentences_that_the_student_has_no_token_of_take_no_target_from_others(text):
    text.write_text("a\nx\nb\n\nxx\nc\n")
    examples = open_examples(str(text))
    targets = np.array([[ord(text[0])] * 2 for (text,) in examples], np.float32)
    own = {"own_columns": lambda _: {Need.TARGETS: targets}}
    views = open_views(ViewSettings(), examples, Letters(), 9, views=1, **own)
    order = np.array([2, 0, 1])
    tokens, _ = views.source.gather(order, Draws(0, 0))
    assert np.array_equal(views.source.columns(order)[Need.TARGETS], tokens[:, None].repeat(2, 1))


@pytest.mark.parametrize("count", [1, 2])
def test_products_of_rankcses_column_are_mean_cosines(count, teacher, text):
    folders = [teacher(width) for width in (16, 24)[:count]]
    settings = dict(zip(("teacher", "second_teacher"), folders, strict=False))
    rows = targets_of(text, "rank", teacher_share=0.3, **settings)
    sentences, expected = text.read_text().splitlines(), 0.0
    for folder, share in zip(folders, [1.0] if count == 1 else [0.3, 0.7], strict=True):
        unit = SentenceEncoder.load(folder, device="cpu").encode(sentences, normalize=True)
        expected = expected + share * (unit @ unit.T)
    np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-3)


@pytest.mark.parametrize("loss", ["list_net", "list_mle"])
def test_rankcse_is_the_sum_of_its_terms(loss, rng):
    settings = {"loss": loss, "head": "none", "consistency_weight": 2.0, "ranking_weight": 3.0}
    settings |= {"temperature": 0.5, "teacher_temperature": 0.25, "student_temperature": 0.75}
    objective = objectives.build("rank", settings, width=5, data_views=1)
    first, second, teachers = rng(4, 5), rng(4, 5), rng(4, 7)
    batch = pack([[2, 5 + n, 3] for n in range(4)] * 2, 2)
    batch = replace(batch, columns={Need.TARGETS: teachers})
    terms = objective(Encoded(torch.stack([first, second]), {}), batch)

    cosines = [[float(oracles.cosine(u, v)) for v in second] for u in first]
    wanted = [[float(u @ v) for v in teachers] for u in teachers]
    p = np.array([[math.exp(c / 0.5) for c in row] for row in cosines])
    q = p.T / p.T.sum(1, keepdims=True)
    p = p / p.sum(1, keepdims=True)
    divergence = np.mean([jensenshannon(*rows) ** 2 for rows in zip(p, q, strict=True)])
    student, wanted = (torch.tensor(it) for it in (cosines, wanted))
    scale = 0.25 if loss == "list_net" else 1.0
    ranking = getattr(oracles, loss)(student / 0.75, wanted / scale)
    expected = {
        "contrast": float(oracles.info_nce(first, second, 0.5)),
        "consistency": 2 * float(divergence),
        "ranking": 3 * float(ranking),
    }
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-5)
