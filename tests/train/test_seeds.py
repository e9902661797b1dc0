"""Runs over several seeds: each the run of its seed alone, and what they have in common."""

import json
from math import sqrt
from statistics import fmean, stdev

import pytest
from helpers.command_line import refused, worked
from helpers.run_files import weights
from helpers.tiny_sentences import write

from contrasent.records import read_records
from contrasent.training.run_folder import RunFolder


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


@pytest.mark.parametrize(
    ("first", "start", "best"),
    [
        ({"evaluation": {"dev": 0.9}}, 0.9, 0.6),  # the start beats all steps
        ({"loss": 1.0}, None, 0.6),
    ],
)
def test_the_start_is_no_result(tmp_path, first, start, best):
    lines = [first, *({"evaluation": {"dev": score}} for score in (0.4, 0.6, 0.5))]
    steps = [json.dumps({"step": 2 * n, **line}) for n, line in enumerate(lines)]
    write(tmp_path / "metrics.jsonl", steps)
    name, found, scores = RunFolder(tmp_path).read_dev_scores()
    assert (name, found, max(scores)) == ("dev", start, best)
