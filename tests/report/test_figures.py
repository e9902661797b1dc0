"""Figures and tables: the same bytes twice, every number in its place, nothing mixed."""

import dataclasses
import json
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import numpy as np
import pytest
from helpers.report_contents import geometry as any_geometry
from helpers.report_contents import record, run
from matplotlib.figure import Figure
from rich.console import Console
from scipy.stats import gaussian_kde

from contrasent.errors import DataError
from contrasent.evaluation.geometry import Trajectory
from contrasent.evaluation.sts_data import Position
from contrasent.evaluation.task_names import task_names
from contrasent.records import Record, json_lines, lines_of_kind
from contrasent.report import figures as module
from contrasent.report.contents import labelled, labelled_runs, read_saved
from contrasent.report.figures import (
    FIGURES,
    density,
    draw_figures,
    figure_data,
    run_lines,
    spectra,
    sts_colours,
)
from contrasent.report.scores_table import score_tables
from contrasent.report.table import print_table

PICTURES = tuple(kind.name for kind in FIGURES)


def geometry(encoder="org/model", pooler="cls", pairs="stsb-dev>4", **numbers):
    numbers = {"alignment": 0.2, "uniformity": -2.0, "spearman": 0.7} | numbers
    of = {"encoder": encoder, "pooler": pooler}
    made = any_geometry(np.random.default_rng(len(encoder)), of, pairs)
    new = [dataclasses.replace(it, value=numbers.get(it.metric, it.value)) for it in made.records]
    return dataclasses.replace(made, records=tuple(new))


def pictures(geometries, runs):
    data = figure_data(labelled(geometries), runs)
    return [picture for _, picture in draw_figures(data)]


def scores(encoder="org/model", tasks=("sts12", "sts13", "sts14", "sts15", "sts16")):
    of = {"encoder": encoder, "pooler": "cls"}
    tasks = (*tasks, "stsb", "sickr")
    return [record(task=task, value=0.1 * n, **of) for n, task in enumerate(tasks)]


def test_density_is_scipys():
    values, points = np.random.default_rng(0).normal(0.3, 0.2, size=3000), np.linspace(-1, 1, 50)
    assert density(values, points) == pytest.approx(gaussian_kde(values)(points))


@pytest.mark.slow
def test_every_figure_has_the_same_bytes_each_time_whatever_the_users_style():
    import matplotlib

    everything = [geometry(), geometry("a$b_{$", alignment=0.3)], [run(), run("second")]
    first = pictures(*everything)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None}):
        again = pictures(*everything)
    assert {found.name for found in first} == {*PICTURES}
    assert first == again
    for found in first:
        assert found.png.startswith(b"\x89PNG") and b"<svg" in found.svg
        assert b"<dc:date>" not in found.svg and b"http" not in found.png


def test_panels_share_their_scales(monkeypatch):
    rows = labelled([geometry("a/one"), geometry("b/two"), geometry("c/_three")])
    second = {"two": rows["two"]}
    panels = {"unsupervised": {k: rows[k] for k in ("one", "_three")}, "supervised": second}
    figure = Figure()
    monkeypatch.setattr(module, "picture", lambda *given: given[-1](figure))
    spectra(panels)
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("unsupervised", "supervised")
    assert (left.get_xlim(), left.get_ylim()) == (right.get_xlim(), right.get_ylim())
    assert [it.get_text() for it in left.get_legend().get_texts()] == ["one", "_three"]
    drawn = {line.get_label(): line for axes in (left, right) for line in axes.lines}
    for label, found in rows.items():
        assert drawn[label].get_ydata() == pytest.approx(found.spectrum)
        assert drawn[label].get_xdata()[0] == 1
    styles = [(line.get_color(), line.get_linestyle()) for line in left.lines]
    assert len(left.lines) == 2 and styles[0][0] != styles[1][0] and styles[0][1] != styles[1][1]


def test_every_run_is_in_the_legend(monkeypatch):
    figure = Figure()
    monkeypatch.setattr(module, "picture", lambda *given: given[-1](figure))
    module.trajectories({"_one": run(), "$two": run("second")})
    assert [it.get_text() for it in figure.legends[0].get_texts()] == ["_one", "$two"]


