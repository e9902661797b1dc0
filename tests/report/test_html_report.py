"""The report as its parser reads it: every number, every word as text, nothing from elsewhere."""

import base64
import dataclasses
import re
import shutil
import subprocess
from hashlib import sha256
from statistics import NormalDist

import numpy as np
import pytest
from helpers import report_contents
from helpers.html_reader import grid, read
from helpers.report_contents import LABELS, NASTY, ROWS, compared, contents, record

from contrasent.evaluation.protocols import preset_named
from contrasent.evaluation.task_names import STS, TRANSFER
from contrasent.report.contents import Contents, Mean
from contrasent.report.page import page, write_report

HEADINGS = {task: task.upper() for task in (*STS, *TRANSFER)}
HEADINGS |= {"stsb": "STS-B", "sickr": "SICK-R", "sst2": "SST-2"}


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
    wanted |= {"encoder": encoder, "pooler": pooler}
    found = [r for r in full.records if all(getattr(r, k) == v for k, v in wanted.items())]
    return {it.task: it for it in found}


def root_of(*records, **others):
    return read(page(Contents(records=records, **others)))


def accuracy(task, value, split="test", preset="test"):
    how = preset_named(preset).described()
    return record(task=task, split=split, metric="accuracy", value=value, classifier=how)


def printed(cell):
    return cell.text.removesuffix(" (best)").split(" (best)")[0].split(" [")[0]


@pytest.mark.parametrize("place", range(3))
def test_cells_are_the_records_and_what_was_measured(full, root, place):
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
    between = f"[{100 * (mean - reach):.2f}, {100 * (mean + reach):.2f}]"
    assert row["Avg."].one("small").text == between

    row = rows_of(root, "transfer")[LABELS[place]]
    found = values(full, *ROWS[place], metric="accuracy")
    mean = sum(it.value for it in found.values()) / 7
    expected = {HEADINGS[task]: found[task].value for task in TRANSFER}
    for heading, value in (expected | {"Avg.": mean, "MRPC F1": 0.8}).items():
        assert printed(row[heading]) == f"{round(100 * value, 2):.2f}"

    row = rows_of(root, "task-1")[LABELS[place]]
    for metric in ("recall@1", "recall@5", "recall@10"):
        it = values(full, *ROWS[place], metric=metric)["stsb-retrieval"]
        assert printed(row[metric]) == f"{100 * it.value:.2f}"
    measured, row = full.geometries[place], rows_of(root, "geometry")[LABELS[place]]
    assert printed(row["alignment"]) == f"{measured.value('alignment'):.4f}"
    assert printed(row["uniformity"]) == f"{measured.value('uniformity'):.4f}"
    assert printed(row["Spearman"]) == f"{100 * measured.value('spearman'):.2f}"


def best_labels(rows, heading):
    return [label for label, row in rows.items() if "best" in row[heading].attributes["class"]]


def test_the_best_of_each_column_is_marked_in_words_too(full, root):
    rows = rows_of(root, "sts")
    for task in STS:
        of = [values(full, *r, metric="spearman", aggregation="all", subset="")[task] for r in ROWS]
        best = LABELS[max(range(3), key=lambda k, of=of: of[k].value)]
        assert best_labels(rows, HEADINGS[task]) == [best]
        assert "(best)" in rows[best][HEADINGS[task]].text
    rows = rows_of(root, "geometry")
    for metric in ("alignment", "uniformity"):
        lowest = min(range(3), key=lambda k: full.geometries[k].value(metric))
        assert best_labels(rows, metric) == [LABELS[lowest]]
        assert best_labels(rows_of(root, "summary-table"), metric) == [LABELS[lowest]]
    assert best_labels(rows, "mean cosine") == []


def test_nothing_is_loaded_and_nothing_runs_but_the_pages_own_script(root, text):
    for element in root.all():
        assert element.tag not in ("link", "iframe", "object", "embed", "base")
        for name, value in element.attributes.items():
            assert not name.startswith("on"), f"{element.tag} {name}"
            assert name not in ("srcset", "action", "xlink:href", "formaction")
            if name == "src":
                assert element.tag == "img" and value.startswith("data:image/svg+xml,")
            if name == "href":
                assert value.startswith("#"), value
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
    found = report_contents.neighbours(draw, of)
    measured = report_contents.geometry(draw, of)
    hit = dataclasses.replace(found.queries[0].nearest[0], text=NASTY)
    query = dataclasses.replace(found.queries[0], text=NASTY, nearest=(hit,))
    bad = contents(
        records=(record(task=f"/{NASTY}/a.tsv", protocol=NASTY, **of), record(**of)),
        geometries=(dataclasses.replace(measured, source=NASTY),),
        runs=(report_contents.run(NASTY),),
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
                assert item.one("span").text == hit.text
    assert "corpus.txt: 10 sentences, 9 of them different" in browser.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head": "mlp"}, "head mlp"),
        ({"transform": "whitening"}, "whitening"),
        ({"seed": 3}, "seed 3"),
        ({"engine": "onnx"}, "onnx"),
        ({"dimensions": 16}, "16 dimensions"),
        ({"max_tokens": 64}, "sentences cut at 64 tokens"),
        ({"prompts": {"default": "query: "}}, "prompts default 'query: '"),
    ],
)
def test_encoders_that_differ_in_anything_have_rows_of_their_own(changes, said):
    root = root_of(record(value=0.1), record(value=0.2, **changes))
    (_, first), (label, second) = rows_of(root, "sts").items()
    assert [printed(row["STS-B"]) for row in (first, second)] == ["10.00", "20.00"]
    assert label.startswith("alpha (mean, ") and said in label
    used = [*rows_of(root, "encoders").values()]
    assert [row["engine"].text for row in used] == ["torch", changes.get("engine", "torch")]
    assert used[1]["training seed"].text == str(changes.get("seed", "-"))


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
    rows = rows_of(root, "compared-1")
    compared_tasks = [f"{it} Spearman" for it in ("STS12", "STS-B", "Avg.")]
    assert list(rows) == [*compared_tasks, "STS-B retrieval recall@1"]
    average, one = ([it.text for it in rows[of].values()] for of in list(rows)[2:0:-1])
    assert average[1:] == ["+12.50", "-6.00", "-2.77", "0.5000", "-"]
    assert one[1:] == ["-4.12", "-6.00", "-2.77", "0.0100", "0.0700"]
    assert "beta minus alpha" in [it.text for it in root.all("h3")]
    said = root.one("figure", id="compared-1").one("figcaption").text
    assert "95 % percentile interval over 500 resamples (seed 0)" in said
    assert "Holm's adjustment is over the 7 tasks of a metric" in said


