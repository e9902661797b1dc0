"""The Python surface: training, fitting, evaluation and analysis as functions.

The command line calls what these functions call; `contrasent` exports them by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from contrasent.errors import ConfigError, DataError, pick, warn
from contrasent.options import (
    AnalysisOptions,
    EvaluationOptions,
    FoundText,
    Loading,
    MapOptions,
    Measuring,
    PretrainOptions,
    RunOptions,
    SearchOptions,
    TrainingOptions,
    TuneOptions,
)
from contrasent.recipe import fields_of
from contrasent.settings import checked, shared, takes

if TYPE_CHECKING:
    from contrasent.adaptation.trials import Trial, Tuning
    from contrasent.data.examples import Rows
    from contrasent.evaluation.embed import DescribedEncoder, EncoderUse
    from contrasent.evaluation.geometry import Geometry
    from contrasent.evaluation.judgement import Judgement
    from contrasent.evaluation.suite import Suite
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.protocol import Encoder
    from contrasent.objectives import Objective
    from contrasent.recipe import Recipe
    from contrasent.report.scores_table import Records
    from contrasent.search.index import Index
    from contrasent.search.storage import WordsInfo
    from contrasent.training.callbacks import DevScore
    from contrasent.training.loop import StepMetrics
    from contrasent.training.run import Result

Given = TypeVar("Given", bound=RunOptions)

_SETTINGS = {"encoder": "encoder.name", "data": "data.file", "columns": "data.columns"} | {
    name: f"train.{name}"
    for name in ("batch_size", "epochs", "max_steps", "learning_rate", "precision", "seed")
}
"""The settings of a recipe that have an option of their own, by its name."""


def recipe_with(
    recipe: str | Path | Recipe, given: Mapping[str, Any], cls: type[Given]
) -> tuple[Recipe, Given]:
    """A recipe with what is given, as options of ``cls`` or by dotted name, and the options.

    ConfigError if a setting is given both ways.
    """
    from contrasent.recipe import load_recipe

    settings = {name: value for name, value in given.items() if "." in name}
    named = {name: value for name, value in given.items() if "." not in name}
    options = checked(cls, named)
    for name, key in _SETTINGS.items():
        value = getattr(options, name, None)
        if value is not None and key in settings:
            raise ConfigError(
                f"{name} {value} and {key} {settings[key]} are the same setting; give one of them"
            )
        if value is not None:
            settings[key] = value
    return load_recipe(recipe, settings), options


@takes(TrainingOptions)
def train(
    recipe: str | Path | Recipe = "unsup-simcse",
    *,
    data: str | Path | Rows | Mapping[str, Any] | None = None,
    objective: str | type[Objective] | None = None,
    show_progress: bool = False,
    on_step: Callable[[StepMetrics], object] | None = None,
    on_evaluation: Callable[[DevScore], object] | None = None,
    **settings: Any,
) -> Result | None:
    """Train a sentence encoder, as ``contrasent train`` does.

    Args:
        recipe: a packaged recipe (``contrasent recipes`` lists them), a YAML file, or what
            `load_recipe` made.
        data: a file or data set as ``--data`` takes it, or examples, kept in the cache: strings,
            pairs, triplets, or dicts with the column names of a file (``datasets.Dataset``); or
            several sources by name, each of these or a mapping as ``data.file`` takes.
        objective: another objective than the recipe's: its name, or a class of your own.
        show_progress: a progress bar on standard error.
        on_step: called with the metrics of every step, in order, soon after it.
        on_evaluation: called with the dev score of every evaluation.
        **settings: settings by dotted name: ``**{"train.warmup_steps": 32}``.

    Returns:
        Folders of the ``best`` and ``last`` encoder, dev score, and records before and after; None
        if ``resume`` finds the run complete.

    Example:
        >>> run = contrasent.train(
        ...     "unsup-simcse", encoder="bert-base-uncased", data="sentences.txt",
        ...     output="runs/mine", batch_size=32,
        ... )  # doctest: +SKIP
        >>> contrasent.SentenceEncoder.load(run.best or run.last)  # doctest: +SKIP
    """
    if isinstance(objective, str):
        settings["objective.name"] = objective
    elif objective is not None:
        from contrasent.objectives import name_of

        settings["objective.name"] = name_of(objective)
    if isinstance(data, str | Path):
        settings["data"] = data
    loaded, options = recipe_with(recipe, settings, TrainingOptions)
    output = options.output or Path("runs") / _stem(recipe)
    check_run(loaded, output, resume=options.resume, overwrite=options.overwrite)
    from contrasent.training import run

    return run.train(
        loaded,
        output,
        data=None if isinstance(data, str | Path) else data,
        resume=options.resume,
        overwrite=options.overwrite,
        device=options.device,
        show_progress=show_progress,
        on_step=on_step,
        on_evaluation=on_evaluation,
    )


def check_run(recipe: Recipe, output: Path, *, resume: bool, overwrite: bool) -> None:
    """Look at the folder of a run and the file of its text before anything heavy is imported."""
    from contrasent.data.readers import TEXT_KINDS, source_kind
    from contrasent.training.run_folder import RunFolder

    if os.environ.get("RANK", "0") == "0":  # of several processes the first one looks
        folder = RunFolder(output)
        folder.check_place(resume=resume, overwrite=overwrite)
        for source in () if resume and folder.is_complete else recipe.data.sources.values():
            source_kind(source.file, TEXT_KINDS)


def _stem(recipe: str | Path | Recipe) -> str:
    """The name of a run's folder where none is given."""
    return Path(recipe).stem if isinstance(recipe, str | Path) else str(recipe.objective["name"])


