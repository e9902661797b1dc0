"""Setup of a run: from a recipe to its parts, everything checked before anything is written."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from contrasent.data.examples import open_examples, open_training
from contrasent.data.loader import Loader
from contrasent.data.views import open_spans, open_views
from contrasent.data.word_vectors import WordTokenizer, open_words, sentence_marks
from contrasent.distributed import WHOLE, Split, launched, timeout
from contrasent.errors import ConfigError, ContrasentError, first_line
from contrasent.model import checkpoint
from contrasent.model.backbones.base import training_device
from contrasent.model.backbones.word_lstm import WordLstm, require_pooler
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.hub import are_words
from contrasent.model.masked_lm import MlmView
from contrasent.model.protocol import ROLES, EncoderParts
from contrasent.model.weights import add_lora
from contrasent.objectives import build
from contrasent.progress import reading_progress
from contrasent.recipe import Recipe
from contrasent.settings import EncoderSettings
from contrasent.training.compatibility import Combination, refuse
from contrasent.training.loop import Training, optimizer_of, trainable_parameters

if TYPE_CHECKING:
    from accelerate import Accelerator

    from contrasent.evaluation.sts_data import RatedPairs
    from contrasent.evaluation.suite import Suite
    from contrasent.model.loading import WordEncoder
    from contrasent.training.scoring import DevTask

logger = logging.getLogger("contrasent")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts(Training):
    """The parts of a run."""

    loader: Loader
    dev: DevTask | None  # the task that selects ``best``
    final: Suite | None  # the tasks scored before and after
    followed: RatedPairs | None  # pairs whose geometry is measured during training
    data: dict[str, Any]  # what is kept of the data in ``contrasent.json``
    whitening_text: list[str]  # training sentences that a whitening is fitted on; empty for none


def prepare(
    recipe: Recipe,
    device: torch.device,
    show_progress: bool = False,
    holds_out: bool | None = None,
    split: Split = WHOLE,
) -> RunParts:
    """Read the data, load the encoder, build the objective of a :func:`complete` recipe.

    ConfigError if settings are missing, wrong or at odds with each other or with the data;
    DataError if the training or evaluation data is missing or damaged; CheckpointError if the
    encoder cannot be loaded. ``holds_out`` says whether the run that goes on keeps text out of
    training, None for a new one; ``split`` which process of a run this is.
    """
    if not recipe.encoder.name or not recipe.data.file:
        raise ConfigError(
            "name a folder or model to start from with --encoder, and the training text, a file or "
            "data set, with --data"
        )
    settings, order, evaluation = recipe.train, recipe.data, recipe.evaluation
    examples = open_training(order.file, order.labels, order.columns)
    logger.info("data: %s", examples.columns)
    refuse(Combination(recipe, examples.views))
    dev = final = held = followed = None
    if (evaluation.task, evaluation.final) != ("none", "none"):
        from contrasent.training.scoring import tasks_of

        dev, final, held = tasks_of(recipe, examples, holds_out)
    if evaluation.geometry_every is not None:
        from contrasent.evaluation.sts_data import RatedPairs

        followed = RatedPairs.read(evaluation.geometry_pairs, evaluation.data_dir)
    text = examples if held is None else open_examples(str(held.rest))
    text.require(2)

    encoder = _trained_encoder(recipe, device)
    mlm_view = MlmView.of(recipe.view, encoder) if recipe.view.name == "mlm" else None
    given = dict(recipe.objective)
    objective = build(
        str(given.pop("name")),
        given,
        width=encoder.full_width,
        data_views=examples.views,
        encoder=encoder,
        batch_size=settings.batch_size,
    ).to(device)
    longest = mlm_view.generator.max_tokens if mlm_view else None
    refuse(Combination(recipe, examples.views, objective, encoder, longest, split.processes))
    if objective.has_roles:
        query, document = map(encoder.conventions.prompt_of, ROLES)
        text.prompts = (query, *[document] * (text.views - 1)) if query or document else ()
    elif prompt := encoder.conventions.resolve():
        logger.warning(
            "%s puts %r before every sentence that it encodes, but not in training; put it before "
            "those of %s to train with it",
            *(recipe.encoder.name, prompt, order.file),
        )
    copies = examples.views == 1 < objective.views and not objective.provides_views
    of_noise = copies and recipe.view.name == "dropout"
    if of_noise and recipe.encoder.dropout is None and not encoder.backbone.has_dropout:
        logger.warning(
            "no dropout of %s is above 0, so both views of a sentence are equal; set "
            "encoder.dropout, such as 0.1",
            recipe.encoder.name,
        )

    if objective.spans is not None:
        views = open_spans(objective.spans, text, encoder.tokenizer, order.max_tokens)
    else:
        with reading_progress("examples", show_progress) as advance:
            views = open_views(
                recipe.view,
                text,
                encoder.tokenizer,
                order.max_tokens,
                views=objective.views,
                needs=objective.needs,
                own_columns=partial(objective.columns, show_progress=show_progress),
                progress=lambda count: advance(completed=count),
            )
    size, count = settings.batch_size, len(views.source)
    shape = count, views.source.views
    logger.info("%d examples of %d sentences; %s", *shape, views.left_out)
    loader = Loader(
        views.source,
        batch_size=size,
        seed=settings.seed,
        shuffle=order.shuffle,
        drop_last=order.drop_last,
    )
    whitening_text = list(islice(chain.from_iterable(text), settings.whitening_sentences))
    twin = copy.deepcopy(encoder) if recipe.encoder.encoders == "twin" else None
    return RunParts(
        encoder=encoder,
        twin=twin,
        objective=objective,
        optimizer=optimizer_of(settings, trainable_parameters(encoder, objective, twin)),
        settings=settings,
        precision=encoder.resolve_precision(settings.precision),
        steps=settings.max_steps or settings.epochs * loader.steps_per_epoch,
        mlm_view=mlm_view,
        fixed_dropout=recipe.view.fixed_dropout,
        split=replace(split, chunk=settings.gradcache_chunk),
        loader=loader,
        dev=dev,
        final=final,
        followed=followed,
        data={
            "source": Path(order.file).name,
            "sha256": examples.sha256,
            "columns": examples.columns,
            "examples": count,
            **({} if held is None else {"held_out": held.texts}),
            **views.origin,
        },
        whitening_text=whitening_text,
    )


def _trained_encoder(recipe: Recipe, device: torch.device) -> SentenceEncoder:
    settings = recipe.encoder
    encoder = start_encoder(settings)
    backbone = encoder.backbone
    torch.manual_seed(recipe.train.seed)
    if isinstance(backbone, WordLstm) and are_words(settings.name):
        backbone.lstm.reset_parameters()
    if (widths := settings.convolutions) is not None:
        present = encoder.convolutions
        unsuited = encoder.pooler != "mean" or (encoder.head is not None and not present)
        if present and (list(present.widths), present.channels) != (widths, settings.channels):
            unsuited = True
        if unsuited:
            raise ConfigError(
                "encoder.convolutions are for the mean over tokens without a head or other "
                f"convolutions, but {settings.name} has pooler {encoder.pooler}, head "
                f"{encoder.head_name} and {'other' if present else 'no'} convolutions; set the "
                "first two to mean and none, or leave encoder.convolutions and channels out"
            )
        if present is None:
            encoder.convolutions = Convolutions(backbone.width, widths, settings.channels)
    if settings.head == "mlp" and encoder.head is None:
        encoder.head = MlpHead(encoder.full_width)
    if settings.lora is not None:
        add_lora(backbone, settings.lora, settings.lora_alpha)
    encoder.to(device)
    encoder.resolve_precision(recipe.train.precision)  # refused before the text is read
    if settings.freeze_embeddings:
        backbone.freeze_embeddings()
    if settings.freeze_layers:
        backbone.freeze_layers(settings.freeze_layers)
    backbone.set_checkpointing(recipe.train.gradient_checkpointing)
    return encoder


def start_encoder(settings: EncoderSettings) -> SentenceEncoder:
    """The encoder a run starts from, before new weights are added.

    A sentence encoder's stored head is taken on; the layer over [CLS] of a masked language model is
    not: SimCSE starts anew. Of word vectors it is a new LSTM, with the largest outputs.
    ConfigError if a setting has no sense for it, or it has a fitted map.
    """
    if are_words(settings.name):
        path = Path(settings.name).expanduser()
        if settings.lstm is None or path.is_dir():
            raise ConfigError(
                f"{settings.name} holds word vectors, over which an LSTM is trained; say its size "
                "with encoder.lstm, as the recipe infersent does, and name the file of the vectors"
            )
        store, pooler = open_words(path), settings.pooler or "max"
        require_pooler(pooler)
        tokenizer = WordTokenizer(store, sentence_marks(store))
        backbone = WordLstm(store, settings.lstm)
        parts = EncoderParts(backbone=backbone, tokenizer=tokenizer, pooler=pooler)
        encoder = SentenceEncoder(parts)
        encoder.name = settings.name
    else:
        finished = checkpoint.is_sentence_encoder(settings.name)
        encoder = SentenceEncoder.load(
            settings.name,
            pooler=settings.pooler or (None if finished else "cls"),
            head=settings.head if settings.head == "none" else None if finished else "none",
            device="cpu",
        )
    if encoder.transform is not None and not encoder.transform.is_trained:
        raise ConfigError(
            f"{settings.name} has a map fitted to its embeddings ({encoder.transform.described}), "
            "which training would leave behind; train the encoder that it was made from, and fit "
            "again with 'contrasent fit'"
        )
    if settings.layers is not None:
        encoder.backbone.keep_layers(settings.layers)
    if settings.prompt is not None:
        encoder.tokenizer = encoder.tokenizer.with_prompt(settings.prompt)
    if settings.dropout is not None:
        encoder.backbone.set_dropout(settings.dropout)
    if settings.bidirectional:
        encoder.backbone.see_both_sides()
    return encoder


def start_as_it_comes(settings: EncoderSettings) -> SentenceEncoder | WordEncoder:
    """The encoder that a run has to beat: its start with its own pooler and head.

    A masked language model gets the pooler of the run; of word vectors it is their mean.
    """
    if are_words(settings.name):
        from contrasent.model.loading import WordEncoder

        return WordEncoder.load(settings.name)
    own: dict[str, Any] = {"dropout": None, "bidirectional": False}
    if checkpoint.is_sentence_encoder(settings.name):
        if settings.layers is None:
            return SentenceEncoder.load(settings.name, device="cpu")
        own |= {"pooler": None, "head": None, "prompt": None}
    return start_encoder(replace(settings, **own))


def accelerator_on(
    device: str | torch.device | None, names: Sequence[str], folder: Path
) -> Accelerator:
    """The accelerator of a run on ``device``, with trackers that write to ``folder``."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    here, patience = launched(), timeout()
    try:
        return Accelerator(
            cpu=training_device(device).type == "cpu",
            log_with=list(names) or None,
            project_config=ProjectConfiguration(logging_dir=str(folder)),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=patience)],
        )
    except RuntimeError as error:
        if here.processes == 1:
            raise
        raise ContrasentError(
            f"process {here.rank} of {here.processes} did not meet the others within "
            f"{patience.total_seconds():g} seconds ({first_line(error)[:200]}); give all the "
            "same MASTER_ADDR and MASTER_PORT, or wait longer with CONTRASENT_TIMEOUT (seconds)"
        ) from error
