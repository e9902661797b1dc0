"""``contrasent quickstart``, ``train``, ``recipes``, ``pretrain``, ``tune`` and ``adapt``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import indent, shorten, wrap
from typing import Annotated, Any

import yaml

from contrasent import adaptation, options, report, training
from contrasent.api import check_run, pretrain, train
from contrasent.cli.app import print_tables, say, tell
from contrasent.errors import ConfigError
from contrasent.recipe import Recipe, load_recipe, overrides_in, recipe_with, recipes
from contrasent.settings import Spelling, explanations, settings, shared

_PRETRAINING = "pretrain-mlm"
_WIDTH = 96


@settings
class QuickstartCommand(options.OnDevice, options.Replacing):
    """Train, score, index and search on shipped text, in a minute or two, without a network."""

    output: Path = Path("quickstart")
    """The folder to write."""

    def __call__(self) -> None:
        tell("loading")
        from contrasent.quickstart import ENCODER, quickstart

        result, nearest = quickstart(
            self.output, overwrite=self.overwrite, device=self.device, tell=tell, show_progress=True
        )
        _print_gains(result.scores)
        say("One run; the tasks had no part in it. What helps one job may cost another.")
        for query, hits in nearest.items():
            say(f"\nNearest to: {query}")
            for hit in hits:
                say(f"  {hit.score:.3f}  {shorten(hit.text, 120, placeholder=' ...')}")
        index, encoder = shlex.quote(str(self.output / "index")), shlex.quote(str(result.last))
        say(f"""
Next:
  contrasent search {index} "something else"
  contrasent similarity {encoder} "a sentence" "another sentence"
  contrasent adapt {ENCODER} --data documents.txt --minutes 10 --output runs/mine
