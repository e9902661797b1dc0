"""``contrasent encode``, ``similarity``, ``index``, ``search``, ``duplicates``, ``cluster``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, StringConstraints

from contrasent import data, encode, evaluation, model, options, report, search
from contrasent.cli.app import AsHtml, AsJson, load, print_json, say, tell, write_html
from contrasent.errors import ConfigError, warn
from contrasent.files import refuse_existing_file
from contrasent.progress import one_line
from contrasent.settings import ARGUMENT, Spelling, refuse_unused, settings, shared

_SHOWN, _LONGEST = 20, 256  # bytes of a file's name


@settings
class EncodeCommand(
    options.Sharding,
    options.Named,
    options.Loading,
    options.InPrecision,
    options.TextColumn,
    options.Replacing,
):
    """Write the embedding of every sentence to a file; safe to run again after an interruption."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one sentence per row, the URL of a Parquet file or of a folder of
    them, as s3://bucket/folder; - reads standard input. Blank lines have no row in OUTPUT."""

    output: Annotated[Path, ARGUMENT]
    """.npy: a matrix; .parquet: columns text, embedding; with --shards a folder."""

    workers: PositiveInt = 1
    """Processes that share the work; on GPUs, one for each."""

    shard: Annotated[
        Annotated[str, StringConstraints(pattern=r"^[1-9]\d*/[1-9]\d*$")] | None,
        Spelling(metavar="I/N"),
    ] = None
    """Be worker I of N, all with the same INPUT and OUTPUT, on any machines; the command without
    it then makes OUTPUT."""

    def __call__(self) -> None:
        encode.end_with_parent()
        starts, share, problem = self.workers > 1, None, ""
        if self.shard is not None:
            number, count = map(int, self.shard.split("/"))
            share = number, count
            if number > count:
                problem = f"--shard {self.shard}: workers are 1/{count} to {count}/{count}"
        joins = starts or share is not None
        if joins and ((starts and share) or self.source == "-" or self.overwrite):
            problem = (
                "workers share a file and what is written of OUTPUT: give --workers or --shard, a "
                "file in place of -, and remove OUTPUT and its shards in place of --overwrite"
            )
        if self.role and self.prompt_name in {*model.ROLES} - {self.role}:
            problem = f"--role {self.role} and --prompt-name {self.prompt_name}: leave one out"
        if problem:
            raise ConfigError(problem)
        encode.require_output(self.output, self, self.overwrite, shared=joins)
        encode.keep_few_compiled_products()
        with encode.open_sentences(self.source, self.columns) as sentences:
            _announce(sentences, "sentences")
            encoder = load(self, self.model)
            others = partial(self._run_workers, encoder) if starts else None
            how: dict[str, Any] = {"worker": share, "run_others": others}
            how |= {"overwrite": self.overwrite, "show_progress": not starts}
            written = encode.write_embeddings(encoder, sentences, self.output, self, **how)
        if written.resumed:
            tell(f"{written.resumed} rows came from shards of an earlier run")
        if written.truncated:
            limit = encoder.limit(self.role)
            tell(f"{written.truncated} sentences were longer than {limit} tokens and cut")
        new = written.rows - written.resumed
        rate = f", {new / written.seconds:.0f} sentences/s" if new else ""
        line = f"{written.rows} rows of {written.width} dimensions{rate}"
        if share:
            line += f"; {written.missing} shards are missing, and then the command without --shard"
        tell(f"{self.output}: {line}")

    def _run_workers(self, encoder: model.LoadedEncoder) -> None:
        import torch

        device = getattr(encoder, "device", torch.device("cpu"))
        devices = torch.cuda.device_count() if device.type == "cuda" else 0
        encode.run_processes(worker_commands(sys.argv[1:], self.workers), devices)


def worker_commands(words: Sequence[str], count: int) -> list[list[str]]:
    """The command ``words`` for each of ``count`` workers, in place of ``--workers``."""
    others = [it for on, it in pairwise(["", *words]) if "--workers" not in (on, *it.split("="))]
    command = [sys.executable, "-m", "contrasent", *others, "--shard"]
    return [[*command, f"{number}/{count}"] for number in range(1, count + 1)]


