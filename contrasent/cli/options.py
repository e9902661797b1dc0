"""Arguments and options that several commands share, and what is done with them."""

from __future__ import annotations

import inspect
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_type_hints, overload

import typer

from contrasent.model.pooling import POOLERS

if TYPE_CHECKING:
    from contrasent.evaluation.embed import EncoderUse
    from contrasent.evaluation.vectors import MatrixEncoder, RowLayout
    from contrasent.model.loading import LoadedEncoder
    from contrasent.recipe import Recipe
    from contrasent.records import Record
    from contrasent.report.contents import Contents

T = TypeVar("T")

STDOUT = "-"
"""What names standard output in place of a file."""

Model = Annotated[
    str, typer.Argument(help="The encoder: a folder, a training run or a Hugging Face id.")
]
Pooler = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(POOLERS)}; else its own."),
]
Head = Annotated[str | None, typer.Option(help="none or mlp; else the encoder's own.")]
Engine = Annotated[
    str,
    typer.Option(help="What computes the transformer: torch, or on a CPU int8, onnx, openvino."),
]
SentenceColumns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="Sentence columns of the training text, anchor first: header names, or numbers from "
        "0; else picked by well-known names, or all if there is no header.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1 and the like; else the accelerator if there is one."),
]
TruncateDim = Annotated[
    int | None,
    typer.Option(help="Keep so many leading dimensions of an embedding; else as it was saved."),
]
PromptName = Annotated[
    str | None,
    typer.Option(help="The encoder's prompt to put before every text; else its default one."),
]
Precision = Annotated[
    str, typer.Option(help="fp32, bf16, or auto: bf16 where the hardware has it.")
]
OwnPrecision = Annotated[
    str | None,
    typer.Option(
        help="fp32, bf16 or auto; else fp32, or what an engine other than torch computes in."
    ),
]
Splits = Annotated[
    str, typer.Option(help="Splits of tasks named without one: any of train,dev,test,all.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder in SentEval's layout; else $CONTRASENT_DATA, else the folder that "
        "'contrasent data fetch' fills."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in full precision, not a table.")]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a report to FILE: tables, figures, settings and how to repeat them, in one "
        "page that loads nothing.",
    ),
]


@dataclass(frozen=True)
class Loading:
    """The options that choose how an encoder is loaded."""

    pooler: Pooler = None
    head: Head = None
    engine: Engine = "torch"
    device: Device = None
    truncate_dim: TruncateDim = None
    prompt_name: PromptName = None

    def require(self) -> None:
        """Refuse an engine or a device that cannot compute here, before anything is loaded."""
        from contrasent.model.engines.base import require

        require(self.engine, self.device)

    def load(self, model: str) -> LoadedEncoder:
        """The encoder."""
        from contrasent.model.loading import load_encoder

        return load_encoder(model, **{it.name: getattr(self, it.name) for it in fields(Loading)})


