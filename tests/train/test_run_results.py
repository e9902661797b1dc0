"""What a run comes to: best and last, when it ends, scores before and after, trackers."""

import json

import pytest
import torch
from helpers import run_files
from helpers.interrupted import kill_after
from helpers.tiny_sentences import sentence, write, write_rated
from helpers.tiny_sts import spearman
from helpers.tiny_transfer import write_transfer

from contrasent import evaluate
from contrasent.evaluation.suite import find_overlap, load_suite, overlap_of
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records
from contrasent.training.run import train
from contrasent.training.setup import prepare


def test_best_has_the_highest_dev_score_last_the_last_step(trained, tmp_path, pairs_file):
    result = trained(train__epochs=8, train__learning_rate=0.01)
    evaluations = run_files.logged_evaluations(tmp_path / "run")
    scores = {v["step"]: v["evaluation"][str(pairs_file)] for v in evaluations}
    assert result.best_score == max(scores.values())
    assert result.best_step == min(s for s, v in scores.items() if v == result.best_score)
    assert result.best_step != result.steps == 40, "choose other settings: best must not be last"
    best, last = (run_files.weights(tmp_path / "run", it) for it in ("best", "last"))
    assert best != last
    for folder, score in ((result.best, result.best_score), (result.last, scores[40])):
        encoder = SentenceEncoder.load(folder, device="cpu")
        found = spearman(evaluate(encoder, [str(pairs_file)]))
        assert found == pytest.approx(score, abs=1e-6)


def test_patience_ends_a_run_that_gets_no_better(trained, tmp_path):
    result = trained(
        train__epochs=20,
        train__learning_rate=1e-12,
        evaluation__every=3,
        evaluation__patience=2,
        encoder__dropout=0.0,
    )
    assert result.best_step == 0
    assert result.steps == 6
    evaluations = run_files.logged_evaluations(tmp_path / "run")
    assert [values["step"] for values in evaluations] == [0, 3, 6]
    assert "no new best in 2 evaluations: stopping" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 3), (True, 2)])
def test_a_smaller_last_batch_is_left_out_where_the_recipe_says_so(drop_last, steps, recipe):
    asked = recipe(data__drop_last=drop_last, train__batch_size=16)
    assert prepare(asked, torch.device("cpu")).steps == steps


def test_final_scores_are_those_of_the_start_and_of_best(trained, tmp_path, tiny_bert, pairs_file):
    result = trained(evaluation__final=str(pairs_file), train__epochs=2)
    stored = read_records(tmp_path / "run" / "scores.jsonl")
    assert stored == [*result.before, *result.after]
    assert {r.seed for r in result.before} == {None} and {r.seed for r in result.after} == {42}
    overlap = find_overlap(str(result.best), load_suite([str(pairs_file)]))
    for record in result.after:
        assert record.overlap == overlap_of(record, overlap)
        assert record.overlap["sentences_seen"] > 0
    assert {r.overlap for r in result.before} == {None}
    assert spearman(stored, result.best) == pytest.approx(result.best_score, abs=1e-6)
    compared = {r.compared for r in result.after} - {None}
    assert compared == {gain.compared for gain in result.scores.gains}  # files tell it too
    start = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")
    expected = evaluate(start, [str(pairs_file)])
    assert spearman(stored, tiny_bert) == spearman(expected, tiny_bert)


@pytest.mark.parametrize("pooler", [None, "cls"])
@pytest.mark.parametrize("encoders", ["shared", "twin"])
def test_a_run_that_cannot_help_ends_with_the_start_as_it_comes(
    pooler, encoders, trained, sentence_encoder, tmp_path, pairs_file
):
    result = trained(
        encoder__name=str(sentence_encoder),
        encoder__pooler=pooler,
        encoder__encoders=encoders,
        encoder__dropout=0.3,
        train__learning_rate=1e-12,
        evaluation__final=str(pairs_file),
    )
    assert (result.best_step, result.dev_metric) == (0, "spearman")
    kept = ["best"] + ["best-twin"] * (encoders == "twin")
    for folder in kept:
        for name in ("model.safetensors", "config.json", "1_Pooling/config.json"):
            written = (tmp_path / "run" / folder / name).read_bytes()
            assert written == (sentence_encoder / name).read_bytes()
        assert SentenceEncoder.load(tmp_path / "run" / folder, device="cpu").pooler == "mean"
    assert spearman(result.before, sentence_encoder) == spearman(result.after, result.best)
    assert spearman(result.after, result.best) == pytest.approx(result.best_score, abs=1e-9)
    assert result.scores.gains == [] and {r.seed for r in result.after} == {None}


