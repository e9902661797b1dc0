"""From a recipe to the parts of a run, everything checked before anything is written."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from contrasent import objectives
from contrasent.config import EncoderSettings, EvaluationSettings, Recipe
from contrasent.data.examples import Examples
from contrasent.data.labelled import open_labelled
from contrasent.data.loader import Loader
from contrasent.data.text import open_examples
from contrasent.data.views import Views, check_view, open_spans, open_views
from contrasent.errors import ConfigError, DataError
from contrasent.evaluate.rated_pairs import RatedPairs
from contrasent.evaluate.read import Task
from contrasent.evaluate.run import load_available
from contrasent.evaluate.sts import StsTasks
from contrasent.evaluate.tasks import STS, task_names
from contrasent.model import checkpoint
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.words import WordEncoder, are_words
from contrasent.objectives.base import Objective
from contrasent.train.embedding import refuse_other_labels, refuse_other_ways
from contrasent.train.filled_view import FilledView
from contrasent.train.geometry import followed_pairs
from contrasent.train.gradcache import refuse_uncacheable
from contrasent.train.log import reading_progress
from contrasent.train.new_parts import add_new_parts, over_words
from contrasent.train.schedule import refuse_at_odds
from contrasent.train.selection import check_keep

logger = logging.getLogger("contrasent")

_DEV, _FINAL = "stsb-dev", "sts"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of.

    Attributes:
        encoder: the start, with new weights where the recipe asks for a new head.
        twin: a copy of it, for all views but the first; None if one encoder embeds all.
        objective: with its own new weights.
        loader: the batches.
        filled: makes the view ``mlm`` of a batch; None if the view is another.
        steps: updates in all.
        dev: the task that selects ``best``; None without one.
        final: the tasks scored before and after; None without.
        followed: the pairs whose geometry is measured during training; None without.
        data: what is kept of the data in ``contrasent.json``.
    """

    encoder: SentenceEncoder
    twin: SentenceEncoder | None
    objective: Objective
    loader: Loader
    filled: FilledView | None
    steps: int
    dev: StsTasks | None
    final: StsTasks | None
    followed: RatedPairs | None
    data: dict[str, Any]


def complete(recipe: Recipe) -> Recipe:
    """``recipe`` with every setting of its objective, also those that were left to the default.

    Raises:
        ConfigError: the objective or one of its settings is unknown, or cannot have its value.
    """
    given = {"name": "simcse", **recipe.objective}
    name = str(given.pop("name"))
    return replace(recipe, objective={"name": name, **asdict(objectives.config_of(name, given))})


def prepare(recipe: Recipe, device: torch.device, show_progress: bool = False) -> Parts:
    """Read the data, load the encoder, build the objective of a :func:`complete` recipe.

    Raises:
        ConfigError: settings are missing, wrong or at odds with each other or with the data.
        DataError: the training or evaluation data is missing or damaged.
        CheckpointError: the encoder cannot be loaded.
    """
    if not recipe.encoder.name:
        raise ConfigError("no encoder to start from: name a folder or model with --encoder")
    if not recipe.data.file:
        raise ConfigError("no training text: name a file or data set with --data")
    opened = open_labelled if recipe.data.labels == "nli" else open_examples
    examples = opened(recipe.data.file, recipe.data.columns)
    logger.info("data: %s", examples.columns)
    dev, final = dev_task(recipe.evaluation), final_tasks(recipe.evaluation)
    refuse_at_odds(recipe.train)
    check_keep(recipe.encoder, dev)
    followed = followed_pairs(recipe.evaluation)
    check_view(recipe.view, examples.views)
    examples.require(2)

    encoder = start_encoder(recipe.encoder)
    torch.manual_seed(recipe.train.seed)
    add_new_parts(encoder, recipe.encoder)
    encoder.to(device)
    if recipe.encoder.freeze_embeddings:
        encoder.backbone.freeze_embeddings()
    encoder.backbone.checkpoint_layers = recipe.train.gradient_checkpointing
    settings = dict(recipe.objective)
    precision = encoder.resolve_precision(recipe.train.precision)
    filled = FilledView.of(recipe.view, encoder, device, precision)
    objective = objectives.build(
        str(settings.pop("name")),
        settings,
        width=encoder.width,
        data_views=examples.views,
        encoder=encoder,
        precision=precision,
        batch_size=recipe.train.batch_size,
    ).to(device)
    refuse_other_ways(recipe, objective, examples.views)
    refuse_other_labels(recipe, objective)
    if recipe.train.gradcache_chunk is not None:
        refuse_uncacheable(encoder, objective)
    _refuse_longer_sentences(recipe, encoder, objective, filled)
    views = _open_views(recipe, examples, encoder, objective, show_progress)
    logger.info("%d examples; %s", len(views.source), views.left_out)
    loader = Loader(
        views.source,
        batch_size=recipe.train.batch_size,
        seed=recipe.train.seed,
        shuffle=recipe.data.shuffle,
        drop_last=recipe.data.drop_last,
    )
    logger.info("an example: %s", views.described)
    steps = recipe.train.max_steps or recipe.train.epochs * loader.steps_per_epoch
    data = {
        "source": Path(recipe.data.file).name,
        "sha256": examples.sha256,
        "columns": examples.columns,
        "examples": len(views.source),
        **views.origin,
    }
    twin = copy.deepcopy(encoder) if recipe.encoder.encoders == "twin" else None
    return Parts(encoder, twin, objective, loader, filled, steps, dev, final, followed, data)


