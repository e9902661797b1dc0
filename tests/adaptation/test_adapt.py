"""A search over recipes: its text, what it tries, keeps, says and refuses, and how it goes on."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import sentence, write

from contrasent.adaptation import candidates, halving
from contrasent.adaptation.candidates import (
    CANDIDATES,
    GENERAL_TEXT,
    MIXED,
    TRAIN,
    SearchRequest,
    SearchState,
    Text,
    split_text,
)
from contrasent.adaptation.halving import adapt
from contrasent.errors import ConfigError, ContrasentError
from contrasent.model.encoder import SentenceEncoder
from contrasent.recipe import load_recipe
from contrasent.training.run import train

FAST = {"train.batch_size": 16, "train.precision": "fp32", "train.learning_rate": 1e-3}
LINES = list(dict.fromkeys(sentence(n, 12) for n in range(260)))[:200]


@pytest.fixture
def text(tmp_path):
    """Sentences of enough words to be cut in halves."""
    write(tmp_path / "text.txt", LINES)
    return tmp_path / "text.txt"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A cache of its own, and few steps."""
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(halving, "_FEWEST_STEPS", 1)
    monkeypatch.setattr(halving, "_MOST_EPOCHS", 1)
    monkeypatch.setattr(candidates, "FEWEST", 5)


