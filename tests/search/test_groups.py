"""Duplicates as loops over all texts find them; planted clusters, named by their words."""

import csv
import json
import re

import numpy as np
import pytest
from helpers.command_line import refused, worked
from helpers.dummy_encoder import DummyEncoder

import contrasent
from contrasent.errors import DataError
from contrasent.search import groups
from contrasent.search.mining import letters


def planted(copies=40, others=200, width=12, seed=0):
    """Texts with vectors: some near an earlier one, some equal to it but for case and marks."""
    draw, vectors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for n in range(others):
        vectors[f"text {n}"] = draw.standard_normal(width)
    names = list(vectors)
    for n in range(copies):
        near = vectors[names[draw.integers(others)]]
        vectors[f"near {n}"] = near + draw.standard_normal(width) * draw.uniform(0, 0.3)
    texts = [*vectors, "Text 7!", "TEXT 11", "near-3"]
    return [texts[n] for n in draw.permutation(len(texts))], DummyEncoder(width, vectors=vectors)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("block", [16, 1024])
def test_duplicates_are_those_of_loops(threshold, block, monkeypatch):
    monkeypatch.setattr(groups, "_BLOCK", block)
    texts, encoder = planted()
    made = contrasent.duplicates(texts, encoder=encoder, threshold=threshold)
    unit = [vector / np.linalg.norm(vector) for vector in map(encoder.vector, texts)]
    stays, rows, of = [], {}, []  # the text that stays in the place of each, text by text
    for n, text in enumerate(texts):
        equal = [of[m] for m in range(n) if letters(texts[m]) == letters(text)]
        near = [(unit[n] @ unit[m], -m) for m in stays if unit[n] @ unit[m] >= threshold]
        of.append(equal[0] if equal else -max(near)[1] if near else n)
        rows.setdefault(of[n], []).append(n)
        if of[n] == n:
            stays.append(n)
    assert sorted(made.groups) == sorted(members for members in rows.values() if len(members) > 1)
    for group in made.groups:
        first, *others = (encoder.vector(texts[row]) for row in group)
        for row, vector, cosine in zip(group[1:], others, made.similarity[group[1:]], strict=True):
            if texts[row] in encoder.vectors:
                true = first @ vector / np.linalg.norm(first) / np.linalg.norm(vector)
                assert cosine == pytest.approx(true, abs=1e-5)


WORDS = ("ferry harbour", "oven flour", "orbit comet", "goal striker")


@pytest.mark.parametrize("tree", [4_096, 64], ids=["all", "a sample"])
@pytest.mark.parametrize("asked", [{"clusters": 4}, {}, {"method": "hdbscan"}], ids=str)
def test_clusters_are_the_planted_ones_with_their_words(asked, tree, monkeypatch):
    """Four subjects of different sizes, embedded near four centres."""
    monkeypatch.setattr(groups, "_TREE", tree)
    monkeypatch.setattr(groups, "_MAP", 2 * tree)
    draw, vectors = np.random.default_rng(0), {}
    for n, (subject, size) in enumerate(zip(WORDS, (60, 50, 40, 30), strict=True)):
        for k in range(size):
            vector = draw.standard_normal(16) * 0.1
            vector[n] += 1
            vectors[f"the {subject} and the {k}"] = vector
    texts, encoder = list(vectors), DummyEncoder(16, vectors=vectors)
    draw.shuffle(texts)
    made = contrasent.cluster(texts, encoder=encoder, **asked)
    assert len(made.groups) == 4
    for group, name, subject in zip(made.groups, made.names, WORDS, strict=True):
        assert set(name.split(", ")[:2]) == set(subject.split())
        assert sorted(group) == [n for n, it in enumerate(texts) if subject in it]
        unit = np.stack([encoder.vector(texts[row]) for row in group])
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        centre = unit.mean(axis=0) / np.linalg.norm(unit.mean(axis=0))
        np.testing.assert_allclose(
            made.similarity[group], unit @ centre, atol=0.03 if "method" in asked else 1e-3
        )
        assert (np.diff(made.similarity[group]) <= 0).all()
    assert len(made.places) == min(2 * tree, len(texts))


def test_dense_parts_of_a_map_leave_out_what_stands_apart():
    draw = np.random.default_rng(0)
    middles = np.repeat([[0, 0], [100, 0], [0, 100]], 30, axis=0)
    square = np.concatenate([middles + draw.standard_normal((90, 2)), [[400, 400], [400, -400]]])
    for smallest in (None, 20):
        parts, _ = groups._dense_parts(square, smallest)
        assert parts[90:].tolist() == [-1, -1]
        largest = [np.bincount(parts[n : n + 30] + 1, minlength=4)[1:] for n in (0, 30, 60)]
        assert sorted(map(np.argmax, largest)) == [0, 1, 2] and np.sum(largest) > 60


