"""What lies in the folder of a run, that it is enough to have the run again, and several seeds."""

import hashlib
import json
import shutil
from importlib.metadata import version
from math import sqrt
from statistics import fmean, stdev

import pytest
import yaml
from helpers.command_line import refused, worked
from helpers.run_files import logged_evaluations, logged_steps, weights
from helpers.tiny_sentences import write

from contrasent.records import read_records
from contrasent.training.run_folder import MetricsFile, RunFolder

ALWAYS = {"recipe.yaml", "data.json", "environment.json", "metrics.jsonl", "log.txt", "result.json"}


def info(folder):
    return json.loads((folder / "contrasent.json").read_text(encoding="utf-8"))


def test_a_run_leaves_these_files_and_no_others(trained, tmp_path):
    trained()
    assert {path.name for path in (tmp_path / "run").iterdir()} == ALWAYS | {"best", "last"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("order", {"encoder__dropout": 0.0, "objective__head": "none"}),
        ("dropout", {"data__shuffle": False, "objective__head": "none"}),
        ("head", {"data__shuffle": False, "encoder__dropout": 0.0}),
    ],
)
def test_another_seed_gives_another(name, settings, trained, tmp_path):
    """The seed decides order, dropout masks and new weights: each by itself changes the result."""
    for seed in (1, 2):
        trained(folder=f"{name}-{seed}", train__seed=seed, **settings)
    assert weights(tmp_path / f"{name}-1") != weights(tmp_path / f"{name}-2")


@pytest.mark.parametrize("name", ["unsup-simcse", "sup-simcse"])
def test_the_stored_recipe_gives_the_run_again(name, trained, tmp_path, triplet_file, text_file):
    data = text_file if name == "unsup-simcse" else triplet_file
    trained(name, data__file=str(data), objective__temperature=0.07, train__warmup_steps=1)
    shutil.copy(tmp_path / "run" / "recipe.yaml", tmp_path / "again.yaml")
    worked("train", tmp_path / "again.yaml", "--output", tmp_path / "again")
    for which in ("best", "last"):
        assert weights(tmp_path / "again", which) == weights(tmp_path / "run", which)
    stored = tmp_path / "run" / "recipe.yaml"
    assert stored.read_bytes() == (tmp_path / "again" / "recipe.yaml").read_bytes()


def test_contrasent_json_says_where_an_encoder_comes_from(trained, tmp_path, text_file, pairs_file):
    result = trained(evaluation__final=str(pairs_file))
    best, last = info(result.best), info(result.last)
    assert best["recipe"] == yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    content = hashlib.sha256(text_file.read_bytes()).hexdigest()
    assert best["data"] == {
        "source": "text.txt",
        "sha256": hashlib.sha256(f"{content}\n{(0, (0,))!r}".encode()).hexdigest(),
        "columns": "1 sentence per line",
        "examples": 40,
    }
    kept = json.loads((tmp_path / "run" / "data.json").read_text())
    assert best["data"] | {"read": kept["read"]} == kept
    assert best["versions"]["transformers"] == version("transformers")
    assert (best["pooler"], best["head"], best["train_precision"]) == ("cls", "none", "fp32")
    assert (best["step"], last["step"]) == (result.best_step, 5)
    assert best["dev_spearman"] == {str(pairs_file): result.best_score}
    assert [score["value"] for score in best["scores"]] == [r.value for r in result.after]
    assert "scores" not in last


def test_every_step_has_a_line_with_these_fields(trained, tmp_path):
    trained(train__epochs=2)
    steps, evaluations = (read(tmp_path / "run") for read in (logged_steps, logged_evaluations))
    fields = [
        *("step", "loss", "term_contrast", "learning_rate", "gradient_norm"),
        *("alignment", "uniformity", "sentences_per_second"),
    ]
    assert [list(values) for values in steps] == [fields] * 10
    assert [values["step"] for values in steps] == list(range(10))
    assert [values["step"] for values in evaluations] == [0, 2, 4, 6, 8, 10]
    for values in steps:
        assert values["loss"] == pytest.approx(values["term_contrast"])
        assert values["gradient_norm"] > 0 and values["sentences_per_second"] > 0
        assert values["alignment"] >= 0 >= values["uniformity"]
        assert values["learning_rate"] == pytest.approx(1e-3 * (10 - values["step"]) / 10)