@takes(TuneOptions)
def tune(
    recipe: str | Path | Recipe,
    space: Sequence[str],
    *,
    show_progress: bool = False,
    on_trial: Callable[[Trial], object] = lambda _: None,
    **settings: Any,
) -> Tuning:
    """Search settings of a recipe by the dev task alone, as ``contrasent tune`` does.

    Args:
        recipe: as `train` takes it.
        space: what to search: ``train.batch_size=64,128``, ``train.learning_rate=1e-6..1e-4:log``,
            or the grid of a paper, ``simcse`` or ``diffcse``.
        show_progress: a progress bar on standard error.
        on_trial: called with every trial that has ended.
        **settings: of every trial, by dotted name.

    Example:
        >>> contrasent.tune(
        ...     "unsup-simcse", ["train.learning_rate=1e-5,3e-5"], encoder="bert-base-uncased",
        ...     data="sentences.txt",
        ... ).best.settings  # doctest: +SKIP
    """
    from contrasent.adaptation import trials

    loaded, options = recipe_with(recipe, {"space": space, **settings}, TuneOptions)
    return trials.tune(
        loaded,
        trials.read_space(options.space),
        options.output or Path("runs") / f"tune-{_stem(recipe)}",
        trials=options.trials,
        resume=options.resume,
        overwrite=options.overwrite,
        device=options.device,
        show_progress=show_progress,
        on_trial=on_trial,
    )


@takes(PretrainOptions)
def pretrain(
    encoder: str | Path,
    *,
    data: str | Path | Rows | Mapping[str, Any] | None = None,
    from_scratch: bool = False,
    **options: Any,
) -> Result | None:
    """Train a masked language model on text, as ``contrasent pretrain`` does.

    It serves as a start adapted to a domain or language, and as DiffCSE's generator (Devlin et
    al. 2019, section 3.1).

    Args:
        encoder: the start: a folder, a run or a Hugging Face id.
        data: text as `train` takes it.
        from_scratch: begin with random weights in the shape that ``encoder``'s ``config.json`` has,
            and with its tokenizer or one learned from ``data``; ``output`` gets ``start`` and
            ``run``.
        **options: as `train` takes them, but for the recipe; ``output`` is
            ``runs/pretrain-mlm`` by default.

    Example:
        >>> contrasent.pretrain("bert-base-uncased", data="text.txt")  # doctest: +SKIP
    """
    if from_scratch:
        from contrasent.data.examples import keep_data, open_examples
        from contrasent.files import exclusive
        from contrasent.model.weights import save_random

        if data is not None and not isinstance(data, str | Path):
            options["data.file"], data = keep_data(data), None
        fields = fields_of(PretrainOptions)
        named = {name: it for name, it in options.items() if "." in name or name in fields}
        recipe, given = recipe_with("pretrain-mlm", {**named, "data": data}, PretrainOptions)
        output = given.output or Path("runs/pretrain-mlm")
        start, options["output"] = output / "start", output / "run"
        keep = {"resume": given.resume, "overwrite": given.overwrite}
        check_run(recipe, options["output"], **keep)
        if start.exists() and not any(keep.values()):
            raise ConfigError(f"{start} is there: --resume goes on, --overwrite begins anew")
        if not (start.exists() and given.resume):
            sources = recipe.data.sources.values()
            opened = [open_examples(source.file, source.columns) for source in sources]
            if not opened:
                raise ConfigError("name the training text with --data")
            texts = (first for examples in opened for first, *_ in examples)
            with exclusive(output):
                save_random(encoder, texts, start, recipe.train.seed)
        encoder = start
    return train("pretrain-mlm", encoder=encoder, data=data, **options)