def own(way, value):
    how = {"name": way, "seed": 7}
    return record(task="own/mine.tsv", metric="accuracy", value=value, classifier=how)


PEARSON = {"metric": "pearson", "aggregation": "mean"}
BY_MTEB = {"versions": {"mteb": "2.12.5"}, "task": "STSBenchmark"}
# Records, the cells of each table, and what is said of one of them.
TABLES = {
    "protocols": (
        [
            record(value=0.1, protocol="simcse"),
            record(value=0.2, protocol="senteval", regressor="senteval", **PEARSON),
            record(value=0.3, **PEARSON),
            record(task="sts12", value=0.4, protocol="senteval", **PEARSON),
            record(task="sts12", value=0.5),
        ],
        {
            "sts": {"STS12": "50.00", "STS-B": "10.00", "Avg.": "30.00"},
            "sts-2": {"STS12": "40.00", "STS-B": "20.00", "Avg.": "30.00"},
        },
        "SentEval's regressor",
    ),
    "presets": (
        [accuracy("mr", 0.25), accuracy("mr", 0.75, preset="fasttest")],
        {"transfer": {"MR": "25.00"}, "transfer-2": {"MR": "75.00"}},
        "preset fasttest",
    ),
    "classifiers": (
        [own("test", 0.25), own("fasttest", 0.75)],
        {"task-1": {"accuracy": "25.00"}, "task-2": {"accuracy": "75.00"}},
        "Classifier on frozen embeddings: name fasttest, seed 7.",
    ),
    "mteb": (
        [
            record(metric="cosine_spearman", value=0.75, protocol="mteb", **BY_MTEB),
            record(metric="spearman", value=0.25, **BY_MTEB),
            record(protocol="simcse", value=0.5),
        ],
        {"sts": {"STS-B": "50.00"}, "mteb": {"STSBenchmark": "75.00"}},
        "MTEB 2.12.5",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_what_cannot_be_compared_has_tables_of_its_own(name):
    records, tables, said = TABLES[name]
    root = root_of(*records)
    for of, cells in tables.items():
        (row,) = rows_of(root, of).values()
        assert {heading: printed(row[heading]) for heading in list(row)[1:]} == cells
    assert said in root.one("figure", id=of).text
    assert name == "classifiers" or "Own data" not in root.text


NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

DRIVER = """
<script>
const click = (name, column) =>
  document.querySelectorAll(`#${name} thead th`)[column].querySelector("button").click();
click("sts", 1);
click("transfer", 8); click("transfer", 8);
const typed = (input, text) => { input.value = text; input.dispatchEvent(new Event("input")); };
typed(document.querySelector("[data-filter=records]"), "mrpc  BETA");
typed(document.querySelector(".browser input"), "Q2 query");
</script>
"""


def browse(folder, text, *options):
    """Open a page; what the browser printed, and what it complained of."""
    (folder / "r.html").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", *options),
            (folder / "r.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is found")
def test_the_page_runs_without_an_error_and_sorts_and_filters(tmp_path):
    text = page(contents())
    printed, complaints = browse(tmp_path, text, "--dump-dom")
    assert complaints == [] and "3 of 3 queries" in read(printed).text
    driven = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", f"{DRIVER}</body>")
    printed, complaints = browse(tmp_path, driven, "--dump-dom")
    assert complaints == []
    root = read(printed)
    for name, column, rising in (("sts", 1, False), ("transfer", 8, True)):
        headings, rows = grid(root.one("figure", id=name))
        values = [float(row[headings[column]].attributes["data-value"]) for (row,) in rows.values()]
        assert values == sorted(values, reverse=not rising)
        heads = list(root.one("figure", id=name).one("thead").all("th"))
        wanted = "ascending" if rising else "descending"
        assert [it.attributes["aria-sort"] for it in heads].count(wanted) == 1
        assert heads[column].attributes["aria-sort"] == wanted
    body = root.one("figure", id="records").one("tbody")
    left = [it.text for it in body.all("tr") if "hidden" not in it.attributes]
    assert len(left) == 2
    assert all(it.startswith("beta") and "mrpc" in it for it in left)
    asked = list(root.one("div", id="neighbours-1").all("details"))
    assert [("hidden" in it.attributes, "open" in it.attributes) for it in asked] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert "1 of 3 queries" in root.text
