"""The report as its parser reads it: every number, every word as text, nothing from elsewhere."""

import base64
import csv
import dataclasses
import io
import re
from hashlib import sha256
from statistics import NormalDist

import numpy as np
import pytest
from helpers.html_reader import grid, read
from helpers.report_contents import (
    LABELS,
    NASTY,
    ROWS,
    compared,
    contents,
    geometry,
    neighbours,
    record,
    run,
)

from contrasent.errors import ConfigError
from contrasent.evaluation.task_names import STS, TRANSFER
from contrasent.files import refuse_existing_file
from contrasent.report.contents import Contents, Mean
from contrasent.report.html.page import MOST_QUERIES as MOST
from contrasent.report.html.page import page, write_report

HEADINGS = {
    **{task: task.upper() for task in (*STS, *TRANSFER)},
    "stsb": "STS-B",
    "sickr": "SICK-R",
    "sst2": "SST-2",
}


@pytest.fixture(scope="module")
def full():
    return contents()


@pytest.fixture(scope="module")
def text(full):
    return page(full)


@pytest.fixture(scope="module")
def root(text):
    return read(text)


def rows_of(root, name):
    """Rows of a table by the label of their encoder."""
    _, rows = grid(root.one("figure", id=name))
    return {label: row for label, (row,) in rows.items()}


def values(full, encoder, pooler, **wanted):
    found = [
        it
        for it in full.records
        if (it.encoder, it.pooler) == (encoder, pooler)
        and all(getattr(it, name) == value for name, value in wanted.items())
    ]
    return {it.task: it for it in found}


def printed(cell):
    return cell.text.removesuffix(" (best)").split(" (best)")[0].split(" [")[0]


@pytest.mark.parametrize("place", range(3))
def test_similarity_cells_are_the_records(full, root, place):
    row = rows_of(root, "sts")[LABELS[place]]
    found = values(full, *ROWS[place], metric="spearman", aggregation="all", subset="")
    for task, it in ((task, found[task]) for task in STS):
        cell = row[HEADINGS[task]]
        assert printed(cell) == f"{round(100 * it.value, 2):.2f}"
        assert float(cell.attributes["data-value"]) == it.value
        assert cell.attributes["title"].startswith(repr(it.value))
        low, high = 100 * it.interval.low, 100 * it.interval.high
        assert cell.one("small").text == f"[{low:.2f}, {high:.2f}]"
    mean = sum(it.value for it in found.values()) / 7
    assert float(row["Avg."].attributes["data-value"]) == pytest.approx(mean, rel=1e-12)
    reach = NormalDist().inv_cdf(0.975) * (7 * 0.01**2) ** 0.5 / 7
    assert (
        row["Avg."].one("small").text == f"[{100 * (mean - reach):.2f}, {100 * (mean + reach):.2f}]"
    )


@pytest.mark.parametrize("place", range(3))
def test_transfer_cells_are_the_records(full, root, place):
    row = rows_of(root, "transfer")[LABELS[place]]
    found = values(full, *ROWS[place], metric="accuracy")
    for task in TRANSFER:
        assert printed(row[HEADINGS[task]]) == f"{round(100 * found[task].value, 2):.2f}"
    mean = sum(it.value for it in found.values()) / 7
    assert printed(row["Avg."]) == f"{100 * mean:.2f}"
    assert printed(row["MRPC F1"]) == "80.00"


@pytest.mark.parametrize("place", range(3))
def test_retrieval_and_geometry_cells_are_what_was_measured(full, root, place):
    row = rows_of(root, "task-1")[LABELS[place]]
    for metric in ("recall@1", "recall@5", "recall@10"):
        it = values(full, *ROWS[place], metric=metric)["stsb-retrieval"]
        assert printed(row[metric]) == f"{100 * it.value:.2f}"
    measured, row = full.geometries[place], rows_of(root, "geometry")[LABELS[place]]
    assert printed(row["alignment"]) == f"{measured.value('alignment'):.4f}"
    assert printed(row["uniformity"]) == f"{measured.value('uniformity'):.4f}"
    assert printed(row["Spearman"]) == f"{100 * measured.value('spearman'):.2f}"


