"""Adaptation to a text without labels: an answer first, then a search for a better encoder.

The encoder as it comes is judged on the text. Where text and time allow, candidates are trained;
tasks made of held-out text, or labelled pairs, decide, and the start is what they have to beat.
"""

import json
import time
import timeit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from contrasent import evaluation, report
from contrasent.adaptation.rungs import (
    CANDIDATES,
    FIXED,
    GENERAL_PAIRS,
    NEEDS,
    TABLE,
    TRAIN,
    Ground,
    Rungs,
    require_settings,
    start_pooler,
    teacher_of,
)
from contrasent.adaptation.trials import Search, State, Trial
from contrasent.data import Rows, find_documents, keep_rows, n_words, open_examples, split_sentences
from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluation import FEWEST, HALVES, METRIC, NEARER, SOLVED, EncoderUse, Judgement
from contrasent.files import listed, read_json, remove_folder, write_json, write_text
from contrasent.model import MaskedLm, SentenceEncoder, is_sentence_encoder, load_encoder
from contrasent.options import AdaptOptions
from contrasent.recipe import load_recipe
from contrasent.report import Cell, Contents, Table
from contrasent.search import load_reranker
from contrasent.settings import EncoderSettings, EvaluationSettings, checked, refuse_unused, takes
from contrasent.training import BeforeAndAfter, dev_task, metric_name, score_result, start_encoder

RESULT, REPORT, _RUN, _PARTS = "result.json", "report.html", "run", ("dev", "held-out")
_HELD_OUT, _FEWEST_LINES = 500, 200
"""Lines that are enough to choose by, and as many to report on; and the least."""
_DEV_SHARE, _TEST_SHARE = 0.02, 0.12
"""Of the time, for one dev score and for the scores at the end."""
_JUDGED, _USUAL_WORDS, _JUDGED_AGAIN = 30, 2000, 0.1
"""Seconds that judging the start may take, where so many words are embedded in one; of the time,
for a start that stays, to be judged on more of the text."""
_MOST_WORDS, _LONGEST = 200_000, 256