@dataclass(frozen=True)
class Measuring(Loading):
    """The options that choose how an encoder is loaded to be measured."""

    precision: OwnPrecision = None

    @property
    def precision_name(self) -> str:
        """The precision as an encoder resolves it: full, unless the engine has one of its own."""
        return self.precision or ("fp32" if self.engine == "torch" else "auto")

    def require(self) -> None:
        """As of loading, and refuse an unknown precision."""
        from contrasent.errors import pick
        from contrasent.evaluation.embed import PRECISIONS

        pick("precision", self.precision_name, ("auto", *PRECISIONS))
        super().require()

    def use(self, encoder: LoadedEncoder | MatrixEncoder) -> EncoderUse:
        """An encoder in the precision that was asked for, with a progress bar."""
        from contrasent.evaluation.embed import EncoderUse
        from contrasent.model.checkpoint import training_seed

        precision = encoder.resolve_precision(self.precision_name)
        return EncoderUse(encoder, precision, training_seed(encoder.name), show_progress=True)

    def load_or_open(
        self, model: str, layouts: Sequence[RowLayout] = ()
    ) -> LoadedEncoder | MatrixEncoder:
        """The encoder, or the vectors of words or of the sentences of a task."""
        from contrasent.evaluation.vectors import holds_vectors, open_vectors

        return open_vectors(model, layouts) if holds_vectors(model) else self.load(model)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of a dataclass among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if group := groups.get(name):
            types = get_type_hints(group, include_extras=True)
            parameters += [
                parameter.replace(
                    name=field.name,
                    default=parameter.empty if field.default is MISSING else field.default,
                    annotation=types[field.name],
                )
                for field in fields(group)
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    by_name = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@overload
def listed(text: str) -> list[str]: ...
@overload
def listed(text: None) -> None: ...
def listed(text: str | None) -> list[str] | None:
    """What stands between commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


_IN_RUNS = ("best", "last")
"""Folders whose names say nothing without those of their runs."""


def labels(models: Sequence[str]) -> dict[str, str]:
    """The models by a short name, or by the whole one where the short one is not theirs alone."""
    from contrasent.evaluation.task_names import short_name

    short = [
        "/".join(Path(model).parts[-2:]) if Path(model).name in _IN_RUNS else short_name(model)
        for model in dict.fromkeys(models)
    ]
    return {
        name if name and short.count(name) == 1 else model: model
        for name, model in zip(short, dict.fromkeys(models), strict=True)
    }


@dataclass(frozen=True)
class Outcomes(Generic[T]):
    """Results by model, and a message for each thing that failed."""

    results: dict[str, T]
    failures: list[str]


def for_each(models: Sequence[str], measure: Callable[[str], T]) -> Outcomes[T]:
    """Measure every model that can be loaded and measured; the failure of an only one is raised."""
    from contrasent.errors import ContrasentError

    outcomes: Outcomes[T] = Outcomes({}, [])
    for model in dict.fromkeys(models):
        try:
            outcomes.results[model] = measure(model)
        except ContrasentError as error:
            if len(models) == 1:
                raise
            outcomes.failures.append(f"{model}: {error}")
    return outcomes


def raise_failures(failures: Sequence[str]) -> None:
    """End with exit code 2 if something failed."""
    from contrasent.errors import ContrasentError

    if failures:
        raise ContrasentError("\n".join(failures))


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON in full precision."""
    from json import dumps

    typer.echo(dumps(value, ensure_ascii=False, indent=indent))


def refuse_existing_json(json: str | None, *, overwrite: bool) -> None:
    """Find before any work that JSON lines cannot be written, or would replace others."""
    from contrasent.errors import ConfigError

    if json is None or json == STDOUT:
        return
    if Path(json).is_dir():
        raise ConfigError(f"--json {json} is a folder; name a file in it, or - to print")
    if Path(json).exists() and not overwrite:
        raise ConfigError(f"{json} exists already; name another file or add --overwrite")


def write_lines(json: str | None, lines: str) -> bool:
    """Write JSON lines to a file, or print them; True if they stand in place of the table."""
    from contrasent.files import write_text

    if json == STDOUT:
        typer.echo(lines, nl=False)
        return True
    if json is not None:
        write_text(json, lines)
    return False


_WRITTEN = ("--json", "--html", "--figures", "--output")
"""Options that say where something is written, and decide no number."""


def measuring_command() -> str:
    """The command that was called, without where it writes."""
    kept: list[str] = []
    words = iter(sys.argv[1:])
    for word in words:
        if word in _WRITTEN:
            next(words, None)
        elif word != "--overwrite" and not word.startswith(tuple(f"{it}=" for it in _WRITTEN)):
            kept.append(word)
    return shlex.join(("contrasent", *kept))


def with_command(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, with the command that measured them."""
    command = measuring_command()
    return tuple(replace(record, command=command) for record in records)


def write_html(path: Path | None, contents: Contents) -> None:
    """Write a report that names the command that was called, where one is asked for."""
    from contrasent.report.html.page import write_report

    if path is not None:
        command = shlex.join(("contrasent", *sys.argv[1:]))
        write_report(path, replace(contents, command=command))
        typer.echo(f"{path}", err=True)


_WIDTH = 96


def complete_recipe(incomplete: str) -> list[str]:
    """The packaged recipes that a shell may complete a word to."""
    from contrasent.recipe import recipes as packaged

    return [name for name in packaged() if name.startswith(incomplete)]


def print_settings(recipe: Recipe) -> None:
    """Print a recipe as YAML, with every setting explained."""
    typer.echo(describe(recipe), nl=False)


def describe(recipe: Recipe) -> str:
    """Every setting of ``recipe`` with its value, under a comment that explains it.

    The text is a recipe file that `contrasent train` takes.

    Raises:
        ConfigError: the objective or one of its settings is unknown.
    """
    from contrasent.objectives import MATRYOSHKA, available, config_of
    from contrasent.recipe import explanations

    intro = explanations(type(recipe))
    text = []
    for section, values in asdict(recipe).items():
        settings, part, comments = values, getattr(recipe, section), {}
        if section == "objective":
            name = str(values.get("name", "simcse"))
            part = config_of(name, {k: v for k, v in values.items() if k != "name"})
            dimensions = {key: value for key, value in values.items() if key in MATRYOSHKA}
            settings = {"name": name, **asdict(part), **dimensions}
            comments = {"name": f"One of: {', '.join(available())}."}
        lines = _section(settings, {**comments, **explanations(type(part))})
        text.append(f"{_comment(intro[section])}{section}:\n{lines}")
    return "\n".join(text)


def _section(settings: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    import yaml

    lines = [
        _comment(comments.get(key, "")) + yaml.safe_dump({key: value}, allow_unicode=True)
        for key, value in settings.items()
    ]
    return textwrap.indent("".join(lines), "  ")


def _comment(text: str) -> str:
    wrapped = textwrap.wrap(" ".join(text.split()), _WIDTH)
    return "".join(f"# {line}\n" for line in wrapped)


def require_index(index: Path) -> None:
    """Find an index that is not there before anything is imported that takes seconds."""
    from contrasent.errors import CheckpointError

    if not index.is_dir():
        raise CheckpointError(
            f"there is no index at {index}: it is not a folder; make one with: contrasent index "
            f"build MODEL INPUT {index}"
        )


def numbers_of_seeds(text: str) -> tuple[int, ...]:
    """Seeds between commas, each once.

    Raises:
        ConfigError: one is no whole number from 0 on.
    """
    from contrasent.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds {text} must be whole numbers from 0 on, such as 42,43,44")
    return tuple(dict.fromkeys(map(int, parts)))
