"""Options of commands and of the functions of the Python surface, each written once.

A field is an option: its name, type and default are those of the keyword argument and of the flag,
and the docstring under it is what help, docstrings and the reference say of it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PositiveInt

from contrasent.settings import ARGUMENT, Spelling, explanations, settings


def _listed(value: object) -> object:
    """Text between commas as a list; anything else as it is."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


F = TypeVar("F", bound=Callable[..., object])


def takes(cls: Any) -> Callable[[F], F]:
    """Let a function take the options of a class by name, as its last keyword arguments.

    Its signature has them in place of ``**options``, and its docstring after its other arguments.
    """

    def explain(function: F) -> F:
        signature = inspect.signature(function)
        own = [it for it in signature.parameters.values() if it.kind is not it.VAR_KEYWORD]
        named = {it.name for it in own}
        taken = {name: it for name, it in cls.__pydantic_fields__.items() if name not in named}
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=field.annotation,
                default=inspect.Parameter.empty if field.is_required() else field.default,
            )
            for name, field in taken.items()
        ]
        texts = explanations(cls)
        lines = [f"{name}: {texts[name][0].lower()}{texts[name][1:]}" for name in taken]
        how = {"width": 100, "initial_indent": " " * 8, "subsequent_indent": " " * 12}
        written = "\n".join(textwrap.fill(line, **how) for line in lines)  # type: ignore[arg-type]
        text = function.__doc__ or ""
        function.__doc__ = text.replace(
            "\n        **options: ", f"\n{written}\n        **options: "
        )
        function.__doc__ = re.sub(r"\n        \*\*options: [^\n]*", "", function.__doc__)
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return function

    return explain


def shared(options: object, cls: Any, without: Any = None) -> dict[str, Any]:
    """Those of a command's options that are of a class, by name; none that another class has."""
    left_out = getattr(without, "__pydantic_fields__", ())
    return {it: getattr(options, it) for it in cls.__pydantic_fields__ if it not in left_out}


Listed = Annotated[Sequence[str], BeforeValidator(_listed)]
"""Names; on the command line between commas."""


@settings
class Named:
    """The encoder of a command."""

    model: Annotated[str, ARGUMENT]
    """The encoder: a folder, a training run or a Hugging Face id."""


@settings
class OnDevice:
    """Where an encoder computes."""

    device: str | None = None
    """cpu, cuda, cuda:1 and the like; else the accelerator if there is one."""


@settings
class Pooling:
    """How token states become an embedding, in place of an encoder's own way."""

    pooler: str | None = None
    """cls, mean, max, last, mean_top2, mean_first_last, mean_embed_last; else its own."""

    head: str | None = None
    """none or mlp; else the encoder's own."""


@settings
class Loading(OnDevice, Pooling):
    """How an encoder is loaded."""

    engine: str = "torch"
    """What computes the transformer: torch, or on a CPU int8."""

    truncate_dim: int | None = None
    """Keep so many leading dimensions of an embedding; else as it was saved."""

    prompt_name: str | None = None
    """The encoder's prompt to put before every text; else its default one."""


@settings
class InPrecision:
    """The precision of the matrix products."""

    precision: str = "auto"
    """fp32, bf16, or auto: bf16 where the hardware has it."""


@settings
class Measuring(Loading):
    """How an encoder is loaded to be measured."""

    precision: str | None = None
    """fp32, bf16 or auto; else fp32, or what an engine other than torch computes in."""

    @property
    def precision_name(self) -> str:
        """The precision as an encoder resolves it: full, unless the engine has one of its own."""
        return self.precision or ("fp32" if self.engine == "torch" else "auto")


@settings
class DataFolder:
    """Where the data of public tasks is."""

    data_dir: str | Path | None = None
    """Folder in SentEval's layout; else $CONTRASENT_DATA, else the folder that 'contrasent data
    fetch' fills."""


@settings
class TaskSplits:
    """The splits of public tasks."""

    splits: Listed = ("test",)
    """Splits of tasks named without one: any of train,dev,test,all."""


@settings
class TextColumns:
    """Which columns of a training text are sentences."""

    columns: Annotated[Listed | None, Spelling(metavar="A,B,...")] = None
    """Sentence columns of the training text, anchor first: header names, or numbers from 0; else
    picked by well-known names, or all if there is no header."""


@settings
class TextColumn:
    """Which column of a file is embedded."""

    columns: Annotated[str | None, Spelling(metavar="COLUMN")] = None
    """The column of the texts, by name or by number from 0."""


@settings
class IndexedText(TextColumn):
    """Which columns of a file are indexed."""

    ids: Annotated[str | None, Spelling(metavar="COLUMN")] = None
    """The column of the ids; else texts are numbered from 0."""


