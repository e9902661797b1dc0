"""Setup of a run: from a recipe to its parts, everything checked before anything is written."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from contrasent import objectives
from contrasent.data.examples import Examples, open_examples
from contrasent.data.labelled_pairs import open_labelled, open_scored
from contrasent.data.loader import Loader
from contrasent.data.views import Views, open_spans, open_views
from contrasent.data.word_vectors import WordTokenizer, open_words, sentence_marks
from contrasent.errors import ConfigError
from contrasent.evaluation.proxy import HeldOutTask
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.evaluation.suite import Suite
from contrasent.model import checkpoint
from contrasent.model.backbones.word_lstm import WordLstm, require_pooler
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.protocol import EncoderParts
from contrasent.model.weights import add_lora
from contrasent.model.word_encoder import WordEncoder, are_words
from contrasent.objectives.base import Objective
from contrasent.progress import reading_progress
from contrasent.recipe import Recipe
from contrasent.settings import EncoderSettings
from contrasent.training.callbacks import followed_pairs
from contrasent.training.compatibility import Combination, refuse
from contrasent.training.masked_text import MlmView
from contrasent.training.scoring import (
    DevTask,
    ProxyTask,
    dev_task,
    final_tasks,
    held_out,
    proxy_suite,
)

logger = logging.getLogger("contrasent")


def add_new_parts(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give ``encoder`` the convolutions, head and low-rank changes that ``settings`` ask for.

    ConfigError if it cannot have those convolutions.
    """
    if settings.lstm is not None:
        _renew_lstm(encoder, settings)
    _add_convolutions(encoder, settings)
    if settings.head == "mlp" and encoder.head is None:
        encoder.head = MlpHead(encoder.full_width)
    if settings.lora is not None:
        add_lora(encoder.backbone, settings.lora, settings.lora_alpha)


def new_word_lstm(settings: EncoderSettings) -> SentenceEncoder:
    """A new LSTM over the vectors of a file, with the largest outputs as the embedding.

    ConfigError if its size is not said, ``settings`` have no sense for it, or a folder of fitted
    vectors is named; CheckpointError if there is no such file, or it is damaged.
    """
    if settings.lstm is None:
        raise ConfigError(
            f"{settings.name} holds word vectors, over which an LSTM is trained; say its size with "
            "encoder.lstm, as the recipe infersent does"
        )
    path = Path(settings.name).expanduser()
    if path.is_dir():
        raise ConfigError(
            f"{settings.name} has weights fitted to words (SIF), which an LSTM would leave out; "
            "name the file of word vectors that it was made from"
        )
    store = open_words(path)
    chosen = settings.pooler or "max"
    require_pooler(chosen)
    tokenizer = WordTokenizer(store, sentence_marks(store))
    backbone = WordLstm(store, settings.lstm)
    encoder = SentenceEncoder(EncoderParts(backbone=backbone, tokenizer=tokenizer, pooler=chosen))
    encoder.name = settings.name
    if settings.prompt is not None:
        encoder.tokenizer.template_of(settings.prompt)  # refused
    if settings.bidirectional:
        backbone.see_both_sides()  # refused
    if settings.dropout is not None:
        encoder.backbone.set_dropout(settings.dropout)
    return encoder


