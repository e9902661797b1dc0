"""Training and evaluation as functions, which `contrasent` exports beside those of the rooms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from contrasent.errors import ConfigError, warn
from contrasent.options import EvaluationOptions, Measuring, PretrainOptions, TrainingOptions
from contrasent.recipe import Recipe, default_output, fields_of, recipe_with
from contrasent.settings import checked, refuse_unused, takes

if TYPE_CHECKING:
    from contrasent.data.examples import Rows
    from contrasent.evaluation.embed import DescribedEncoder
    from contrasent.evaluation.judgement import Judgement
    from contrasent.evaluation.suite import Suite
    from contrasent.objectives import Objective
    from contrasent.report.scores_table import Records
    from contrasent.training.callbacks import DevScore
    from contrasent.training.loop import StepMetrics
    from contrasent.training.run import Result


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
        on_evaluation: called with the dev score of every evaluation; True ends the run there.
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
    output = options.output or default_output(recipe)
    keep = {"resume": options.resume, "overwrite": options.overwrite}
    check_run(loaded, output, **keep)
    from contrasent.training import run

    return run.train(
        loaded,
        output,
        data=None if isinstance(data, str | Path) else data,
        device=options.device,
        show_progress=show_progress,
        on_step=on_step,
        on_evaluation=on_evaluation,
        **keep,
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
        named = {k: it for k, it in options.items() if "." in k or k in fields_of(PretrainOptions)}
        recipe, chosen = recipe_with("pretrain-mlm", {**named, "data": data}, PretrainOptions)
        output = chosen.output or Path("runs/pretrain-mlm")
        start, options["output"] = output / "start", output / "run"
        keep = {"resume": chosen.resume, "overwrite": chosen.overwrite}
        check_run(recipe, options["output"], **keep)
        if not (chosen.resume and (options["output"] / "recipe.yaml").is_file()):
            columns, sources = recipe.data.columns, recipe.data.sources.values()
            opened = [open_examples(it.file, it.columns or columns) for it in sources]
            if not opened:
                raise ConfigError("name the training text with --data")
            texts = (first for examples in opened for first, *_ in examples)
            with exclusive(output):
                save_random(encoder, texts, start, recipe.train.seed)
        encoder = start
    return train("pretrain-mlm", encoder=encoder, data=data, **options)


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
    from contrasent.evaluation.embed import EncoderUse, raise_problems
    from contrasent.evaluation.judgement import judge
    from contrasent.evaluation.protocols import text_reading
    from contrasent.evaluation.suite import Suite, suite_of
    from contrasent.report.scores_table import Records

    if compare and text is None:
        raise ConfigError("compare names encoders to judge on a text: give it, or leave that out")
    if isinstance(tasks, Suite) and text is None:
        how, suite = checked(EvaluationOptions, options), tasks
        own = fields_of(EvaluationOptions).keys() - fields_of(Measuring)
        refuse_unused(how, sorted(own), "a suite has its own")
    else:
        how = checked(EvaluationOptions, {"tasks": tasks, **options})
        if text is not None:
            reading = text_reading(how)
            uses = [EncoderUse.by(how, it, seed, show_progress) for it in (encoder, *compare)]
            return judge(uses[0], text, compare=uses[1:], **reading)
        suite = suite_of(how)
        raise_problems(suite.problems, suite.remedy)
    scores = suite.records(EncoderUse.by(how, encoder, seed, show_progress))
    if not scores.records:
        raise_problems(scores.problems)
    records = Records(suite, scores)
    for problem in records.problems:
        warn(f"{problem.task} has no score: {problem.message}")
    return records
