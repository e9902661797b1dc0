"""Typed settings, each explained by the docstring under it; those of a recipe, by section."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from contrasent.errors import ConfigError, pick, shown

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _odd(width: int) -> int:
    if width % 2 == 0:
        raise ValueError("a convolution sees a token and as many on either side, so it is odd")
    return width


OddInt = Annotated[PositiveInt, pydantic.AfterValidator(_odd)]


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen class of checked settings; the docstring under a field explains it."""
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    return typing.cast(type[T], dataclass(frozen=True, kw_only=True, config=config)(cls))


@dataclasses.dataclass(frozen=True)
class Spelling:
    """How the command line spells a setting, where its name and type do not say it."""

    flag: str = ""  # such as ``--learning-rate/--lr``; else the name after ``--``
    metavar: str = ""  # of the value, in help
    argument: bool = False  # whether it stands without a flag
    variable: str = ""  # of the environment, that sets it too
    of: Any = None  # the class whose setting, of this name or ``name``, explains it
    name: str = ""
    end: str = ""  # what the explanation ends with


ARGUMENT = Spelling(argument=True)


def spelling_of(field: Any) -> Spelling:
    """The spelling of a field of settings, or the usual one."""
    return next((it for it in field.metadata if isinstance(it, Spelling)), Spelling())


