"""Distillation: its formula in loops, and the embeddings of teachers of any width."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.tiny_models import save_tiny
from helpers.tiny_runs import write_data

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.data.examples import open_examples
from contrasent.data.loader import Draws
from contrasent.data.views import open_views
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import distil
from contrasent.settings import ViewSettings


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    return write_data(tmp_path / "text.txt")


@pytest.fixture
def teacher(tmp_path):
    """A function: the folder of a teacher of some width."""

    def save(width):
        plain = save_tiny(tmp_path / f"plain-{width}", hidden_size=width, seed=5)
        folder = tmp_path / f"teacher-{width}"
        SentenceEncoder.load(plain, pooler="mean", head="none", device="cpu").save(folder)
        return folder

    return save


def targets_of(teacher, text, width):
    objective = objectives.build("distil", {"teacher": str(teacher)}, width=width, data_views=1)
    return objective.columns(open_examples(str(text)))[Need.TARGETS]


@pytest.mark.parametrize("loss", ["cosine", "mse"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(loss, rng):
    student, wanted = rng(3, 5).requires_grad_(), rng(3, 5)
    objective = objectives.build("distil", {"loss": loss}, width=5, data_views=1)
    batch = dataclasses.replace(pack([[2, 3]] * 3), columns={Need.TARGETS: wanted})
    terms = objective(Encoded(student[None], {}), batch)
    expected = oracles.distillation(student, wanted, loss)
    torch.testing.assert_close(terms["distillation"], expected)
    gradients = (torch.autograd.grad(it, student)[0] for it in (terms["distillation"], expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("width", [8, 16, 24])
def test_a_teacher_of_any_width_gives_a_target_for_each_sentence(width, teacher, text):
    folder = teacher(width)
    own = SentenceEncoder.load(folder, device="cpu").encode(text.read_text().splitlines())
    targets = targets_of(folder, text, 16)
    if width <= 16:
        assert np.array_equal(targets, np.pad(own, ((0, 0), (0, 16 - width))))
        return
    pca = pytest.importorskip("sklearn.decomposition").PCA(16).fit(own)
    signs = np.sign((pca.components_ * distil.principal_axes(own, 16)).sum(1))
    np.testing.assert_allclose(targets, own @ (signs[:, None] * pca.components_).T, atol=1e-4)


def test_targets_are_computed_once(teacher, text, monkeypatch):
    folder = teacher(24)
    first = targets_of(folder, text, 16)
    monkeypatch.setattr(distil, "write_rows", None)
    assert np.array_equal(targets_of(folder, text, 16), first)


class Letters:
    """A tokenizer that does not know the letter x."""

    vocabulary, fingerprint = 1 << 7, "letters"

    def ids(self, texts, _):
        ids = [[ord(letter) for letter in text if letter != "x"] for text in texts]
        return [np.array(row, dtype=np.int32) for row in ids], 0


def test_sentences_that_the_student_has_no_token_of_take_no_target_from_others(tmp_path):
    (tmp_path / "text.txt").write_text("a\nx\nb\n\nxx\nc\n")
    examples = open_examples(str(tmp_path / "text.txt"))
    targets = np.array([[ord(text[0])] * 2 for (text,) in examples], np.float32)
    views = open_views(
        ViewSettings(),
        examples,
        Letters(),
        9,
        views=1,
        own_columns=lambda _: {Need.TARGETS: targets},
    )
    order = np.array([2, 0, 1])
    tokens, _ = views.source.gather(order, Draws(0, 0))
    assert np.array_equal(views.source.columns(order)[Need.TARGETS], tokens[:, None].repeat(2, 1))
