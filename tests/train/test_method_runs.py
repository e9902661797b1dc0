"""Runs of single methods and of two encoders: what each trains, logs, saves and resumes."""

import copy
import json
from itertools import islice

import numpy as np
import pytest
import torch
from helpers.command_line import tree
from helpers.interrupted import CutError, cut
from helpers.padded import rows_of
from helpers.run_files import logged_losses, metrics, weights
from helpers.tiny_glove import save_glove
from helpers.tiny_sentences import sentence, write
from safetensors.torch import load_file

from contrasent.data.batch import Need
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import measure, read_trajectory
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.sts_data import RatedPairs
from contrasent.evaluation.suite import Suite
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import load_encoder
from contrasent.training.run import save_encoders, train
from contrasent.training.run_folder import complete
from contrasent.training.setup import prepare

IS_BERT = {"data__max_tokens": 32, "encoder__channels": 4, "train__max_steps": 8}


def test_convolutions_are_trained_saved_and_taken_on(trained, tmp_path):
    trained("is-bert", "run", **IS_BERT)
    losses = logged_losses(tmp_path / "run")
    assert losses[-1] < losses[0]
    once = SentenceEncoder.load(tmp_path / "run" / "last", device="cpu")
    assert once.convolutions.widths == (1, 3, 5) and once.width == 12
    start = str(tmp_path / "run" / "last")
    again = {**IS_BERT, "encoder__name": start, "train__learning_rate": 1e-12}
    trained("is-bert", "again", **again)
    twice = SentenceEncoder.load(tmp_path / "again" / "last", device="cpu")
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


WORDS_OVER = {"encoder__lstm": 5, "objective__hidden": [7, 7]}
LABELS = ("entailment", "neutral", "contradiction")


@pytest.fixture
def infersent(recipe, tmp_path):
    glove, nli = save_glove(tmp_path / "glove.txt"), tmp_path / "nli.tsv"
    rows = [f"{sentence(n)}\t{sentence(n + 17, 4)}\t{LABELS[n % 3]}" for n in range(40)]
    write(nli, ["premise\thypothesis\tlabel", *rows])

    def make(**changes):
        start = {"encoder__name": str(glove), "data__file": str(nli), "train__epochs": 2}
        return recipe("infersent", **{**start, **WORDS_OVER, **changes})

    return make


def test_the_rate_of_infersent_falls_as_the_dev_scores_say(tmp_path, infersent):
    train(infersent(train__min_rate=1e-9, train__checkpoint_every=1), tmp_path / "run")
    rate, best, expected, found = 1e-3, -2.0, [], []
    for line in metrics(tmp_path / "run"):
        if "evaluation" in line:
            (score,) = line["evaluation"].values()
            rate *= 0.99 / (1 if score > best else 5)
            best = max(best, score)
        else:
            expected.append(rate)
            found.append(line["learning_rate"])
    assert found == pytest.approx(expected, rel=1e-9)
    assert len(set(found)) == 5


def test_a_saved_lstm_is_the_same(tmp_path, infersent):
    train(infersent(), tmp_path / "run")
    folder = tmp_path / "run" / "best"
    loaded = load_encoder(folder)
    assert (loaded.pooler, loaded.width, loaded.head_name) == ("max", 10, "none")
    assert loaded.tokenizer.marks == ("<s>", "</s>")
    with pytest.warns(UserWarning, match=r"^1 of 4 sentences have no word that glove\.txt knows"):
        rows = loaded.encode(["a dog runs .", "the old man isn't sad", "zzz", "two birds"])
    assert np.isfinite(rows).all() and rows[2].any()
    loaded.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again", device="cpu")
    assert again.fingerprint() == loaded.fingerprint()


LENGTHS = (5, 1, 9, 2, 13)
SMALL = {"data__max_tokens": 16, "train__max_steps": 6}


def test_batches_are_contiguous_and_know_the_borders(recipe, tmp_path):
    """Of five documents of thirty sentences, one of them alone."""
    lines, rows = iter([sentence(n, 3 + n % 6) for n in range(30)]), []
    for length in LENGTHS:
        rows += [*islice(lines, length), ""]
    documents = write(tmp_path / "documents.txt", rows)
    made = recipe("quick-thoughts", **SMALL, data__file=str(documents), train__batch_size=10)
    parts = prepare(complete(made), torch.device("cpu"))
    loader = parts.loader
    assert loader.steps_per_epoch == 3
    borders = np.cumsum(LENGTHS)[:-1]
    places = torch.cat([loader.batch(step).column(Need.POSITIONS) for step in range(3)])
    apart = places.diff()
    assert [n + 1 for n, gap in enumerate(apart.tolist()) if gap != 1] == borders.tolist()
    assert apart[borders - 1].min() >= 30
    tokenizer = parts.encoder.tokenizer
    wanted = tokenizer.ids([line for line in documents.read_text().splitlines() if line], 16)[0]
    rows = [row for step in range(3) for row in rows_of(loader.batch(step))]
    assert rows == [list(row) for row in wanted]
    fourth, first = (loader.batch(step).column(Need.POSITIONS).tolist() for step in (4, 1))
    assert fourth == first


@pytest.fixture
def followed(recipe, pairs_file):
    """A recipe that measures every third of 10 steps."""

    def make(**overrides):
        every = {"evaluation__geometry_every": 3, "evaluation__geometry_pairs": f"{pairs_file}>4"}
        return recipe(train__epochs=2, **{**every, **overrides})

    return make


