"""An answer for any text, and a search: what it tries, keeps, says and refuses, how it goes on."""

import json
import time
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.command_line import worked
from helpers.tiny_glove import save_glove
from helpers.tiny_sentences import sentence, write, write_rated

from contrasent import load_encoder
from contrasent.adaptation import answer as adapting
from contrasent.adaptation import rungs as searching
from contrasent.adaptation.answer import Text
from contrasent.adaptation.rungs import CANDIDATES
from contrasent.adaptation.trials import Search, State, Trial
from contrasent.errors import CheckpointError, ConfigError, ContrasentError
from contrasent.evaluation import NEARER, proxy
from contrasent.fitting import fit
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives import distil
from contrasent.options import AdaptOptions
from contrasent.recipe import load_recipe
from contrasent.records import Interval
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
    """A cache of its own, few queries, and a few steps for each candidate, more in each rung."""
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(proxy, "FEWEST", 5)
    monkeypatch.setattr(
        searching.Rungs, "_steps", lambda _, names, *__: dict.fromkeys(names, 12 // len(names))
    )


@pytest.fixture
def adapt(tmp_path, text, tiny_bert):
    """Search with three candidates."""

    def run(folder="search", encoder=tiny_bert, **options):
        given = {"minutes": 5, "candidates": ["dropout", "last-layers", "crops"], "settings": FAST}
        given |= {"data": text, "output": tmp_path / folder, "device": "cpu"}
        return adapting.adapt(encoder, **given | options)

    return run


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def plain(trials):
    """Trials without their times."""
    return [replace(trial, seconds=0) for trial in trials]


def tried(trials):
    return [trial.candidate for trial in trials]


def failing(*names):
    """Training that fails for candidates of some views."""

    def trained(recipe, folder, **options):
        if folder.parent.name == "trials" and recipe.view.name in names:
            raise ContrasentError("the loss is not finite")
        return train(recipe, folder, **options)

    return trained


def test_the_better_half_goes_on_and_the_best_is_kept_and_made_again(adapt, tmp_path):
    began = time.monotonic()
    result = adapt()
    assert result.seconds < time.monotonic() - began
    rungs = [[t for t in result.trials if t.settings["rung"] == rung] for rung in range(3)]
    assert tried(rungs[0]) == ["dropout", "last-layers", "crops"]
    ranked = sorted(rungs[0], key=lambda t: -t.score)
    assert tried(rungs[1]) == tried(ranked[:2])
    assert tried(rungs[2]) == tried(sorted(rungs[1], key=lambda t: -t.score)[:1])
    best = max(result.trials, key=lambda t: t.score)
    assert result.outcome in ("trained", "both")
    assert f"by {best.candidate};" in " ".join(result.sentences)
    assert result.start_score < best.score
    kept = json.loads((tmp_path / "search" / "run" / "result.json").read_text())
    assert (kept["best_score"], kept["best_step"]) == (best.score, best.best_step)
    assert not list((tmp_path / "search" / "trials").glob("*/best"))
    assert result.scores.before != result.scores.after
    assert [gain.of for gain in result.scores.gains]
    again = train(load_recipe(result.recipe), tmp_path / "again", device="cpu")
    assert weights(again.best) == weights(result.encoder)


def test_where_nothing_beats_the_start_it_stays_as_it_is(adapt, tiny_bert, tmp_path):
    start = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    pairs = write_rated(tmp_path / "pairs.tsv", start, LINES[:20], LINES[20:40])
    result = adapt(candidates=["dropout"], dev=str(pairs))
    assert result.start_score == pytest.approx(1)
    assert result.recipe is None and "Nothing that was tried beat" in " ".join(result.sentences)
    # One candidate needs no comparison: a single trial takes all of the time.
    assert [(t.settings["rung"], t.best_step) for t in result.trials] == [(2, 0)]
    assert SentenceEncoder.load(result.encoder, device="cpu").fingerprint() == start.fingerprint()


def test_where_the_time_ends_before_the_next_score_the_last_one_counts(
    adapt, monkeypatch, tmp_path
):
    monkeypatch.setattr(searching.Rungs, "seconds_left", 0.0)
    (trial,) = adapt(candidates=["dropout"]).trials
    (log,) = (tmp_path / "search").rglob("metrics.jsonl")
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps[-1] == trial.settings["every"] < trial.steps and trial.score is not None


def test_a_teacher_is_followed_and_one_that_breaks_off_is_told(
    adapt, sentence_encoder, monkeypatch, tmp_path
):
    with pytest.raises(ConfigError, match="distil needs a --teacher"):
        adapt(candidates=["distil"])
    given = {"candidates": ["distil", "rank-distil", "dropout"], "teacher": str(sentence_encoder)}
    taught = adapt("taught", **given).trials
    assert tried(taught)[:3] == given["candidates"] and all(it.score for it in taught)
    breaks_off = Mock(side_effect=CheckpointError("the server does not answer"))
    monkeypatch.setattr(distil, "_kept_blocks", breaks_off)
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "empty"))
    result = adapt("alone", **given)
    assert [it.failure for it in result.trials if it.failure] == ["the server does not answer"]
    assert result.outcome in ("trained", "both")


