"""Metadata of texts, and searches of those that satisfy a condition on it."""

import numpy as np
import pyarrow as pa
import pytest
from helpers.dummy_encoder import DummyEncoder

from contrasent.errors import ConfigError, DataError
from contrasent.search.index import Index
from contrasent.search.metadata import read_filter

ROWS = [
    {"year": 2018 + n % 6, "source": ("faq", "blog", "it's")[n % 3], "price": n / 4}
    | {"no": f"{n:02}"}
    | ({"draft": n % 2 == 0} if n % 5 else {})
    | ({"class": f"c{n % 4}"} if n % 7 else {})
    for n in range(60)
]
TEXTS = [f"text {n} of {row['source']}" for n, row in enumerate(ROWS)]
CONDITIONS = [
    ('year >= 2020 and source = "faq"', lambda r: r["year"] >= 2020 and r["source"] == "faq"),
    ("year=2019", lambda r: r["year"] == 2019),
    ("2019 < year <= 2021", lambda r: 2019 < r["year"] <= 2021),
    ("not year = 2020 AND price < 3", lambda r: r["year"] != 2020 and r["price"] < 3),
    ("year IN (2018, 2023)", lambda r: r["year"] in (2018, 2023)),
    ("source not in ('faq')", lambda r: r["source"] != "faq"),
    ('source = "it\'s"', lambda r: r["source"] == "it's"),
    ("price > 3e0 or year > 2020.5", lambda r: r["price"] > 3 or r["year"] > 2020.5),
    (
        "price >= 2 and (year < 2019 or draft)",
        lambda r: r["price"] >= 2 and (r["year"] < 2019 or r.get("draft")),
    ),
    ("draft = false", lambda r: r.get("draft") is False),
    ("not draft", lambda r: r.get("draft") is False),
    ("draft is null", lambda r: "draft" not in r),
    ("class is not null and `class` <> 'c1'", lambda r: r.get("class", "c1") != "c1"),
    ("class like 'c_' and price > -1", lambda r: "class" in r),
    ("source like 'b%'", lambda r: r["source"].startswith("b")),
    ("source NOT  like 'b%'", lambda r: not r["source"].startswith("b")),
    ("no >= 9 and not no in (15)", lambda r: int(r["no"]) > 8 and r["no"] != "15"),
    ("id = '3'", lambda r: r is ROWS[3]),
]


@pytest.mark.parametrize(("condition", "satisfied"), CONDITIONS)
def test_hits_are_those_of_an_index_of_the_rows_that_a_loop_chooses(
    condition, satisfied, encoder, folder, tmp_path
):
    index = Index.build(encoder, TEXTS[:20], folder, range(20), metadata=ROWS[:20])
    index.add(encoder, TEXTS[20:], range(20, 60), metadata=ROWS[20:])
    chosen = [n for n, row in enumerate(ROWS) if satisfied(row)]
    theirs = {"metadata": [ROWS[n] for n in chosen]}
    alone = Index.build(encoder, [TEXTS[n] for n in chosen], tmp_path / "alone", chosen, **theirs)
    for mode in ("dense", "words"):
        hits = index.search(encoder, ["text 7 faq", "it"], 60, mode=mode, filter=condition)
        expected = alone.search(encoder, ["text 7 faq", "it"], 60, mode=mode)
        assert [{it.id for it in of} for of in hits] == [{it.id for it in of} for of in expected]
    assert all(hit.metadata == ROWS[int(hit.id)] for of in hits for hit in of)
    both = index.search(encoder, ["text 7"], 60, mode="hybrid", filter=condition)[0]
    assert {int(hit.id) for hit in both} == {*chosen}


@pytest.mark.usefixtures("milvus")
def test_metadata_and_conditions_are_the_same_in_milvus(encoder, folder, tmp_path):
    pair = [
        Index.build(encoder, TEXTS[:20], path, kind=kind, metadata=ROWS[:20])
        for path, kind in ((folder, "milvus"), (tmp_path / "flat", "flat"))
    ]
    for index in pair:
        rest = [*ROWS[20:], {"new": "x", "year": 2019.5}]
        index.add(encoder, [*TEXTS[20:], "none"], metadata=rest)
        index.remove(["7", "33"])
        index.close()
    pair = [Index.open(index.folder) for index in pair]
    for condition, _ in CONDITIONS:
        for mode in ("dense", "words", "hybrid"):
            how = {"filter": condition, "mode": mode}
            found, expected = (index.search(encoder, ["text 7"], 70, **how) for index in pair)
            assert found == expected
    in_milvus, expected = (
        [row for block in index.blocks() for row in block.table.to_pylist()] for index in pair
    )
    assert in_milvus == expected
    with pytest.raises(ConfigError, match="unknown column 'yaer'"):
        pair[0].search(encoder, ["a"], filter="yaer = 2")