@dataclass(frozen=True, slots=True)
class Text:
    """The text to adapt to."""

    described: str  # what it is
    documents: list[list[str]]  # texts; each a list of its sentences, or of the one line that it is
    in_documents: bool  # the sentences of a document stand one after the other

    @classmethod
    def read(cls, source: str, columns: Sequence[str] | None = None, **how: Any) -> "Text":
        """Read text, one per example, ``how`` as `open_examples`; line breaks become spaces."""
        examples = open_examples(source, columns, **how)
        if examples.views > 1:
            raise DataError(
                f"{source} has {examples.columns}; adapt takes text without labels, one sentence "
                "or text per example; for pairs there is 'contrasent train sup-simcse'"
            )
        layout = find_documents(examples)
        units = evaluation.units_of(examples, layout.lengths)
        texts = [[" ".join(text.split()) for (text,) in unit] for unit in units]
        counted = f"{sum(map(len, texts)):,} lines: {layout.why}"
        return cls(counted, texts, in_documents=layout.lengths is not None)

    def needs_met(self) -> set[str]:
        """The keys of :data:`NEEDS` that it meets."""
        if self.in_documents:
            return {"texts", "documents"}
        several = sum(len(split_sentences(line)) > 1 for (line,) in self.documents)
        return {"texts"} if 2 * several >= len(self.documents) else set()

    @property
    def max_tokens(self) -> int:
        """About the tokens of all but the longest tenth of its lines, from 32 to 128."""
        words = [*map(n_words, chain.from_iterable(self.documents))]
        return int(np.clip(1.4 * np.quantile(words, 0.9) + 2, 32, 128))

    @property
    def lines(self) -> int:
        """How many sentences or texts there are."""
        return sum(map(len, self.documents))

    def shuffled(self, seed: int) -> "Text":
        """Its different documents, in an order that the seed decides."""
        distinct = list(dict.fromkeys(map(tuple, self.documents)))
        order = np.random.default_rng(seed).permutation(len(distinct))
        return replace(self, documents=[list(distinct[k]) for k in order])

    def first(self, lines: int) -> "Text":
        """Its first documents, until they have so many lines or all of them."""
        ends = np.cumsum([len(document) for document in self.documents])
        return replace(self, documents=self.documents[: 1 + int(np.searchsorted(ends, lines))])

    def write(self, path: Path) -> str:
        """Write a sentence per line, with an empty line between documents; the name of the file."""
        texts = map("\n".join, self.documents)
        write_text(path, ("\n\n" if self.in_documents else "\n").join(texts) + "\n")
        return str(path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptation:
    """The answer to what is best on a text."""

    text: str  # what it is
    encoder: Path  # the best encoder, which is the start if nothing beat it
    recipe: Path | None = None  # makes it again; of a table, how it was fitted; None: the start
    judgement: Judgement | None  # the start on it; None if there is too little of it
    start_score: float | None = None  # the dev score of the start as it comes
    dev_metric: str = ""  # what the scores of trials are, such as ``spearman`` or ``mrr@10``
    trials: list[Trial] = field(default_factory=list)  # in the order in which they were made
    layers: int | None = None  # of the smaller encoder that was looked for; 0: a static table
    why: str = ""  # nothing was trained
    # start and result on text that had no part in the search; its gains say whether it helped
    scores: BeforeAndAfter = field(default_factory=BeforeAndAfter)
    trained: Judgement | None = None  # the result on held-out text, alone and with BM25
    report: Path  # a page with all of this
    seconds: float = 0.0

    @property
    def hybrid_weight(self) -> float | None:
        """The weight of BM25 beside the best encoder where that helps; None where it does not."""
        judged = self.judgement if self.recipe is None else self.trained
        return judged.weight if judged and judged.verdict in ("hybrid", "words") else None

    @property
    def outcome(self) -> Literal["trained", "both", "hybrid", "start"]:
        """What is best: a trained encoder, alone or in hybrid search, or the start, likewise."""
        if self.recipe is not None:
            return "trained" if self.hybrid_weight is None else "both"
        return "start" if self.hybrid_weight is None else "hybrid"

    @property
    def verdicts(self) -> set[str]:
        """Of the gains on this text and on ``test`` tasks; general pairs are no part of it."""
        return {gain.verdict for gain in self.scores.gains if gain.of != GENERAL_PAIRS.name}

    @property
    def sentences(self) -> list[str]:
        """The answer in words."""
        judged = self.judgement
        lines = [f"{self.text}.", *([judged.sentence] if judged else [])]
        tried = ", ".join(dict.fromkeys(it.candidate for it in self.trials))
        best = max(self.trials, key=lambda it: -1 if it.score is None else it.score, default=None)
        if best is None or self.why:
            lines.append(f"Nothing was trained: {self.why}.")
        elif self.recipe is not None:
            result = "a better encoder" if "helped" in self.verdicts else "one that may be better"
            result = f"an encoder of {self.layers} of its layers" if self.layers else result
            lines.append(f"Training found {result}, by {best.candidate}; tried: {tried}.")
        elif self.scores.gains:
            result = "is worse" if "hurt" in self.verdicts else "is not shown to be better"
            lines.append(f"The best of what was tried, {best.candidate}, {result} on other text.")
        else:
            lines.append(f"Nothing that was tried beat the encoder as it comes: {tried}.")
        if self.layers is None:
            lines += [gain.sentence for gain in self.scores.gains]
        else:
            lines += [f"Beside the whole encoder: {gain.change}." for gain in self.scores.gains]
        lines += [f"On held-out text: {self.trained.sentence}"] if self.trained else []
        if self.outcome == "hybrid":
            lines.append("Hybrid search is the answer, and it needs no training.")
        elif self.outcome == "start" and not (judged and judged.verdict in ("other", "words")):
            lines += ["Use the encoder as it comes. More text, more --minutes or --dev may help."]
        return lines

    @property
    def tables(self) -> list[Table]:
        """The start on the text, what was tried, and what came of it."""
        tables = report.judgement_tables(self.judgement)[:1] if self.judgement else []
        tables += [self._tried] * bool(self.trials)
        if self.scores.tasks is not None:
            tables += report.suite_tables(self.scores.tasks, self.scores.rows)
        return tables

    @property
    def _tried(self) -> Table:
        start, empty = self.start_score, Cell("")
        described = f"{self.layers} of its layers" if self.layers else "the encoder as it comes"
        rows = [(Cell("start"), Cell(described), empty, report.score(start), empty)]
        for it in self.trials:
            gain = None if it.score is None or start is None else it.score - start
            about = Cell(it.failure or CANDIDATES[it.candidate].description)
            reached = report.number(it.steps, 0), report.score(it.score)
            rows.append((Cell(it.candidate), about, *reached, report.score(gain, sign="+")))
        heading = f"dev {metric_name(self.dev_metric)}"
        headings = ("tried", "what it trains on", "steps", heading, "gain")
        return Table(
            headings, tuple(rows), title="What was tried", name="tried", texts=frozenset({1})
        )

    def write(self, folder: Path) -> None:
        """Write ``result.json`` and ``report.html``."""
        kept = asdict(replace(self, scores=BeforeAndAfter()))
        changes = [asdict(change) for change in self.scores.changes]
        answer = {"outcome": self.outcome, "hybrid_weight": self.hybrid_weight}
        content = {"sentences": self.sentences, **answer, **kept, "scores": changes}
        write_json(folder / RESULT, content, indent=1, ensure_ascii=False, default=str)
        judged = self.judgement
        contents = Contents(
            (*(judged.records if judged else ()), *self.scores.records),
            answer=tuple(self.sentences),
            tables=(self._tried,) if self.trials else (),
            queries=judged.queries if judged else (),
        )
        report.write_report(folder / REPORT, contents)


def _finish(rungs: Rungs, why: str) -> Adaptation:
    ground, folder, best = rungs.ground, rungs.search.folder, rungs.search.best
    kept = read_json(folder / RESULT)["judgement"]
    start, run = rungs.options.encoder, folder / _RUN
    result = Adaptation(
        text=ground.text,
        encoder=run / "best" if ground.depth else Path(start),
        judgement=kept and TypeAdapter(Judgement).validate_python(kept),
        start_score=ground.start_score,
        dev_metric=ground.dev_metric,
        trials=rungs.search.state.trials,
        layers=rungs.options.layers,
        why=why,
        report=folder / REPORT,
    )
    trained: Adaptation | None = None
    if ground.why == TABLE:
        trained = _scored(rungs, result, rungs.fit_table(result.encoder))
    if best and (ground.start_score is None or (best.score or 0.0) > ground.start_score):
        if (trial_run := rungs.search.run_of(best.number)).exists():
            remove_folder(run)
            trial_run.rename(run)
        trained = _scored(rungs, result, run / "recipe.yaml")
        result = replace(result, scores=trained.scores)
    rungs.save()  # what follows is no part of the search
    judged, left = result.judgement, 60 * rungs.options.minutes - ground.seconds_spent
    is_open = result.outcome == "start" and "helped" not in result.verdicts
    if _is_partial(judged) and is_open and not rungs.stopped and left > _JUDGED:
        use, words = _use(start, rungs.options.device), left * ground.words_a_second
        with suppress(KeyboardInterrupt):
            result = replace(result, judgement=_judge(use, rungs.options, words))
    if trained:
        worse = "hurt" in result.verdicts or (result.hybrid_weight and not trained.hybrid_weight)
        if best and worse and "helped" not in result.verdicts and result.layers is None:
            run.rename(rungs.search.run_of(best.number))
        else:
            result = replace(trained, judgement=result.judgement)
    if result.recipe is None and ground.depth and not result.encoder.exists():
        start_encoder(EncoderSettings(name=start, pooler=start_pooler(start))).save(result.encoder)
    result = replace(result, seconds=time.monotonic() - rungs.began)
    result.write(folder)
    return result


def _scored(rungs: Rungs, result: Adaptation, path: Path) -> Adaptation:
    """The answer if a run or a table is it, scored on text that had no part in the search."""
    whole: dict[str, Any] = {"encoder.layers": None}  # a smaller encoder is compared with it
    if is_table := result.layers == 0:
        start = rungs.options.encoder
        whole |= {"encoder.name": start, "encoder.pooler": start_pooler(start)}
    recipe = load_recipe("unsup-simcse" if is_table else path, whole)
    run_options = rungs.search.run_options
    scores = score_result(rungs.final_tasks(), recipe, result.encoder, False, **run_options)
    judged: Judgement | None = None
    if rungs.ground.tests:
        use = _use(str(result.encoder), rungs.options.device)
        held_out = rungs.search.folder / f"{_PARTS[-1]}.txt"
        how: dict[str, Any] = {"documents": rungs.ground.in_documents, "seconds": _JUDGED / 3}
        judged = evaluation.judge(use, held_out, **how)
    return replace(result, recipe=path, scores=scores, trained=judged)


def _use(name: str, device: str | None) -> EncoderUse:
    pooler = start_pooler(name)
    return EncoderUse.of(name, pooler=pooler, head="none" if pooler else None, device=device)


def _judge(use: EncoderUse, chosen: AdaptOptions, words: float) -> Judgement:
    return evaluation.judge(
        use,
        chosen.data,
        compare=[_use(it, chosen.device) for it in chosen.compare],
        columns=chosen.columns and [chosen.columns],
        documents=chosen.documents,
        clean=chosen.clean,
        seconds=words / _USUAL_WORDS / (1 + len(chosen.compare)),
    )


def _is_partial(judged: Judgement | None) -> bool:
    return judged is not None and judged.sampled < judged.facts.examples


def _open_kinds(judged: Judgement) -> list[list[str]]:
    """Kinds of unsolved tasks that decide; and halves, where only nearer kinds left them out."""
    scores = [it for it in judged.records if (it.encoder, it.metric) == (judged.encoder, METRIC)]
    kinds = {it.task: it.task.partition(" of ")[0] for it in scores if it.value < SOLVED}
    weaker = [it for it, why in judged.undecided.items() if why == NEARER]
    deciding = [kinds[it] for it in judged.deciding if it in kinds]
    return [deciding, [HALVES] if HALVES in map(kinds.get, weaker) else []]


def _make_tasks(part: Text, folder: Path, name: str, kinds: Sequence[str]) -> list[str]:
    """Write the tasks of some kinds that a part of the text makes, in BEIR's form; their names."""
    if not part.documents:
        return []
    examples = open_examples(part.write(folder / f"{name}.txt"), documents=part.in_documents)
    lengths = map(len, part.documents) if part.in_documents else None
    names = list[str]()
    sample = evaluation.sample_texts(examples, lengths, part.lines, _MOST_WORDS, _LONGEST)
    for task in evaluation.text_tasks(sample)[0]:
        kind = task.name.name.partition(" of ")[0]
        if kind not in kinds:
            continue
        names.append(f"{name}-{kind}")
        # A query that is a text has its number, by which it does not find itself.
        ids = [f"q{n}" if row is None else f"d{row}" for n, row in enumerate(task.left_out)]
        corpus = [(f"d{row}", text) for row, text in enumerate(task.corpus)]
        for file, rows in (("corpus", corpus), ("queries", zip(ids, task.queries, strict=True))):
            lines = (json.dumps({"_id": n, "text": text}, ensure_ascii=False) for n, text in rows)
            write_text(folder / names[-1] / f"{file}.jsonl", "\n".join(lines) + "\n")
        pairs = zip(ids, task.relevant, strict=True)
        judged = [f"{n}\td{row}\t1\n" for n, rows in pairs for row in rows]
        head = "query-id\tcorpus-id\tscore\n"
        write_text(folder / names[-1] / "qrels.tsv", head + "".join(judged))
    return names


def _hold_out(
    text: Text, sizes: Sequence[int], folder: Path, kinds: Sequence[Sequence[str]]
) -> tuple[list[list[str]], Text]:
    """Hold out lines twice, or as many as make tasks: the tasks of each part, and the rest."""
    documents, of_part, most = text.documents, list[list[str]](), len(text.documents) // 5
    for name, size in zip(_PARTS, sizes, strict=True):
        tasks, part = list[str](), replace(text, documents=documents[:0])
        for wanted in kinds:
            lines = min(size, text.lines // 10)
            while lines and not tasks:
                part = replace(text, documents=documents[:most]).first(lines)
                tasks = _make_tasks(part, folder, name, wanted)
                lines = 2 * lines if wanted and lines <= part.lines else 0
        of_part.append(tasks)
        documents = documents[len(part.documents) :]
    return of_part, replace(text, documents=documents)


def _seconds_of(encoder: Any, sample: Sequence[str]) -> float:
    return min(timeit.repeat(lambda: encoder.encode(sample), number=1, repeat=3))


def _prepare(folder: Path, chosen: AdaptOptions) -> Ground:
    """Judge the start and write the answer so far; the parts of the text, and tasks of them."""
    for tasks in filter(None, (listed(chosen.dev or ""), chosen.test)):
        evaluation.raise_problems(evaluation.load_suite(tasks).problems)
    if chosen.dev:
        dev_task(EvaluationSettings(task=chosen.dev))
    columns = chosen.columns and [chosen.columns]
    text = Text.read(chosen.data, columns, documents=chosen.documents, clean=chosen.clean)
    ground = Ground(f"{chosen.data} has {text.described}", text.in_documents)
    budget = 60 * chosen.minutes
    use = _use(chosen.encoder, chosen.device)
    start: Any = use.encoder
    if isinstance(start, SentenceEncoder) and getattr(start.transform, "is_trained", True):
        layers, depth = chosen.layers, start.backbone.depth
        if layers is not None and layers >= depth:
            raise ConfigError(f"--layers is {layers}, but {start.name} has {depth}; ask for fewer")
        ground.depth = layers or depth
    else:
        ground.why = f"{chosen.encoder} is no transformer, or ends with a fitted map"
    shuffled = text.shuffled(chosen.seed)
    sample = list(islice(chain.from_iterable(shuffled.documents), 64))
    slowest = took = _seconds_of(start, sample)
    if teacher := teacher_of(chosen):
        slowest = max(took, _seconds_of(load_encoder(teacher, device=chosen.device), sample))
    ground.words_a_second = sum(map(n_words, sample)) / took
    judged: Judgement | None = None
    with suppress(DataError):  # there is too little
        judged_for = min(max(0.3 * budget, _JUDGED / 3), _JUDGED)
        judged = _judge(use, chosen, judged_for * ground.words_a_second)
    kinds = _open_kinds(judged) if judged else [[]]
    # A line of a part is in about two texts of each kind of task.
    of_line = 2 * max(1, len(kinds[0])) * took / len(sample)
    lines = np.array([_DEV_SHARE, _TEST_SHARE / 2]) * budget / of_line
    dev, test = np.clip(lines, _FEWEST_LINES, _HELD_OUT).astype(int).tolist()
    sizes = [0 if chosen.dev else dev, test]
    (ground.dev, ground.tests), rest = _hold_out(shuffled, sizes, folder, kinds)
    if not (ground.why or chosen.dev or (ground.dev and ground.tests)):
        ground.why = "no task that can be made of the text tells encoders apart"
        if any(kinds) or judged is None:
            few = f"to make tasks of {FEWEST} queries"
            ground.why = f"a fifth of {text.lines:,} lines is too little {few} to choose by"
    trained = rest if ground.tests else shuffled
    trained = trained.first(max(_HELD_OUT, int(budget * len(sample) / (6 * slowest))))
    trained.write(folder / TRAIN)
    ground.lines = trained.lines
    ground.max_tokens = min(trained.max_tokens, start.max_tokens or trained.max_tokens)
    met = {"", *trained.needs_met(), *["teacher"] * bool(teacher)}
    met |= {"lists"} if chosen.reranker or chosen.teacher else set()
    met |= {"peft"} if find_spec("peft") is not None else set()
    if not (ground.why or is_sentence_encoder(chosen.encoder)):
        with suppress(CheckpointError):  # it may have no head, or not the whole of it
            MaskedLm.load(chosen.encoder)
            met.add("masked_lm")
    names = list(chosen.candidates or ())
    ground.why = ground.why or TABLE * (chosen.layers == 0)
    ground.final_seconds = _JUDGED_AGAIN * budget * _is_partial(judged)
    for name in names if not ground.why else ():
        if (needs := CANDIDATES[name].needs) not in met:
            raise ConfigError(f"the candidate {name} needs {NEEDS[needs]}; leave it out")
    ground.candidates = names or [name for name, it in CANDIDATES.items() if it.needs in met]
    answer = Adaptation(
        text=ground.text,
        encoder=Path(chosen.encoder),
        judgement=judged,
        why=ground.why or "the search has not ended, --resume goes on",
        report=chosen.output / REPORT,
    )
    answer.write(folder)
    return ground


@takes(AdaptOptions)
def adapt(
    encoder: str | Path,
    *,
    data: str | Path | Rows,
    settings: Mapping[str, Any] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Adaptation:
    """Tell how good an encoder is for a text, and search for a better one, in a given time.

    The folder gets ``result.json`` and ``report.html`` with the answer so far, 10 to 30 seconds
    after text and encoders are read; then ``run`` with the best encoder and ``recipe.yaml`` that
    makes it again, ``search.json`` with every trial, and the parts of the text. Ctrl-C ends the
    search with what was found so far.

    Args:
        encoder: the start: a folder, a run or a Hugging Face id.
        data: text without labels: a file or data set as ``--data`` takes it, or strings. Sentences
            or longer texts; of a ``.txt`` an empty line ends a document.
        settings: of every candidate's recipe, by dotted name; not those that the search sets. A
            candidate that sets or lacks one fails.
        show_progress: progress bars on standard error.
        **options: by name.

    Raises:
        ConfigError: no such candidate or task, or a candidate that does not fit; ``output`` holds
            another search or another process's.
        CheckpointError: the encoder cannot be loaded.
        DataError: a file is missing or damaged, or holds no text.

    Example:
        >>> import contrasent
        >>> result = contrasent.adapt("runs/mine", data="tickets.txt", minutes=9)  # doctest: +SKIP
        >>> [gain.verdict for gain in result.scores.gains]  # doctest: +SKIP
    """
    source = str(data if isinstance(data, str | Path) else keep_rows(data))
    chosen = checked(AdaptOptions, {"encoder": str(encoder), "data": source, **options})
    began = time.monotonic()
    asked = [CANDIDATES[pick("candidate", it, CANDIDATES)] for it in chosen.candidates or ()]
    if asked and not {it.needs for it in asked} & {"teacher", "lists"}:
        refuse_unused(chosen, ("teacher", "reranker"), f"{asked[0].name} follows no teacher")
    overrides = json.loads(json.dumps(dict(settings or {}), default=str))  # as the state keeps it
    for key in overrides if chosen.layers == 0 else FIXED.keys() & overrides.keys():
        remedy = FIXED.get(key, "--layers above 0")
        raise ConfigError(f"the search itself sets {key}; give {remedy} instead")
    if chosen.layers == 0:
        refuse_unused(chosen, ("candidates", "reranker"), "a static table is fitted alone")
    require_settings(asked, overrides)
    if chosen.reranker:
        load_reranker(chosen.reranker, chosen.device)
    free = ("output", "device", "minutes", "resume", "overwrite", "test")
    request = {k: v for k, v in vars(chosen).items() if k not in free} | {"settings": overrides}
    run_options = {"device": chosen.device, "show_progress": show_progress}

    def prepare(state: State, folder: Path) -> None:
        ground = _prepare(folder, chosen)
        ground.seconds_spent = time.monotonic() - began
        state.ground = asdict(ground)

    once = {"resume": chosen.resume, "overwrite": chosen.overwrite}
    with Search.opened(chosen.output, request, prepare, run_options, **once) as search:
        rungs = Rungs(search, chosen, overrides)
        return _finish(rungs, rungs.run())
