"""DiffCSE (Chuang et al. 2022, arXiv:2204.10298): SimCSE, and the difference to an edited sentence.

The contrastive term makes embeddings insensitive to dropout. The other one makes them sensitive
to words: a discriminator that knows only the embedding of a sentence has to find the tokens that a
masked language model has replaced in it. docs/fidelity.md explains settings with two values.

Shapes: B examples, V views of each, S = V * B sentences, D embedding width.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from contrasent.data.batch import Batch, Need, concat
from contrasent.errors import ConfigError
from contrasent.functional import info_nce, rtd_divisor
from contrasent.model.generator import Editing, Generator
from contrasent.model.heads import head_named
from contrasent.model.masked_lm import MaskedLm, require_mask_token
from contrasent.model.protocol import Encoded
from contrasent.objectives._difference import (
    OPERATIONS,
    Conditional,
    CorrectedTokens,
    Difference,
    MaskedTokens,
    ReplacedTokens,
)
from contrasent.objectives.base import Objective, Start, Terms, duplicates
from contrasent.settings import settings


@settings
class Config:
    """Settings of the DiffCSE objective; the tables are those of its paper."""

    temperature: PositiveFloat = 0.05
    """tau of the contrastive term; the cosine is divided by it."""

    contrast: bool = True
    """Whether there is a contrastive term (Table 3, "w/o contrastive loss")."""

    projector: Literal["batchnorm", "mlp", "none"] = "batchnorm"
    """Head that is trained and then dropped (Table 5): two linear layers with batch normalisation,
    SimCSE's Linear+Tanh, or none."""

    exclude_duplicates: bool = True
    """Leave candidates with the text of the anchor or of its positive out of the negatives."""

    task: Literal["rtd", "cmlm", "corrective"] = "rtd"
    """What the conditional network does (Table 3): find replaced tokens, predict masked ones, or
    correct replaced ones."""

    rtd_weight: NonNegativeFloat = 0.005
    """lambda, the weight of that task (Table 8); at 0 nothing of it is computed. Without effect, as
    all of that task, where edit_role is not difference."""

    copy_weight: NonNegativeFloat = 50.0
    """Of the copy decisions beside the corrections in task corrective (COCO-LM's 50)."""

    rtd_embedding: Literal["projected", "pooled"] = "projected"
    """What the conditional network knows of a sentence: its embedding after the projector, as in
    the authors' code by default, or before it."""

    rtd_reduction: Literal["mean", "sum"] = "mean"
    """Of task rtd, over the tokens of a batch: mean as in the authors' code, for which rtd_weight
    is meant, or the sum of the paper's formula."""

    rtd_padding: Literal["ignored", "as_reference"] = "ignored"
    """Of task rtd: as_reference divides by the number of tokens that a padded batch has, as the
    authors' mean does, so that the term gets smaller the more the lengths differ."""

    generator: str | None = None
    """The masked language model that edits (Table 6): a folder or Hugging Face id with the
    encoder's vocabulary; null takes the encoder's own checkpoint."""

    generator_dropout: bool = False
    """Whether its dropout is on, as it is by accident in the authors' code."""

    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of the tokens that are masked, inserted or deleted (Table 7)."""

    edit: Literal["argmax", "sample"] = "sample"
    """How the generator fills a masked place: with its likeliest token, as the authors' code does,
    or with a draw from its distribution, as the paper says."""

    edit_positions: Literal["all", "masked"] = "masked"
    """Where a replacement takes the generator's token: everywhere, so that tokens which were not
    masked may change as well, as in the authors' code, or where tokens were masked."""

    edit_operation: Literal["replace", "insert", "delete", "all"] = "replace"
    """What an edit does (Table 4)."""

    edit_source: Literal["same", "next", "both"] = "same"
    """Which sentence is edited (Table 3): the embedded one, the next in its document, or each."""

    edit_role: Literal["difference", "positives", "negatives"] = "difference"
    """What edits are for: to be told from the original, or to be further positives or negatives of
    the contrastive term (Table 15)."""


