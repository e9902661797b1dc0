"""``contrasent reproduce``, from materials to page, and again."""

import csv
import json
import shutil

import pytest
from helpers.command_line import call, refused, worked

from contrasent.records import read_records
from contrasent.report.saved import read_saved
from contrasent.reproduce import reproduction
from contrasent.reproduce.plan import load_plan

FEW = "cls,whitening,sbert,ct-sbert,skip-thought"


@pytest.fixture(scope="module")
def made(tmp_path_factory, shelf):
    """A folder with some rows, and what the command said; do not write there."""
    output = tmp_path_factory.mktemp("table") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CONTRASENT_DATA", str(shelf.folder / "senteval"))
        patched.setenv("CONTRASENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        said = worked(*command(output, shelf, "--rows", FEW))
    return output, said


def command(output, shelf, *more, left_out=()):
    scale = () if "--scale" in more else ("--scale", "smoke")
    options = shelf.options(*left_out)
    return ("reproduce", "baselines", "--output", output, *scale, *options, *more)


def numbers(output):
    with (output / "baselines.csv").open() as file:
        return {(it["row"], it["column"]): it for it in csv.DictReader(file)}


def test_every_row_has_its_numbers(made):
    output, said = made
    names = ("cls", "first-last", "whitening", "sbert", "ct-sbert")
    found = numbers(output)
    for name in names:
        records = read_records(output / "rows" / name / "records.jsonl")
        ours = next(r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all"))
        assert float(found[name, "stsb"]["ours"]) == 100 * ours
        assert {record.encoder for record in records} == {name}
        assert f"{100 * ours:.2f}" in said.out
    less = found["sbert", "stsb"]
    assert float(less["difference"]) == float(less["ours"]) - float(less["published"])
    assert len(read_records(output / "records.jsonl")) == sum(
        len(read_records(output / "rows" / name / "records.jsonl")) for name in names
    )


def test_the_page_says_what_the_numbers_are(made):
    output, said = made
    page = (output / "baselines.md").read_text()
    assert "Skip-thought (published)" in page
    assert "STS from Gao et al. 2021, Table 5, row 'SBERT-base'" in page
    assert "2 steps, batch 16, rate 2e-05, seed 42, pooler mean, fp32" in page
    assert "Scale `smoke`" in page
    assert str(output) not in page
    assert page.replace("## Alignment and uniformity", "").startswith(said.out[:400])
    assert (output / "alignment-uniformity.png").read_bytes().startswith(b"\x89PNG")


def test_analyze_draws_what_was_saved(made):
    output, _ = made
    saved = read_saved([output / "geometry.jsonl", output / "records.jsonl"])
    assert [it.encoder for it in saved.geometries] == [
        "cls",
        "first-last",
        "whitening",
        "sbert",
        "ct-sbert",
    ]


def test_maps_of_known_embeddings_score_as_the_encoder_with_the_map(made):
    output, _ = made
    told = worked("evaluate", output / "rows/whitening/fitted", "--tasks", "stsb", "--json", "-")
    direct = [json.loads(each) for each in told.out.splitlines()]
    records = read_records(output / "rows" / "whitening" / "records.jsonl")
    assert [it.value for it in records] == pytest.approx([it["value"] for it in direct], abs=1e-5)
    assert {it.transform for it in records} == {it["transform"] for it in direct}
    assert records[0].transform.startswith("whitening to ")


def test_ct_sbert_starts_from_sbert(made):
    output, _ = made
    run = json.loads((output / "rows" / "ct-sbert" / "row.json").read_text())
    assert run["recipe"]["encoder"]["name"] == str(output / "rows" / "sbert" / "run")
    assert run["identity"]["of"]["row"]["recipe"] == "nli-softmax"


def test_a_second_call_makes_only_what_is_missing(made, shelf, tmp_path):
    output = tmp_path / "copy"
    shutil.copytree(made[0], output)
    before = {path: path.read_bytes() for path in output.glob("rows/*/*.json*")}
    (output / "rows" / "whitening" / "row.json").unlink()
    said = worked(*command(output, shelf, "--rows", FEW))
    assert "4 of 5 rows are done already" in said.err
    assert "whitening: done" in said.err
    assert "cls: done" not in said.err
    for path, content in before.items():
        if path.name != "row.json" or path.parent.name != "whitening":
            assert path.read_bytes() == content


def test_a_run_that_was_cut_off_goes_on_where_it_was(shelf, tmp_path):
    output = tmp_path / "out"
    words = command(output, shelf, "--rows", "cls,sbert")
    score = reproduction.score

    def interrupted(encoder, *more):
        if encoder.name == "sbert":
            raise KeyboardInterrupt
        return score(encoder, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reproduction, "score", interrupted)
        said = call(*words)
    assert said.code == 130
    assert "the same command goes on with it" in said.err
    assert not (output / "baselines.md").exists()
    assert "sbert was made with other settings" in refused(
        *words, "--rows", "sbert", "--tasks", "stsb-dev"
    )
    weights = (output / "rows" / "sbert" / "run" / "last" / "model.safetensors").read_bytes()
    said = worked(*words)
    assert "sbert/run is complete: nothing to resume" in said.err
    assert (
        output / "rows" / "sbert" / "run" / "last" / "model.safetensors"
    ).read_bytes() == weights
    assert {row for row, _ in numbers(output)} == {"cls", "sbert"}
    assert {path.name for path in (output / "rows" / "sbert").iterdir()} == {
        *("run", "row.json", "records.jsonl", "geometry.jsonl")
    }


def test_rows_made_otherwise_are_not_mixed(made, shelf, tmp_path):
    output = tmp_path / "copy"
    shutil.copytree(made[0], output)
    other = command(output, shelf, "--rows", "cls", "--tasks", "stsb-dev,stsb")
    message = refused(*other)
    assert "cls was made with other settings, text or tasks" in message
    assert "--overwrite" in message
    said = worked(*other, "--overwrite")
    assert "cls: done" in said.err
    tasks = {(r.task, r.split) for r in read_records(output / "rows" / "cls" / "records.jsonl")}
    assert tasks == {("stsb", "dev"), ("stsb", "test")}


def test_two_jobs_give_the_rows_of_one(made, shelf, tmp_path):
    output = tmp_path / "out"
    worked(*command(output, shelf, "--rows", "cls,whitening", "--jobs", "2"))
    one, two = numbers(made[0]), numbers(output)
    assert {row for row, _ in two} == {"cls", "first-last", "whitening"}
    for key, found in two.items():
        assert float(found["ours"]) == pytest.approx(float(one[key]["ours"]), abs=1e-3)


def test_rows_without_material_are_left_out_and_said(shelf, tmp_path):
    said = worked(
        *command(tmp_path / "out", shelf, "--rows", "cls,glove,sbert", left_out=["labelled"])
    )
    assert "not made: it needs --labelled" in said.out
    assert (tmp_path / "out" / "rows" / "glove" / "row.json").is_file()
    assert not (tmp_path / "out" / "rows" / "sbert").exists()


def test_a_row_that_fails_leaves_the_others(shelf, tmp_path):
    two = tmp_path / "two.csv"
    two.write_text("premise,hypothesis,label\n" + "a dog,a cat,entailment\na cat,no,neutral\n" * 20)
    options = command(tmp_path / "out", shelf, "--rows", "cls,ct-sbert", left_out=["labelled"])
    said = call(*options, "--labelled", two)
    assert said.code == 2
    assert "rows that could not be made" in said.err
    assert "sbert, which it is made from, failed" in said.err
    assert numbers(tmp_path / "out")["cls", "stsb"]["ours"]
    assert not (tmp_path / "out" / "rows" / "sbert" / "row.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--scale", "tiny"), "unknown scale 'tiny'"),
        (("--rows", "bert"), "unknown row 'bert'"),
        (("--tasks", "stsx"), "stsx"),
    ],
)
def test_mistakes_are_told_before_any_work(shelf, tmp_path, words, told):
    assert told in refused(*command(tmp_path / "out", shelf, *words))
    assert not (tmp_path / "out" / "rows").exists()


def test_a_missing_material_is_told_before_any_work(shelf, tmp_path):
    options = command(tmp_path / "out", shelf, left_out=["triplets"])
    message = refused(*options, "--triplets", tmp_path / "none.csv")
    assert "none.csv is not there; it is to be premise, entailment, contradiction" in message
    assert not (tmp_path / "out" / "rows").exists()


@pytest.mark.slow
def test_every_row_can_be_made(shelf, tmp_path):
    said = worked(*command(tmp_path / "out", shelf))
    page = (tmp_path / "out" / "baselines.md").read_text()
    assert "not made" not in page
    assert said.out.count(" (published) |") == 2
    made = {name for name, row in load_plan("baselines").rows.items() if row.make != "cited"}
    assert {path.parent.name for path in tmp_path.glob("out/rows/*/row.json")} == made