@pytest.mark.parametrize(
    "condition",
    [
        *("", "year", "year >", "year + 1 > 2", "f()", "a.b.c()", "year is 3", "year like 3", "2"),
        *("(" * 300 + "year" + ")" * 300, "not " * 4000 + "draft", "-" * 400 + "1 < year"),
        *("x if y", "year = 'x", "year = 'x'", "yaer = 2020", "lambda: 1", "[year]", "{year}"),
        *("year == == 3", "year in ()", "year > 99999999999999999999", "year = 1 # or 2"),
        *("__import__('os')", "year; year", "year\n= 1", "'a' like year", "source > 3", "#"),
    ],
)
def test_conditions_without_sense_are_refused(condition, encoder, folder):
    index = Index.build(encoder, TEXTS, folder, metadata=ROWS)
    with pytest.raises(ConfigError):
        index.search(encoder, ["a"], filter=condition)


def test_metadata_outlives_changes_merges_and_columns_of_other_types(encoder, folder):
    index = Index.build(encoder, ["a", "b"], folder, ["a", "b"], metadata=[{}, {}])
    assert index.search(encoder, ["a"])[0][0].metadata is None
    index.add(encoder, ["c"], ["c"], metadata=[{"n": 1, "is": True, "_id": "x", "late": None}])
    assert index.search(encoder, ["a"], filter="late like 'x%'") == [[]]
    with pytest.warns(UserWarning, match="^column 'is' holds texts from now on"):
        index.add(encoder, ["d"], ["d"], metadata=[{"n": 2.5, "is": "so", "late": 3}])
    index.change(["a"], encoder.vector("e")[None], ["e"], ["e"], metadata=[{"new": "1"}])
    for opened in (index, Index.open(folder)):
        for _ in range(2):
            hits = {hit.id: hit.metadata for hit in opened.search(encoder, ["a"])[0]}
            assert hits == {
                "b": None,
                "c": {"n": 1.0, "is": "true", "_id": "x"},
                "d": {"n": 2.5, "is": "so", "late": 3},
                "e": {"new": "1"},
            }
            opened.optimize()
    found = index.search(encoder, ["a"], filter="_id = 'x'")[0]
    assert [hit.id for hit in found] == ["c"]
    kinds = {"n": "double", "is": "string", "_id": "string", "late": "int64", "new": "string"}
    assert index.facts()["columns"] == kinds


@pytest.mark.filterwarnings("ignore:.* holds texts from now on:UserWarning")
def test_a_value_stays_what_it_is_whatever_comes_later(encoder, folder):
    index = Index.build(encoder, ["a", "b"], folder, metadata=[{"b": True, "n": 1}, {"s": "True"}])
    index.add(encoder, ["c"], metadata=[{"b": 7, "n": True, "s": False}])
    known = {hit.text: hit.metadata for hit in index.search(encoder, ["a"])[0]}
    expected = {"a": {"b": "true", "n": "1"}, "b": {"s": "True"}}
    assert known == expected | {"c": {"b": "7", "n": "true", "s": "false"}}
    scalars = {"f": np.float32(0.5), "n": np.int32(3), "day": np.datetime64("2020-01-02")}
    index.add(encoder, ["d"], metadata=[{f"np_{name}": it for name, it in scalars.items()}])
    [[hit]] = index.search(encoder, ["a"], filter="np_f < 1 and np_n > 2 and np_day like '2020%'")
    assert hit.text == "d" and index.facts()["columns"]["np_f"] == "double"


@pytest.mark.filterwarnings("ignore:.* holds texts from now on:UserWarning")
@pytest.mark.parametrize("first", [0, 1])
def test_a_whole_number_that_no_double_holds_is_not_rounded(first, encoder, folder):
    rows = [{"n": 2**53 + 1, "few": 3}, {"n": 0.5, "few": 0.5}]
    index = Index.build(encoder, ["a"], folder, metadata=rows[first : first + 1])
    index.add(encoder, ["b"], metadata=rows[1 - first : 2 - first])
    known = [hit.metadata for hit in index.search(encoder, ["a"])[0]]
    assert sorted(known, key=str) == [{"n": "0.5", "few": 0.5}, {"n": str(2**53 + 1), "few": 3.0}]