def test_every_record_is_in_the_table_of_all_numbers(full, root):
    _, rows = grid(root.one("figure", id="records"))
    shown = [
        (
            label,
            row["task"].text,
            row["subset"].text,
            row["metric"].text,
            row["aggregation"].text,
            float(row["value"].attributes["data-value"]),
        )
        for label, same in rows.items()
        for row in same
    ]
    labels = dict(zip(ROWS, LABELS, strict=True))
    assert shown == [
        (labels[it.encoder, it.pooler], it.task, it.subset, it.metric, it.aggregation, it.value)
        for it in full.records
    ]


def best_labels(rows, heading):
    return [label for label, row in rows.items() if "best" in row[heading].attributes["class"]]


def test_the_best_of_each_column_is_marked_in_words_too(full, root):
    rows = rows_of(root, "sts")
    for task in STS:
        of = [
            values(full, *it, metric="spearman", aggregation="all", subset="")[task] for it in ROWS
        ]
        best = LABELS[max(range(3), key=lambda k, of=of: of[k].value)]
        assert best_labels(rows, HEADINGS[task]) == [best]
        assert "(best)" in rows[best][HEADINGS[task]].text
    rows = rows_of(root, "geometry")
    for metric in ("alignment", "uniformity"):
        lowest = min(range(3), key=lambda k: full.geometries[k].value(metric))
        assert best_labels(rows, metric) == [LABELS[lowest]]
        assert best_labels(rows_of(root, "summary-table"), metric) == [LABELS[lowest]]
    assert best_labels(rows, "mean cosine") == []


def test_one_encoder_is_the_best_of_nothing(full):
    two = (record(task="sts12"), record(value=0.4), record(encoder="runs/beta", value=0.3))
    rows = rows_of(read(page(Contents(records=two))), "sts")
    assert best_labels(rows, "STS12") == []
    assert best_labels(rows, "STS-B") == ["alpha"]
    one = Contents(records=tuple(it for it in full.records if it.encoder == "runs/beta"))
    assert "(best)" not in page(one)


def test_a_file_named_as_a_metric_is_a_score_like_others():
    two = (record(task="uniformity.tsv", encoder=it, value=n) for it, n in (("a", 0.3), ("b", 0.4)))
    root = read(page(Contents(records=tuple(two))))
    assert best_labels(rows_of(root, "summary-table"), "uniformity.tsv Spearman") == ["b"]
    assert len(list(root.one(id="summary").all("span", class_="fill"))) == 2


def test_the_summary_holds_the_key_number_of_each_table(root):
    rows = rows_of(root, "summary-table")
    tables = {
        "STS Avg.": ("sts", "Avg."),
        "Transfer Avg.": ("transfer", "Avg."),
        "STS-B retrieval recall@1": ("task-1", "recall@1"),
        "alignment": ("geometry", "alignment"),
        "uniformity": ("geometry", "uniformity"),
    }
    assert list(rows["beta"]) == ["encoder", *tables]
    for label, row in rows.items():
        for heading, (name, column) in tables.items():
            assert printed(row[heading]) == printed(rows_of(root, name)[label][column])
    cards = list(root.one("ul", class_="cards").all("li"))
    for card, (name, column) in zip(cards, list(tables.values())[:3], strict=True):
        label = card.one("span", class_="who").text
        assert card.one("a").attributes["href"] == f"#{name}"
        assert label in best_labels(rows_of(root, name), column)
        assert card.one("strong").text == printed(rows_of(root, name)[label][column])