@settings
class SimilarityCommand(options.Named, options.Measuring, AsJson):
    """Print the cosine of two texts, or the similarity that the encoder states."""

    text_a: Annotated[str, ARGUMENT]
    """A text."""

    text_b: Annotated[str, ARGUMENT]
    """Another text."""

    def __call__(self) -> None:
        from contrasent.metrics import pair_similarities

        encoder = load(self, self.model)
        used = encoder.resolve_precision(self.precision_name)
        rows = encoder.encode(_texts([self.text_a, self.text_b]), precision=used)
        similarity = model.similarity_of(encoder)
        [score] = pair_similarities(similarity, rows[:1], rows[1:]).tolist()
        score = min(score, 1.0) if similarity == "cosine" else score
        if not self.json:
            say(f"{score:.4f}")
            return
        known = {similarity: score, "model": self.model, "pooler": encoder.pooler}
        known |= {"head": encoder.head_name, "engine": encoder.engine, "precision": used}
        print_json(known | {"fingerprint": encoder.fingerprint()})


@settings
class BuildCommand(options.Named, options.IndexedText, options.Loading, options.IndexOptions):
    """Embed texts and write an index."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one text per row; - reads lines of standard input; or a folder by
    'encode --shards parquet' with the same MODEL, whose vectors are taken."""

    index: Annotated[Path, ARGUMENT]
    """The folder of the new index."""

    weight: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of words in hybrid search, which is then not measured."""

    def __call__(self) -> None:
        building: dict[str, Any] = shared(self, options.IndexOptions) | {"show_progress": True}
        if not self.words:
            refuse_unused(self, ["weight"], "--no-words has none to weigh")
        if Path(self.source).is_dir():
            of_text = [*shared(self, options.IndexedText), "precision"]
            refuse_unused(self, of_text, f"{self.source} holds vectors")
            shards = encode.FinishedShards.open(self.source)
            encoder = load(self, self.model)
            built = search.Index.build(encoder, shards, self.index, **building)
        else:
            how = shared(self, options.IndexedText)
            with encode.open_sentences(self.source, **how) as sentences:
                search.kind_for(_announce(sentences), self.kind, vectors=self.vectors)
                building |= {"metadata": search.metadata_of(sentences), "ids": sentences.ids()}
                encoder = load(self, self.model)
                built = search.Index.build(encoder, sentences, self.index, **building)
        _report(built, encoder, self.weight)


def _tell_fusion(words: search.WordsInfo) -> None:
    why = "as given" if words.chosen_by == "weight" else "the texts cannot tell"
    if words.queries:
        gain, low, high = (f"{100 * it:+.1f}" for it in (words.gain, words.low, words.high))
        why = f"{gain} [{low}, {high}] nDCG@10 over vectors alone"
    mode = f"hybrid, weight {words.weight:g}" if words.hybrid else "dense"
    tell(f"searches are {mode} unless --mode says otherwise ({why})")


def _report(index: search.Index, encoder: Any = None, weight: float | None = None) -> None:
    ann, width = index.manifest.ann, index.manifest.encoder.width
    recall, kept = "" if ann is None else f" (recall@10 {ann.recall:.3f})", index.manifest.vectors
    beside = f"; metadata: {', '.join(index.manifest.columns)}" if index.manifest.columns else ""
    tell(f"{index.folder}: {len(index)} texts of {width} dimensions, {index.kind}{recall}{beside}")
    if kept.form != "float32":
        tell(f"{kept.form} vectors: recall@10 {kept.recall:.3f} of float32 ones, when it was built")
    if encoder is not None and index.manifest.words is not None:
        _tell_fusion(evaluation.tune_index(index, encoder, weight=weight))


@settings
class OfIndex:
    """The index of a command."""

    index: Annotated[Path, ARGUMENT]
    """A folder made by: contrasent index build"""


@settings
class AddCommand(OfIndex, options.IndexedText, options.MovedEncoder):
    """Embed more texts and append them to an index."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one text per row; - reads lines of standard input."""

    def __call__(self) -> None:
        opened = search.Index.open(self.index)
        with encode.open_sentences(self.source, **shared(self, options.IndexedText)) as sentences:
            _announce(sentences)
            before, loaded = len(opened), opened.encoder(self.encoder, self.device)
            how: dict[str, Any] = {"metadata": search.metadata_of(sentences)}
            opened.add(loaded, sentences, sentences.ids(), show_progress=True, **how)
        tell(f"{self.index}: {len(opened)} texts, {len(opened) - before} of them new")


