"""Which numbers of a report stand together, in which order, and what is said of them."""

import dataclasses

import numpy as np
from helpers.html_reader import grid, read
from helpers.report_contents import compared, contents, geometry, neighbours, record

from contrasent.evaluation.protocols import TransferProtocol
from contrasent.report.contents import Contents, Mean
from contrasent.report.html.page import page
from contrasent.report.table import ABSENT

VERSIONS = {"python": "3.11.2", "mteb": "2.12.5"}


def root_of(*records, **others):
    return read(page(Contents(records=records, **others)))


def rows_of(root, name):
    headings, rows = grid(root.one("figure", id=name))
    return headings, {
        label: {heading: cell.text.removesuffix(" (best)") for heading, cell in row.items()}
        for label, (row,) in rows.items()
    }


def accuracy(task, value, split="test", preset="test"):
    how = TransferProtocol(preset=preset).described()
    return record(task=task, split=split, metric="accuracy", value=value, classifier=how)


def test_columns_are_in_the_papers_order_test_splits_first():
    root = root_of(
        record(task="stsb", split="dev"), *(record(task=it) for it in ("sickr", "sts16", "sts12"))
    )
    headings, _ = rows_of(root, "sts")
    assert headings == ["encoder", "STS12", "STS16", "SICK-R", "Avg.", "STS-B dev"]
    root = root_of(accuracy("mrpc", 0.1, "dev"), *(accuracy(it, 0.1) for it in ("trec", "mr")))
    headings, _ = rows_of(root, "transfer")
    assert headings == ["encoder", "MR", "TREC", "Avg.", "MRPC dev"]


def test_without_a_protocol_spearman_over_all_pairs_is_shown():
    kinds = (("pearson", "all", 0.1), ("pearson", "mean", 0.2), ("spearman", "all", 0.3))
    root = root_of(*(record(metric=m, aggregation=a, value=v) for m, a, v in kinds))
    _, rows = rows_of(root, "sts")
    assert rows["alpha"]["STS-B"] == "30.00"


def test_two_ways_to_learn_have_two_tables():
    root = root_of(accuracy("mr", 0.25), accuracy("mr", 0.75, preset="fasttest"))
    values = [rows_of(root, name)[1]["alpha"]["MR"] for name in ("transfer", "transfer-2")]
    assert values == ["25.00", "75.00"]


def test_own_sentences_learned_in_two_ways_have_two_tables():
    how = ("senteval", 0.25), ("sklearn", 0.75)
    own = {"task": "own/mine.tsv", "metric": "accuracy"}
    root = root_of(*(record(value=it, classifier={"name": n, "seed": 1}, **own) for n, it in how))
    values = [rows_of(root, name)[1]["alpha"]["accuracy"] for name in ("task-1", "task-2")]
    assert values == ["25.00", "75.00"]


def test_protocols_of_one_number_are_all_named():
    root = root_of(record(protocol="simcse"), record(encoder="runs/beta", protocol="isbert"))
    said = root.one("figure", id="sts").one("figcaption").text
    assert "Protocol simcse, isbert (" in said


def test_how_sentences_were_cut_sets_rows_apart():
    _, rows = rows_of(root_of(record(value=0.1), record(value=0.2, max_tokens=64)), "sts")
    assert sorted(row["STS-B"] for row in rows.values()) == ["10.00", "20.00"]


def test_prompts_of_queries_and_documents_are_of_the_same_row():
    roles = {"query": "find: ", "document": ""}
    found = record(task="stsb-retrieval", metric="recall@1", prompts=roles)
    root = root_of(record(), found)
    _, rows = rows_of(root, "summary-table")
    assert list(rows) == ["alpha"] and ABSENT not in rows["alpha"].values()
    (row,) = grid(root.one("figure", id="encoders"))[1]["alpha"]
    assert row["prompts"].text == "query 'find: ', document ''"


def test_of_two_values_the_first_is_shown_though_the_second_says_more():
    root = root_of(record(value=0.1), record(value=0.2, protocol="simcse"), record(task="sts12"))
    _, rows = grid(root.one("figure", id="records"))
    assert [row["value"].text for row in rows["alpha"]] == ["10.00", "50.00"]


def test_an_encoder_is_compared_with_the_row_of_its_own_pooler():
    one = record(pooler="cls", value=0.9)
    beta = record(encoder="runs/beta", pooler="mean", compared=compared())
    root = root_of(one, record(value=0.4), beta)
    assert "beta minus alpha (mean)" in [it.text for it in root.all("h3")]
    assert "beta minus alpha (cls)" not in root.text