def test_the_protocol_stands_beneath_each_table(root):
    said = root.one("figure", id="sts").one("figcaption").text
    assert "Protocol simcse (Gao et al. 2021)." in said
    assert "aggregation all" in said
    assert "95 % bootstrap interval" in said
    assert "alpha (cls): pooler cls, head none, fp32, sentences cut at 32 tokens" in said
    said = root.one("figure", id="transfer").one("figcaption").text
    assert "preset test: adam, batch 64" in said
    assert "10 queries" in root.one("figure", id="task-1").one("figcaption").text
    assert "rated >4" in root.one("figure", id="geometry").one("figcaption").text


def test_figures_are_drawn_in_the_page_and_say_what_they_show(root):
    pictures = list(root.one("section", id="figures").all("figure"))
    assert [it.one("h3").text for it in pictures] == [
        "Alignment and uniformity",
        "Singular values",
        "Cosines by human rating",
        "Alignment and uniformity over training",
    ]
    for it in pictures:
        svg = it.one("svg")
        caption = it.one("figcaption").text
        assert svg.attributes["role"] == "img"
        assert svg.one(id=svg.attributes["aria-labelledby"]).text.endswith(caption)
        assert "stsb-dev>4" in caption
    for it in pictures[:3]:
        assert "STS-B dev (dev split)" in it.one("figcaption").text
        assert "alpha (cls) with pooler cls" in it.one("figcaption").text


def test_ids_are_unique_and_every_reference_has_its_target(root, text):
    ids = [it.attributes["id"] for it in root.all() if "id" in it.attributes]
    assert len(ids) == len(set(ids))
    used = {it.attributes["href"][1:] for it in root.all() if _local(it)}
    used |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert used
    assert used <= set(ids)


def _local(element):
    return (element.attributes.get("href") or "").startswith("#")


def test_nothing_is_loaded_and_nothing_runs_but_the_pages_own_script(root, text):
    for element in root.all():
        assert element.tag not in ("link", "img", "iframe", "object", "embed", "base")
        for name, value in element.attributes.items():
            assert not name.startswith("on"), f"{element.tag} {name}"
            assert name not in ("src", "srcset", "action", "xlink:href", "formaction")
            if name == "href":
                drawn = ("data:image/png;",) if element.tag == "image" else ("data:text/csv;",)
                assert value.startswith(("#", *drawn)), value
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    script = root.one("script").inside[0]
    (policy,) = root.all("meta", **{"http-equiv": "Content-Security-Policy"})
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    rules = policy.attributes["content"]
    assert "default-src 'none'" in rules
    assert f"script-src 'sha256-{digest}'" in rules


def test_words_of_users_are_text_wherever_they_stand(text):
    of = {"encoder": f"/x/{NASTY}", "pooler": "mean"}
    draw = np.random.default_rng(0)
    found = neighbours(draw, of)
    hit = dataclasses.replace(found.queries[0].nearest[0], text=NASTY)
    query = dataclasses.replace(found.queries[0], text=NASTY, nearest=(hit,))
    bad = contents(
        records=(record(task=f"/{NASTY}/a.tsv", protocol=NASTY, **of), record(**of)),
        geometries=(dataclasses.replace(geometry(draw, of), source=NASTY),),
        runs=(run(NASTY),),
        neighbours=(dataclasses.replace(found, corpus=NASTY, asked=NASTY, queries=(query,)),),
        command=f"contrasent {NASTY}",
        warnings=(NASTY,),
    )
    written = page(bad)
    assert NASTY not in written
    root = read(written)
    assert len(list(root.all("script"))) == 1
    assert root.one("script").inside == read(text).one("script").inside
    seen = root.one("main").text
    assert seen.count("alert('a & b')") > 12


def test_the_same_contents_give_the_same_bytes(full, text, tmp_path):
    assert page(contents()) == text
    write_report(tmp_path / "r.html", full)
    assert (tmp_path / "r.html").read_bytes() == text.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert len(text) < 1_000_000