def _renew_lstm(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Draw the weights of a new LSTM, or make sure that the one there is what is asked for."""
    backbone = encoder.backbone
    if not isinstance(backbone, WordLstm) or backbone.width != 2 * (settings.lstm or 0):
        raise ConfigError(
            f"encoder.lstm is {settings.lstm}, for a new LSTM over a .txt or .vec file of word "
            f"vectors, but {settings.name} is an encoder of its own; leave encoder.lstm out"
        )
    if are_words(settings.name):
        backbone.lstm.reset_parameters()


def _add_convolutions(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give ``encoder`` the convolutions that ``settings`` ask for, unless it has them.

    ConfigError if a width is even, the pooler is not the mean of the last layer, or the encoder
    has other ones, or a head.
    """
    widths = settings.convolutions
    if widths is None:
        return
    if not widths or any(width % 2 == 0 for width in widths):
        raise ConfigError(
            f"encoder.convolutions is {widths}, but a convolution sees a token and as many on "
            "either side, so each width must be odd, such as 1, 3 or 5"
        )
    if encoder.pooler != "mean":
        raise ConfigError(
            f"encoder.convolutions are for the mean over tokens, but encoder.pooler is "
            f"{encoder.pooler}; set it to mean"
        )
    present = encoder.convolutions
    if present is not None:
        if (list(present.widths), present.channels) != (widths, settings.channels):
            raise ConfigError(
                f"{settings.name} has convolutions of widths {list(present.widths)} with "
                f"{present.channels} channels, not the {widths} with {settings.channels} of "
                "encoder.convolutions and encoder.channels; leave these out"
            )
        return
    if encoder.head is not None:
        raise ConfigError(
            f"{settings.name} has a head for embeddings without convolutions; set encoder.head to "
            "none to leave it out, or leave encoder.convolutions out"
        )
    encoder.convolutions = Convolutions(encoder.backbone.width, widths, settings.channels)


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run."""

    encoder: SentenceEncoder  # the start, with new weights where the recipe asks for a new head
    # a copy of it, for all views but the first; None if one encoder embeds all
    twin: SentenceEncoder | None
    objective: Objective  # with its own new weights
    loader: Loader  # the batches
    mlm_view: MlmView | None  # makes the view ``mlm`` of a batch; None if the view is another
    steps: int  # updates in all
    dev: DevTask | None  # the task that selects ``best``; None without one
    final: Suite | None  # the tasks scored before and after; None without
    # the pairs whose geometry is measured during training; None without
    followed: RatedPairs | None
    data: dict[str, Any]  # what is kept of the data in ``contrasent.json``
    whitening_text: list[str]  # training sentences that a whitening is fitted on; empty for none


def prepare(
    recipe: Recipe,
    device: torch.device,
    show_progress: bool = False,
    holds_out: bool | None = None,
    processes: int = 1,
) -> RunParts:
    """Read the data, load the encoder, build the objective of a :func:`complete` recipe.

    ConfigError if settings are missing, wrong or at odds with each other or with the data;
    DataError if the training or evaluation data is missing or damaged; CheckpointError if the
    encoder cannot be loaded. ``holds_out`` says whether the run that goes on keeps text out of
    training, None for a new one; ``processes`` train together.
    """
    if not recipe.encoder.name:
        raise ConfigError("no encoder to start from: name a folder or model with --encoder")
    if not recipe.data.file:
        raise ConfigError("no training text: name a file or data set with --data")
    openers: dict[str, Callable[..., Examples]] = {"nli": open_labelled, "scores": open_scored}
    opened = openers.get(recipe.data.labels, open_examples)
    examples = opened(recipe.data.file, recipe.data.columns)
    logger.info("data: %s", examples.columns)
    refuse(Combination(recipe, examples.views))
    dev, final, held = _tasks(recipe, examples, holds_out)
    text = examples if held is None else open_examples(str(held.rest))
    if recipe.encoder.keep == "better" and dev is None:
        logger.warning(
            "encoder.keep is better, but without a dev task neither encoder is known to be; the "
            "one of the first view is kept"
        )
    followed = followed_pairs(recipe.evaluation)
    text.require(2)

    encoder = start_encoder(recipe.encoder)
    torch.manual_seed(recipe.train.seed)
    add_new_parts(encoder, recipe.encoder)
    encoder.to(device)
    encoder.resolve_precision(recipe.train.precision)  # refused before anything is written
    if recipe.encoder.freeze_embeddings:
        encoder.backbone.freeze_embeddings()
    if recipe.encoder.freeze_layers:
        encoder.backbone.freeze_layers(recipe.encoder.freeze_layers)
    encoder.backbone.set_checkpointing(recipe.train.gradient_checkpointing)
    settings = dict(recipe.objective)
    mlm_view = MlmView.of(recipe.view, encoder)
    objective = objectives.build(
        str(settings.pop("name")),
        settings,
        width=encoder.full_width,
        data_views=examples.views,
        encoder=encoder,
        batch_size=recipe.train.batch_size,
    ).to(device)
    longest = mlm_view.generator.max_tokens if mlm_view else None
    refuse(Combination(recipe, examples.views, objective, encoder, longest, processes))
    _warn_of_views(recipe, examples.views, objective, encoder)
    views = _open_views(recipe, text, encoder, objective, show_progress)
    logger.info("%d examples; %s", len(views.source), views.left_out)
    loader = Loader(
        views.source,
        batch_size=recipe.train.batch_size,
        seed=recipe.train.seed,
        shuffle=recipe.data.shuffle,
        drop_last=recipe.data.drop_last,
    )
    logger.info("an example: %s", views.described)
    _warn_of_batch(recipe, len(views.source))
    steps = recipe.train.max_steps or recipe.train.epochs * loader.steps_per_epoch
    data = {
        "source": Path(recipe.data.file).name,
        "sha256": examples.sha256,
        "columns": examples.columns,
        "examples": len(views.source),
        **({} if held is None else {"held_out": held.texts}),
        **views.origin,
    }
    twin = copy.deepcopy(encoder) if recipe.encoder.encoders == "twin" else None
    return RunParts(
        encoder,
        twin,
        objective,
        loader,
        mlm_view,
        steps,
        dev,
        final,
        followed,
        data,
        _whitening_text(recipe, text, encoder.full_width),
    )


def _whitening_text(recipe: Recipe, examples: Examples, width: int) -> list[str]:
    """The first training sentences, as many as a whitening is to be fitted on."""
    sentences = chain.from_iterable(examples)
    text = list(islice(sentences, recipe.train.whitening_sentences))
    if text and len(text) <= width:
        raise ConfigError(
            f"train.whitening_sentences is {recipe.train.whitening_sentences}, of which "
            f"{recipe.data.file} has {len(text)}; a whitening of {width} dimensions takes more "
            f"than {width}, so give more, or leave it out"
        )
    return text


def _warn_of_batch(recipe: Recipe, count: int) -> None:
    """Warn of a batch beyond the data."""
    if recipe.train.batch_size > count:
        logger.warning(
            "a batch of %d is more than the %d examples there are: every step takes all of them; "
            "give more text or a smaller --batch-size",
            recipe.train.batch_size,
            count,
        )


def _warn_of_views(
    recipe: Recipe, views: int, objective: Objective, encoder: SentenceEncoder
) -> None:
    """Warn of a prompt that views lack, and of two copies that no noise tells apart."""
    if prompt := encoder.conventions.resolve():
        logger.warning(
            "%s puts %r before every sentence that it encodes, but not in training; put it before "
            "those of %s to train with it",
            *(recipe.encoder.name, prompt, recipe.data.file),
        )
    copies = views == 1 < objective.views and not objective.provides_views
    of_noise = copies and recipe.view.name == "dropout"
    if of_noise and recipe.encoder.dropout is None and not encoder.backbone.has_dropout:
        logger.warning(
            "no dropout of %s is above 0, so both views of a sentence are equal; set "
            "encoder.dropout, such as 0.1",
            recipe.encoder.name,
        )


def _tasks(
    recipe: Recipe, examples: Examples, holds_out: bool | None
) -> tuple[DevTask | None, Suite | None, HeldOutTask | None]:
    """What selects ``best``, what is scored before and after, and the text that is held out."""
    dev = None if holds_out else dev_task(recipe.evaluation)
    final = final_tasks(recipe.evaluation)
    if dev is not None or holds_out is False or recipe.data.labels != "none":
        return dev, final, None
    held = held_out(recipe.evaluation, examples)
    if held is None:
        return None, final, None
    if final is None and recipe.evaluation.final == "auto":
        final = proxy_suite(held.task)
    return ProxyTask(held.task), final, held


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
    with reading_progress("examples", show_progress) as advance:
        return open_views(
            recipe.view,
            examples,
            encoder.tokenizer,
            longest,
            views=objective.views,
            needs=objective.needs,
            own_columns=partial(objective.columns, show_progress=show_progress),
            progress=lambda count: advance(completed=count),
        )


def start_encoder(settings: EncoderSettings) -> SentenceEncoder:
    """The encoder a run starts from, before new weights are added.

    A sentence encoder's stored head is taken on. The layer over [CLS] of a plain masked language
    model is not: it was trained for something else, and SimCSE starts anew.
    """
    if are_words(settings.name):
        return new_word_lstm(settings)
    finished = checkpoint.is_sentence_encoder(settings.name)
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
    if settings.prompt is not None:
        encoder.tokenizer = encoder.tokenizer.with_prompt(settings.prompt)
    if settings.dropout is not None:
        encoder.backbone.set_dropout(settings.dropout)
    if settings.bidirectional:
        encoder.backbone.see_both_sides()
    return encoder


def start_as_it_comes(settings: EncoderSettings) -> SentenceEncoder | WordEncoder:
    """The encoder that a run has to beat: its start with its own pooler and head.

    A masked language model has no sentence embedding of its own: it gets the pooler of the run.
    For word vectors it is their mean.
    """
    if are_words(settings.name):
        return WordEncoder.load(settings.name)
    if checkpoint.is_sentence_encoder(settings.name):
        return SentenceEncoder.load(settings.name, device="cpu")
    return start_encoder(replace(settings, dropout=None, bidirectional=False))