def test_the_bits_are_the_same_with_and_without(followed, tmp_path):
    changes = {"train__gradcache_chunk": 5, "encoder__encoders": "twin"}
    train(followed(**changes), tmp_path / "with")
    unmeasured = {"evaluation__geometry_every": None, "evaluation__geometry_pairs": "stsb-dev>4"}
    train(followed(**unmeasured, **changes), tmp_path / "without")
    for which in ("best", "last"):
        assert weights(tmp_path / "with", which) == weights(tmp_path / "without", which)
    rest = [line for line in metrics(tmp_path / "with") if "geometry" not in line]
    assert rest == metrics(tmp_path / "without")


def test_start_every_step_asked_for_and_end_are_measured(followed, pairs_file, tmp_path):
    settings = followed()
    result = train(settings, tmp_path / "run")
    found = read_trajectory(tmp_path / "run")
    assert found.steps == (0, 3, 6, 9, 10)
    pairs = RatedPairs.read(f"{pairs_file}>4")
    start = SentenceEncoder.load(settings.encoder.name, pooler="cls", head="none")
    ends = (start, found.positions[0]), (SentenceEncoder.load(result.last), found.positions[-1])
    for encoder, position in ends:
        measured = measure(EncoderUse(encoder), pairs)
        assert measured.value("alignment") == pytest.approx(position.alignment, rel=1e-4)
        assert measured.value("uniformity") == pytest.approx(position.uniformity, rel=1e-4)
    line = next(line for line in metrics(tmp_path / "run") if "geometry" in line)
    assert line["geometry"]["pairs"] == found.pairs == f"{pairs_file}>4"
    assert line["geometry"]["sentences"] == len(pairs.sentences)
    assert line["geometry"]["positive_pairs"] == int(pairs.positive.sum())
    assert line["geometry"]["precision"] == "fp32"


TWIN = {"encoder__encoders": "twin"}


def words_of(folder):
    return load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]


def test_each_encoder_is_saved_whole_and_moved_by_itself(trained, tmp_path, tiny_bert):
    result = trained(train__epochs=8, train__learning_rate=0.01, **TWIN)
    assert result.best_step, "choose other settings: best must not be the start"
    run, start = tmp_path / "run", words_of(tiny_bert)
    for name in ("best", "last"):
        first, second = run / name, run / f"{name}-twin"
        assert {str(p) for p in tree(first)} == {str(p) for p in tree(second)}
        told = [json.loads((place / "contrasent.json").read_text()) for place in (first, second)]
        assert told[0]["step"] == told[1]["step"] == (result.best_step if name == "best" else 40)
        assert "twin_of" not in told[0] and told[1]["twin_of"] == name
        assert told[1]["dev_spearman"] == {}
        moved = [words_of(place) for place in (first, second)]
        assert not moved[0].equal(moved[1])
        assert all(not new.equal(start) for new in moved)
        encoders = [SentenceEncoder.load(place, device="cpu") for place in (first, second)]
        rows = [encoder.encode(["a dog runs", "the cat"]) for encoder in encoders]
        assert rows[0].shape == (2, 16) and not (rows[0] == rows[1]).all()
    prints = [SentenceEncoder.load(it).fingerprint() for it in (run, result.best)]
    assert prints[0] == prints[1]


def steps_of(run):
    told = [run / name / "contrasent.json" for name in ("best", "best-twin")]
    return [json.loads(path.read_text())["step"] if path.is_file() else None for path in told]


@pytest.mark.parametrize("moment", ["before the first", "between the two"])
def test_encoders_of_different_steps_never_lie_beside_each_other(moment, tmp_path, tiny_encoder):
    encoder, best = tiny_encoder, tmp_path / "best"
    twin = copy.deepcopy(encoder)
    save_encoders(best, encoder, twin, {"step": 1})
    assert steps_of(tmp_path) == [1, 1]
    dying, how = copy.deepcopy(twin), {}
    dying.save = cut
    if moment == "before the first":
        how["save"] = cut
    with pytest.raises(CutError):
        save_encoders(best, encoder, dying, {"step": 2}, **how)
    assert steps_of(tmp_path) == [1 if moment == "before the first" else 2, None]
    save_encoders(best, encoder, twin, {"step": 2})
    assert steps_of(tmp_path) == [2, 2]


class Dev:
    """A dev task with scores that were thought of: of the two encoders in turn, time after time."""

    metric, suite = "spearman", Suite((), Options())

    def __init__(self, *scores):
        self.scores = list(scores)

    def score(self, _encoder, **_how):
        return {"thought": self.scores.pop(0)}


@pytest.mark.parametrize("better", [False, True])
def test_the_better_encoder_is_kept(better, tmp_path, recipe, monkeypatch):
    """The same run twice, once by itself and once with the second encoder said to be better."""
    settings = recipe(**TWIN)
    train(settings, tmp_path / "whole")
    monkeypatch.setattr(
        "contrasent.training.scoring.dev_task",
        lambda _: Dev(0.0, *([0.1, 0.2] if better else [0.2, 0.1]) * 3),
    )
    train(recipe(**TWIN, encoder__keep="better"), tmp_path / "kept")
    for name, other in (("last", "last-twin"), ("last-twin", "last")):
        expected = tmp_path / "whole" / (other if better else name)
        assert words_of(tmp_path / "kept" / name).equal(words_of(expected))
    lines = [line for line in metrics(tmp_path / "kept") if "evaluation" in line]
    assert [line["evaluation"]["thought"] for line in lines] == [0.0, 0.2, 0.2, 0.2]
    assert [line["beside"]["thought"] for line in lines[1:]] == [0.1, 0.1, 0.1]