def test_a_table_is_downloaded_with_every_digit(full, root):
    link = root.one("figure", id="sts").one("a")
    kind, _, data = link.attributes["href"].partition(";base64,")
    assert kind == "data:text/csv;charset=utf-8"
    assert link.attributes["download"] == "sts.csv"
    lines = list(csv.DictReader(io.StringIO(base64.b64decode(data).decode())))
    assert [line["encoder"] for line in lines] == list(LABELS)
    for used, line in zip(ROWS, lines, strict=True):
        found = values(full, *used, metric="spearman", aggregation="all", subset="")
        for task, it in found.items():
            heading = HEADINGS[task]
            assert float(line[heading]) == it.value
            assert float(line[f"{heading} low"]) == it.interval.low
            assert float(line[f"{heading} high"]) == it.interval.high


def test_what_was_compared_is_shown_with_its_p_values():
    other = record(encoder="runs/beta", value=0.4, compared=compared(), protocol="simcse")
    root = read(page(Contents(records=(record(protocol="simcse"), other))))
    heading = "beta minus alpha"
    assert heading in [it.text for it in root.all("h3")]
    row = rows_of(root, "compared-1")["STS-B Spearman"]
    assert {name: cell.text for name, cell in row.items()} == {
        "task": "STS-B Spearman",
        "difference": "-4.12",
        "low": "-6.00",
        "high": "-2.77",
        "p": "0.0100",
        "p (Holm)": "0.0700",
    }
    said = root.one("figure", id="compared-1").one("figcaption").text
    assert "95 % percentile interval over 500 resamples (seed 0)" in said
    assert "Holm's adjustment is over the 7 tasks of a metric" in said


def test_neighbours_stand_side_by_side_with_their_cosines(full, root):
    browser = root.one("div", id="neighbours-1")
    asked = list(browser.all("details"))
    assert [it.one("summary").text for it in asked] == ["query q0", "query q1", "query q2"]
    for number, it in enumerate(asked):
        columns = list(it.all("div", class_="column"))
        assert [column.one("h4").text for column in columns] == list(LABELS)
        every = [full.neighbours[k].queries[number].nearest for k in range(3)]
        for k, column in enumerate(columns):
            for hit, item in zip(every[k], column.all("li"), strict=True):
                assert item.one("data").text == f"{hit.score:.3f}"
                assert float(item.one("data").attributes["value"]) == hit.score
                others = [h.text for j in range(3) if j != k for h in every[j]]
                mark = "" if hit.text in others else " only here"
                assert item.one("span").text == f"{hit.text}{mark}"
    assert "corpus.txt: 10 sentences, 9 of them different" in browser.text


def test_queries_beyond_what_a_page_holds_are_left_out_and_counted():
    draw = np.random.default_rng(0)
    found = neighbours(draw, {"encoder": "e", "pooler": "mean"}, queries=MOST + 1)
    root = read(page(Contents(neighbours=(found,))))
    assert len(list(root.all("details"))) == MOST
    assert f"The first {MOST} of {MOST + 1} queries." in root.text


def test_each_protocol_has_a_table_of_its_own():
    sure = {"metric": "pearson", "aggregation": "mean"}
    root = read(
        page(
            Contents(
                records=(
                    record(value=0.1, protocol="simcse"),
                    record(value=0.2, protocol="senteval", regressor="senteval", **sure),
                    record(value=0.3, **sure),
                    record(task="sts12", value=0.4, protocol="senteval", **sure),
                    record(task="sts12", value=0.5),
                )
            )
        )
    )
    first, second = (rows_of(root, name)["alpha"] for name in ("sts", "sts-2"))
    assert [printed(first[it]) for it in ("STS12", "STS-B", "Avg.")] == ["50.00", "10.00", "30.00"]
    assert [printed(second[it]) for it in ("STS12", "STS-B", "Avg.")] == ["40.00", "20.00", "30.00"]
    assert "SentEval's regressor" in root.one("figure", id="sts-2").text


