"""Distillation and RankCSE: the embeddings of teachers, and RankCSE's terms in loops and SciPy."""

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.answering import answering
from helpers.serving import batcher_of, serving
from helpers.tiny_models import SENTENCES, save_tiny
from helpers.tiny_runs import write_data
from helpers.tiny_tokenizers import Letters
from scipy.spatial.distance import jensenshannon
from sklearn.decomposition import PCA

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.data.examples import open_examples
from contrasent.data.loader import Draws
from contrasent.data.views import open_views
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.model import endpoint
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import load_encoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import distil
from contrasent.search.index import Index
from contrasent.settings import EncoderSettings, ViewSettings
from contrasent.training.setup import start_encoder

AT_ONCE = endpoint.EndpointEncoder.at_once


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


@pytest.fixture
def student(tmp_path):
    """An encoder of four layers and width 16, as it is loaded to be trained."""
    plain = save_tiny(tmp_path / "plain-student", num_hidden_layers=4)
    return SentenceEncoder.load(plain, pooler="mean", head="none", device="cpu")


def targets_of(text, name="distil", **settings):
    settings = {key: it if key == "teacher_share" else str(it) for key, it in settings.items()}
    examples = open_examples(str(text))
    objective = objectives.build(name, settings, width=16, data_views=examples.views)
    return objective.columns(examples)[Need.TARGETS]


@pytest.mark.parametrize("width", [8, 16, 24])
def test_a_teacher_of_any_width_gives_a_target_for_each_sentence(width, teacher, text, monkeypatch):
    folder = teacher(width)
    own = SentenceEncoder.load(folder, device="cpu").encode(text.read_text().splitlines())
    targets = targets_of(text, teacher=folder)
    if width <= 16:
        assert np.array_equal(targets, own)
    else:
        axes = PCA(16).fit(own).components_
        signs = np.sign((axes * distil.principal_axes(own, 16)).sum(1))
        np.testing.assert_allclose(targets, own @ (signs[:, None] * axes).T, atol=1e-4)
    monkeypatch.setattr(distil, "_kept_blocks", None)  # they are computed once
    assert np.array_equal(targets_of(text, teacher=folder), targets)


def test_every_sentence_of_an_example_has_a_target(teacher, tmp_path):
    path, folder = write_data(tmp_path / "triplets.csv"), teacher(16)
    texts = [cell for line in path.read_text().splitlines()[1:] for cell in line.split(",")]
    own = SentenceEncoder.load(folder, device="cpu").encode(texts).reshape(48, 3, 16)
    targets = targets_of(path, teacher=folder)
    assert np.array_equal(targets, own.reshape(48, 48))
    objective = objectives.build("distil", {}, width=16, data_views=3)
    rows = torch.randn(3, 48, 16, generator=torch.Generator().manual_seed(0))
    batch = replace(pack([[2, 5, 3]] * 144, 3), columns={Need.TARGETS: torch.tensor(targets)})
    loss = objective(Encoded(rows, {}), batch)["distillation"].item()
    of_views = [oracles.distillation(rows[v], torch.tensor(own[:, v]), "cosine") for v in range(3)]
    assert loss == pytest.approx(float(sum(of_views)) / 3, rel=1e-5)


@pytest.mark.parametrize("loss", ["cosine", "mse"])
@pytest.mark.parametrize("width", [8, 24])
def test_the_linear_layer_is_trained_in_the_teachers_space(width, loss, teacher, student, rng):
    settings = {"teacher": str(teacher(width)), "space": "teacher", "loss": loss}
    batch, plain = pack([[2, 5 + n, 7, 3] for n in range(5)]), student.eval()
    rows, student.truncate_dim = plain(batch).pooled[0].detach(), 4
    objective = objectives.build("distil", settings, width=16, data_views=1, encoder=student)
    wanted, weight = rng(5, width), torch.eye(width, 16, requires_grad=True)
    assert student.full_width == student.width == width
    batch = replace(batch, columns={Need.TARGETS: wanted})
    objective(student(batch), batch)["distillation"].backward()
    oracles.distillation(rows @ weight.T, wanted, loss).backward()
    torch.testing.assert_close(student.transform.weight.grad, weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [8, 24])
