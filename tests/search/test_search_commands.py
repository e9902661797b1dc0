import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.dummy_encoder import DummyEncoder
from typer.testing import CliRunner

from contrasent.cli.app import app
from contrasent.model.encoder import SentenceEncoder

TEXTS = ["one fish", "two fish", "red fish", "blue fish"]


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """What was asked of the encoder's loader; every name gives the same dummy encoder."""
    asked = []

    def load(name, *, pooler=None, head=None, device=None, engine="torch"):
        asked.append((str(name), pooler, head))
        encoder = DummyEncoder(salt="x" if "other" in str(name) else "", name=str(name))
        encoder.device, encoder.engine = device or "cpu", engine
        return encoder

    monkeypatch.setattr(SentenceEncoder, "load", load)
    monkeypatch.setattr("contrasent.model.loading.resolve", Path)
    return asked


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")

    def call(*words, expect=0, stdin=None):
        group = ["index"] if words[0] in ("build", "add", "remove", "optimize", "info") else []
        result = CliRunner().invoke(app, [*group, *words], input=stdin)
        assert result.exit_code == expect, result.output
        return result

    return call


def test_build_search_add_info(run, loaded):
    told = run("build", "m", "texts.txt", "index", "--precision", "fp32")
    assert "index: 4 texts of 8 dimensions" in told.stderr and told.stdout == ""
    lines = run("search", "index", "red fish", "--top-k", "2").stdout.splitlines()
    assert lines[0].split() == ["1", "1.0000", "2", "red", "fish"] and len(lines) == 2
    run("add", "index", "-", stdin="new fish\n")
    hit = json.loads(run("search", "index", "new fish", "--top-k", "1", "--json").stdout)
    assert hit == {"rank": 1, "score": pytest.approx(1.0), "id": "4", "text": "new fish"}
    told = json.loads(run("info", "index").stdout)
    assert told["texts"] == 5 and told["segments"] == 2 and told["encoder"]["name"] == "m"
    assert told["encoder"]["fingerprint"] == DummyEncoder().fingerprint()
    assert set(loaded[1:]) == {("m", "cls", "none")}
    for words in (("search", "index", "q"), ("add", "index", "texts.txt")):
        assert "was built with m (pooler" in run(*words, "--encoder", "other", expect=2).stderr
    assert json.loads(run("info", "index").stdout) == told


def test_other_columns_of_a_table_are_metadata(run, tmp_path):
    rows = [
        {"id": "a", "question": "<b>red</b> fish", "year": 2019, "path": "p", " ": "x"},
        {"id": "b", "question": "", "year": 2020, "path": "q", " ": "x"},
        {"id": "c", "question": "blue bird", "year": 2021, "path": None, " ": "x"},
        {"id": "d", "question": "red fish", "year": 2022, "path": "r", " ": "x"},
    ]
    header, lines = ",".join(rows[0]), [",".join(str(it or "") for it in r.values()) for r in rows]
    (tmp_path / "t.csv").write_text("\n".join([header, *lines]) + "\n")
    objects = [json.dumps(row | {"more": n, "vector": [0.5, 1.0]}) for n, row in enumerate(rows)]
    (tmp_path / "t.jsonl").write_text("\n".join([*objects, '{"question": "new fish"}']) + "\n")

    def hits(index, *words):
        shown = run("search", index, "fish", "--json", *words).stdout.splitlines()
        return {it["text"]: it.get("metadata") for it in map(json.loads, shown)}

    chosen = ("--columns", "question", "--clean")
    built = run("build", "m", "t.csv", "plain", *chosen)
    assert "metadata: row_id, year, row_path" in built.stderr
    bird = {"row_id": "c", "year": "2021"}
    assert hits("plain", "--filter", "year > 2019")["blue bird"] == bird
    assert set(hits("plain", "--filter", "row_path is null")) == {"blue bird"}
    assert hits("plain")["red fish"] == {"row_id": "a", "year": "2019", "row_path": "p"}
    (tmp_path / "both.csv").write_text("row_id,question,id\nr1,red fish,17\n")
    run("build", "m", "both.csv", "both", *chosen)
    assert hits("both") == {"red fish": {"row_id": "r1", "2_row_id": "17"}}
    run("build", "m", "t.jsonl", "own", *chosen)
    run("add", "own", "t.jsonl", *chosen)
    assert hits("own", "--filter", "more = 2") == {"blue bird": bird | {"year": 2021, "more": 2}}
    assert hits("own", "--filter", "year is null") == {"new fish": None}
    run("build", "m", "texts.txt", "lines")
    assert set(hits("lines").values()) == {None}
    (tmp_path / "twice.csv").write_text("question,tag,tag,tag\nfish,a,b,c\n")
    run("build", "m", "twice.csv", "twice", "--columns", "question")
    assert hits("twice") == {"fish": {"tag": "a", "2_tag": "b", "3_tag": "c"}}
    late = [{"question": f"fish {n}"} | ({"year": n} if n > 1100 else {}) for n in range(1102)]
    (tmp_path / "late.jsonl").write_text("\n".join(map(json.dumps, late)))
    refused = run("build", "m", "late.jsonl", "late", "--columns", "question", expect=2).stderr
    assert "late.jsonl:1102: 'year' would be left out" in refused
    seen = [{"text": it, "seen": {"bytes": b"png"}, "raw": b"x", "of": {"a": it}} for it in TEXTS]
    pq.write_table(pa.Table.from_pylist(seen), tmp_path / "seen.parquet")
    run("build", "m", "seen.parquet", "images")
    assert hits("images")["red fish"] == {"of": str({"a": "red fish"})}