def test_several_evaluations_of_a_resumed_run_are_told_once(trained, tmp_path):
    """Also when a machine died while a line was written, and left zeros."""
    trained()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(lines[:5]) + "\0\0\0\n" + '{"step": 3, "lo')
    for step, kept in ((3, 5), (2, 4), (0, 0)):  # without a state, the start is scored again
        MetricsFile(path, step).file.close()
        assert path.read_text() == "".join(lines[:kept])


def test_seeds_are_the_runs_of_each_seed_with_mean_deviation_and_difference(
    tiny_bert, text_file, pairs_file, tmp_path
):
    rated = pairs_file.read_text().splitlines()
    other_file, output = write(tmp_path / "other.tsv", rated[3:] + rated[:2]), tmp_path / "runs"
    words = (
        *("train", "unsup-simcse", "--encoder", tiny_bert, "--data", text_file, "--lr", "1e-3"),
        *("--batch-size", "8", "--device", "cpu", "--evaluation.every", "2"),
        *("--evaluation.task", pairs_file, "--evaluation.final", f"{pairs_file},{other_file}"),
    )
    said = worked(*words, "--output", output, "--seeds", "5,6")
    alone = tmp_path / "alone"
    worked(*words, "--output", alone, "--seed", "6")
    assert weights(output / "seed-6") == weights(alone) != weights(output / "seed-5")

    summary = json.loads((output / "seeds.json").read_text())
    runs = [json.loads((output / f"seed-{s}" / "result.json").read_text()) for s in (5, 6)]
    dev, *final = summary["scores"]
    assert dev["values"] == [run["best_score"] for run in runs]
    assert summary["best"] == f"seed-{5 if dev['values'][0] >= dev['values'][1] else 6}/best"
    assert [it["of"] for it in final] == ["pairs.tsv", "other.tsv"]
    for place, each in enumerate(final):
        values, starts = [], set()
        for seed in (5, 6):
            records = [
                it
                for it in read_records(output / f"seed-{seed}" / "scores.jsonl")
                if (it.metric, it.aggregation) == ("spearman", "all")
                if it.task.endswith(each["of"])
            ]
            values.append(records[-1].value)
            starts.add(records[0].value)
        (start,) = starts
        assert each["values"] == values
        assert each["mean"] == pytest.approx(fmean(values))
        assert each["deviation"] == pytest.approx(stdev(values))
        assert each["difference"] == pytest.approx(fmean(values) - start)
        errors = [run["changes"][place]["compared"]["interval"]["error"] for run in runs]
        # Student's t with one degree of freedom, and the normal quantile, at 97.5 %.
        reach = sqrt((12.7062 * stdev(values) / sqrt(2)) ** 2 + (1.95996 * fmean(errors)) ** 2)
        ends = each["difference"] - reach, each["difference"] + reach
        assert each["interval"] == pytest.approx(ends, rel=1e-4, abs=1e-7)
        shown = f"{100 * each['mean']:.2f} ± {100 * each['deviation']:.2f}"
        assert shown in said.out

    before = weights(output / "seed-5")
    more = worked(*words, "--output", output, "--seeds", "5,6,7", "--resume")
    assert "seed 5: complete before" in more.err
    assert weights(output / "seed-5") == before
    assert len(json.loads((output / "seeds.json").read_text())["scores"][0]["values"]) == 3
    assert "--resume continues it" in refused(*words, "--output", output, "--seeds", "8,7")
    assert not (output / "seed-8").exists()


@pytest.mark.parametrize("start", [0.9, None])  # the first beats all steps
def test_the_start_is_no_result(tmp_path, start):
    first = {"evaluation": {"dev": start}} if start else {"loss": 1.0}
    lines = [first, *({"evaluation": {"dev": score}} for score in (0.4, 0.6, 0.5))]
    steps = [json.dumps({"step": 2 * n, **line}) for n, line in enumerate(lines)]
    write(tmp_path / "metrics.jsonl", steps)
    name, found, scores = RunFolder(tmp_path).read_dev_scores()
    assert (name, found, max(scores)) == ("dev", start, 0.6)