def test_kept_and_folded_layers_are_loaded_everywhere(width, teacher, student, tmp_path):
    library, rows, products = pytest.importorskip("sentence_transformers"), {}, {}
    weight = torch.randn(width, 16, generator=torch.Generator().manual_seed(1))
    for space in ("teacher", "folded"):
        student.transform = None
        settings = {"teacher": str(teacher(width)), "space": space}
        objective = objectives.build("distil", settings, width=16, data_views=1, encoder=student)
        student.transform.weight.data = weight
        objective.save(student, tmp_path / space, {})
        rows[space] = SentenceEncoder.load(tmp_path / space, device="cpu").encode(
            SENTENCES, precision="fp32"
        )
        other = library.SentenceTransformer(str(tmp_path / space), device="cpu")
        np.testing.assert_allclose(other.encode(SENTENCES), rows[space], atol=1e-5)
        products[space] = rows[space] @ rows[space].T
    assert [it.shape[1] for it in rows.values()] == [width, min(width, 16)]
    np.testing.assert_allclose(products["folded"], products["teacher"], rtol=1e-4, atol=1e-4)
    again = start_encoder(EncoderSettings(name=str(tmp_path / "teacher")))
    assert again.transform.weight.requires_grad  # training goes on with it


@pytest.mark.parametrize("count", [1, 2, 3])
def test_evenly_spaced_layers_are_an_ordinary_smaller_encoder(count, student, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    student.save(tmp_path / "whole")
    kept = {1: [3], 2: [1, 3], 3: [0, 1, 3]}[count]
    layers = [student.backbone.model.encoder.layer[n] for n in kept]
    made = start_encoder(EncoderSettings(name=str(tmp_path / "whole"), layers=count))
    for own, other in zip(made.backbone.model.encoder.layer, layers, strict=True):
        assert all(map(torch.equal, own.parameters(), other.parameters()))
    made.save(tmp_path / "small")
    other = library.SentenceTransformer(str(tmp_path / "small"), device="cpu")
    np.testing.assert_allclose(
        other.encode(SENTENCES), made.eval().encode(SENTENCES, precision="fp32"), atol=1e-5
    )
    with pytest.raises(ConfigError, match="layers is 5, but the encoder has 4"):
        start_encoder(EncoderSettings(name=str(tmp_path / "whole"), layers=5))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((47, 4), np.float32), "47 rows, but .* 48 sentences"),
        (np.zeros(48, np.float32), r"shape \[48\]"),
        (np.zeros((48, 4), np.int64), "int64 numbers"),
        (np.zeros((48, 4), ">f4"), ">f4 numbers|float32 numbers"),
        (np.full((48, 4), np.nan, np.float32), "not finite in row 0"),
        (np.ones((48, 4), np.float32), "has the same embedding for all sentences"),
    ],
)
def test_stored_rows_that_do_not_fit_are_refused(rows, message, text, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(DataError, match=message):
        targets_of(text, teacher=tmp_path / "rows.npy")


def test_stored_rows_are_mapped_or_turned_to_their_axes(text, tmp_path, rng):
    np.save(path := tmp_path / "rows.npy", rows := rng(48, 16).numpy())
    stored = targets_of(text, teacher=path)
    assert np.array_equal(stored, rows) and isinstance(stored, np.memmap)
    np.save(path, wide := rng(48, 24).numpy().astype(np.float64))
    turned = wide @ distil.principal_axes(wide, 16).T
    np.testing.assert_allclose(targets_of(text, teacher=path), turned, atol=1e-5)


@pytest.mark.parametrize("route", ["", "/v1", "/v1/embeddings#tiny", "/embed"])
def test_a_server_is_a_teacher_and_makes_an_index(route, teacher, text, tmp_path):
    encoder = SentenceEncoder.load(teacher(16), device="cpu")
    with serving(batcher_of(encoder)) as running:
        targets = targets_of(text, teacher=f"{running.url}{route}")
        Index.build(load_encoder(f"{running.url}{route}"), ["a cat", "runs"], tmp_path / "index")
        index = Index.open(tmp_path / "index")
        assert index.search(index.encoder(), ["runs"])[0][0].id == "1"
    own = encoder.encode(text.read_text().splitlines(), normalize=True, precision="fp32")
    np.testing.assert_allclose(targets, own, atol=1e-5)


@pytest.fixture
def odd_server(monkeypatch):
    """Answers well until there are so many answers, and then as the test says."""
    monkeypatch.setattr(endpoint, "_WAITS", (0.0,))
    monkeypatch.setenv(endpoint.KEY, "sesame\r\n")
    server = SimpleNamespace(asked=0, delay=0, factor=1)

    def answer(path, headers, body):
        if path != "/embed" or headers["authorization"] != "Bearer sesame":
            return 418, {}, b"nobody asked for this"
        server.asked += 1
        time.sleep(server.delay)
        if server.asked > server.good:
            return server.then[0], {"Location": "/elsewhere", **server.then[2]}, server.then[1]
        return 200, {}, [[len(it) * server.factor, 1.0] for it in json.loads(body)["inputs"]]

    with answering(answer) as address:
        server.address = f"{address}/embed"
        yield server


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ((401, b"no key", {}), "answers 401 .* no key"),
        ((402, b"pay", {}), "answers 402"),
        ((302, b"", {}), "answers 302"),
        ((503, b"later", {}), "answers 503 .*later"),
        ((503, b"9\r\nlate", {"Transfer-Encoding": "chunked"}), "answers 503"),
        ((200, b"[[1.0, 1.", {"Content-Length": 12}), "does not answer: it broke off"),
        ((200, b"<html>", {}), "no 1 embeddings.*: b'<html>'"),
        ((200, b"[[1.0, NaN]]", {}), "or not finite"),
        ((200, b"[[1.0]]", {}), r"\[1, 1\] numbers"),
        ((200, b"5", {}), r"\[1\] numbers"),
        ((200, b"[" * 100_000, {}), "no 1 embeddings"),
    ],
    ids=lambda it: str(it[:2]) if isinstance(it, tuple) and len(it[1]) < 20 else "",
)
def test_what_a_server_gave_is_kept_when_it_breaks_off(then, message, odd_server, text):
    text.write_text("\n".join(f"text {n}" for n in range(AT_ONCE + 1)) + "\n")
    odd_server.good, odd_server.then = 1 + AT_ONCE // 32, then
    with pytest.raises(CheckpointError, match=message):
        targets_of(text, teacher=odd_server.address)
    odd_server.good, odd_server.asked = 10**9, 0
    lengths = [len(line) for line in text.read_text().splitlines()]
    assert targets_of(text, teacher=odd_server.address)[:, 0].tolist() == lengths
    assert odd_server.asked == 2  # to see what it is, and for the last text