@pytest.fixture
def search(tmp_path, text, tiny_bert, monkeypatch):
    """Search with three candidates of a few steps each, and more in each rung."""

    def steps(_, names, __):
        return dict.fromkeys(names, 12 // len(names))

    monkeypatch.setattr(halving.Search, "_steps", steps)

    def run(folder="search", encoder=tiny_bert, **options):
        given = {"minutes": 5, "candidates": ["dropout", "last-layers", "crops"], "settings": FAST}
        output = tmp_path / folder
        return adapt(encoder, data=text, output=output, device="cpu", **given | options)

    return run


def similarity(first, second):
    """Cosines of rows."""
    return (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)


def rate_by(encoder, path):
    """Pairs that an encoder rates itself, so that its correlation is 1."""
    first, second = LINES[:20], LINES[20:40]
    ratings = similarity(*(encoder.encode(texts, precision="fp32") for texts in (first, second)))
    rated = zip(first, second, ratings, strict=True)
    write(path, [f"{a}\t{b}\t{rating:.17g}" for a, b, rating in rated])


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def plain(trials):
    """Trials without their times."""
    return [(t.candidate, t.rung, t.steps, t.score, t.best_step) for t in trials]


def test_the_better_half_goes_on_and_the_best_is_kept(search, tmp_path):
    result = search()
    first, second, last = ([t for t in result.trials if t.rung == rung] for rung in range(3))
    assert [t.candidate for t in first] == ["dropout", "last-layers", "crops"]
    ranked = sorted(first, key=lambda t: -t.score)
    assert [t.candidate for t in second] == [t.candidate for t in ranked[:2]]
    assert [t.candidate for t in last] == [max(second, key=lambda t: t.score).candidate]
    best = max(result.trials, key=lambda t: t.score)
    assert result.start_score <= best.score
    kept = json.loads((tmp_path / "search" / "run" / "result.json").read_text())
    assert (kept["best_score"], kept["best_step"]) == (best.score, best.best_step)
    assert not list((tmp_path / "search" / "trials").iterdir())
    assert result.scores.before != result.scores.after
    assert [gain.of for gain in result.scores.gains]


def test_its_recipe_makes_the_same_encoder_again(search, tmp_path):
    result = search()
    again = train(load_recipe(result.recipe), tmp_path / "again", device="cpu")
    assert weights(again.best) == weights(result.encoder)


def test_where_nothing_beats_the_start_it_stays_as_it_is(search, tiny_bert, tmp_path):
    start = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    rate_by(start, tmp_path / "pairs.tsv")
    result = search(candidates=["dropout"], dev=str(tmp_path / "pairs.tsv"))
    assert result.start_score == pytest.approx(1)
    assert result.recipe is None
    # One candidate needs no comparison: a single trial takes all of the time.
    assert [(t.rung, t.best_step) for t in result.trials] == [(2, 0)]
    assert SentenceEncoder.load(result.encoder, device="cpu").fingerprint() == start.fingerprint()


def test_masked_words_may_come_first(search, tmp_path, text, tiny_masked_lm):
    with pytest.raises(ConfigError, match="mlm-first needs a masked language model"):
        search(candidates=["mlm-first"])  # of a BERT without its head

    def request(*names):
        return SearchRequest(str(tiny_masked_lm), str(text), 5, None, [*names], FAST, seed=42)

    state = halving.split_text(request("dropout", "mlm-first"), tmp_path)
    halving.Search(tmp_path, state, "cpu", show_progress=False)._try("mlm-first", 0, 9)
    second = load_recipe(tmp_path / "trials" / "0-mlm-first" / "recipe.yaml")
    first = load_recipe(Path(second.encoder.name).parent / "recipe.yaml")
    assert (first.objective["name"], first.encoder.name) == ("mlm", str(tiny_masked_lm))
    assert (first.train.max_steps, second.train.max_steps) == (4, 5)
    assert (first.train.batch_size, first.train.precision) == (16, "fp32")
    assert first.train.learning_rate == load_recipe("pretrain-mlm").train.learning_rate
    before, after = (
        SentenceEncoder.load(folder, pooler="mean", head="none", device="cpu").fingerprint()
        for folder in (tiny_masked_lm, second.encoder.name)
    )
    assert before != after
    assert state.trials[0].steps == 9


def test_a_worse_encoder_that_alone_was_left_gives_way_to_the_start(
    search, tiny_bert, tiny_masked_lm, tmp_path, monkeypatch
):
    start = SentenceEncoder.load(tiny_masked_lm, pooler="mean", head="none", device="cpu")
    rate_by(start, tmp_path / "pairs.tsv")
    monkeypatch.setattr(halving, "train", failing("dropout"))
    # Few steps would change too little: what is trained first is quite another encoder.
    monkeypatch.setattr(halving.Search, "_pretrain", lambda *_: str(tiny_bert))
    given = {"encoder": tiny_masked_lm, "dev": str(tmp_path / "pairs.tsv")}
    result = search(candidates=["dropout", "mlm-first"], **given)
    assert [t.candidate for t in result.trials] == ["mlm-first"] * len(result.trials)
    assert max(t.score for t in result.trials) < result.start_score == pytest.approx(1)
    assert result.recipe is None
    best = SentenceEncoder.load(result.encoder, device="cpu")
    assert best.fingerprint() == start.fingerprint()


def test_an_interrupted_search_goes_on_to_the_same_end(search, monkeypatch, tmp_path):
    whole = search("whole")
    calls = []

    def interrupted(recipe, folder, **options):
        calls.append(folder)
        if len(calls) == 4:  # the probe is the first
            raise KeyboardInterrupt
        return train(recipe, folder, **options)

    monkeypatch.setattr(halving, "train", interrupted)
    # As many steps as in the whole search, however long they take here.
    monkeypatch.setattr(halving.Search, "begin", _begin_as(tmp_path / "whole"))
    calls.append("probe")
    with pytest.raises(KeyboardInterrupt):
        search()
    assert len(json.loads((tmp_path / "search" / "search.json").read_text())["trials"]) == 2
    result = search(resume=True)
    assert plain(result.trials) == plain(whole.trials)
    assert weights(result.encoder) == weights(whole.encoder)


def _begin_as(folder):
    state = json.loads((folder / "search.json").read_text())

    def begin(self):
        for name in ("seconds_per_step", "overhead", "start_score", "dev_metric"):
            setattr(self.state, name, state[name])

    return begin


def test_a_search_that_was_asked_for_something_else_is_not_gone_on_with(search, tmp_path):
    search(candidates=["dropout"])
    with pytest.raises(ConfigError, match=r"minutes 5.0, not 6.0; .*--overwrite"):
        search(candidates=["dropout"], minutes=6, resume=True)
    with pytest.raises(ConfigError, match=r"candidates \['dropout'\], not \['slow'\]"):
        search(candidates=["slow"], resume=True)
    with pytest.raises(ConfigError, match="--resume"):
        search(candidates=["dropout"])
    with pytest.raises(ConfigError, match="next-sentence needs"):
        search(candidates=["next-sentence"], overwrite=True)
    assert (tmp_path / "search" / "run" / "best").is_dir()
    assert search(candidates=["dropout"], overwrite=True).trials


def test_the_command_tells_what_was_tried_and_what_came_of_it(text, tiny_bert, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    write(pairs, [f"{LINES[n]}\t{LINES[n + n % 4]}\t{5 - n % 4}" for n in range(24)])
    output = tmp_path / "search"
    said = worked(
        *("adapt", tiny_bert, "--data", text, "--output", output, "--minutes", 5),
        *("--candidates", "dropout", "--test", pairs, "--device", "cpu"),
        *(f"--{key}={value}" for key, value in FAST.items()),
    )
    lines = said.out.splitlines()
    assert " ".join(lines[0].split()) == "what it trains on steps dev MRR@10 (proxy) gain seconds"
    assert CANDIDATES["dropout"].description in said.out
    assert any(line.startswith("encoder: ") and str(output) in line for line in lines)
    assert "crops of test.txt (proxy)" in said.out
    assert "paired bootstrap" in said.out
    assert "crops of test.txt (proxy)" in (output / "report.html").read_text()


def test_a_candidate_says_what_of_the_text_and_of_the_layers_it_takes(tmp_path, tiny_bert):
    request = SearchRequest(
        str(tiny_bert), "text.txt", 2, dev=None, candidates=[], settings={}, seed=42
    )
    state = SearchState(request, [*CANDIDATES], "crops:", max_tokens=40, depth=6, lines={})
    search = halving.Search(tmp_path, state, "cpu", show_progress=False)
    recipes = {name: search._recipe(each, 5, str(tiny_bert)) for name, each in CANDIDATES.items()}
    frozen = {name: recipe.encoder.freeze_layers for name, recipe in recipes.items()}
    assert {name for name, layers in frozen.items() if layers} == {"last-layers"}
    assert frozen["last-layers"] == 3
    general = {name for name, recipe in recipes.items() if recipe.data.file.endswith("mixed.txt")}
    assert general == {"general"}
    assert {recipe.data.max_tokens for recipe in recipes.values()} == {40}


def failing(name):
    """Training that fails for one candidate."""

    def trained(recipe, folder, **options):
        if folder.name.endswith(name):
            raise ContrasentError("the loss is not finite")
        return train(recipe, folder, **options)

    return trained


def test_a_candidate_that_fails_is_reported_and_the_others_go_on(search, monkeypatch):
    monkeypatch.setattr(halving, "train", failing("dropout"))
    result = search()
    assert [(it.candidate, it.rung) for it in result.failures] == [("dropout", 0)]
    assert {t.candidate for t in result.trials} == {"last-layers", "crops"}
    # The search has ended: nothing is tried again.
    monkeypatch.setattr(halving, "train", train)
    again = search(resume=True)
    assert (plain(again.trials), again.failures) == (plain(result.trials), result.failures)


@pytest.mark.parametrize(("key", "remedy"), [("data.file", "--data"), ("train.seed", "--seed")])
def test_settings_that_the_search_sets_are_refused(search, key, remedy):
    with pytest.raises(ConfigError, match=f"the search itself sets {key}; .*{remedy}"):
        search(settings={key: "1"})


def test_documents_stay_whole(tmp_path):
    documents = [[sentence(7 * n + k, 9) for k in range(4)] for n in range(30)]
    path = tmp_path / "documents.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    text = Text.read(str(path))
    assert text.in_documents
    parts = text.split(1, has_dev=False)
    assert sorted(d for part in parts for d in part.documents) == sorted(documents)
    read = Text.read(str(parts[0].write(tmp_path / "part.txt")))
    assert read.documents == parts[0].documents


def test_candidates_follow_the_text():
    texts = Text("texts", [["A cat sat. A dog ran."], ["One man. Two men."]], in_documents=False)
    sentences = Text("sentences", [["A cat sat."], ["Two men sat."]], in_documents=False)
    documents = Text("documents", [["A cat sat.", "It slept."]], in_documents=True)
    assert [t.gives for t in (texts, sentences, documents)] == [
        {"texts"},
        set(),
        {"texts", "documents"},
    ]
    long = Text("long", [["word " * 200]], in_documents=False)
    assert (sentences.max_tokens, long.max_tokens) == (32, 128)


def test_with_a_dev_task_only_what_is_reported_on_is_held_out():
    text = Text("text.txt", [[line] for line in LINES], in_documents=False)
    train_part, dev, test = text.split(1, has_dev=True)
    assert (train_part.lines, dev.lines, test.lines) == (180, 0, 20)
    few = Text("text.txt", text.documents[:40], in_documents=False)
    assert [part.lines for part in few.split(1, has_dev=True)] == [40, 0, 0]


def test_as_many_lines_of_wikipedia_are_mixed_in_as_there_are_of_the_text(tmp_path, tiny_bert):
    write(tmp_path / "text.txt", LINES)
    settings = {"train.batch_size": 16}
    request = SearchRequest(str(tiny_bert), str(tmp_path / "text.txt"), 5, None, [], settings, 42)
    state = split_text(request, tmp_path)
    train_lines, mixed = ((tmp_path / name).read_text().splitlines() for name in (TRAIN, MIXED))
    assert mixed[:160] == train_lines
    assert mixed[160:] == [it for it in GENERAL_TEXT.read_text().splitlines() if it][:160]
    assert state.lines == {TRAIN: 160, MIXED: 320}