def test_an_average_is_absent_where_a_task_is():
    records = [record(task=task, protocol="simcse") for task in ("sts12", "stsb")]
    alone = record(task="stsb", encoder="runs/beta", protocol="simcse")
    rows = rows_of(read(page(Contents(records=(*records, alone)))), "sts")
    assert printed(rows["alpha"]["Avg."]) == "50.00"
    root = read(page(Contents(records=(*records, alone))))
    assert "STS Avg. of 2" in grid(root.one("figure", id="summary-table"))[0]
    assert rows["beta"]["Avg."].text == rows["beta"]["STS12"].text == "-"


def test_what_makes_numbers_hard_to_compare_is_said_first():
    records = (
        record(value=0.5),
        record(value=0.6),
        record(encoder="runs/beta", data_sha256="2" * 64, versions={"torch": "1.0"}),
    )
    said = read(page(Contents(records, warnings=("gone: no such folder",)))).one(role="note").text
    assert "gone: no such folder" in said
    assert "alpha: stsb (test) was measured more than once, with different values" in said
    assert "stsb (test): the encoders were scored on different data" in said
    assert "different versions of packages" in said
    assert "Before you compare" not in page(Contents(records[:1]))


def test_a_number_that_was_saved_twice_is_shown_once_with_all_that_is_known_of_it():
    sure = contents().records[0].interval
    once = record(interval=sure, protocol="simcse")
    root = read(page(Contents((record(), once, record()))))
    assert "Before you compare" not in root.text
    assert rows_of(root, "sts")["alpha"]["STS-B"].one("small").text.startswith("[")
    assert len(grid(root.one("figure", id="records"))[1]["alpha"]) == 1


def test_geometry_of_different_pairs_has_tables_and_figures_of_its_own():
    draw = np.random.default_rng(0)
    of = {"encoder": "org/alpha", "pooler": "mean"}
    pairs = ("stsb-dev>4", "stsb-dev>3")
    found = tuple(geometry(draw, of, name) for name in pairs)
    root = read(page(Contents(geometries=found, runs=(run(), run("b", "x>1")))))
    for number, it in zip(("geometry", "geometry-2"), found, strict=True):
        assert (
            printed(rows_of(root, number)["alpha"]["alignment"]) == f"{it.value('alignment'):.4f}"
        )
    assert len(list(root.one("section", id="figures").all("svg"))) == 3 + 3 + 2


def commands(root):
    return [it.one("code").text for it in root.one("section", id="settings").all("pre")]


def test_settings_hold_the_commands_that_measured_everything(full):
    evaluated = "contrasent evaluate org/alpha runs/beta --tasks sts,transfer --compare"
    searched = "contrasent neighbours org/alpha --corpus 'a corpus.txt' --data-dir /d"
    records = tuple(dataclasses.replace(it, command=evaluated) for it in full.records)
    found = tuple(dataclasses.replace(it, command=searched) for it in full.neighbours)
    some = dataclasses.replace(full, records=records, neighbours=found)
    root = read(page(some))
    written = root.one("section", id="settings")
    first, again = commands(root)
    assert first == "contrasent analyze --from 'a file.jsonl' --html r.html"
    assert again == f"{evaluated} {searched}"
    without = "Some numbers were saved without the command that measured them."
    assert without in written.text
    measured = tuple(
        dataclasses.replace(
            it, records=tuple(dataclasses.replace(of, command=evaluated) for of in it.records)
        )
        for it in full.geometries
    )
    whole = read(page(dataclasses.replace(some, geometries=measured)))
    assert commands(whole) == [first, again]
    assert without not in whole.text
    assert "0" * 64 in written.text
    assert "1" * 64 in written.text
    rows = rows_of(root, "encoders")
    assert [rows["alpha (cls)"][it].text for it in ("encoder", "pooler", "cut at")] == [
        "org/alpha",
        "cls",
        "32 tokens",
    ]
    assert rows_of(root, "versions")["beta"]["torch"].text == "2.13.0"