@takes(MapOptions)
def fit(
    encoder: str | Path | SentenceEncoder,
    kind: str = "whitening",
    *,
    data: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    show_progress: bool = False,
    **settings: Any,
) -> SentenceEncoder:
    """Fit a map on the embeddings of text, as ``contrasent fit`` does.

    Args:
        encoder: the encoder, which stays as it is if it is named, and gets the map if it is given.
        kind: ``whitening`` (Su et al. 2021) or ``flow`` (Li et al. 2020, BERT-flow).
        data: text files or data sets, or tasks such as ``stsb``, whose test text is seen then.
        output: a new folder to save the encoder with its map in.
        show_progress: a progress bar on standard error.
        **settings: ``dimensions`` of whitening; of a flow, the fields of
            `contrasent.settings.FlowSettings`.

    Returns:
        The encoder with its map; encoding is in fp32 by default then, as a map amplifies rounding.

    Example:
        >>> encoder = contrasent.fit("runs/mine", data="sentences.txt")  # doctest: +SKIP
    """
    from contrasent.fitting import FITTERS, fitting_text, save_fitted
    from contrasent.model.encoder import SentenceEncoder

    fitter = FITTERS[pick("map", kind, FITTERS)]
    known = fields_of(MapOptions)
    options = checked(MapOptions, {k: settings.pop(k) for k in list(settings) if k in known})
    chosen = fitter.read(settings)
    text = fitting_text(data, output, options.columns, options.data_dir)
    if not isinstance(encoder, SentenceEncoder):
        encoder = SentenceEncoder.load(
            encoder, pooler=options.pooler, head=options.head, device=options.device
        )
    info = fitter.fit(
        encoder,
        text,
        chosen,
        precision=options.precision,
        max_tokens=options.max_tokens,
        show_progress=show_progress,
    )
    if output is not None:
        save_fitted(encoder, info, Path(output))
    return encoder


def tune_index(
    index: Index | str | Path,
    encoder: Encoder | None = None,
    *,
    queries: str | Path | Iterable[tuple[str, str]] | None = None,
    weight: float | None = None,
) -> WordsInfo:
    """Choose the weight of BM25 in hybrid searches, as ``contrasent index tune`` does.

    An index without tables of words gets them.

    Args:
        index: an index, or its folder.
        encoder: the one that built it; else the one that it names is loaded.
        queries: labelled ones to choose by, each with the id of a text that it is to find, a row
            for each such text, or a file of them; without them tasks are made of the texts.
        weight: the weight itself, not to be chosen.

    Returns:
        The weight, and the gain of the fusion over the encoder alone in nDCG@10.

    Raises:
        ContrasentError: what is given cannot be used.

    Example:
        >>> index = contrasent.Index.build(encoder, texts, "my-index")  # doctest: +SKIP
        >>> contrasent.tune_index(index, encoder).gain  # doctest: +SKIP
    """
    from contrasent.data.columns import WANTED
    from contrasent.data.rows import open_rows_of
    from contrasent.evaluation.judgement import fusion_for
    from contrasent.search.index import Index as Opened
    from contrasent.search.storage import WordsInfo

    checked(SearchOptions, {"weight": weight})
    opened, wanted = index if isinstance(index, Opened) else Opened.open(index), None
    if queries is not None:
        rows: Iterable[tuple[object, Any]]
        if isinstance(queries, str | Path):
            rows = open_rows_of(str(queries), WANTED).rows()
        else:
            rows = enumerate(queries, 1)
        known, wanted = {name for it in opened.blocks() for name in it.ids}, dict[str, list[str]]()
        for where, (query, name) in rows:
            if str(name) not in known:
                raise DataError(f"{where}: {opened.folder} has no text with the id {name!r}")
            wanted.setdefault(query, []).append(str(name))
    if opened.manifest.words is None:
        opened.set_words(WordsInfo())
    if weight is None:
        chosen = fusion_for(opened, encoder or opened.encoder(), wanted)
    else:
        chosen = WordsInfo(weight, "weight", hybrid=weight > 0)
    opened.set_words(chosen)
    return chosen