def test_long_names_stay_within_the_figure_and_apart(monkeypatch):
    rows = {f"{name} {'sentence-transformers-' * 4}": geometry(name) for name in "abc"}
    data = dataclasses.replace(figure_data(labelled([geometry()]), ()), rows=rows)
    figures = list[Figure]()

    def drawn(_, size, draw):
        figures.append(Figure(figsize=size, layout="constrained"))
        draw(figures[-1])
        figures[-1].draw_without_rendering()

    monkeypatch.setattr(module, "picture", drawn)
    module.plane(data)
    module.densities({"": rows})
    spectra({"": rows})
    for figure in figures:
        titles = [axes.title.get_window_extent() for axes in figure.axes]
        legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
        boxes = [*titles, *(it.get_window_extent() for it in legends)]
        assert all(it.x0 >= 0 and it.x1 <= figure.bbox.x1 for it in boxes if it.width)
        assert not any(a.overlaps(b) for a, b in pairwise(it for it in titles if it.width))


def test_other_pairs_do_not_share_a_figure():
    with pytest.raises(DataError, match="stsb-dev>4 and stsb>4 are different pairs"):
        pictures([geometry(), geometry("b", pairs="stsb>4")], ())
    with pytest.raises(DataError, match="stsb-dev>4 and stsb>4 are different pairs"):
        pictures((), [run(), run(pairs="stsb>4")])


def test_the_colour_is_the_average_where_every_encoder_has_it():
    rows = labelled([geometry(), geometry("other/one", spearman=0.6)])
    known = [*scores(), *scores("other/one")]
    title, found = sts_colours(rows, known)
    assert title == "STS Avg., Spearman x 100"
    assert found == pytest.approx({"model": 0.3, "one": 0.3})


@pytest.mark.parametrize("records", [[], scores(), [*scores(), *scores("other/one", ["sts12"])]])
def test_else_it_is_the_correlation_on_the_pairs_for_all(records):
    rows = labelled([geometry(), geometry("other/one", spearman=0.6)])
    colours = {"model": 0.7, "one": 0.6}
    assert sts_colours(rows, records) == ("STS-B dev, Spearman x 100", colours)


def test_labels_say_what_tells_encoders_apart():
    found = [geometry("a/x"), geometry("b/y"), geometry("b/y", "mean"), geometry("c/x")]
    assert list(labelled(found)) == ["a/x (cls, fp32)", "y (cls)", "y (mean)", "c/x (cls, fp32)"]
    runs = [geometry("runs/mine/last"), geometry("runs/mine/best"), geometry("best")]
    assert list(labelled(runs)) == ["mine/last", "mine/best", "best"]
    assert list(labelled([found[0], found[0]])) == ["a/x (cls, fp32) #1", "a/x (cls, fp32) #2"]
    assert list(labelled_runs([run(), run(), run("b")])) == ["run #1", "run #2", "b"]


def test_files_are_known_by_their_content(tmp_path):
    (tmp_path / "g").write_text(lines_of_kind("geometry", [geometry()]))
    (tmp_path / "r").write_text(json_lines([record()]))
    folder = tmp_path / "unsup"
    folder.mkdir()
    lines = [{"step": 0, "loss": 1.0}]
    for step, place in zip((0, 10), ((0.2, -1.5), (0.3, -2.0)), strict=True):
        measured = {"alignment": place[0], "uniformity": place[1], "pairs": "stsb-dev>4"}
        lines.append({"step": step, "geometry": measured})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    found = read_saved([tmp_path / "g", tmp_path / "r", folder, folder / "metrics.jsonl"])
    assert len(found.geometries) == 1 and found.records == (record(),)
    positions = (Position(0.2, -1.5), Position(0.3, -2.0))
    assert found.runs == (Trajectory("unsup", "stsb-dev>4", (0, 10), positions),) * 2
    assert run_lines(labelled_runs(found.runs[:1])) == [
        "unsup: 2 measurements on stsb-dev>4, steps 0 to 10: alignment 0.2000 to 0.3000, "
        "uniformity -1.5000 to -2.0000."
    ]


SEVEN = task_names(["sts"])