def test_labelled_sentences_say_how_they_were_learned():
    how = {"name": "senteval", "seed": 7}
    own = {"task": "own/mine.tsv", "classifier": how}
    found = [record(metric=name, value=0.25, **own) for name in ("accuracy", "macro_f1")]
    root = read(page(Contents(records=tuple(found))))
    row = rows_of(root, "task-1")["alpha"]
    assert [printed(row[name]) for name in ("accuracy", "macro-F1")] == ["25.00", "25.00"]
    said = root.one("figure", id="task-1").one("figcaption").text
    assert "mine.tsv, test split: 10 examples; x 100." in said
    assert "Classifier on frozen embeddings: name senteval, seed 7." in said


def test_encoders_that_differ_in_anything_have_rows_of_their_own():
    changes = (
        {},
        {"head": "mlp"},
        {"transform": "whitening"},
        {"seed": 3},
        {"engine": "onnx"},
        {"dimensions": 16},
        {"prompts": {"default": "query: "}},
    )
    records = [record(value=0.1 * (n + 1), **it) for n, it in enumerate(changes)]
    rows = rows_of(read(page(Contents(records=tuple(records)))), "sts")
    assert [printed(row["STS-B"]) for row in rows.values()] == [
        "10.00",
        "20.00",
        "30.00",
        "40.00",
        "50.00",
        "60.00",
        "70.00",
    ]
    for used in (
        "head mlp, fp32",
        "head none, 16 dimensions, fp32",
        "head none, prompts default 'query: ', fp32",
    ):
        assert f"alpha (mean, {used}, sentences cut at 32 tokens)" in rows


def test_training_text_that_has_the_tasks_text_is_warned_of():
    seen = {"file": "t.txt", "sentences": 2000, "sentences_seen": 30}
    said = read(page(Contents((record(overlap=seen),)))).one("div", role="note").text
    assert "alpha was trained on t.txt, which has 30 of the 2,000 sentences of stsb (test)" in said
    seen["sentences_seen"] = 0
    assert "Before you compare" not in page(Contents((record(overlap=seen),)))


def test_runs_alone_and_scores_alone_make_a_report():
    root = read(page(Contents(runs=(run(),))))
    assert len(list(root.all("svg"))) == 1
    root = read(page(Contents(records=(record(),))))
    assert [it.attributes["id"] for it in root.all("section")] == ["summary", "scores", "settings"]


def test_a_folder_is_no_report(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder; name a file in it"):
        refuse_existing_file(tmp_path, overwrite=True)


def test_the_summary_draws_the_key_scores(root):
    (chart,) = root.one("section", id="summary").all("div", class_="chart")
    widths = [it.attributes["style"] for it in chart.all("span", class_="fill")]
    values = [it.text for it in chart.all("span", class_="value")]
    assert widths == [f"width: {float(value)}%" for value in values] and len(widths) == 9


def test_the_summary_says_who_is_better_and_has_the_own_tasks():
    own = record(task="mine", value=0.25)
    other = {"encoder": "runs/beta", "compared": compared()}
    every = [record(task=task) for task in STS] + [record(task=task, **other) for task in STS]
    summary = read(page(Contents(records=(*every, own)))).one("section", id="summary").text
    change = "-4.12 (95 % interval -6.00 to -2.77, paired bootstrap) on STS-B Spearman."
    assert f"beta is worse than alpha: {change}" in summary
    assert "mine alpha 25.00" in summary
    mean = Mean(every[-1], "spearman", compared())
    found = dataclasses.replace(every[-1], task="stsb-retrieval", metric="recall@1")
    both = read(page(Contents(records=(*every, found), means=(mean,)))).one(id="summary").text
    assert both.count("beta is worse than alpha") == 2
    assert "on Avg. Spearman." in both and "STS-B retrieval recall@1." in both
    unknown = read(page(Contents(records=(record(), record(encoder="runs/beta")))))
    assert "by more than chance: evaluate with --compare" in unknown.one(id="summary").text