def test_another_model_behind_an_address_is_asked_anew(odd_server, text):
    lengths = np.array([len(line) for line in text.read_text().splitlines()])
    odd_server.good = 10**9
    for factor, expected in ((1.0, 1.0), (1.001, 1.0), (0.5, 0.5)):
        odd_server.factor = factor
        targets = targets_of(text, teacher=odd_server.address)[:, 0]
        np.testing.assert_allclose(targets, expected * lengths)


def test_sentences_that_the_student_has_no_token_of_take_no_target_from_others(text):
    text.write_text("a\nx\nb\n\nxx\nc\n")
    examples = open_examples(str(text))
    targets = np.array([[ord(text[0])] * 2 for (text,) in examples], np.float32)
    own = {"own_columns": lambda _: {Need.TARGETS: targets}}
    views = open_views(ViewSettings(), examples, Letters(), 9, views=1, **own)
    order = np.array([2, 0, 1])
    tokens, _ = views.source.gather(order, Draws(0, 0))
    assert np.array_equal(views.source.columns[Need.TARGETS][order], tokens[:, None].repeat(2, 1))


def test_a_server_that_is_slow_or_gone_is_told(odd_server, monkeypatch):
    monkeypatch.setattr(endpoint, "_SECONDS", 0.1)
    odd_server.good, odd_server.delay = 10**9, 0.5
    with pytest.raises(CheckpointError, match=r"/embed does not answer: .*timed out"):
        load_encoder(odd_server.address)
    with pytest.raises(CheckpointError, match=r"/v1/embeddings does not answer: .*refused"):
        load_encoder("http://127.0.0.1:1")


def test_once_it_is_interrupted_no_server_is_asked_again(odd_server, monkeypatch):
    monkeypatch.setattr(endpoint, "_WAITS", (60.0,))
    odd_server.good, odd_server.then, began = 0, (503, b"later", {}), time.monotonic()
    with pytest.raises(KeyboardInterrupt), endpoint.Requests(1) as pool:
        last = pool.submit(endpoint.post, odd_server.address, {}, 9.0, pool.over)
        while not odd_server.asked:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert isinstance(last.exception(), CheckpointError) and time.monotonic() - began < 30


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