def test_queries_of_the_text_are_ranked_as_a_reranker_ranks_them(adapt, text, tiny_bert, tmp_path):
    cross_encoders = pytest.importorskip("sentence_transformers")
    with pytest.raises(ConfigError, match="rank-distil needs a --reranker or a --teacher"):
        adapt(candidates=["rank-distil"])
    cross = cross_encoders.CrossEncoder(str(tiny_bert), num_labels=1, device="cpu")
    torch.manual_seed(0)
    torch.nn.init.normal_(cross.model.classifier.weight)
    cross.save_pretrained(str(tmp_path / "cross"))
    output = tmp_path / "ranked"
    answer = worked(
        *("adapt", tiny_bert, "--data", text, "--output", output, "--minutes", 5),
        *("--candidates", "rank-distil", "--reranker", tmp_path / "cross", "--device", "cpu"),
        "--train.precision=fp32",
    )
    assert CANDIDATES["rank-distil"].description in answer.out
    held_out = set((output / "dev.txt").read_text().splitlines())
    held_out |= set((output / "held-out.txt").read_text().splitlines())
    lists = [*map(json.loads, (output / "lists.jsonl").read_text().splitlines())]
    for row in lists:
        scores, anchor, *candidates = row.pop("scores"), *row.values()
        pairs = [(anchor, it) for it in candidates]
        expected = cross.predict(pairs, activation_fn=torch.nn.Identity())
        assert scores == pytest.approx(expected.tolist(), abs=2e-4)
        assert held_out.isdisjoint(candidates)
    (trial,) = json.loads((output / "result.json").read_text())["trials"]
    assert len(lists) > 50 and trial["score"] is not None


def test_a_smaller_encoder_follows_the_whole_one_and_is_compared_with_it(adapt, sentence_encoder):
    with pytest.raises(ConfigError, match=r"--layers is 2, but .* has 2; ask for fewer"):
        adapt("as-large", sentence_encoder, layers=2)
    result = adapt(encoder=sentence_encoder, candidates=["distil"], layers=1)
    assert tried(result.trials) == ["distil"]
    assert load_recipe(result.recipe).objective["teacher"] == str(sentence_encoder)
    assert SentenceEncoder.load(result.encoder, device="cpu").backbone.depth == 1
    assert "an encoder of 1 of its layers, by distil" in " ".join(result.sentences)
    assert {it.encoder for it in result.scores.before} == {str(sentence_encoder)}