@settings
class OfIndex:
    """The index of a command."""

    index: Annotated[Path, ARGUMENT]
    """The index."""


@settings
class MovedEncoder(OnDevice):
    """The encoder of an index."""

    encoder: str | None = None
    """Where the encoder of the index is, if it has moved."""


@settings
class AsJson:
    """The form of what is printed."""

    json: bool = False
    """Print JSON in full precision, not a table."""


@settings
class AsHtml:
    """A page beside what is printed."""

    html: Annotated[Path | None, Spelling(metavar="FILE")] = None
    """Write a report to FILE: tables, figures, settings and how to repeat them, in one page that
    loads nothing."""


@settings
class Replacing:
    """Whether a file is replaced."""

    overwrite: bool = False
    """Replace files that are already there."""


@settings
class ReplacingIndex:
    """Whether an index is replaced."""

    overwrite: bool = False
    """Replace an index that is there already."""


@settings
class NewFile(Replacing):
    """The training text that a command makes."""

    output: Path
    """The file to write: .csv, .tsv or .jsonl, each also .gz."""


@settings
class NewFolder:
    """The encoder that a command makes."""

    output: Path
    """The folder to write; it must not exist."""


@settings
class StartEncoder:
    """The encoder that training starts from."""

    encoder: str | None = None
    """Start from this folder, run or Hugging Face id."""


@settings
class EvaluationOptions(TaskSplits, Measuring, DataFolder):
    """What is scored, and by whose protocol."""

    tasks: Listed = ("sts",)
    """Comma-separated: sts (the papers' seven), sts12, sts13, sts14, sts15, sts16, stsb, sickr, one
    with its split (stsb-dev, sickr-all), or a .tsv, .csv, .jsonl or .parquet file or a data set of
    the hub (org/name:config@split) of sentence, sentence, score; transfer (the papers' seven), mr,
    cr, subj, mpqa, sst2, trec, mrpc, one with its split (mr-dev); such a file of text and label, or
    classify:TRAIN+TEST; stsb-retrieval, a folder of corpus, queries and qrels as BEIR's,
    retrieve:QUERIES+DOCUMENTS+RELEVANCE, retrieve:ORG/NAME; without labels crops:FILE,
    next:FILE."""

    columns: Listed | None = None
    """Sentence, sentence and score of your files, or sentence and label: names, or numbers from
    0."""

    protocol: str = "simcse"
    """Whose numbers the table is to be compared with: simcse, diffcse, sbert, isbert (Spearman,
    all), flow, whitening (wmean), declutr (mean), bgt (Pearson, mean), hill (both, all), senteval,
    infersent (Pearson, mean, regressor) or mteb."""

    aggregation: str | None = None
    """In place of the protocol's: all (one correlation over all pairs of a task), mean over its
    subsets, or wmean, weighted by their pairs."""

    metric: str | None = None
    """In place of the protocol's: spearman or pearson."""

    regressor: bool | None = None
    """In place of the protocol's: score STS-B and SICK-R by SentEval's regressor, fitted to their
    training splits, or by cosines."""

    confidence: float | None = None
    """Show intervals of this confidence, such as 0.95."""

    classifier: str = "senteval"
    """Transfer and labelled tasks: senteval (SentEval's procedure, as in papers) or sklearn
    (scikit-learn's logistic regression without a search; faster, other numbers)."""

    preset: str = "test"
    """Transfer and labelled tasks: SentEval's settings: test (as in papers), fasttest or dev."""

    classifier_seed: int = 1111
    """Transfer and labelled tasks: seed of training and folds; those of one part (MR, CR, SUBJ,
    MPQA) are with senteval always SentEval's, of 1111."""


@settings
class AnalysisOptions(Measuring, DataFolder):
    """The pairs that tell how embeddings lie in space."""

    pairs: str = "stsb>4"
    """Which pairs are positive: a task or file, > or >=, and a rating. Without a split, a task is
    all its splits: stsb>4 is train, dev and test."""

    columns: Listed | None = None
    """Sentence, sentence and score of your file of --pairs: three names, or numbers from 0."""


@settings
class MiningOptions(Replacing, InPrecision, OnDevice):
    """Which hard negatives are taken."""

    corpus: str | None = None
    """Sentences to take negatives from, as a file of text; else the positives."""

    negatives: PositiveInt = 1
    """Hard negatives of each pair."""

    margin: float = 0.05
    """A negative's cosine with the anchor is below the positive's by this share of it or more; what
    is nearer may be a positive that nobody labelled."""

    columns: Listed | None = None
    """Columns of PAIRS, anchor and positive: names, or numbers from 0."""