The encoder is a sentence-transformers folder:
  SentenceTransformer({str(result.last)!r}).encode(["a sentence"])""")


@settings
class RecipesCommand:
    """List the packaged recipes: what they are for, their papers."""

    name: Annotated[str | None, Spelling(argument=True)] = None
    """Print this one instead, with every setting explained: a recipe file."""

    def __call__(self) -> None:
        if self.name is not None:
            say(describe(load_recipe(self.name)), nl=False)
            return
        for name, path in recipes().items():  # each is told by the first line of its comment
            say(f"{name:<30}{path.read_text('utf-8').splitlines()[0].strip('# :,')}")


def describe(recipe: Recipe) -> str:
    """Every setting of ``recipe`` with its value, under a comment that explains it, as YAML."""
    from contrasent.objectives import MATRYOSHKA, available, config_of

    def comment(text: str) -> str:
        return indent("".join(f"{line}\n" for line in wrap(text, _WIDTH)), "# ")

    intro, text = explanations(type(recipe)), []
    for section, values in asdict(recipe).items():
        shown: Mapping[str, Any] = values
        part, comments = getattr(recipe, section), {}
        if section == "objective":
            name = str(values.get("name", "simcse"))
            part = config_of(name, {k: v for k, v in values.items() if k != "name"})
            dimensions = {key: value for key, value in values.items() if key in MATRYOSHKA}
            shown = {"name": name, **asdict(part), **dimensions}
            comments = {"name": f"One of: {', '.join(available())}."}
        comments |= explanations(type(part))
        lines = [
            comment(comments.get(key, "")) + yaml.safe_dump({key: value}, allow_unicode=True)
            for key, value in shown.items()
        ]
        body = indent("".join(lines), "  ")
        text.append(f"{comment(intro[section])}{section}:\n{body}")
    return "\n".join(text)


@settings
class TrainCommand(options.TrainingOptions):
    """Train a sentence encoder on your text.

    Any setting of the recipe can follow as --section.key VALUE, for example --data.max_tokens 64
    --objective.temperature 0.1; 'contrasent recipes RECIPE' explains them all.
    """

    recipe: Annotated[str | None, Spelling(argument=True, metavar="RECIPE")] = None
    """A packaged recipe: unsup-simcse, sup-simcse or diffcse, or one of the papers' such as
    unsup-simcse-bert-base ('contrasent recipes' lists them); or a YAML file; or, with --resume, the
    folder of a run."""

    seeds: Annotated[options.Seeds | None, Spelling(metavar="S1,S2,...")] = None
    """Train once for each of these seeds, into seed-S of the output folder, and print mean,
    deviation and the difference to the start."""

    def __call__(self, words: Sequence[str]) -> None:
        run = self._run_to_resume()
        recipe = str(run / "recipe.yaml") if run else self.recipe or ""
        folder = run or self.output or Path("runs") / Path(recipe).stem
        values = _values(words, recipe, self, options.TrainingOptions) | {"output": folder}
        loaded, _ = recipe_with(recipe, values, options.TrainingOptions)
        if self.seeds is None:
            result = _trained(train, recipe, values)
            if result is not None:
                _print_result(result, loaded)
        elif run or self.seed is not None or "train.seed" in values:
            what = "--seeds trains several runs of a recipe, which --resume goes on with"
            raise ConfigError(f"{what}: leave --seed and the folder of a run out")
        else:
            self._train_seeds(folder, loaded)

    def _run_to_resume(self) -> Path | None:
        run = (self.output if self.recipe is None else Path(self.recipe)) if self.resume else None
        if self.recipe is None and run is None:
            raise ConfigError("name a recipe, such as unsup-simcse, or a run: train --resume RUN")
        is_name = self.recipe is not None and "/" not in self.recipe
        if run is None or run.suffix in (".yaml", ".yml") or (is_name and not run.is_dir()):
            return None
        if not training.RunFolder(run).is_run:
            raise ConfigError(f"{run} holds no training run, so there is nothing to resume")
        return run

    def _train_seeds(self, folder: Path, recipe: Recipe) -> None:
        from contrasent.distributed import leave

        seeds = tuple(self.seeds or ())
        kept: dict[str, Any] = {"resume": self.resume, "overwrite": self.overwrite}
        for seed in seeds:
            check_run(recipe, folder / f"seed-{seed}", **kept)

        def finished(seed: int, result: training.Result | None) -> None:
            if result is not None:
                _print_speed(result)
            encoder = "complete before" if result is None else str(result.best or result.last)
            tell(f"seed {seed}: {encoder}")

        kept |= {"on_run": finished, "device": self.device, "show_progress": True}
        runs = training.train_seeds(recipe, folder, seeds, **kept)
        leave()
        if runs is not None:
            print_tables(report.seeds_table(runs.folders, runs.scores))
            say(f"encoder: {runs.best}")


def _values(
    words: Sequence[str], recipe: str, command: options.RunOptions, cls: type[options.RunOptions]
) -> dict[str, Any]:
    def objective() -> Iterable[str]:
        from contrasent.objectives import config_of

        return asdict(config_of(str(load_recipe(recipe).objective["name"]), {}))

    values, settings = shared(command, cls), overrides_in(words, vars(command), objective)
    if isinstance(command.data, list):  # which in Python holds rows
        if "data.file" in settings:
            raise ConfigError("--data and --data.file are the same setting; give one of them")
        values["data.file"] = values.pop("data")
    return values | settings


def _trained(function: Any, name: str, values: dict[str, Any]) -> training.Result | None:
    result: training.Result | None = function(name, **values, show_progress=True)
    from contrasent.distributed import leave  # with torch, once mistakes are told

    leave()
    return result


def _print_result(result: training.Result, recipe: Recipe) -> None:
    _print_speed(result)
    if result.best_score is not None and result.dev_metric is not None:
        metric, score = training.metric_name(result.dev_metric), result.best_score * 100
        say(f"best dev {metric} {score:.2f} at step {result.best_step}")
    _print_gains(result.scores)
    if result.best_is_start:
        say("Nothing beat the start on the dev task, so best is the start as it comes. To try:")
        say(f"a lower rate (--lr {recipe.train.learning_rate / 3:.1g}), more text, another view.")
    say(f"encoder: {result.best or result.last}")


def _print_gains(scores: training.BeforeAndAfter) -> None:
    if scores.tasks is not None:
        print_tables(*report.suite_tables(scores.tasks, scores.rows))
    for gain in scores.gains:
        say(gain.sentence)


def _print_speed(result: training.Result) -> None:
    rate = result.examples / result.seconds if result.seconds else 0.0
    loss = "" if result.last_loss is None else f", last loss {result.last_loss:#.4g}"
    done = f"{result.steps} steps, {result.examples} examples in {result.seconds:.1f} s"
    tell(f"{done} ({rate:.0f}/s, evaluation left out){loss}")
    tell(result.cost)


@settings
class PretrainCommand(options.Named, options.PretrainOptions):
    """Train a masked language model on your text.

    It serves as a start adapted to your domain or language, and as a generator. Any setting of
    the recipe pretrain-mlm can follow as --section.key VALUE, for example --data.max_tokens 256
    --objective.mask_rate 0.2; 'contrasent recipes pretrain-mlm' explains them all.
    """

    def __call__(self, words: Sequence[str]) -> None:
        output = self.output or Path("runs") / _PRETRAINING
        values = _values(words, _PRETRAINING, self, options.PretrainOptions) | {"output": output}
        result = _trained(pretrain, self.model, values)
        if result is not None:
            _print_speed(result)
            say(f"masked language model: {result.last}")


@settings
class TuneCommand(options.TuneOptions):
    """Search settings of a recipe by the score on a dev task.

    Tries every combination of the values; with a range, or fewer --trials, Optuna chooses. The run
    with the highest score on evaluation.task is kept, and scored beside the start on
    evaluation.final. Other settings can follow as --section.key VALUE; --resume goes on.
    """

    recipe: Annotated[str, Spelling(argument=True, metavar="RECIPE")]
    """A packaged recipe or a YAML file."""

    def __call__(self, words: Sequence[str]) -> None:
        values = _values(words, self.recipe, self, options.TuneOptions)

        def finished(trial: adaptation.Trial) -> None:
            shown = " ".join(f"{key}={value}" for key, value in trial.settings.items())
            ended = trial.failure if trial.score is None else f"dev {100 * trial.score:.2f}"
            tell(f"trial {trial.number}: {shown}: {ended}")

        result = adaptation.tune(self.recipe, **values, show_progress=True, on_trial=finished)
        names = list(result.best.settings)
        rows = list[tuple[report.Cell, ...]]()
        for it in sorted(result.trials, key=lambda it: (it.score is None, -(it.score or 0))):
            chosen = [it.settings.get(name, "-") for name in names]
            shown = [f"{each:.3g}" if isinstance(each, float) else str(each) for each in chosen]
            number, score = report.number(it.number, 0), report.score(it.score)
            rows.append((number, *map(report.Cell, shown), score))
        cells = map(report.Cell, ["start", *["as it comes"] * len(names)])
        rows.append((*cells, report.score(result.start)))
        print_tables(report.Table(("trial", *names, "dev"), tuple(rows)))
        best, start = result.best.score, result.start
        if best is not None and start is not None and best <= start:
            say("no trial has a higher dev score than the start as it comes, which is kept")
        _print_gains(result.scores)
        say(f"encoder: {result.run / 'best'}")
        tell(f"recipe: {result.recipe}")


@settings
class AdaptCommand(options.AdaptOptions):
    """Tell how good an encoder is for your text, without labels, and look for a better one.

    Judges the encoder as it comes first, 10 to 30 seconds once text and encoders are read. Then
    tries several recipes for a few steps each, continues those that do best on held-out text, and
    tells whether the result is better. Settings of the recipes can follow as --section.key
    VALUE, but for those that the search sets itself.
    """

    def __call__(self, words: Sequence[str]) -> None:
        given = vars(self) | {"settings": overrides_in(words, vars(self))}
        result = adaptation.adapt(**given, show_progress=True)
        say("\n".join(result.sentences))
        say(f"encoder: {result.encoder} ({result.seconds / 60:.1f} minutes)")
        say(f"report: {result.report}\n")
        print_tables(*result.tables)