@settings
class SyncCommand(OfIndex, options.SyncOptions, options.MovedEncoder):
    """Let an index follow files: embed what is new or changed, and remove what disappeared."""

    paths: Annotated[list[str], ARGUMENT]
    """Files and folders of text, Markdown, HTML, JSON lines, Parquet, CSV and TSV."""

    encoder: str | None = None
    """The encoder of a new index; or where that of the index is, if it has moved."""

    def __call__(self) -> None:
        how = shared(self, options.SyncOptions) | {"device": self.device, "show_progress": True}
        work = search.sync_index(self.index, self.paths, self.encoder, **how)
        counts = f"{work.files} files, {work.changed} new or changed, {work.removed} removed"
        tell(f"{self.index}: {counts}; {work.passages} passages written, {work.embedded} embedded")


@settings
class RemoveCommand(OfIndex):
    """Remove texts from an index, all of them or none."""

    ids: Annotated[list[str], ARGUMENT]
    """Ids of texts, or - for lines of standard input."""

    missing_ok: bool = False
    """Pass over ids that are not in the index."""

    def __call__(self) -> None:
        opened = search.Index.open(self.index)
        removed = opened.remove(_lines(self.ids), missing_ok=self.missing_ok)
        tell(f"{self.index}: {len(opened)} texts, {removed} removed")


@settings
class OptimizeCommand(OfIndex):
    """Free the room of removed texts, and cover added ones by the index's kind of search."""

    kind: Annotated[str | None, Spelling(of=options.IndexOptions, end="Else as before.")] = None

    def __call__(self) -> None:
        opened = search.Index.open(self.index)
        opened.optimize(self.kind, show_progress=True)
        _report(opened)


@settings
class ReembedCommand(OfIndex, options.Loading, options.InPrecision):
    """Embed all texts of an index by another encoder, and replace the index when that is done."""

    encoder: str
    """The new encoder: a folder, a training run or a Hugging Face id."""

    def __call__(self) -> None:
        opened, encoder = search.Index.open(self.index), load(self, self.encoder)
        opened.reembed(encoder, precision=self.precision, show_progress=True)
        _report(opened, encoder)


@settings
class TuneIndexCommand(OfIndex, options.MovedEncoder):
    """Choose the weight of words in hybrid search, and if it is better than vectors alone."""

    queries: str | None = None
    """A file of queries, each with the id of a text that it is to find; else tasks are made of the
    texts of the index."""

    weight: Annotated[float | None, Spelling(of=BuildCommand)] = None

    def __call__(self) -> None:
        index = search.Index.open(self.index)
        loaded = None if self.weight is not None else index.encoder(self.encoder, self.device)
        _tell_fusion(evaluation.tune_index(index, loaded, queries=self.queries, weight=self.weight))


@settings
class InfoCommand(OfIndex):
    """Say as JSON what an index holds, and which encoder made it."""

    def __call__(self) -> None:
        print_json(search.Index.open(self.index).facts(), indent=2)


def _announce(sentences: encode.Sentences, what: str = "texts") -> int:
    for line in sentences.summary(what):
        tell(line)
    return sentences.count()


def _texts(words: list[str]) -> list[str]:
    for word in words:
        if not word.strip() or (len(os.fsencode(word)) < _LONGEST and Path(word).is_file()):
            warn(f"{word!r} is taken as a text, though it is blank or the name of a file")
    return _lines(words)