def checked(cls: type[T], given: Mapping[str, Any], spell: Callable[[str], str] = str) -> T:
    """Make settings of what was given, by name.

    None stands for a setting that is not given. ConfigError if one is unknown or missing or cannot
    take its value; the message has its name as ``spell`` writes it, the value, what is expected.
    """
    given = {k: str(v) if isinstance(v, Path) else v for k, v in given.items() if v is not None}
    try:
        return pydantic.TypeAdapter(cls).validate_python(given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if first["type"] == "unexpected_keyword_argument":
            pick("option", name, explanations(cls))
        raise ConfigError(
            f"{spell(name)} cannot be {shown(given.get(name))}: {expected(first['msg'])}"
        ) from error


def expected(message: str) -> str:
    """A message of pydantic in the middle of a sentence."""
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def explanations(cls: Any) -> dict[str, str]:
    """The docstring of each setting, by its name, and its choices if that does not name them."""
    fields = [vars(base).get("__pydantic_fields__", {}) for base in reversed(cls.__mro__)]
    # Of a setting that is inherited only the class that has it knows the docstring.
    texts = {k: it.description for each in fields for k, it in each.items() if it.description}
    for name, field in cls.__pydantic_fields__.items():
        if (spelling := spelling_of(field)).of is not None:
            text = explanations(spelling.of)[spelling.name or name]
            texts[name] = f"{text} {spelling.end}".strip()
    return {
        name: _with_choices(texts.get(name, ""), field.annotation)
        for name, field in cls.__pydantic_fields__.items()
    }


def _with_choices(text: str, kind: Any) -> str:
    kinds = get_args(kind) if get_origin(kind) in (typing.Union, UnionType) else (kind,)
    choices = [choice for k in kinds if get_origin(k) is Literal for choice in get_args(k)]
    if all(re.search(rf"\b{choice}\b", text) for choice in choices):
        return text
    return f"{text} One of: {', '.join(choices)}."


_RAISES = "    Raises:\n        ContrasentError: what is given cannot be used.\n\n"


def takes(cls: Any) -> Callable[[F], F]:
    """Let a function take the options of a class by name, as its last keyword arguments.

    Its signature and docstring have them in place of ``**options``, or else before the last one.
    The docstring also says, before the example, that mistakes raise an error.
    """

    def explain(function: F) -> F:
        signature, texts = inspect.signature(function), explanations(cls)
        *own, rest = signature.parameters.values()
        kept = [] if rest.name == "options" else [rest]
        options, lines = [], []
        for name, field in cls.__pydantic_fields__.items():
            if name not in signature.parameters:
                default = inspect.Parameter.empty if field.is_required() else field.default
                keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
                options.append(keyword.replace(annotation=field.annotation))
                text = f"        {name}: {texts[name][0].lower()}{texts[name][1:]}"
                lines.append(textwrap.fill(text, 100, subsequent_indent=" " * 12))
        place = f"        **{rest.name}: " + ("" if kept else "by name.")
        written = "\n".join([*lines, place] if kept else lines)
        documentation = (function.__doc__ or "").replace(place, written)
        if "Raises:" not in documentation:
            documentation = documentation.replace("    Example:", f"{_RAISES}    Example:")
        function.__doc__ = documentation
        function.__signature__ = signature.replace(parameters=[*own, *options, *kept])  # type: ignore[attr-defined]
        return function

    return explain


def shared(options: object, cls: Any) -> dict[str, Any]:
    """Those of a command's options that are of a class, by name."""
    return {name: getattr(options, name) for name in cls.__pydantic_fields__}


def refuse_unused(options: Any, names: Iterable[str], why: str) -> None:
    """Raise ConfigError where options of these names, which nothing reads, are not the default."""
    fields = type(options).__pydantic_fields__
    if unused := [it for it in names if getattr(options, it) != fields[it].default]:
        flags = (spelling_of(fields[k]).flag or f"--{k.replace('_', '-')}" for k in unused)
        raise ConfigError(f"{why}: leave {', '.join(flags)} out")


@settings
class EncoderSettings:
    """What is trained, and how a sentence becomes an embedding."""

    name: str = ""
    """A folder, a training run, or a Hugging Face id to start from; or a .txt or .vec file of word
    vectors, for a new LSTM over them."""

    pooler: str | None = None
    """cls, mean, max, last, mean_top2, mean_first_last or mean_embed_last; else the folder's own,
    or max for word vectors."""

    prompt: str | None = None
    """What stands around every sentence, such as '{mask} means "{text}".' with pooler cls, or 'This
    sentence of "{text}" means {mask}' with pooler last (Jiang et al. 2022, PromptBERT): a {mask} at
    an end takes the place of [CLS] or [SEP]. It is saved in tokenizer.json. null keeps the
    folder's own."""

    layers: PositiveInt | None = None
    """Start from so many layers of the transformer, evenly spaced and the last among them: an
    encoder that is quicker, and worse until it is trained, as with the recipe distil; null takes
    all."""

    lstm: PositiveInt | None = None
    """Numbers for each direction of a new bidirectional LSTM over the word vectors of a file
    (InferSent: 2048); null for a start that is an encoder already."""

    convolutions: Annotated[list[OddInt], Field(min_length=1)] | None = None
    """Widths, odd numbers of tokens, of convolutions over the token states, which the mean pooler
    then takes the mean of (IS-BERT): new ones, if the folder has none; null takes what it has."""

    channels: PositiveInt = 256
    """Numbers that each new convolution gives for a token."""

    head: Literal["mlp", "none"] | None = None
    """A Linear+Tanh after the pooler that inference keeps (supervised SimCSE): mlp takes the
    stored one of a sentence encoder, else starts a new one; null takes what the folder has."""

    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Rate of every dropout of the transformer; null keeps the checkpoint's (0.1 for BERT)."""

    bidirectional: bool = False
    """Let every token of a decoder (Qwen, Llama, Mistral) see all of the sentence, as LLM2Vec
    starts (BehnamGhader et al. 2024), usually with pooler mean. The start as it comes does not."""

    freeze_embeddings: bool = False
    """Leave the embedding layer (words, positions, its normalisation) as it is in the start."""

    freeze_layers: NonNegativeInt = 0
    """Leave the first so many layers, and the embedding layer, as they are in the start: a step is
    quicker, and less is forgotten."""

    lora: PositiveInt | None = None
    """Rank of low-rank changes of the linear maps, which are trained while all else of the
    transformer is frozen (LoRA, Hu et al. 2021; 8 to 64), to save memory with a large one; null
    trains all. The saved encoder has them added to its weights. Takes a larger rate, as 1e-4."""

    lora_alpha: PositiveFloat = 16.0
    """The changes are multiplied by this over their rank."""

    encoders: Literal["shared", "twin"] = "shared"
    """With twin, a second encoder, which starts as a copy and is trained by itself, embeds every
    view but the first (Gao et al. 2021, Table 2). One is evaluated and saved in best and last,
    the other in best-twin and last-twin; keep says which."""

    keep: Literal["first", "better"] = "first"
    """Of two encoders: first keeps that of the first view; better evaluates both, each time, and
    keeps the one with the higher dev score (Carlsson et al. 2021, Contrastive Tension)."""


@settings
class ViewSettings:
    """What makes the positive of a sentence, where the data has one sentence per example."""

    name: Literal[
        "dropout",
        "crop",
        "crop_sentences",
        "crop_prefix",
        "delete_words",
        "delete_words_once",
        "delete_one_word",
        "repeat",
        "synonym",
        "mlm",
        "next_sentence",
        "next_3_sentences",
    ] = "dropout"
    """The same sentence, apart by dropout; the sentence edited: crop, delete_words,
    delete_one_word, repeat (tokens), synonym (WordNet), mlm (a masked language model), or as the
    reproducibility study edits it: crop_prefix (its first characters), delete_words_once (the same
    words in every epoch); consecutive sentences of a text of several: crop_sentences; or one that
    follows it: next_sentence, next_3_sentences (one of three)."""

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of the words, for crop_sentences of the sentences, for mlm and repeat of the tokens, that the
    edit takes away, replaces or repeats at most; null is 0.1 for crops and deleted words, 0.5 for
    crop_sentences, 0.15 for mlm, 0.32 for repeat, one word for synonym. The other views take
    none."""

    sides: Literal["positive", "both"] = "positive"
    """Which sentence is edited: the positive alone, or the anchor too, each in its own way."""

    generator: str | None = None
    """For mlm: the masked language model, with the encoder's vocabulary, that replaces tokens; null
    takes the encoder's own checkpoint."""

    fixed_dropout: bool = False
    """Give all views of an example the same dropout masks (Gao et al. 2021, Table 3, "fixed"): one
    embedding stands for all of them. For the view dropout only."""


@settings
class TrainSettings:
    """How it is optimised."""

    batch_size: Annotated[int, Field(ge=2)] = 64
    """Examples per step; the others of a batch are each anchor's negatives."""

    epochs: PositiveInt = 1
    """Passes over the data."""

    max_steps: PositiveInt | None = None
    """Stop, and end the decay, after this many steps instead of after the epochs."""

    learning_rate: PositiveFloat = 3e-5
    """Of the first step after the warm-up."""

    schedule: Literal["linear", "constant", "steps", "slanted_triangular", "plateau"] = "linear"
    """After the warm-up the rate falls to 0 (linear), stays (constant), or changes at rate_steps
    (steps). slanted_triangular begins and ends at 1/32 of it (Howard and Ruder 2018). plateau
    lowers it at each evaluation by rate_decay and rate_shrink (Conneau et al. 2017, InferSent)."""

    rate_steps: dict[NonNegativeInt, PositiveFloat] = Field(default_factory=dict)
    """For steps: the rate from an update on, by its number, such as {500: 8e-6, 1000: 6e-6}."""

    rate_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """For plateau: what the rate is multiplied with every evaluation.every steps."""

    rate_shrink: Annotated[float, Field(ge=1)] = 1.0
    """For plateau: what the rate is divided by when the dev score is no new best."""

    min_rate: PositiveFloat | None = None
    """For plateau: stop once the rate is below this."""

    warmup_steps: NonNegativeInt = 0
    """Steps over which the rate rises from 0."""

    warmup_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The same as a share of all steps, rounded up."""

    optimizer: Literal["adamw", "rmsprop", "sgd"] = "adamw"
    """What makes a step of a gradient."""

    betas: Annotated[
        list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)
    ] = Field(default_factory=lambda: [0.9, 0.999])
    """What AdamW keeps at each step of the means of the gradient and of its square; rmsprop has
    the second only, sgd neither."""

    eps: PositiveFloat = 1e-8
    """Added to the root of the mean square, by which a step is divided."""

    bias_correction: bool = True
    """True if AdamW makes up for means that start at 0; BERT's own optimiser did not."""

    weight_decay: NonNegativeFloat = 0.0
    """Of the weights in AdamW, added to the gradient in the others."""

    decay_all: bool = True
    """True if weight_decay is on every parameter, or not on biases and normalisations, as in BERT's
    own training and in most baselines' code."""

    clip: PositiveFloat | None = 1.0
    """Largest norm of the gradient of all parameters together; null does not clip."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Of the matrix products; auto is bf16 where the hardware has it. Loss and weights are fp32."""

    gradcache_chunk: PositiveInt | None = None
    """Gradient caching, for batches beyond memory: sentences of average length that are encoded at
    once, every view counted. The loss still sees the whole batch, the gradient is the same, dropout
    included; a step takes 4/3 of the time. 128 is a good number; null encodes the batch at once."""

    gradient_checkpointing: bool = False
    """Keep only what goes into each layer, and compute the layer again for its gradient: less
    memory for long sentences and large encoders, 4/3 of the time, the same gradient."""

    cuda_graphs: bool = True
    """Launch both passes of the encoder at once on a GPU, for the shapes of batches that return."""

    checkpoint_every: PositiveInt | None = None
    """Steps between states that --resume continues from; null takes evaluation.every."""

    trackers: list[str] = Field(default_factory=list)
    """Of accelerate, by name: tensorboard, trackio, wandb, mlflow, ..."""

    start_shares: list[Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=list)
    """At each evaluation also score means of the weights before the first step and the trained
    ones, with these shares of the former, and save the best one in `best`: less is forgotten
    (Wortsman et al. 2022, WiSE-FT). [0.5] is their plain mean."""

    seed: NonNegativeInt = 42
    """Decides the new weights, the order of the data and every dropout mask."""


@settings
class EvaluationSettings:
    """How progress is measured."""

    task: str = "auto"
    """Selects `best`: stsb-dev, or a FILE.tsv of sentence, sentence, score; the mean of several,
    such as stsb-dev,sickr-dev, or of accuracies, such as transfer-dev; or without labels held-out
    (a tenth of the training text, which is not trained on: halves of a text, sentences of a
    document or pairs find each other), or retrieval of your own; none. auto is stsb-dev if its data
    is there, else held-out."""

    every: PositiveInt = 125
    """Steps between evaluations; the last step is evaluated too."""

    patience: PositiveInt | None = None
    """Stop after this many evaluations in a row without a new best."""

    geometry_every: PositiveInt | None = None
    """Steps between measurements of alignment and uniformity, which metrics.jsonl keeps and
    `contrasent analyze --from` draws; the start and the end are measured too. null is off."""

    geometry_pairs: str = "stsb-dev>4"
    """Pairs that are measured: a task or file, > and a rating. Alignment is of those rated above,
    uniformity of the sentences of all; a task without a split is all its splits."""

    final: str = "auto"
    """Tasks scored before and after training, as `contrasent evaluate` names them, or none; auto is
    sts if its data is there, else what was held out."""

    precision: Literal["bf16", "fp32"] = "fp32"
    """Of the matrix products while evaluating."""

    data_dir: str | None = None
    """Folder in SentEval's layout; null: CONTRASENT_DATA, then where `data fetch` writes."""


@settings
class WhiteningSettings:
    """Settings of a whitening."""

    dimensions: PositiveInt | None = None
    """Keep this many, those of the largest variance; else all in which embeddings differ."""


@settings
class StaticSettings:
    """Settings of a static table."""

    ridge: PositiveFloat = 0.1
    """How strongly rows of rare word pieces stay where one piece alone has its embedding."""


@settings
class FlowSettings:
    """Settings of a flow and of its training; defaults as in the code of Li et al. 2020."""

    levels: PositiveInt = 3
    """Levels; each halves what it hands on."""

    depth: PositiveInt = 3
    """Steps of a level."""

    coupling_width: int = 32
    """Width of the hidden layers."""

    learning_rate: PositiveFloat = 1e-3
    """Learning rate, held constant."""

    weight_decay: NonNegativeFloat = 0.01
    """Of all weights."""

    batch_size: Annotated[int, Field(ge=2)] = 64
    """Sentences of an update; 64 are the 32 pairs of the paper's code."""

    epochs: PositiveInt = 1
    """How often the text is read."""

    seed: NonNegativeInt = 1234
    """Seed of the weights and of the order of the sentences."""