def test_the_average_that_was_compared_stands_beneath_its_tasks():
    of = {"encoder": "runs/beta", "compared": compared()}
    one = record(task="sts12", **of)
    beta = (one, record(**of), record(metric="recall@1", task="stsb-retrieval", **of))
    alone = dataclasses.replace(compared(), difference=0.125, p_value=0.5, p_holm=0.5, tests=1)
    root = root_of(record(), *beta, means=(Mean(one, "spearman", alone),))
    headings, rows = rows_of(root, "compared-1")
    assert list(rows) == [
        "STS12 Spearman",
        "STS-B Spearman",
        "Avg. Spearman",
        "STS-B retrieval recall@1",
    ]
    shown = [rows["Avg. Spearman"][it] for it in headings[1:]]
    assert shown == ["+12.50", "-6.00", "-2.77", "0.5000", "-"]
    assert [rows["STS-B Spearman"][it] for it in ("difference", "p (Holm)")] == ["-4.12", "0.0700"]


def test_gaps_are_explained_where_there_are_any():
    root = root_of(record(), record(task="sts12"), record(encoder="runs/beta"))
    said = "- was not measured; an average needs all of its tasks."
    assert said in root.one("figure", id="sts").one("figcaption").text
    gap, there = (rows_of(root, "sts")[1][it]["Avg."] for it in ("beta", "alpha"))
    assert (gap, there) == ("-", "50.00")
    assert said not in page(Contents(records=(record(), record(encoder="runs/beta"))))


def test_mteb_has_a_table_of_its_own():
    made = {"versions": VERSIONS, "task": "STSBenchmark"}
    main = record(metric="cosine_spearman", value=0.75, protocol="mteb", **made)
    rest = record(metric="spearman", value=0.25, **made)
    other = record(protocol="simcse", value=0.5)
    root = root_of(main, rest, other)
    headings, rows = rows_of(root, "mteb")
    assert headings == ["encoder", "STSBenchmark"]
    assert rows["alpha"]["STSBenchmark"] == "75.00"
    assert rows_of(root, "sts")[0] == ["encoder", "STS-B"]
    assert "MTEB 2.12.5" in root.one("figure", id="mteb").text
    assert "Own data" not in root.text


def test_two_corpora_of_one_name_are_searched_apart():
    draw = np.random.default_rng(0)
    one = neighbours(draw, {"encoder": "e", "pooler": "mean"})
    root = read(page(Contents(neighbours=(one, dataclasses.replace(one, corpus_sha256="2" * 64)))))
    assert len(list(root.all("div", class_="browser"))) == 2
    assert "only here" not in root.one("main").text
    data = [[cell.text for cell in it.all("td")] for it in root.one(id="data").all("tr")]
    assert [it[-1][:1] for it in data if it] == ["1", "2"]


def test_of_geometry_measured_twice_the_first_counts():
    draw = np.random.default_rng(0)
    two = [geometry(draw, {"encoder": "e", "pooler": "mean"}) for _ in range(2)]
    _, rows = rows_of(read(page(Contents(geometries=tuple(two)))), "geometry")
    assert rows["e"]["alignment"] == f"{two[0].value('alignment'):.4f}"


def test_settings_tell_engine_and_seed():
    _, rows = rows_of(root_of(record(seed=7, engine="onnx"), record(encoder="b")), "encoders")
    assert [rows["alpha"][it] for it in ("engine", "training seed", "cut at")] == [
        "onnx",
        "7",
        "32 tokens",
    ]
    assert [rows["b"][it] for it in ("engine", "training seed")] == ["torch", "-"]


def test_pairs_of_all_splits_and_published_points_are_named():
    of = {"encoder": "org/alpha", "pooler": "mean"}
    made = geometry(np.random.default_rng(0), of)
    whole = tuple(dataclasses.replace(it, split="all") for it in made.records)
    made = dataclasses.replace(made, records=whole)
    text, alone = (page(Contents(geometries=(made,), published=it)) for it in (True, False))
    assert "(train, dev and test split)" in text
    plane, without = (next(read(it).all("svg")) for it in (text, alone))
    assert len(list(plane.all("use"))) > len(list(without.all("use")))


def test_an_encoder_may_have_a_panel_of_its_own():
    full = contents()
    wide = dataclasses.replace(full, supervised=("beta",))
    pictures = [list(read(page(it)).all("svg")) for it in (full, wide)]
    widths = [[float(it.attributes["viewbox"].split()[2]) for it in found] for found in pictures]
    assert widths[1][1] > widths[0][1]


def test_pictures_have_letters_of_one_size():
    for it in read(page(contents())).all("svg"):
        wide = float(it.attributes["viewbox"].split()[2])
        assert f"width: {1.36 * wide:.0f}px" in it.attributes["style"]


def test_a_label_is_text_in_the_title_too():
    written = page(Contents(records=(record(encoder="<b onclick='x'>&amp;"),)))
    assert "<b onclick" not in written
    assert read(written).one("title").text == "<b onclick='x'>&amp;: contrasent report"