def test_a_static_table_is_fitted_to_the_whole_encoder_and_compared_with_it(
    adapt, sentence_encoder
):
    table = {"encoder": sentence_encoder, "candidates": None, "settings": None, "layers": 0}
    result = adapt(**table)
    facts, search = json.loads(result.recipe.read_text())["transform"], result.report.parent
    assert facts["encoder"]["name"] == str(sentence_encoder)
    rows = [*map(str.strip, (search / "train.txt").read_text().split("\n"))]
    fitted = fit(sentence_encoder, "static", data=search / "train.txt")
    encoded = load_encoder(str(result.encoder)).encode(rows[:9])
    np.testing.assert_array_equal(encoded, fitted.encode(rows[:9]))
    assert {it.encoder for it in result.scores.before} == {str(sentence_encoder)}
    assert {it.encoder for it in result.scores.after} == {str(result.encoder)}
    assert result.scores.gains
    said = " ".join(result.sentences)
    assert "Nothing was trained: a static table" in said and "Beside the whole encoder: " in said
    assert adapt(**table, resume=True).encoder == result.encoder


def test_what_was_stopped_has_an_answer_and_goes_on_to_the_same_end(adapt, monkeypatch):
    whole, calls = adapt("whole"), []

    def stopped(recipe, folder, **options):
        calls.append(folder)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return train(recipe, folder, **options)

    monkeypatch.setattr(searching, "train", stopped)
    stop = 2  # the probe is the first
    early = adapt()
    assert (early.trials, early.recipe) == ([], None)
    assert "it was stopped" in " ".join(early.sentences)
    calls, stop = [], 3
    assert len(adapt(resume=True).trials) == 2
    calls, stop = [], 0
    result = adapt(resume=True)
    assert plain(result.trials) == plain(whole.trials)
    assert weights(result.encoder) == weights(whole.encoder)
    assert plain(adapt(resume=True).trials) == plain(whole.trials)


def test_a_search_that_was_asked_for_something_else_is_not_gone_on_with(adapt, text, tmp_path):
    adapt(candidates=["dropout"])
    for options, message in (
        ({"seed": 7}, r"seed 42, not 7; .*--overwrite"),
        ({"candidates": ["slow"]}, r"candidates \['dropout'\], not \['slow'\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            adapt(**{"candidates": ["dropout"], "resume": True, **options})
    with pytest.raises(ConfigError, match="--resume"):
        adapt(candidates=["dropout"])
    write(text, LINES[1:])
    with pytest.raises(ConfigError, match=r"text\.txt of sha256"):
        adapt(candidates=["dropout"], resume=True)
    with pytest.raises(ConfigError, match="next-sentence needs"):
        adapt(candidates=["next-sentence"], overwrite=True)
    assert (tmp_path / "search" / "run" / "best").is_dir()


def test_the_command_tells_the_answer_first_and_then_what_was_tried(text, tiny_bert, tmp_path):
    pairs, output = tmp_path / "pairs.tsv", tmp_path / "search"
    write(pairs, [f"{LINES[n]}\t{LINES[n + n % 4]}\t{5 - n % 4}" for n in range(24)])
    said = worked(
        *("adapt", tiny_bert, "--data", text, "--output", output, "--minutes", 5),
        *("--candidates", "dropout", "--test", pairs, "--device", "cpu"),
        *(f"--{key}={value}" for key, value in FAST.items()),
    )
    kept = json.loads((output / "result.json").read_text())
    assert said.out.splitlines()[: len(kept["sentences"])] == kept["sentences"]
    assert f"encoder: {kept['encoder']}" in said.out
    assert CANDIDATES["dropout"].description in said.out
    page = (output / "report.html").read_text()
    for told in (*kept["sentences"], CANDIDATES["dropout"].description, "held-out-"):
        assert told in page
    assert "without the command" not in page  # which is this one
    assert "held-out-" in said.out and " minus " in page  # differences have their intervals


@pytest.mark.filterwarnings("ignore:.* does not say how it makes an embedding")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("too little text", "40 lines is too little to make tasks of 50 queries"),
        ("too few lines", "200 lines is too little to make tasks of 50 queries"),
        ("no time", "leave no time"),
        ("all fail", "every candidate failed; dropout: the loss is not finite"),
        ("a table of words", "no transformer"),
    ],
)
def test_what_hinders_training_is_told_beside_the_start(adapt, monkeypatch, tmp_path, change, why):
    options = {"candidates": ["dropout"]}
    if change == "too little text":
        monkeypatch.setattr(proxy, "FEWEST", 50)
        write(tmp_path / "few.txt", LINES[:40])
        options["data"] = tmp_path / "few.txt"
    elif change == "too few lines":
        monkeypatch.setattr(proxy, "FEWEST", 50)
    elif change == "no time":
        monkeypatch.setattr(searching.Rungs, "_steps", lambda _, of, *__: dict.fromkeys(of, 0))
    elif change == "all fail":
        monkeypatch.setattr(searching, "train", failing("dropout"))
    else:
        options["encoder"] = save_glove(tmp_path / "glove.txt")
    result = adapt(**options)
    told = " ".join(result.sentences)
    assert result.recipe is None and "Nothing was trained: " in told and why in told
    assert json.loads((tmp_path / "search" / "result.json").read_text())["encoder"]
    assert (result.judgement is None) == (change == "too little text")
    assert len(load_encoder(result.encoder, device="cpu").encode(LINES[:5])) == 5
    if change == "all fail":  # a teacher's server may be there again
        monkeypatch.setattr(searching, "train", train)
        assert adapt(**options, resume=True).trials[0].score is not None


