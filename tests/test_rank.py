"""RankCSE: its divergence against SciPy, both rankings in loops, and the teachers' cosines."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.tiny_models import save_tiny
from helpers.tiny_runs import write_data
from scipy.spatial.distance import jensenshannon

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.data.examples import open_examples
from contrasent.functional import list_mle, list_net
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded


def list_net_in_loops(student, teacher):
    total, count = 0.0, len(student)
    for i in range(count):
        others = [j for j in range(count) if j != i]
        of_teacher = sum(math.exp(teacher[i][j]) for j in others)
        of_student = sum(math.exp(student[i][j]) for j in others)
        for j in others:
            log_probability = student[i][j] - math.log(of_student)
            total -= math.exp(teacher[i][j]) / of_teacher * log_probability
    return total / count


def list_mle_in_loops(student, teacher):
    total, count = 0.0, len(student)
    for i in range(count):
        order = [j for j in np.argsort(-np.array(teacher[i]), kind="stable") if j != i]
        for k in range(len(order)):
            rest = sum(math.exp(student[i][m]) for m in order[k:])
            total -= math.log(math.exp(student[i][order[k]]) / rest)
    return total / count


@pytest.mark.parametrize(
    ("function", "oracle"), [(list_net, list_net_in_loops), (list_mle, list_mle_in_loops)]
)
def test_the_rankings_are_those_of_the_loops(function, oracle, rng):
    student, teacher = rng(5, 5), rng(5, 5)
    expected = oracle(student.tolist(), teacher.tolist())
    torch.testing.assert_close(function(student, teacher), torch.tensor(expected))


@pytest.mark.parametrize("loss", ["list_net", "list_mle"])
def test_the_objective_is_the_sum_of_its_terms(loss, rng):
    settings = {"loss": loss, "head": "none", "consistency_weight": 2.0, "ranking_weight": 3.0}
    settings |= {"temperature": 0.5, "teacher_temperature": 0.25, "student_temperature": 0.75}
    objective = objectives.build("rank", settings, width=5, data_views=1)
    first, second, teachers = rng(4, 5), rng(4, 5), rng(4, 7)
    batch = pack([[2, 5 + n, 3] for n in range(4)] * 2, 2)
    batch = dataclasses.replace(batch, columns={Need.TARGETS: teachers})
    terms = objective(Encoded(torch.stack([first, second]), {}), batch)

    cosines = [[float(oracles.cosine(u, v)) for v in second] for u in first]
    wanted = [[float(u @ v) for v in teachers] for u in teachers]
    p = np.array([[math.exp(c / 0.5) for c in row] for row in cosines])
    q = p.T / p.T.sum(1, keepdims=True)
    p = p / p.sum(1, keepdims=True)
    divergence = np.mean([jensenshannon(*rows) ** 2 for rows in zip(p, q, strict=True)])
    student = [[c / 0.75 for c in row] for row in cosines]
    if loss == "list_net":
        ranking = list_net_in_loops(student, [[w / 0.25 for w in row] for row in wanted])
    else:
        ranking = list_mle_in_loops(student, wanted)
    expected = {
        "contrast": float(oracles.info_nce(first, second, 0.5)),
        "consistency": 2 * float(divergence),
        "ranking": 3 * ranking,
    }
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def teachers(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    folders = []
    for width in (16, 24):
        plain = save_tiny(tmp_path / f"plain-{width}", hidden_size=width, seed=width)
        folders.append(tmp_path / f"teacher-{width}")
        SentenceEncoder.load(plain, pooler="mean", head="none", device="cpu").save(folders[-1])
    return folders


@pytest.mark.parametrize("count", [1, 2])
def test_products_of_the_column_are_mean_cosines(count, teachers, tmp_path):
    text = write_data(tmp_path / "text.txt")
    settings = {"teacher": str(teachers[0]), "teacher_share": 0.3}
    if count == 2:
        settings["second_teacher"] = str(teachers[1])
    objective = objectives.build("rank", settings, width=16, data_views=1)
    rows = objective.columns(open_examples(str(text)))[Need.TARGETS]
    shares = [1.0] if count == 1 else [0.3, 0.7]
    sentences = text.read_text().splitlines()
    expected = 0.0
    for folder, share in zip(teachers, shares, strict=False):
        unit = SentenceEncoder.load(folder, device="cpu").encode(sentences, normalize=True)
        expected = expected + share * (unit @ unit.T)
    np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-3)