def _open_views(
    recipe: Recipe,
    examples: Examples,
    encoder: SentenceEncoder,
    objective: Objective,
    show_progress: bool,
) -> Views:
    longest = recipe.data.max_tokens
    if objective.spans is not None:
        return open_spans(objective.spans, examples, encoder.tokenizer, longest)
    with reading_progress(show_progress) as advance:
        return open_views(
            recipe.view,
            examples,
            encoder.tokenizer,
            longest,
            views=objective.views,
            following=objective.following,
            ordered=objective.ordered,
            progress=advance,
        )


def _refuse_longer_sentences(
    recipe: Recipe, encoder: SentenceEncoder, objective: Objective, filled: FilledView | None
) -> None:
    """Stop where a sentence may get more tokens than a model has positions for."""
    longest = recipe.data.max_tokens
    if longest > encoder.max_tokens:
        raise ConfigError(
            f"data.max_tokens is {longest}, but {recipe.encoder.name} takes at most "
            f"{encoder.max_tokens} tokens"
        )
    if objective.max_tokens is not None and "generator" not in recipe.objective:
        if longest > objective.max_tokens:
            raise ConfigError(
                f"data.max_tokens is {longest}, but the objective {recipe.objective['name']} "
                f"leaves room for {objective.max_tokens} tokens of a sentence; lower it"
            )
        return
    generators = {
        (f"objective {recipe.objective['name']}", "objective.generator"): objective.max_tokens,
        ("view mlm", "view.generator"): filled.generator.max_tokens if filled else None,
    }
    for (owner, setting), limit in generators.items():
        if limit is not None and longest > limit:
            raise ConfigError(
                f"data.max_tokens is {longest}, but the generator of {owner} takes at most {limit} "
                f"tokens; lower it, or name another {setting}"
            )


def start_encoder(settings: EncoderSettings) -> SentenceEncoder:
    """The encoder a run starts from, before new weights are added.

    A sentence encoder's stored head is taken on. The layer over [CLS] of a plain masked language
    model is not: it was trained for something else, and SimCSE starts anew.
    """
    if are_words(settings.name):
        return over_words(settings)
    finished = checkpoint.says_how_it_embeds(settings.name)
    encoder = SentenceEncoder.load(
        settings.name,
        pooler=settings.pooler or (None if finished else "cls"),
        head=settings.head if settings.head == "none" else None if finished else "none",
        device="cpu",
    )
    if encoder.transform is not None:
        raise ConfigError(
            f"{settings.name} has a map fitted to its embeddings ({encoder.transform.described}), "
            "which training would leave behind; train the encoder that it was made from, and fit "
            "again with 'contrasent fit'"
        )
    if settings.dropout is not None:
        encoder.backbone.set_dropout(settings.dropout)
    return encoder


def scored_start(settings: EncoderSettings) -> SentenceEncoder | WordEncoder:
    """The encoder that a run is compared with: its start, which for word vectors is their mean."""
    words = are_words(settings.name)
    return WordEncoder.load(settings.name) if words else start_encoder(settings)


def dev_task(settings: EvaluationSettings) -> StsTasks | None:
    """The task that selects ``best``.

    Raises:
        ConfigError: it is not exactly one task.
        DataError: its data is missing, and the recipe names it.
    """
    if settings.task not in ("none", "auto"):
        names = task_names(settings.task.split(","))
        if len(names) != 1:
            raise ConfigError(
                f"evaluation.task must be one task, because it selects the best step; "
                f"{settings.task!r} is {len(names)}"
            )
        if names[0].name in STS and names[0].split == "test":
            logger.warning(
                "the best step is selected by the test split of %s, whose score is then no test "
                "any more; stsb-dev is meant for it",
                names[0].heading,
            )
    tasks = _named(settings.task, _DEV, settings, "no dev scores, and only `last` is kept")
    return None if tasks is None else StsTasks(tasks)


def final_tasks(settings: EvaluationSettings) -> StsTasks | None:
    """The tasks scored before and after; errors as :func:`dev_task`."""
    tasks = _named(settings.final, _FINAL, settings, "no scores before and after")
    return None if tasks is None else StsTasks(tasks)


def _named(
    name: str, usual: str, settings: EvaluationSettings, consequence: str
) -> Sequence[Task] | None:
    if name == "none":
        return None
    asked = usual if name == "auto" else name
    try:
        found = load_available(asked.split(","), settings.data_dir)
    except DataError as error:
        if name != "auto":
            raise DataError(f"{error}\nOr train without: --evaluation.task none") from error
        logger.warning(
            "%s: the data of %s was not found; 'contrasent data fetch' gets it", consequence, asked
        )
        return None
    for problem in found.problems:
        logger.warning("%s is not scored: %s", problem.task, problem.message)
    for task in found.tasks:
        _refuse_equal_gold(task)
    return found.tasks


def _refuse_equal_gold(task: Task) -> None:
    """Find now what would otherwise end the run at its first evaluation."""
    gold = {float(score) for subset in task.subsets for score in subset.gold}
    if len(gold) == 1:
        raise DataError(
            f"{task.name.label}: every score is {gold.pop():g}, so nothing correlates with them; "
            "give pairs of different similarity"
        )