def test_scores_of_the_start_have_its_own_pooler_beside_that_of_the_run(
    trained, sentence_encoder, tmp_path, pairs_file
):
    settings = {"evaluation__task": "none", "evaluation__final": str(pairs_file)}
    result = trained(encoder__name=str(sentence_encoder), encoder__pooler="cls", **settings)
    assert {r.pooler for r in result.before} == {"mean"}
    assert {r.pooler for r in result.scores.with_pooler} == {"cls"}
    starts = [*result.before, *result.scores.with_pooler]
    assert read_records(tmp_path / "run" / "scores.jsonl") == [*starts, *result.after]
    (gain,) = result.scores.gains
    better = max(spearman(r, sentence_encoder) for r in (result.before, result.scores.with_pooler))
    after = spearman(result.after, result.last)
    assert gain.compared.difference == pytest.approx(after - better, abs=1e-12)
    same = trained(encoder__name=str(sentence_encoder), folder="own", **settings)
    assert same.scores.with_pooler == [] and {r.pooler for r in same.after} == {"mean"}


def test_the_score_of_the_start_draws_nothing(trained, tmp_path):
    trained(folder="scored", train__epochs=2)
    trained(folder="not", train__epochs=2, evaluation__task="none")
    assert run_files.logged_losses(tmp_path / "scored") == run_files.logged_losses(tmp_path / "not")
    assert run_files.weights(tmp_path / "scored") == run_files.weights(tmp_path / "not")


def test_tensorboard_gets_every_number(trained, tmp_path, pairs_file):
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", exc_type=ImportError
    )
    trained(train__trackers=["tensorboard"])
    (events,) = (tmp_path / "run" / "trackers" / "contrasent").glob("events.out.*")
    found = loader.EventAccumulator(str(events.parent)).Reload()
    steps, evaluations = (
        read(tmp_path / "run") for read in (run_files.logged_steps, run_files.logged_evaluations)
    )
    for name in ("loss", "term_contrast", "learning_rate", "alignment", "uniformity"):
        told = [(event.step, event.value) for event in found.Scalars(name)]
        assert told == [(v["step"], pytest.approx(v[name], rel=1e-5)) for v in steps]
    told = [(event.step, event.value) for event in found.Scalars(str(pairs_file))]
    scores = [(v["step"], v["evaluation"][str(pairs_file)]) for v in evaluations]
    assert told == [(step, pytest.approx(score, rel=1e-5)) for step, score in scores]


