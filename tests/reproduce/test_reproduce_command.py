"""``contrasent reproduce`` at scale smoke, from nothing to tables, killed, and again."""

import csv
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

import pytest
from helpers.command_line import call, refused, started, worked
from helpers.workers import processor_time

from contrasent.reproduce.jobs import Store, Work, run_work
from contrasent.reproduce.materials import SMOKE_MODEL, SMOKE_TASKS
from contrasent.reproduce.papers import load_tables

DOCS = Path(__file__).parents[2] / "docs"
SMOKE = ("--scale", "smoke", "--device", "cpu")
COMMAND = (
    *("reproduce", "simcse/T1", "simcse/T3", "diffcse/T11", "study/T5", "--seeds", "42,43"),
    *("--rows", "none (unsup,dropout 0.1,dropout 0.5,first-last avg"),
)


@pytest.fixture(autouse=True)
def alone(tmp_path_factory, monkeypatch):
    """No cache and no data but those of the test."""
    for name in ("CONTRASENT_CACHE", "XDG_DATA_HOME", "NLTK_DATA"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with some rows of three tables over two seeds; do not write there."""
    output = tmp_path_factory.mktemp("reproduction") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CONTRASENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return output, worked(*COMMAND, "--output", output, *SMOKE)


def numbers(output, table):
    with (output / f"{table}.csv").open() as file:
        return {(it["row"], it["column"]): it for it in csv.DictReader(file)}


def jobs(output):
    """The jobs that were made, by their labels."""
    found = [json.loads(path.read_text()) for path in output.glob("jobs/*/job.json")]
    return sorted((it["label"], it["seed"]) for it in found)


def test_a_run_is_trained_once_for_all_tables_and_a_cell_is_of_all_seeds(made):
    output, said = made
    seeds = [(label, seed) for label in ("dropout 0.5", "none (unsup SimCSE)") for seed in (42, 43)]
    assert jobs(output) == seeds
    one = numbers(output, "simcse-T1")["none (unsup SimCSE)", "STS-B dev"]
    assert one["ours"] == numbers(output, "simcse-T3")["dropout 0.1", "STS-B dev"]["ours"]
    assert (one["published"], one["study"]) == ("82.5", "81.61")
    cell = numbers(output, "simcse-T3")["dropout 0.5", "STS-B dev"]
    each = [float(it) for it in cell["seeds"].split()]
    mean, deviation = statistics.fmean(each), statistics.stdev(each)
    assert len(each) == 2 and float(cell["ours"]) == pytest.approx(mean)
    assert float(cell["deviation"]) == pytest.approx(deviation)
    assert float(cell["difference"]) == pytest.approx(mean - 71.0)
    assert f"{mean:.2f} ± {deviation:.2f} | 71.0" in said.out
    assert "Table 3: Dropout (scale smoke)" in said.out


def test_the_same_command_again_does_nothing_and_others_tell_what_is_there(made, tmp_path):
    output, said = made
    before = made_jobs(output)
    again = worked(*COMMAND, "--output", output, *SMOKE)
    assert again.out == said.out
    assert "0 jobs to do" in again.err
    assert made_jobs(output) == before
    kept = shutil.copytree(output, tmp_path / "kept", ignore=shutil.ignore_patterns("jobs"))
    recorded = worked("reproduce", "simcse/T3", "--from-records", kept)
    assert recorded.out.strip() == (output / "simcse-T3.md").read_text().strip()
    one = worked("reproduce", "simcse/T3", "--from-records", output, "--rows", "dropout 0.5")
    rows = [line for line in recorded.out.splitlines() if "dropout 0.1 |" not in line]
    assert one.out.splitlines() == rows
    told = worked("reproduce", "verdicts", "simcse/T3", "--output", output, *SMOKE)
    words = ("verdicts", "simcse/T3", "--from-records", kept, "--data-dir", SMOKE_TASKS)
    judged = worked("reproduce", *words)
    assert judged.out == told.out
    assert "| S6 | The default dropout 0.1 is best | cannot be told |" in told.out
    assert "scale smoke" in told.out
    cut = min(kept.glob("*.parquet"))
    cut.write_bytes(cut.read_bytes()[:500])
    assert f"{cut} cannot be read" in refused("reproduce", "simcse/T3", "--from-records", kept)
    done = worked("reproduce", "list", "simcse/T3", "--output", output, *SMOKE)
    assert re.search(r"\| simcse/T3 \| Dropout \| (\d+) \| 2 of \1 \|", done.out)
    small = worked("reproduce", "list", "simcse/T2", "--output", tmp_path / "none")
    assert "--material sentences=FILE" in small.out and "--encoder FOLDER" in small.out


@pytest.mark.parametrize(("table", "head"), [("simcse-T3", "none"), ("study-T5", "mlp")])
def test_a_cell_is_what_evaluate_says_of_the_run(made, table, head):
    output, _ = made
    cell = numbers(output, table)["dropout 0.5", "STS-B dev"]
    runs = {}
    for path in output.glob("jobs/*/job.json"):
        job = json.loads(path.read_text())
        runs[job["label"], job["seed"]] = path.parent / job["encoder"]
    told = worked(
        *("evaluate", runs["dropout 0.5", 42], "--tasks", "stsb-dev", "--json", "-"),
        *("--head", head, "--data-dir", SMOKE_TASKS),
    )
    records = map(json.loads, told.out.splitlines())
    wanted = {"metric": "spearman", "aggregation": "all"}
    value = next(it["value"] for it in records if wanted.items() <= it.items())
    assert float(cell["seeds"].split()[0]) == pytest.approx(100 * value, abs=1e-9)


def test_a_figure_is_of_the_columns_that_its_paper_does_not_print(tmp_path):
    output = ("--output", tmp_path / "out", *SMOKE)
    rows = ("simcse/F3", "--rows", "BERT-base first-last avg,whitening (NLI) BERT-base")
    worked("reproduce", *rows, "--tasks", "sts", *output)
    assert not list(tmp_path.glob("out/*.svg"))
    assert ".svg" not in (tmp_path / "out" / "simcse-F3.md").read_text()
    worked("reproduce", *rows, *output)
    assert ".svg" in (tmp_path / "out" / "simcse-F3.md").read_text()
    assert (tmp_path / "out" / "simcse-F3.svg").is_file()
    told = refused("reproduce", "simcse/F3", "--scale", "small", *output[:2])
    assert "the folder's tables are of scale smoke; name another --output for small" in told


def test_a_start_stands_beside_runs_without_a_course_of_its_own(tmp_path):
    output = tmp_path / "out"
    worked("reproduce", "simcse/steps", "--rows", "the start", "--output", output, *SMOKE)
    assert {column for _, column in numbers(output, "simcse-steps")} == {"STS-B dev", "Avg"}
    assert "not made yet" not in (output / "simcse-steps.md").read_text()
    assert not (output / "simcse-steps.svg").exists()


def test_parameters_are_those_of_what_is_trained_and_of_what_is_kept(tmp_path):
    output = tmp_path / "out"
    worked("reproduce", "diffcse/T14", "--rows", "BERT-base", "--output", output, *SMOKE)
    config = json.loads((SMOKE_MODEL / "config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    rows = ("vocab_size", "max_position_embeddings", "type_vocab_size")
    norm = 2 * width
    layer = 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 2 * norm
    bert = sum(config[it] for it in rows) * width + norm + config["num_hidden_layers"] * layer
    # The projector is Linear, BatchNorm, Linear and BatchNorm, of which the last has no weights.
    projector = width * 2 * width + 2 * 2 * width + 2 * width * width
    detection = (width + 1) * 2
    cells = numbers(output, "diffcse-T14").items()
    found = {row: int(float(cell["ours"])) for (row, _), cell in cells}
    assert found["DiffCSE (test), BERT-base"] == found["SimCSE, BERT-base"] == bert
    assert found["DiffCSE (train), BERT-base"] == 2 * bert + projector + detection


@pytest.fixture
def copy(made, tmp_path):
    """The same folder, to write in."""
    return Path(shutil.copytree(made[0], tmp_path / "out"))


def test_a_job_that_breaks_leaves_the_others(copy):
    for path in copy.glob("jobs/*/job.json"):
        next(path.parent.glob("sts-dev-*.json")).unlink()
        job = json.loads(path.read_text())
        if (job["label"], job["seed"]) == ("dropout 0.5", 42):
            (weights,) = path.parent.glob("run/*/model.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    words = ("reproduce", "simcse/T3", "--output", copy, *SMOKE, "--rows", "0.5,0.1")
    said = call(*words)
    assert (said.code, "invalid header length" in said.err) == (2, True)
    cells = numbers(copy, "simcse-T3")
    assert cells["dropout 0.1", "STS-B dev"]["ours"]
    assert "invalid header length" in cells["dropout 0.5", "STS-B dev"]["reason"]
    weights.write_bytes(whole)
    worked(*words)
    assert numbers(copy, "simcse-T3")["dropout 0.5", "STS-B dev"]["ours"]


def test_a_part_of_a_table_leaves_the_rest_in_its_files(copy):
    words = ("reproduce", "simcse/T3", "--output", copy)
    said = worked(*words, "--rows", "dropout 0.2", "--seeds", "42", *SMOKE[2:])
    assert "dropout 0.5" not in said.out
    cells = numbers(copy, "simcse-T3")
    seeds = {row: len(it["seeds"].split()) for (row, _), it in cells.items()}
    assert (seeds["dropout 0.2"], seeds["dropout 0.5"]) == (1, 2)
    assert cells["dropout 0.2", "STS-B dev"]["reason"] == "1 of 2 seeds"
    told = worked("reproduce", "verdicts", "simcse/T3", "--output", copy)
    assert "| S6 |" in told.out and "scale smoke" in told.out


def test_records_are_judged_by_the_pairs_that_they_are_of(made, tmp_path, monkeypatch):
    output, _ = made
    shutil.copytree(SMOKE_TASKS, tmp_path / "other")
    dev = tmp_path / "other" / "STS" / "STSBenchmark" / "sts-dev.csv"
    dev.write_text("\n".join(dev.read_text().splitlines()[3:]) + "\n")
    monkeypatch.setenv("CONTRASENT_DATA", str(tmp_path / "other"))
    judged = ("reproduce", "verdicts", "simcse/T3")
    words = (*judged, "--from-records", output)
    assert worked(*words).out == worked(*judged, "--output", output).out
    told = refused(*words, "--data-dir", tmp_path / "other")
    assert "stsb-dev has 37 pairs, the records others" in told and "--data-dir" in told
    told = refused("reproduce", "simcse/T1", "simcse/T2", "--from-records", output)
    assert "unknown record 'simcse/T2'" in told


@dataclass(frozen=True)
class MadeJob:
    """Nothing is to be done of it, but a worker that does the victim's is killed."""

    key: str

    label = property(lambda self: self.key)
    seed, kind, recipe = None, "start", None

    def chain(self):
        if parent_process() is not None:
            if self.key == "victim":
                os._exit(9)
            time.sleep(0.2)
        yield self


def test_a_killed_process_takes_only_its_own_job_with_it(tmp_path):
    store, told = Store(tmp_path, "smoke"), []
    keys = ("one", "victim", "two", "three")
    work = [Work(MadeJob(key), (), store) for key in keys]
    run_work(work, 3, told.append)
    assert sorted(line.split("] ")[1].split()[0] for line in told) == [
        *("one:", "three:", "two:", "victim")
    ]
    assert [path.parent.name for path in tmp_path.rglob("failed.txt")] == ["victim"]


KILLED_AT_A_START = """
import os
from concurrent.futures import process

def started(pool):
    pool._launch_processes()
    os.kill(os.getpid(), 9)

process.ProcessPoolExecutor._start_executor_manager_thread = started
from contrasent.cli.app import main
main()
"""


@pytest.mark.acceptance
@pytest.mark.minutes
def test_a_process_without_work_yet_ends_with_its_parent(tmp_path):
    words = ("reproduce", "simcse/T3", "--output", str(tmp_path / "out"), *SMOKE)
    command = [sys.executable, "-c", KILLED_AT_A_START, *words]
    # waits for all who hold its streams
    done = subprocess.run(command, check=False, capture_output=True, timeout=100)
    assert done.returncode == -9


def made_jobs(output):
    return {path: path.stat().st_mtime_ns for path in Path(output).glob("jobs/*/*.json")}


RECORDED = sorted({path.parent for path in (DOCS / "results/records").glob("*/*.parquet")})


@pytest.mark.parametrize("folder", RECORDED, ids=lambda it: it.name)
def test_pages_of_results_are_printed_from_their_records(folder):
    printed = worked("reproduce", "all", "--from-records", folder).out.strip()
    assert printed in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.acceptance
@pytest.mark.parametrize("folder", RECORDED, ids=lambda it: it.name)
def test_differences_of_results_are_told_from_their_records(folder, shared):
    data = ("--data-dir", shared / "data/senteval")
    verdicts = worked("reproduce", "verdicts", "all", "--from-records", folder, *data).out
    claims = re.compile(r"\| (S[1-7]|S7c|S9|S10|S13|S1[678]|S24|S27|S29|D1|D12|D13|A1) ")
    judged = filter(claims.match, verdicts.splitlines())
    page = (DOCS / "results/README.md").read_text(encoding="utf-8")
    differences = re.findall(r": ([-+][0-9.]+(?: ± [0-9.]+)?)", "".join(judged))
    assert len(differences) >= {"minilm-mlm-short": 37, "minilm-mlm-fp32": 4}.get(folder.name, 4)
    assert all(difference in page for difference in differences)


@pytest.mark.acceptance
@pytest.mark.minutes
def test_everything_is_made_in_minutes_however_often_it_is_killed(tmp_path):
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    output, began = tmp_path / "out", processor_time(*whose)
    for count in (40, 260):
        before = made_jobs(output)
        process = started("reproduce", "all", "--output", output, *SMOKE)
        for _ in range(6000):
            if len(made_jobs(output)) >= count or process.poll() is not None:
                break
            time.sleep(0.05)
        process.kill()
        process.communicate()
        assert before.items() <= made_jobs(output).items()
    worked("reproduce", "all", "--output", output, *SMOKE)
    assert processor_time(*whose) - began < 12 * 60
    for table in load_tables().values():
        for key, cell in numbers(output, table.name.replace("/", "-")).items():
            assert cell["ours"] or cell["reason"], (table.name, key)