@pytest.mark.parametrize("cell", ["1e-05", "+5", ".5", "5.", " -2 ", "1E3", "-.5e+2"])
def test_a_text_is_a_number_where_python_reads_one(cell, encoder, folder):
    cells = [cell, "x", "1.2.3", "e5", "", "."]
    rows = [{"no": it} for it in cells]
    index = Index.build(encoder, [*"abcdef"], folder, [*"abcdef"], metadata=rows)
    [[hit]] = index.search(encoder, ["a"], filter="no > -1000")
    assert hit.text == "a"
    assert bool(index.search(encoder, ["a"], filter="no < 1")[0]) == (float(cell) < 1)
    for numbers, told in ((["1,5"], "'1,5'"), (["2", "1.330,69"], "'1.330,69'"), (["x"], "'x'")):
        other = [{"price": it} for it in numbers]
        index.add(encoder, numbers, numbers, metadata=other)
        with pytest.raises(ConfigError, match=f"column 'price' has {told}, which is no number"):
            index.search(encoder, ["a"], filter="price > 1")
        index.remove(numbers)
    index.add(encoder, ["g"], ["g"], metadata=[{"no": "7.5"}])
    for _ in range(2):
        assert [hit.text for hit in index.search(encoder, ["a"], filter="no = 7.5")[0]] == ["g"]


def test_values_of_other_kinds_are_texts_and_wrong_metadata_changes_nothing(encoder, folder):
    index = Index.build(encoder, ["a"], folder, metadata=[{"m": [1, 2], "n": np.nan, "o": 2**70}])
    [[hit]] = index.search(encoder, ["a"])
    assert hit.metadata == {"m": "[1, 2]", "o": str(2**70)}
    for metadata in ([], [{}, {}], [{"id": 1}], [{"text": "x"}], ["x"], [{"s": "\ud800"}]):
        with pytest.raises(DataError):
            index.add(encoder, ["b"], metadata=metadata)
        with pytest.raises(DataError):
            Index.build(encoder, ["b"], folder, metadata=metadata, overwrite=True)
    assert len(Index.open(folder)) == 1


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_approximate_search_of_some_rows_finds_what_exact_search_finds(kind, folder):
    random = np.random.default_rng(0)
    vectors = random.standard_normal((12_000, 16)).astype(np.float32)
    texts = [f"t{n}" for n in range(len(vectors))]
    encoder = DummyEncoder(16, vectors=dict(zip(texts, vectors, strict=True)))
    draws = random.random(len(texts))
    marks = {"many": draws < 0.4, "few": draws < 0.02}
    metadata = [
        dict(zip(marks, map(bool, it), strict=True)) for it in zip(*marks.values(), strict=True)
    ]
    index = Index.build(encoder, texts, folder, metadata=metadata, kind=kind, words=False)
    queries = random.standard_normal((40, 16)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for name, marked in marks.items():
        scores = np.where(marked, queries @ unit.T, -np.inf)
        nearest = np.argsort(-scores, axis=1)[:, :10]
        hits = index.search_vectors(queries, 10, filter=name)
        shared = [
            len({int(hit.id) for hit in of} & {*best})
            for of, best in zip(hits, nearest, strict=True)
        ]
        assert np.mean(shared) > 9.5, name


def test_a_filter_whose_work_would_have_no_bound_is_refused():
    long = " or ".join(["year = 1"] * 501), " or ".join(["true"] * 10_000)
    for condition in (*long, "1 < (1 < year < 2) < 2", "(year in (1, 2)) in (true)"):
        with pytest.raises(ConfigError, match=r"^.{,300}, with at most 500 conditions$"):
            read_filter(condition)
    table, listed = pa.table({"n": [2, 3, None]}), tuple(range(-20_000, 20_000, 2))
    for n, name in ((2, "n"), (3, "not n")):
        assert table.filter(read_filter(f"{name} in {listed}")[0])["n"].to_pylist() == [n]


def test_a_column_may_have_any_name_in_quotes():
    table = pa.table({"two words": [1, 2], "leaf0": [3, 4], "and": [5, 6]})
    for name in table.column_names:
        expression, columns = read_filter(f"`{name}` = {table[name][1]}")
        assert columns == {name: True}
        assert table.filter(expression).num_rows == 1
