"""What turns the batches of a run into embeddings with gradients.

Shapes: B examples, V views of each, T tokens of all sentences, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import matrix_precision
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective
from contrasent.recipe import Recipe
from contrasent.settings import TrainSettings
from contrasent.training.gradcache import GradientCache

Embedding = Callable[[Batch], tuple[Encoded, Callable[[], None]]]
"""Embeds a batch, and gives what is to be called after the backward pass of the loss."""


def embedding(
    encoder: SentenceEncoder,
    objective: Objective,
    settings: TrainSettings,
    precision: str,
    *,
    twin: SentenceEncoder | None = None,
    fixed_dropout: bool = False,
) -> Embedding:
    """How a run with these settings embeds its batches.

    Args:
        encoder: embeds the sentences.
        objective: what the embeddings are for.
        settings: say whether gradients are cached.
        precision: of the matrix products, ``fp32`` or ``bf16``.
        twin: embeds all views but the first; without one, ``encoder`` embeds them.
        fixed_dropout: all views of an example have the same dropout masks.
    """

    def whole(model: SentenceEncoder) -> Embedding:
        if settings.gradcache_chunk is not None:
            return GradientCache(model, settings.gradcache_chunk, precision).embed

        def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
            with matrix_precision(precision, batch.token_ids.device):
                return model(batch, objective.layers), lambda: None

        return embed

    if twin is not None:
        return _by_two(whole(encoder), whole(twin))
    return _once(whole(encoder), objective.views) if fixed_dropout else whole(encoder)


def refuse_other_ways(recipe: Recipe, objective: Objective, data_views: int) -> None:
    """Stop before work starts where the views cannot be embedded as the recipe says.

    Args:
        recipe: ``view``, ``encoder.encoders`` and ``data.shuffle`` are looked at.
        objective: built for the run.
        data_views: sentences per example of the data.

    Raises:
        ConfigError: these settings are at odds with each other, the data or the objective.
    """
    twin = recipe.encoder.encoders == "twin"
    if objective.spans is not None:
        _refuse_beside_spans(recipe)
    if recipe.view.fixed_dropout:
        _refuse_fixed_dropout(recipe, objective, data_views, twin)
    if twin and objective.views < 2 and not objective.makes_views:
        raise ConfigError(
            "encoder.encoders is twin, but the objective takes one view of each example, so that "
            "there is nothing for a second encoder; choose encoder.encoders shared"
        )
    if recipe.view.name != "dropout" and objective.views < 2:
        raise ConfigError(
            f"view.name is {recipe.view.name}, but the objective takes one view of each example, "
            "so that there is no positive; choose view.name dropout"
        )
    if objective.ordered and recipe.data.shuffle:
        raise ConfigError(
            f"the objective {recipe.objective['name']} tells the neighbours of a sentence in its "
            "document from the other sentences of the batch, but data.shuffle is true, so that a "
            "batch has hardly any; set data.shuffle to false"
        )
    if twin and objective.layers:
        raise ConfigError(
            "encoder.encoders is twin, but the objective also reads token states, which would be "
            "those of two encoders; choose encoder.encoders shared, or leave that term out"
        )


def refuse_other_labels(recipe: Recipe, objective: Objective) -> None:
    """Stop before work starts where labels are missing, or would be ignored.

    Raises:
        ConfigError: the objective needs labels and there are none, or the other way round.
    """
    name = recipe.objective["name"]
    if objective.labelled and recipe.data.labels == "none":
        raise ConfigError(
            f"the objective {name} needs the label of each pair, but data.labels is none; set it "
            "to nli, with data that has the columns premise, hypothesis and label ('contrasent "
            "data build nli ... --make labelled' writes such a file)"
        )
    if not objective.labelled and recipe.data.labels != "none":
        raise ConfigError(
            f"data.labels is {recipe.data.labels}, but the objective {name} reads no labels: it "
            "would take contradictions for positives; leave data.labels out and give pairs or "
            "triplets ('contrasent data build nli' makes them), or choose objective nli_softmax"
        )


def _refuse_beside_spans(recipe: Recipe) -> None:
    takes = f"the objective {recipe.objective['name']} draws spans of documents as its views"
    if recipe.view.name != "dropout" or recipe.view.fixed_dropout:
        raise ConfigError(f"{takes}, so the settings of view have nothing to do; leave them out")
    if recipe.encoder.encoders == "twin":
        raise ConfigError(
            f"{takes}, of which the first are all anchors, but encoder.encoders is twin, which "
            "embeds the first one alone; choose encoder.encoders shared"
        )


def _refuse_fixed_dropout(
    recipe: Recipe, objective: Objective, data_views: int, twin: bool
) -> None:
    said = "view.fixed_dropout is true, so one embedding stands for all views of an example, but "
    if data_views > 1:
        raise ConfigError(
            f"{said}the data has {data_views} sentences per example; leave it out, or choose one "
            "column with data.columns"
        )
    if recipe.view.name != "dropout":
        raise ConfigError(
            f"{said}the view {recipe.view.name} makes another sentence; leave it out, or choose "
            "view.name dropout"
        )
    if twin:
        raise ConfigError(
            f"{said}encoder.encoders is twin, which embeds them apart; choose one of the two"
        )
    if objective.makes_views:
        raise ConfigError(
            f"{said}the objective {recipe.objective['name']} makes views of its own, which differ; "
            "leave it out"
        )
    if objective.layers:
        raise ConfigError(
            f"{said}the objective also reads the token states of every view; leave it out, or "
            "that term"
        )


def _once(one: Embedding, views: int) -> Embedding:
    """Embed the first of ``views`` equal views, and let it stand for all of them.

    There is no dropout behind an encoder's head, so equal masks make equal embeddings, and the
    gradient of one forward pass is the sum of those of V. Gao et al. do the same ("Fixed 0.1" in
    Table 3). Views behind these, which an objective added, are embedded as they are.
    """

    def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        encoded, backward = one(_without_copies(batch, views))
        first, added = encoded.pooled[:1], encoded.pooled[1:]
        return Encoded(torch.cat([first.expand(views, -1, -1), added]), {}), backward

    return embed


def _by_two(one: Embedding, other: Embedding) -> Embedding:
    """The first view by one encoder, the others by another."""

    def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        anchors, others = _parted(batch)
        first, backward_through_one = one(anchors)
        rest, backward_through_other = other(others)

        def backward() -> None:
            backward_through_one()
            backward_through_other()

        return Encoded(torch.cat([first.pooled, rest.pooled]), {}), backward

    return embed


def _without_copies(batch: Batch, views: int) -> Batch:
    """``batch`` with one of its first ``views`` views, which have the same sentences."""
    examples, copies = batch.examples, batch.examples * views
    # The host knows T; where further views begin it would have to ask the device for.
    end = len(batch.token_ids) if batch.views == views else int(batch.offsets[copies])
    left_out = end - end // views
    tokens = torch.cat([batch.token_ids[: end // views], batch.token_ids[end:]])
    added = batch.offsets[copies + 1 :] - left_out
    offsets = torch.cat([batch.offsets[: examples + 1], added])
    return Batch(tokens, offsets, batch.views - views + 1, batch.longest)


def _parted(batch: Batch) -> tuple[Batch, Batch]:
    """The first view, and the others; the host waits for the device to tell where they part."""
    examples = batch.examples
    end = int(batch.offsets[examples])
    before, behind = (None, None) if batch.factors is None else batch.factors.tensor_split([end])
    anchors = Batch(
        batch.token_ids[:end], batch.offsets[: examples + 1], 1, batch.longest, factors=before
    )
    offsets = batch.offsets[examples:] - end
    others = Batch(batch.token_ids[end:], offsets, batch.views - 1, batch.longest, factors=behind)
    return anchors, others
