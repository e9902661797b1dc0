"""``contrasent evaluate``, ``analyze``, ``neighbours``, ``calibrate``, ``mteb``, ``reproduce``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from pydantic import Field, PositiveInt, StringConstraints

from contrasent import evaluation, options, report
from contrasent.cli import app
from contrasent.errors import ConfigError, pick, warn
from contrasent.files import refuse_existing_file
from contrasent.progress import progress_bar
from contrasent.records import json_lines, lines_of_kind
from contrasent.settings import ARGUMENT, Spelling, refuse_unused, settings, shared


@settings
class AsJsonLines(options.Replacing):
    """The results as lines of JSON."""

    json: Annotated[str | None, Spelling(metavar="FILE")] = None
    """Write all results as JSON lines to FILE, those of evaluate and analyze for 'analyze --from';
    '-' prints them instead of the table."""


@settings
class EvaluateCommand(options.EvaluationOptions, app.AsHtml, AsJsonLines):
    """Score encoders on similarity, transfer and retrieval tasks, by the protocol of a paper."""

    models: Annotated[list[str], Spelling(argument=True, metavar="MODEL")]
    """Encoders to compare: a folder, a training run or a Hugging Face id; or a file of word
    vectors (GloVe's .txt, .vec)."""

    compare: bool = False
    """Test every model against the first, on the same pairs, test sentences or queries: intervals
    and p-values of the differences."""

    leak_check: bool = True
    """Look for the tasks' text in what an encoder of ours was trained on, and warn."""

    text: Annotated[str | None, Spelling(metavar="FILE")] = None
    """In place of tasks: is the first model good enough for this text? Without labels or training,
    beside BM25, both together, and the other models."""

    def __call__(self) -> None:
        refuse_existing_file(self.html, self.json, overwrite=self.overwrite)
        if self.text is not None:
            self._judge(self.text)
            return
        if self.compare and len(set(self.models)) < 2:
            raise ConfigError("--compare holds the other models to the first: name two or more")
        suite = evaluation.suite_of(self)
        announce(suite)

        def score(model: str) -> evaluation.Scores:
            scores = suite.records(app.use(self, model))
            for note in scores.notes:
                app.tell(f"{model}: {note}")
            return _with_overlaps(scores, model, suite) if self.leak_check else scores

        results, failed = app.for_each(self.models, score)
        failures = [
            *(f"{p.task}: {p.message}" for p in suite.problems if not p.missing),
            *failed,
            *(f"{m}: {p.message}" for m, scores in results.items() for p in scores.problems),
        ]
        if any(scores.records for scores in results.values()):
            rows = {label: results.get(model) for label, model in app.labels(self.models).items()}
            asked = suite.options.bootstrap
            bootstrap = (asked or evaluation.Bootstrap()) if self.compare else None
            contents = _write(suite, rows, bootstrap, self.json)
            app.write_html(self.html, replace(contents, warnings=(*contents.warnings, *failures)))
        app.raise_failures(failures)

    def _judge(self, text: str) -> None:
        reading = evaluation.text_reading(self)
        encoder, *others = (app.use(self, model) for model in dict.fromkeys(self.models))
        judged = evaluation.judge(encoder, text, compare=others, **reading)
        judged = replace(judged, records=app.with_command(judged.records))
        if not app.write_lines(self.json, lines_of_kind("judgement", [judged])):
            app.say("\n".join(report.judgement_lines(judged)))
            app.print_tables(*report.judgement_tables(judged))
            app.say(f"\n{judged.sentence}")
        answer = (judged.sentence,)
        contents = report.Contents(judged.records, queries=judged.queries, answer=answer)
        app.write_html(self.html, contents)


def _write(
    suite: evaluation.Suite,
    scores: Mapping[str, evaluation.Scores | None],
    bootstrap: evaluation.Bootstrap | None,
    json: str | None,
) -> report.Contents:
    """Print tables, or write records to ``json``; with a bootstrap compare with the first."""
    rows = {label: [*app.with_command(it.records)] if it else [] for label, it in scores.items()}
    (_, first), *others = scores.items()
    means = []
    if bootstrap and first:
        for label, other in ((label, it) for label, it in others if it):
            for comparison in chain(*suite.compare(first, other, bootstrap).values()):
                rows[label] = evaluation.with_comparison(rows[label], comparison)
                if comparison.average:
                    means.append(report.Mean(rows[label][0], comparison.metric, comparison.average))
    records = tuple(record for of_encoder in rows.values() for record in of_encoder)
    contents = report.Contents(records, tuple(means), warnings=(*suite.notes, *_left_out(suite)))
    if not app.write_lines(json, json_lines(records)):
        differences = report.comparison_tables(contents, report.rows_of(contents))
        app.print_tables(*report.suite_tables(suite, rows), *differences)
    return contents


def announce(suite: evaluation.Suite) -> None:
    """Tell on standard error what was guessed and what is left out."""
    for line in (*suite.notes, *_left_out(suite), *suite.remedy):
        app.tell(line)


def _left_out(suite: evaluation.Suite) -> list[str]:
    return [f"{p.task} is left out: {p.message}" for p in suite.problems if p.missing]


def _with_overlaps(
    scores: evaluation.Scores, model: str, suite: evaluation.Suite
) -> evaluation.Scores:
    with progress_bar("reading training examples (--no-leak-check leaves that out)") as advance:
        overlap = evaluation.find_overlap(model, suite, advance)
    if overlap is None:
        return scores
    trained = f"{model} was trained on {overlap.file}"
    counts = [f"{it.heading} {it.seen:,} of {it.sentences:,}" for it in overlap.tasks if it.seen]
    if overlap.trouble:
        warn(f"{trained}; whether that has text of the tasks was not checked: {overlap.trouble}")
    elif counts:
        tasks = ",".join(it.heading for it in overlap.tasks if it.seen)
        shows = shlex.join(["contrasent", "data", "leaks", overlap.file, "--tasks", tasks])
        warn(f"{trained}, which has sentences of the tasks: {'; '.join(counts)}; see: {shows}")
    records = (replace(it, overlap=evaluation.overlap_of(it, overlap)) for it in scores.records)
    return replace(scores, records=tuple(records))


@settings
class CalibrateCommand(options.Named, options.Measuring, options.DataFolder):
    """Suggest a similarity threshold from labelled pairs, as JSON."""

    pairs: Annotated[str, ARGUMENT]
    """Judged pairs: a .tsv, .csv, .jsonl or .parquet file of sentence, sentence and label (1
    similar, 0 not), or one of ratings or a task, with the rating from which on sentences are
    similar: 'pairs.tsv>=4', 'stsb-dev>=4'."""

    columns: options.Listed | None = None
    """Sentence, sentence and label of your file: three names, or numbers from 0."""

    min_precision: Annotated[float, Field(gt=0, le=1)] | None = None
    """Find as many similar pairs as this precision allows, such as 0.9; else the largest F1."""

    def __call__(self) -> None:
        judged = evaluation.read_judged(self.pairs, self.data_dir, self.columns)
        if judged.task.note:
            app.tell(judged.task.note)
        encoder = app.use(self, self.model)
        app.print_json(asdict(evaluation.calibrate(encoder, judged, self.min_precision)), indent=2)


@settings
class AnalyzeCommand(options.AnalysisOptions, app.AsHtml, AsJsonLines):
    """Measure how embeddings lie in space: alignment, uniformity, isotropy, spectrum, cosines."""

    models: Annotated[list[str] | None, Spelling(argument=True, metavar="[MODEL]...")] = None
    """Encoders to measure: a folder, a training run or a Hugging Face id."""

    saved: Annotated[list[Path] | None, Spelling(flag="--from", metavar="FILE")] = None
    """Take what was saved before, without a model: a file of --json, a training run that measured
    its geometry, or the scores of 'contrasent evaluate --json', whose average colours the encoders.
    Give it once for each."""

    figures: Annotated[Path | None, Spelling(metavar="FOLDER")] = None
    """Draw the papers' figures into FOLDER, as SVG and PNG."""

    def __call__(self) -> None:
        if not self.models and not self.saved:
            raise ConfigError("nothing to analyze: name a model, or saved files with --from")
        if not self.models:
            measuring = shared(self, options.AnalysisOptions)
            refuse_unused(self, measuring, "--from has what was measured")
        names = [f"{it.name}.{form}" for it in report.FIGURES for form in report.FORMATS]
        drawn = [self.figures / name for name in names] if self.figures else []
        refuse_existing_file(self.json, *drawn, self.html, overwrite=self.overwrite)
        known = report.read_saved(self.saved or ())
        measured, failures = self._measure() if self.models else ({}, [])
        geometries = (*known.geometries, *measured.values())
        json = self.json if geometries or self.json == app.STDOUT else None
        if not app.write_lines(json, lines_of_kind("geometry", geometries)):
            rows = report.labelled(geometries)
            tables = (report.geometry_table(rows), report.edits_table(rows)) if rows else ()
            app.print_tables(*(table for table in tables if table.rows))
            for line in report.run_lines(report.labelled_runs(known.runs)):
                app.say(line)
        contents = replace(known, geometries=geometries, warnings=tuple(failures))
        if geometries or self.saved:
            app.write_html(self.html, contents)
        if self.figures and (geometries or known.runs or not failures):
            data = report.figure_data(report.labelled(geometries), known.runs, known.records)
            pictures = [picture for _, picture in report.draw_figures(data)]
            for path in report.write_pictures(self.figures, pictures):
                app.tell(str(path))
        app.raise_failures(failures)

    def _measure(self) -> tuple[dict[str, evaluation.Geometry], list[str]]:
        edits = evaluation.Edits.read(self.edits) if self.edits else None
        rated = evaluation.RatedPairs.read(self.pairs, self.data_dir, self.columns)
        if rated.task.note:
            app.tell(rated.task.note)

        def measure_one(model: str) -> evaluation.Geometry:
            measured = evaluation.measure(app.use(self, model), rated, edits)
            return replace(measured, records=app.with_command(measured.records))

        return app.for_each(self.models or (), measure_one)


@settings
class NeighboursCommand(options.Measuring, options.DataFolder, AsJsonLines):
    """Show the sentences of a corpus that are nearest to queries, encoders side by side."""

    models: Annotated[list[str], Spelling(argument=True, metavar="MODEL", of=EvaluateCommand)]

    corpus: str
    """What is searched: a .txt, .csv, .tsv, .jsonl (each also .gz) or .parquet file, a data set of
    the hub (org/name:config@split), or an STS task (stsb, stsb-dev)."""

    queries: str | None = None
    """A file with a query per row; or a paper's: simcse-table8, diffcse-table9."""

    query: Annotated[list[str] | None, Spelling(metavar="TEXT")] = None
    """A sentence; give it once for each."""

    sample: PositiveInt = 3
    """Without queries: how many sentences of the corpus are drawn as such."""

    top_k: PositiveInt = 3
    """Neighbours of each query."""

    columns: options.Listed | None = None
    """Comma-separated sentence columns of the corpus: names, or numbers from 0."""

    def __call__(self) -> None:
        refuse_existing_file(self.json, overwrite=self.overwrite)
        if self.queries or self.query:
            refuse_unused(self, ["sample"], "queries are given")
        searched = evaluation.read_corpus(self.corpus, self.columns, self.data_dir)
        looked_for = evaluation.read_queries(self.queries, self.query or (), searched, self.sample)

        def find(model: str) -> evaluation.Neighbours:
            nearest = evaluation.find_neighbours(
                app.use(self, model), searched, looked_for, self.top_k
            )
            return replace(nearest, command=app.called())

        results, failures = app.for_each(self.models, find)
        rows = list(results.values())
        if rows and not app.write_lines(self.json, lines_of_kind("neighbours", rows)):
            of_label = dict(zip(report.labels(rows), rows, strict=True))
            app.print_tables(*report.neighbours_tables(of_label))
        app.raise_failures(failures)


@settings
class MtebCommand(options.Measuring, AsJsonLines):
    """Score encoders on tasks of MTEB, by its own runner and on its own data."""

    models: Annotated[list[str], Spelling(argument=True, metavar="MODEL")]
    """Encoders, a row each: a folder, a training run or a Hugging Face id."""

    tasks: options.Listed = ()
    """Comma-separated names of MTEB's tasks, such as STSBenchmark,SICK-R."""

    benchmark: Annotated[str | None, Spelling(metavar="NAME")] = None
    """All tasks of a benchmark, such as 'MTEB(eng, v2)'."""

    output: Annotated[Path | None, Spelling(metavar="FOLDER")] = None
    """Write MTEB's own files of results into FOLDER too."""

    def __call__(self) -> None:
        refuse_existing_file(self.json, overwrite=self.overwrite)
        wanted = evaluation.mteb_tasks(self.tasks, self.benchmark)

        def measure(model: str) -> evaluation.Scores:
            encoder = evaluation.MtebEncoder(app.load(self, model), self.precision_name)
            return evaluation.run_mteb(encoder, wanted, output=self.output, show_progress=True)

        results, failures = app.for_each(self.models, measure)
        rows = {model: app.with_command(scores.records) for model, scores in results.items()}
        failures += [f"{m}: {p.message}" for m, scores in results.items() for p in scores.problems]
        records = [record for of_model in rows.values() for record in of_model]
        if records and not app.write_lines(self.json, json_lines(records)):
            shown = {label: rows[model] for label, model in app.labels(list(rows)).items()}
            app.print_tables(*report.score_tables(shown))
        app.raise_failures(failures)


@settings
class ReproduceCommand(options.DataFolder, options.OnDevice, options.Replacing):
    """Reproduce tables and figures from the papers, with the published numbers beside ours.

    A row whose material is not given has the published numbers alone, and its note names what is
    missing. Finished runs are kept.
    """

    tables: Annotated[list[str], Spelling(argument=True, metavar="TABLE")]
    """Tables and figures: simcse/T1, diffcse/T3, study/T4, simcse/F2, a paper (simcse, diffcse,
    study), baselines, successors, or all. Before them 'list' shows what there is and needs,
    'verdicts' which claims hold, 'commands' how every row is made."""

    output: Path = Path("reproduction")
    """The folder; what is done in it is kept, so that the same command goes on."""

    encoder: str | None = None
    """Start of every trained transformer: a masked language model, folder or id."""

    material: Annotated[
        list[Annotated[str, StringConstraints(pattern="^[^=]+=.+$")]] | None,
        Spelling(metavar="NAME=PATH"),
    ] = None
    """A text, or a model in place of one by its id: sentences=wiki1m.txt, words=glove.txt,
    triplets=nli.csv, roberta-base=FOLDER; 'list' says what is needed. Give it once for each."""

    scale: str | None = None
    """small: short runs of the encoder and data at hand; smoke: tiny shipped models, two steps
    each; paper: the papers' encoders, data and settings. Else as the folder, or small."""

    seeds: Annotated[options.Seeds | None, Spelling(metavar="S1,S2,...")] = None
    """Comma-separated seeds of training, else 42; a cell is mean and deviation."""

    rows: options.Listed = ()
    """Comma-separated rows, by name or a part of it; else all."""

    tasks: options.Listed = ()
    """What is scored, in place of the scale's tasks: such as sts,transfer."""

    jobs: PositiveInt = 1
    """Rows that are worked on at once, sharing the cores."""

    from_records: Path | None = None
    """A folder of the .parquet files that an earlier command wrote beside its tables: they are
    printed from these, and 'verdicts' judges by them; nothing is made."""

    def __call__(self) -> None:
        from contrasent import reproduce

        what = self.tables[0] if self.tables[0] in ("list", "verdicts", "commands") else ""
        names = self.tables[1:] if what else self.tables
        if what == "commands":
            app.say("\n".join(reproduce.plan_lines(names)))
            return
        data_dir = None if self.data_dir is None else str(self.data_dir)
        if self.from_records is not None:
            unread = ("output", "encoder", "material", "scale", "seeds", "jobs", "overwrite")
            refuse_unused(self, unread, "--from-records makes nothing")
            records = reproduce.read_records(self.from_records, data_dir)
            chosen = reproduce.choose(names or list(records), self.rows, self.tasks)
            named = {it.name for it in chosen}.intersection(names)
            chosen = [it for it in chosen if it.name in records]
            for name in named if chosen else names[:1]:
                pick("record", name, records)
            filled = [records[it.name] for it in chosen]
            if what == "verdicts":
                _show(reproduce.verdicts_document(filled))
            else:
                tables = (it.part(table) for it, table in zip(filled, chosen, strict=True))
                _show("\n".join(reproduce.document(table) for table in tables))
            return
        chosen = reproduce.choose(names, self.rows, self.tasks)
        folder = reproduce.PaperRequest.read(self.output)
        encoder = {} if self.encoder is None else {reproduce.ENCODER: self.encoder}
        asked = reproduce.PaperRequest(
            given=encoder | dict(text.split("=", 1) for text in self.material or ()),
            seeds=tuple(self.seeds or (what and folder.seeds) or (42,)),
            data_dir=data_dir,
            device=self.device,
        )
        request = folder.followed_by(self.scale, asked)
        if what == "list":
            overview = reproduce.listing(request, chosen, self.output)
            notes = ("\n".join(wrap(note, 100, break_on_hyphens=False)) for note in overview.notes)
            _show("\n".join((overview.markdown(), *(f"{note}\n" for note in notes))))
        elif what == "verdicts":
            _show(reproduce.verdicts_document(reproduce.fill_tables(request, chosen, self.output)))
        else:
            filled = reproduce.reproduce_tables(
                request, chosen, self.output, app.tell, jobs=self.jobs, overwrite=self.overwrite
            )
            _show("\n".join(reproduce.document(table) for table in filled))
            if failed := reproduce.failures(filled):
                app.raise_failures(["cells that could not be made:", *failed])


def _show(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text)) if console.is_terminal else app.say(text, nl=False)