def test_hybrid_search_is_told_apart_from_a_better_encoder(adapt, monkeypatch):
    judge, seconds = adapting.evaluation.judge, list[float]()

    def more_tells(*given, **how):
        seconds.append(how["seconds"])
        seen = {"sampled": len(seconds), "weight": 0.3 if seconds[1:] else None}
        return replace(judge(*given, **how), **seen, verdict="hybrid" if seconds[1:] else "good")

    monkeypatch.setattr(adapting.evaluation, "judge", more_tells)
    monkeypatch.setattr(searching, "train", failing("dropout"))
    result = adapt(candidates=["dropout"])  # a start that stays is judged on more of its text
    assert len(seconds) == 2 and seconds[1] > seconds[0]
    kept = json.loads((result.report.parent / "search.json").read_text())["ground"]
    assert kept["seconds_spent"] < result.seconds  # judging again is no part of the search
    assert (result.outcome, result.hybrid_weight, result.recipe) == ("hybrid", 0.3, None)
    assert "needs no training" in " ".join(result.sentences)
    monkeypatch.setattr(searching, "train", train)
    both = adapt("both")
    assert (both.outcome, both.hybrid_weight) == ("both", 0.3)
    assert f"On held-out text: {both.trained.sentence}" in both.sentences

    def loses_words(use, text, **how):
        verdict = "good" if "held-out" in str(text) else "hybrid"
        return replace(judge(use, text, **how), verdict=verdict, weight=0.3)

    monkeypatch.setattr(adapting.evaluation, "judge", loses_words)
    kept = adapt("kept")  # what is shown to help does not give way to what is not
    assert (kept.outcome, kept.recipe) == ("hybrid", None)
    assert "is not shown to be better on other text" in " ".join(kept.sentences)


def test_what_is_worse_on_held_out_text_gives_way_to_the_start(adapt, monkeypatch, tmp_path):
    score = adapting.score_result

    def worse(*given, **how):
        scores = score(*given, **how)
        below = Interval(low=-0.2, high=-0.1, error=0.02, confidence=0.95)
        gains = [replace(it, compared=replace(it.compared, interval=below)) for it in scores.gains]
        return replace(scores, gains=gains)

    monkeypatch.setattr(adapting, "score_result", worse)
    result = adapt(candidates=["dropout"])
    assert (result.outcome, result.recipe) in (("start", None), ("hybrid", None))
    assert "dropout, is worse on other text" in " ".join(result.sentences)
    start = SentenceEncoder.load(result.encoder, device="cpu").fingerprint()
    trained = tmp_path / "search" / "trials" / "0" / "best"
    assert SentenceEncoder.load(trained, device="cpu").fingerprint() != start
    monkeypatch.setattr(adapting, "score_result", score)
    again = adapt(candidates=["dropout"], resume=True)
    assert weights(again.encoder) == weights(tmp_path / "search" / "run" / "best")