def _lines(words: list[str]) -> list[str]:
    if words != ["-"]:
        return words
    with encode.open_sentences("-") as sentences:
        return list(sentences)


@settings
class SearchCommand(OfIndex, options.MovedEncoder, options.SearchOptions, AsJson):
    """Print the texts of an index that are nearest to a query, or to each of several."""

    query: Annotated[list[str], ARGUMENT]
    """Texts to look for, or - for lines of standard input."""

    def __call__(self) -> None:
        queries = _texts(self.query)
        opened = search.Index.open(self.index)
        encoder = None if self.mode == "words" else opened.encoder(self.encoder, self.device)
        results = opened.search(encoder, queries, **shared(self, options.SearchOptions))
        several = len(queries) > 1
        for number, (text, hits) in enumerate(zip(queries, results, strict=True)):
            if several and not self.json:
                say(f"{chr(10) if number else ''}{one_line(text)}")
            for rank, hit in enumerate(hits, 1):
                if self.json:
                    row: dict[str, Any] = {"query": text} if several else {}
                    print_json(row | {"rank": rank} | hit.known)
                else:
                    say(f"{rank:>4} {hit.score:>7.4f}  {one_line(hit.id)}  {one_line(hit.text)}")
            if not hits and not self.json:
                say("no hit")


@settings
class Grouping(AsJson, options.Replacing):
    """Texts, of which a command makes groups."""

    source: Annotated[str, Spelling(argument=True, metavar="TEXT")]
    """A file or data set with one text per row; - reads lines of standard input; or the folder of
    an index, whose vectors are taken."""

    groups: Path | None = None
    """Write the groups, a row for each of their texts: .csv, .tsv or .jsonl."""

    def require_outputs(self, output: Path | None = None) -> None:
        """Refuse files that cannot be written, before the work."""
        for file, columns in ((self.groups, 2), (output, 1)):
            if file is not None:
                data.build.require_output(file, self.overwrite, columns)

    def show(self, groups: search.Groups) -> None:
        """Write and print groups."""
        facts = groups.facts()
        members = [(group["name"], group["texts"]) for group in facts["groups"]]
        if self.groups is not None:
            numbered = enumerate(members)
            cells = ((n, name, *it.values()) for n, (name, group) in numbered for it in group)
            data.build.write_rows(self.groups, ("group", "name", "similarity", "id", "text"), cells)
        if self.json:
            print_json(facts, indent=2)
            return
        tell(groups.source)
        say(f"{len(members):,} groups: {groups.chosen}")
        for name, group in members[:_SHOWN]:
            say(f"{len(group):>7,}  {one_line(name)}")
            others = group[1:] if group[0]["text"] == name else group
            for it in others[:3]:
                say(f"{it['similarity']:>16.4f}  {one_line(it['text'])}")


@settings
class DuplicatesTextCommand(options.DuplicatesOptions, Grouping):
    """Find texts that repeat others, by their letters or by an encoder, and leave them out."""

    output: Path | None = None
    """Write the text with one of each group: .txt, .csv, .tsv or .jsonl."""

    def __call__(self) -> None:
        self.require_outputs(self.output)
        asked = shared(self, options.DuplicatesOptions)
        groups = search.duplicates(self.source, show_progress=True, **asked)
        if self.output is not None:
            left_out = {row for rows in groups.groups for row in rows[1:]}
            kept = ((text,) for row, text in enumerate(groups.texts) if row not in left_out)
            data.build.write_rows(self.output, ("text",), kept)
        self.show(groups)


@settings
class ClusterCommand(options.ClusterOptions, Grouping, AsHtml):
    """Divide texts into clusters, and name each by its words."""

    def __call__(self) -> None:
        refuse_existing_file(self.html, overwrite=self.overwrite)
        self.require_outputs()
        asked = shared(self, options.ClusterOptions)
        groups = search.cluster(self.source, show_progress=True, **asked)
        write_html(self.html, report.Contents(clusters=groups))
        self.show(groups)