def test_trackio_gets_every_step_under_the_name_of_the_run(trained, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    trained(train__trackers=["trackio"])
    assert storage.get_runs("contrasent") == ["run"]
    told = [
        (row["step"], row["loss"]) for row in storage.get_logs("contrasent", "run") if "loss" in row
    ]
    steps = run_files.logged_steps(tmp_path / "run")
    assert told == [(step["step"], pytest.approx(step["loss"], rel=1e-5)) for step in steps]
    assert "rackio" not in capfd.readouterr().out


@pytest.fixture
def long_text(tmp_path):
    lines = [f"{n} {sentence(n, 9)} and the number here is {n}" for n in range(520)]
    return write(tmp_path / "long.txt", lines)


def test_without_dev_data_a_tenth_selects_best(recipe, long_text, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "empty"))
    settings = {"data__file": str(long_text), "train__batch_size": 32, "evaluation__every": 5}
    auto = recipe(**settings, evaluation__task="auto", evaluation__final="auto")
    result = train(auto, tmp_path / "run")
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert (data["examples"], data["held_out"]) == (468, 52)
    found = run_files.logged_evaluations(tmp_path / "run")
    assert [line["step"] for line in found] == [0, 5, 10, 15]
    assert {*found[0]["evaluation"]} == {"held-out crops"}
    assert result.best_score == max(line["evaluation"]["held-out crops"] for line in found)
    assert "step 0: held-out crops MRR@10 " in caplog.text
    (mrr,) = (r.value for r in result.after if r.metric == "mrr@10")
    assert mrr == pytest.approx(result.best_score, abs=1e-9)
    assert {r.task for r in result.before} == {"held-out crops"}
    for gain in result.scores.gains:
        assert "held-out crops (proxy)" in gain.sentence


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"train__start_shares": [0.5]},
        {"evaluation__patience": 2},
        {"train__schedule": "plateau"},
        {"encoder__encoders": "twin", "encoder__keep": "better"},
    ],
)
def test_what_a_missing_dev_task_leaves_without_use_is_told(recipe, tmp_path, caplog, setting):
    train(recipe(evaluation__task="none", train__max_steps=1, **setting), tmp_path / "run")
    assert ("no dev task: " in caplog.text) == bool(setting)


def test_a_run_with_held_out_text_goes_on_to_the_same_bits(recipe, long_text, tmp_path):
    settings = {"data__file": str(long_text), "train__batch_size": 32, "evaluation__every": 5}
    asked = recipe(**settings, evaluation__task="held-out")
    train(asked, tmp_path / "whole")
    with kill_after("loop.save_state"):
        train(asked, tmp_path / "cut")
    train(asked, tmp_path / "cut", resume=True)
    assert run_files.RunFiles.read(tmp_path / "cut") == run_files.RunFiles.read(tmp_path / "whole")


def test_best_may_be_a_mean_of_start_and_trained_weights(trained, tmp_path, tiny_bert):
    alone = trained(folder="alone", train__learning_rate=0.01)
    mean, start = (
        SentenceEncoder.load(folder, pooler="cls", head="none", device="cpu")
        for folder in (alone.last, tiny_bert)
    )
    for name, weight in mean.state_dict().items():
        weight.lerp_(start.state_dict()[name], 0.4)
    texts = [sentence(n) for n in range(40)]
    rated = write_rated(tmp_path / "rated.tsv", mean, texts[::2], texts[1::2])
    result = trained(
        train__learning_rate=0.01,
        train__start_shares=[0.2, 0.4],
        evaluation__task=str(rated),
        evaluation__every=alone.steps,
    )
    runs = [run_files.weights(tmp_path / name) for name in ("run", "alone")]
    assert runs[0] == runs[1], "evaluating changed the run"
    info = json.loads((result.best / "contrasent.json").read_text())
    assert (info["start_share"], result.best_step) == (0.4, alone.steps)
    for name, weight in SentenceEncoder.load(result.best, device="cpu").state_dict().items():
        assert torch.allclose(weight, mean.state_dict()[name], atol=1e-6)


@pytest.mark.filterwarnings("ignore:.* have no word:UserWarning")
def test_transfer_tasks_select_best_and_are_scored_at_the_end(recipe, tmp_path):
    data = tmp_path / "senteval"
    write_transfer(data)
    chosen = {"evaluation__task": "cr-dev", "evaluation__final": "cr", "train__max_steps": 2}
    result = train(recipe(**chosen, evaluation__data_dir=str(data)), tmp_path / "run")
    assert result.dev_metric == "accuracy"
    assert {r.classifier["preset"] for r in result.after} == {"test"}
    assert {(r.task, r.split, r.metric) for r in result.after} == {("cr", "test", "accuracy")}
    (record,) = (
        r for r in evaluate(str(result.best), ["cr-dev"], data_dir=data, preset="dev", device="cpu")
    )
    assert result.best_score == pytest.approx(record.value, abs=1e-6)