@takes(AnalysisOptions)
def analyze(
    encoder: str | Path | Encoder,
    pairs: str = "stsb>4",
    *,
    show_progress: bool = False,
    **options: Any,
) -> Geometry:
    """Measure how embeddings lie in space, as ``contrasent analyze`` does.

    Args:
        encoder: an encoder, or the name of one.
        pairs: a task or file of rated pairs, ``>`` or ``>=``, and a rating.
        show_progress: a progress bar on standard error.
        **options: by name.

    Returns:
        Records of alignment and uniformity (Wang and Isola 2020), mean cosine, partition ratio
        and rank correlation, the singular spectrum, cosines in groups of their ratings, and with
        ``edits`` how sensitive embeddings are to them.

    Example:
        >>> geometry = contrasent.analyze("runs/mine")  # doctest: +SKIP
        >>> geometry.value("alignment"), geometry.value("uniformity")  # doctest: +SKIP
    """
    from contrasent.evaluation.edits import Edits
    from contrasent.evaluation.geometry import measure
    from contrasent.evaluation.sts_data import RatedPairs

    given = checked(AnalysisOptions, {"pairs": pairs, **options})
    read = RatedPairs.read(given.pairs, given.data_dir, given.columns)
    edits = Edits.read(given.edits) if given.edits else None
    return measure(_use(encoder, given, None, show_progress), read, edits)


def _use(
    encoder: DescribedEncoder | str | Path, how: Measuring, seed: int | None, show_progress: bool
) -> EncoderUse:
    from contrasent.evaluation.embed import EncoderUse

    loading = shared(how, Loading)
    return EncoderUse.of(encoder, how.precision_name, seed, show_progress, **loading)


@overload
def evaluate(
    encoder: DescribedEncoder | str | Path, tasks: str | Sequence[str] | Suite = ..., **options: Any
) -> Records: ...


@overload
def evaluate(
    encoder: DescribedEncoder | str | Path, *, text: str | Path | Rows, **options: Any
) -> Judgement: ...


@takes(EvaluationOptions)
def evaluate(
    encoder: DescribedEncoder | str | Path,
    tasks: str | Sequence[str] | Suite = ("sts",),
    *,
    text: str | Path | Rows | None = None,
    compare: Sequence[DescribedEncoder | str | Path] = (),
    seed: int | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Records | Judgement:
    """Score an encoder on similarity, transfer and retrieval tasks.

    By default STS as in SimCSE (Gao et al. 2021); transfer tasks as in SentEval (Conneau & Kiela
    2018). Or is it good enough for a ``text``, as ``contrasent evaluate --text`` tells?

    Args:
        encoder: a folder, a training run, a Hugging Face id or a file of word vectors, or an object
            with ``name``, ``pooler`` and ``encode``.
        tasks: names as the command takes them; or what `load_suite` read.
        text: in place of tasks, text without labels, as `train` takes it, to be judged on.
        compare: other encoders, to be judged on the text too.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar on standard error.
        **options: by name.

    Returns:
        A record per metric, aggregation, subset and split, never multiplied by 100; the
        ``problems`` of it are tasks without a score.

    Example:
        >>> records = contrasent.evaluate("my-encoder", ["pairs.tsv"])
        >>> print(records.table())
        >>> {r.task: r.value for r in records if r.metric == "spearman" and r.aggregation == "all"}
    """
    from contrasent.evaluation.judgement import judge
    from contrasent.evaluation.protocols import Options
    from contrasent.evaluation.suite import Suite, load_suite
    from contrasent.report.scores_table import Records

    if text is not None:
        how = checked(EvaluationOptions, options)
        uses = [_use(it, how, seed, show_progress) for it in (encoder, *compare)]
        reading = shared(how, FoundText)
        return judge(uses[0], text, compare=uses[1:], columns=how.columns, **reading)
    if isinstance(tasks, Suite):
        if own := sorted(set(options) - set(fields_of(Measuring))):
            raise ConfigError(f"a suite has its own {', '.join(own)}; give it to load_suite")
        how, suite = checked(EvaluationOptions, options), tasks
    else:
        how = checked(EvaluationOptions, {"tasks": tasks, **options})
        suite = load_suite(how.tasks, Options.of(how))
        if suite.problems:
            raise DataError("; ".join([*(p.message for p in suite.problems), *suite.remedy]))
    scores = suite.records(_use(encoder, how, seed, show_progress))
    if not scores.records:
        raise DataError("; ".join(problem.message for problem in scores.problems))
    records = Records(suite, scores)
    for problem in records.problems:
        warn(f"{problem.task} has no score: {problem.message}")
    return records