def test_a_candidate_that_fails_is_reported_and_the_others_go_on(adapt, monkeypatch):
    monkeypatch.setattr(searching, "train", failing("crop"))
    folder = "of two, #1"  # whose names are no YAML and no list
    result = adapt(folder)
    assert tried(t for t in result.trials if t.score is None) == ["crops"]
    assert set(tried(result.trials)) == {"dropout", "last-layers", "crops"}
    # The search has ended: nothing is tried again.
    monkeypatch.setattr(searching, "train", train)
    assert plain(adapt(folder, resume=True).trials) == plain(result.trials)
    longer = adapt(folder, resume=True, minutes=6).trials
    assert tried(t for t in longer if t.score is None) == []
    assert plain(longer[: len(result.trials) - 1]) == plain(t for t in result.trials if t.score)


@pytest.mark.filterwarnings("ignore:.*no masked-LM head")
def test_a_setting_of_one_candidate_leaves_the_others_out_and_low_ranks_train(adapt):
    settings = {**FAST, "objective.deletion_rate": 0.5}
    result = adapt(candidates=["dropout", "tsdae"], settings=settings)
    without = {it.candidate: it.score is None for it in result.trials}
    assert without == {"dropout": True, "tsdae": False}
    pytest.importorskip("peft")
    settings = {"train.batch_size": 16, "train.precision": "fp32"}  # it sets the rate itself
    (trial,) = adapt("low ranks", candidates=["lora"], settings=settings).trials
    assert trial.score is not None


def test_time_is_shared_by_what_a_trial_was_measured_to_take(tmp_path, monkeypatch, tiny_bert):
    monkeypatch.undo()
    asked = {"candidates": [*CANDIDATES], "lines": 10_000, "depth": 6, "dev": ["dev-halves"]}
    state = State({}, asked)
    options = AdaptOptions(encoder=str(tiny_bert), data="text.txt", minutes=60)
    search = Search(tmp_path, state, {})
    rungs = searching.Rungs(search, options, {})
    ground = rungs.ground
    ground.step_seconds, ground.score_seconds, ground.other_seconds = 1.0, 2.0, 10.0
    # 100 seconds for each, of which 10 + 3 * 2 are no steps
    assert rungs._steps(["dropout", "tsdae"], 200, 0) == {"dropout": 84, "tsdae": 33}
    assert rungs._steps(["dropout"], 20, 0) == {"dropout": 0}
    recipes = {name: rungs._recipe(it, 5, 5) for name, it in CANDIDATES.items()}
    frozen = {name: recipe.encoder.freeze_layers for name, recipe in recipes.items()}
    assert {name: layers for name, layers in frozen.items() if layers} == {"last-layers": 3}
    rungs.began -= 59 * 60
    rungs._choose(ground.candidates)
    assert [*ground.candidates, *ground.left_out] == [*CANDIDATES]
    rungs.began -= 60
    with pytest.raises(ConfigError, match=r"60 minutes leave no time for distil; 60\.\d"):
        rungs._choose(ground.candidates)