def rated(task, value, **changes):
    known = {"encoder": "org/model", "pooler": "cls", "precision": "fp32", "data_sha256": "0"}
    known |= {"split": "test", "metric": "spearman", "aggregation": "all"}
    return Record(task=task, value=value, **{**known, "versions": {}, "pairs": 9, **changes})


def seven(*values, **more):
    return [rated(name.name, value, **more) for name, value in zip(SEVEN, values, strict=True)]


BEFORE = seven(0.7, 0.8, 0.755555, 0.85, 0.79, 0.82, 0.77)
AFTER = seven(0.71, 0.8, 0.755545, 0.84, 0.8, 0.83, 0.78)


def printed(rows, *, width=80, terminal=False):
    file = StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    print_table(console, replace(score_tables(rows)[0], title=""))
    return file.getvalue().split("\n")


def test_the_average_is_of_unrounded_values():
    values = [*[0.100049] * 6, 0.10009]
    cells = printed({"m": seven(*values)})[2].split()[1:]
    assert cells == [*["10.00"] * 6, "10.01", "10.01"]
    assert f"{sum(map(float, cells[:7])) / 7:.2f}" == "10.00"
    (table,) = score_tables({"m": seven(*values)})
    assert table.rows[0][8].value == pytest.approx(sum(values) / 7, abs=1e-15)


@pytest.mark.parametrize("gone", range(7))
def test_an_absent_value_is_a_dash_and_there_is_no_average(gone):
    records = BEFORE[:gone] + BEFORE[gone + 1 :]
    cells = printed({"whole": AFTER, "m": records})[3].split()[1:]
    assert [number for number, cell in enumerate(cells) if cell == "-"] == [gone, 7]
    (alone,) = score_tables({"m": records})
    assert alone.rows[0][7].value == pytest.approx(sum(r.value for r in records) / 6)


def test_only_the_metric_and_aggregation_asked_for_are_shown():
    others = [{"aggregation": "mean"}, {"metric": "pearson"}, {"aggregation": "wmean"}]
    records = [rated("sts12", 0.1), *(rated("sts12", 0.2, **of) for of in others)]
    records.append(rated("sts12", 0.4, aggregation="subset", subset="MSRpar"))
    assert printed({"m": records})[2].split() == ["m", "10.00"]
    asked = [rated("sts12", 0.3, metric="pearson", aggregation="mean", protocol="hill")]
    shown = printed({"m": [*records, *asked]})
    assert shown[2].split() == ["m", "30.00"]
    assert "Pearson" in shown[4] and "mean over the subsets of a task" in shown[4]


def test_other_splits_and_files_stand_after_the_average():
    records = [
        *BEFORE,
        rated("a/p.tsv", 0.11),
        rated("b/p.tsv", 0.12),
        rated("c/q.tsv", 0.13),
        rated("stsb", 0.14, split="dev"),
        rated("sickr", 0.15, split="train"),
    ]
    lines = printed({"m": records}, width=200)
    after = lines[0].split()[8:]
    assert after == ["a/p.tsv", "b/p.tsv", "q.tsv", "STS-B", "dev", "SICK-R", "train"]
    average = f"{100 * sum(r.value for r in BEFORE) / 7:.2f}"
    assert lines[2].split()[8:] == [average, "11.00", "12.00", "13.00", "14.00", "15.00"]
    assert "test split unless the heading names another" in lines[4]


LONG = "runs/[bold]an encoder[/bold] with a rather long name"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_gets_a_task_per_line(width):
    lines = printed({LONG: BEFORE, "b": AFTER}, width=width, terminal=True)
    table = lines[: lines.index("")]
    assert [line.split()[0] for line in table[-8:]] == [n.heading for n in SEVEN] + ["Avg."]
    assert table[-8].split() == ["STS12", "70.00", "71.00"]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [10, 80])
def test_a_pipe_gets_whole_lines_without_colour(width):
    lines = printed({LONG: BEFORE, "b": AFTER}, width=width)
    assert lines[2].startswith(LONG + "  70.00")
    assert lines[3].split()[0] == "b"
    assert len([line for line in lines if line]) == 4 + 3
    assert "\x1b" not in "".join(lines)