def test_several_queries_and_a_threshold(run):
    run("build", "m", "texts.txt", "index", "--precision", "fp32")
    told = run("search", "index", "-", "--threshold", "0.999", stdin="red fish\n\nno fish\n").stdout
    assert told.splitlines()[0] == "red fish" and told.splitlines()[1].endswith("red fish")
    assert told.splitlines()[3:] == ["no fish", "no hit"]
    said = run("search", "index", "-", stdin=b"red fish\nno \xff\n", expect=2).stderr
    assert "standard input:2: not UTF-8" in said
    lines = run("search", "index", "red fish", "one fish", "--top-k", "1", "--json").stdout
    hits = [json.loads(line) for line in lines.splitlines()]
    assert [(hit["query"], hit["id"]) for hit in hits] == [("red fish", "2"), ("one fish", "0")]


def test_clean_text_is_indexed(run, tmp_path):
    (tmp_path / "found.txt").write_text("<b>red</b> fish\nred  fish\nno &amp; fish\n")
    told = run("build", "m", "found.txt", "index", "--clean").stderr
    assert "cleaned: tags 1, spaces 1, repeated 1, entities 1" in told
    assert "index: 2 texts" in told
    assert run("search", "index", "no & fish").stdout.splitlines()[0].endswith("no & fish")


def test_remove_and_optimize(run):
    run("build", "m", "texts.txt", "index", "--kind", "hnsw")
    assert "index: 2 texts, 2 removed" in run("remove", "index", "-", stdin="0\n2\n").stderr
    run("remove", "index", "0", "3", "--missing-ok")
    told = json.loads(run("info", "index").stdout)
    assert (told["texts"], told["segments"], told["kind"]) == (1, 1, "hnsw")
    assert told["approximate"]["rows"] == 4 and told["approximate"]["recall"] == 1.0
    hits = run("search", "index", "red fish", "--json").stdout
    assert [json.loads(line)["text"] for line in hits.splitlines()] == ["two fish"]
    assert "dimensions, flat" in run("optimize", "index", "--kind", "flat").stderr


def test_an_index_remembers_a_local_encoder_by_its_full_path(run, tmp_path, loaded, monkeypatch):
    (tmp_path / "encoder").mkdir()
    run("build", "encoder", "texts.txt", "index")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run("search", "../index", "red fish")
    assert loaded[-1][0] == str(tmp_path / "encoder")


def test_a_folder_is_followed_and_moves_to_another_encoder(run, tmp_path, loaded):
    pytest.importorskip("semchunk")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.md").write_text("# Fish\nRed fish swim.\n# Birds\nBlue birds fly.")
    sync = ("index", "sync", "index", "notes")
    assert "2 passages written, 2 embedded" in run(*sync, "--encoder", "m").stderr
    loaded.clear()
    assert "0 new or changed" in run(*sync).stderr
    assert loaded == []
    asked = ("search", "index", "fish", "--json", "--filter", 'heading = "Birds"')
    hit = json.loads(run(*asked).stdout)
    known = {"path": "notes/a.md", "title": "Fish", "heading": "Birds"}
    assert (hit["text"], hit["metadata"]) == ("Birds\nBlue birds fly.", known)
    assert "cannot be read" in run(*asked[:-1], "heading =", expect=2).stderr
    run("index", "reembed", "index", "--encoder", "other")
    assert json.loads(run("info", "index").stdout)["encoder"]["name"] == "other"
    assert json.loads(run(*asked).stdout)["metadata"] == known
    (tmp_path / "notes/a.md").unlink()
    assert "1 removed" in run(*sync).stderr