class DiffCSE(Objective):
    """A contrastive term on dropout views, and a task on an edit that the embedding helps with."""

    config_class = Config
    in_parts = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        _refuse_at_odds(config)
        self.config = config
        self.views = max(2, start.data_views)
        following = {Need.NEXT_SENTENCES} if config.edit_source != "same" else set()
        self.needs = frozenset({Need.TOKENS, *following})
        self.projector = head_named(config.projector, start.width)
        every = config.edit_operation == "all"
        self._operations = list(OPERATIONS) if every else [config.edit_operation]
        self._editing: Editing | None = None
        self.difference: Difference | None = None
        if config.edit_role != "difference" or config.rtd_weight:
            self._editing = _editing(config, start)
            self.max_tokens = self._editing.max_tokens
        if config.edit_role == "difference" and self._editing is not None:
            self.difference = self._task(start, self._editing)

    def prepare(self, batch: Batch) -> Batch:
        if self._editing is None or self.difference is not None:
            return batch
        anchors = batch.view(0)
        edits = [OPERATIONS[name](anchors, self._editing).batch for name in self._operations]
        return concat([batch, *edits], batch.views + len(edits))

    def negatives(self, examples: int) -> int:
        return (self.views - 1) * examples - 1 if self.config.contrast else 0

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        projected = self.projector(encoded.pooled)
        terms = Terms(
            {"contrast": self._contrast(projected, batch)} if self.config.contrast else {}
        )
        if self.difference is not None:
            chosen = projected if self.config.rtd_embedding == "projected" else encoded.pooled
            difference = self.difference(*self._sources(chosen.flatten(0, 1), batch))
            weights = {"copy": self.config.copy_weight}
            for name, term in difference.items():
                terms[name] = self.config.rtd_weight * weights.get(name, 1.0) * term
            terms.measures.update(difference.measures)
        return terms

    def _contrast(self, projected: Tensor, batch: Batch) -> Tensor:
        """SimCSE's term; with edits as positives, the mean over the positives of each anchor."""
        anchor, *others = projected
        kept = self.views - 1
        groups = [others]
        if self.config.edit_role == "positives":
            groups = [others[:kept], *([edit] for edit in others[kept:])]
        excluded: list[Tensor | None] = [None] * len(groups)
        if self.config.exclude_duplicates:
            sizes = [len(group) * len(anchor) for group in groups]
            excluded = list(torch.split(duplicates(batch), sizes, dim=1))
        losses = [
            info_nce(anchor, torch.cat(group), self.config.temperature, excluded=left_out)
            for group, left_out in zip(groups, excluded, strict=True)
        ]
        return torch.stack(losses).mean()

    def _sources(self, embeddings: Tensor, batch: Batch) -> tuple[Batch, Tensor]:
        """The sentences that are edited, and the embedding that goes with each."""
        sources = [] if self.config.edit_source == "next" else [batch]
        if self.config.edit_source != "same":
            sources.append(concat([batch.following()] * batch.views))
        return concat(sources), embeddings.repeat(len(sources), 1)

    def _task(self, start: Start, editing: Editing) -> Difference:
        config, encoder = self.config, start.require_encoder()
        heads: dict[str, nn.Module] = {}
        if config.task == "rtd":
            heads = {name: nn.Linear(start.width, 2) for name in self._operations}
        else:
            heads["vocabulary"] = copy.deepcopy(MaskedLm.load(encoder.name).head)
        if config.task == "corrective":
            heads["copy"] = nn.Linear(start.width, 1)
        start.require_width(encoder.backbone.width)
        conditional = Conditional(encoder.backbone, heads)
        if config.task == "cmlm":
            return MaskedTokens(conditional, editing)
        if config.task == "corrective":
            return CorrectedTokens(conditional, editing)
        divisor = partial(rtd_divisor, reduction=config.rtd_reduction, padding=config.rtd_padding)
        return ReplacedTokens(conditional, editing, self._operations, divisor)


def _editing(config: Config, start: Start) -> Editing:
    encoder = start.require_encoder()
    tokenizer = encoder.tokenizer
    if config.edit_operation != "delete":
        require_mask_token(tokenizer.special_ids)
    fills = config.edit_operation != "delete" and config.task != "cmlm"
    generator = Generator.load(config.generator or encoder.name, tokenizer) if fills else None
    limits = [encoder.max_tokens, *([generator.max_tokens] if generator else [])]
    return Editing(
        generator=generator,
        special_ids=tokenizer.special_ids,
        vocabulary=tokenizer.vocabulary,
        rate=config.mask_rate,
        pick=config.edit,
        positions=config.edit_positions,
        dropout=config.generator_dropout,
        max_tokens=min(limits),
    )


def _refuse_at_odds(config: Config) -> None:
    """Raise ConfigError for settings of which one would do nothing."""
    role = f"objective.edit_role {config.edit_role!r}"
    as_views, task = config.edit_role != "difference", f"objective.task {config.task!r}"
    at_odds = {
        f"objective.contrast is false, but with {role} and objective.rtd_weight "
        f"{config.rtd_weight:g} there is no other term; keep the contrastive one, or take "
        "edit_role difference and a weight above 0": (
            not config.contrast and (as_views or not config.rtd_weight)
        ),
        f"{role} embeds edits of the sentence itself, so objective.edit_source must be same, not "
        f"{config.edit_source!r}": as_views and config.edit_source != "same",
        f"{role} has no conditional network, so objective.task must be rtd, its default, not "
        f"{config.task!r}": as_views and config.task != "rtd",
        f"{task} takes means of its own, so objective.rtd_reduction must be mean, its default, not "
        f"{config.rtd_reduction!r}": config.task != "rtd" and config.rtd_reduction != "mean",
        f"{task} predicts tokens that were masked, so objective.edit_operation must be replace, "
        f"not {config.edit_operation!r}": config.task != "rtd"
        and config.edit_operation != "replace",
    }
    for problem, is_there in at_odds.items():
        if is_there:
            raise ConfigError(problem)