def test_the_size_of_dense_parts_is_one_that_other_texts_agree_with(monkeypatch):
    monkeypatch.setattr(groups, "_MAP", 240)
    monkeypatch.setattr(groups, "_SIZES", (40, 20, 5))
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((30, 16))
    vectors = {f"{n}": centres[n % 30] + 0.1 * draw.standard_normal(16) for n in range(480)}
    made = contrasent.cluster([*vectors], encoder=DummyEncoder(16, vectors=vectors))
    assert [len({row % 30 for row in of}) for of in made.groups] == [1] * 30
    assert "with 5 of its 240 texts or more" in made.chosen


def test_texts_without_dense_parts_are_in_two_clusters_and_by_hdbscan_in_none():
    draw = np.random.default_rng(0)
    vectors = {f"text {n}": draw.standard_normal(16) for n in range(12)}
    encoder = DummyEncoder(16, vectors=vectors)
    assert len(contrasent.cluster(list(vectors), encoder=encoder).groups) == 2
    made = contrasent.cluster(list(vectors), encoder=encoder, method="hdbscan")
    assert not made.groups and "12 texts are in none" in made.chosen


@pytest.mark.parametrize("group", [contrasent.duplicates, contrasent.cluster])
def test_a_blank_text_of_python_is_refused_as_others_would_change_their_rows(group, tiny_bert):
    for blank in ("", "  "):
        with pytest.raises(DataError, match="a text is blank"):
            group(["a dog", "a bird", blank, "a cat"], encoder=tiny_bert)


def test_commands_write_the_groups_of_a_text_and_of_an_index(tmp_path, monkeypatch, tiny_bert):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.csv").write_text("id,text\na,A dog runs.\nb,a DOG runs\nc,Men sit: <b>\nd,\n")
    worked("index", "build", tiny_bert, "text.csv", "index", "--columns", "text", "--ids", "id")
    columns = ("--columns", "text", "--ids", "id")
    assert "id 'a' is in the index" in refused("index", "add", "index", "text.csv", *columns)
    for source in (("text.csv", "--encoder", tiny_bert, *columns), ("index",)):
        given = (*source, "--threshold", "0.9999", "--overwrite")
        told = worked("duplicates", *given, "--output", "kept.txt", "--groups", "groups.csv")
        assert "threshold 1.000" in told.out and "A dog runs." in told.out
        assert ("1 rows with an empty cell are left out" in told.err) == (source != ("index",))
        assert (tmp_path / "kept.txt").read_text() == "A dog runs.\nMen sit: <b>\n"
        rows = list(csv.DictReader((tmp_path / "groups.csv").read_text().splitlines()))
        assert [(it["group"], it["id"]) for it in rows] == [("0", "a"), ("0", "b")]
        [group] = json.loads(worked("duplicates", *given, "--json", "--groups", "g.jsonl").out)[
            "groups"
        ]
        first = json.loads((tmp_path / "g.jsonl").read_text().splitlines()[0])
        assert (first["group"], first["similarity"], first["id"]) == (0, 1.0, "a")
        assert [it["text"] for it in group["texts"]] == ["A dog runs.", "a DOG runs"]
        drawn = ("--clusters", "2", "--html", "map.html", "--overwrite")
        assert "2 clusters" in worked("cluster", *source, *drawn).out
        page = (tmp_path / "map.html").read_text()
        [low] = map(float, re.findall(r'viewBox="-20 -20 1040 ([\d.]+)"', page))
        assert low == 40 + max(map(float, re.findall(r'cy="([\d.]+)"', page)))
        assert "Summary" not in page and page.count("<circle") == 3
        assert "Men sit: &lt;b&gt;" in page
    cleaned = ("text.csv", "--encoder", tiny_bert, *columns, "--clean")
    said = worked("duplicates", *cleaned).err
    assert "cleaned: tags 1" in said and said.count("are left out") == 1
    assert "cleaned: tags 1" in json.loads(worked("duplicates", *cleaned, "--json").out)["source"]
    for command in ("duplicates", "cluster"):
        told = refused(command, *source, "--encoder", "nowhere", *columns, "--clean")
        named = ("which has vectors: leave --", "--encoder", *columns[::2], "--clean")
        assert all(it in told for it in named)


def test_the_suggested_threshold_parts_copies_from_the_rest_and_finds_none_where_none_are():
    draw = np.random.default_rng(0)
    texts = {f"text {n}": draw.standard_normal(64) for n in range(400)}
    encoder = DummyEncoder(64, vectors=texts)
    assert not contrasent.duplicates(list(texts), encoder=encoder).groups
    for n in range(40):
        texts[f"copy {n}"] = texts[f"text {n}"] + 0.05 * draw.standard_normal(64)
    made = contrasent.duplicates(list(texts), encoder=encoder)
    assert sorted(made.groups) == [[n, 400 + n] for n in range(40)]
    assert "as the nearest neighbours of 440 texts suggest" in made.chosen
    for n in range(40, 400):
        texts[f"copy {n}"] = texts[f"text {n}"] + 0.05 * draw.standard_normal(64)
    made = contrasent.duplicates(list(texts), encoder=encoder)
    assert sorted(made.groups) == [[n, 400 + n] for n in range(400)]