@pytest.mark.parametrize(("slower", "tried_at_first"), [(1, 4), (6, 1)])
def test_the_time_is_used_though_the_machine_was_busy_when_it_was_measured(
    slower, tried_at_first, tmp_path, monkeypatch, tiny_bert
):
    names, minutes = ["dropout", "crops", "tsdae", "lora"], 8
    monkeypatch.undo()
    monkeypatch.setattr(searching.time, "monotonic", lambda: now)
    now = 0.0
    state = State({}, {"candidates": names, "lines": 100_000, "depth": 6, "dev": ["dev-halves"]})
    options = AdaptOptions(encoder=str(tiny_bert), data="text.txt", minutes=minutes)
    rungs = searching.Rungs(Search(tmp_path, state, {}), options, {})
    ground, following = rungs.ground, None
    ground.step_seconds, ground.score_seconds = 0.5 * slower, 1.0 * slower
    ground.other_seconds, ground.final_seconds = 5.0 * slower, 20.0 * slower
    for settings in rungs._plan():
        assert following in (None, settings)  # as a search that goes on would choose
        if not state.trials:
            assert len(ground.candidates) == tried_at_first
        fixed, step = 8.0, 0.5 * CANDIDATES[settings["candidate"]].cost
        seconds = fixed + step * settings["steps"]
        now += seconds
        score = 0.5 + 0.001 * settings["steps"] - 0.1 * names.index(settings["candidate"])
        state.trials.append(Trial(len(state.trials), settings, score, seconds=seconds))
        rungs._learn(state.trials[-1])
        resumed = searching.Rungs(Search(tmp_path, state, {}), options, {})
        following = next(resumed._plan(), "nothing")
    assert following == "nothing"
    assert len({trial.candidate for trial in state.trials}) > 1
    assert 0.7 * 60 * minutes < now < 1.05 * 60 * minutes


def test_documents_stay_whole(tmp_path):
    documents = [[sentence(7 * n + k, 9) for k in range(4)] for n in range(30)]
    path = tmp_path / "documents.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    text = Text.read(str(path), documents=True)
    assert text.in_documents
    _, rest = adapting._hold_out(text.shuffled(1), [500, 500], tmp_path, [[]])
    held_out = (Text.read(str(tmp_path / f"{it}.txt"), documents=True) for it in adapting._PARTS)
    parts = [part.documents for part in (*held_out, rest)]
    assert [len(part) for part in parts] == [3, 3, 24]
    assert sorted(document for part in parts for document in part) == sorted(documents)
    assert text.first(5).documents == documents[:2]


def test_halves_choose_where_a_fifth_of_the_text_makes_no_other_task(monkeypatch, tmp_path):
    monkeypatch.setattr(proxy, "FEWEST", 30)  # more than a tenth has
    text = Text("200 lines", [[f"{line} {line}"] for line in LINES], in_documents=False)
    tasks = [f"{kind} of a.txt" for kind in ("rest", "halves", "keywords")]
    records = [Mock(task=it, encoder="start", metric="ndcg@10", value=0.5) for it in tasks]
    weaker = dict.fromkeys(tasks[1:], NEARER)
    judged = Mock(encoder="start", records=records, deciding=tasks[:1], undecided=weaker)
    kinds = adapting._open_kinds(judged)
    assert kinds == [["rest"], ["halves"]]
    made, rest = adapting._hold_out(text, [500, 500], tmp_path, kinds)
    assert (made, rest.lines) == ([["dev-halves"], ["held-out-halves"]], 120)
    assert adapting._hold_out(text, [500, 500], tmp_path, kinds[:1])[0] == [[], []]


def test_candidates_follow_the_text():
    texts = Text("texts", [["A cat sat. A dog ran."], ["One man. Two men."]], in_documents=False)
    sentences = Text("sentences", [["A cat sat."], ["Two men sat."]], in_documents=False)
    documents = Text("documents", [["A cat sat.", "It slept."]], in_documents=True)
    needs = [it.needs_met() for it in (texts, sentences, documents)]
    assert needs == [{"texts"}, set(), {"texts", "documents"}]
    long = Text("long", [["字 word" * 50], ["字" * 80]], in_documents=False)
    assert (sentences.max_tokens, long.max_tokens) == (32, 128)
