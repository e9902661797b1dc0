"""DiffCSE (Chuang et al. 2022, arXiv:2204.10298): SimCSE, and the difference to an edited sentence.

The contrastive term makes embeddings insensitive to dropout. The other one makes them sensitive
to words: a discriminator that knows only the embedding of a sentence has to find the tokens that a
masked language model has replaced in it. docs/fidelity.md explains settings with two values.

Shapes: B examples, V views of each, S = V * B sentences, T tokens, D width, C classes.
"""

import copy
import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import record_function

from contrasent.data.batch import Batch, Need, concat, sums_by_parts
from contrasent.errors import ConfigError
from contrasent.functional import corrective_lm, info_nce
from contrasent.model import masked_lm
from contrasent.model.backbones.base import Backbone
from contrasent.model.heads import HEADS
from contrasent.model.masked_lm import Editing, Generator, MaskedLm, mask_tokens
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Share, Start, Terms, duplicates
from contrasent.objectives.mlm import hidden_sums, mean_terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of the DiffCSE objective; the tables are those of its paper."""

    temperature: PositiveFloat = 0.05
    """tau of the contrastive term; the cosine is divided by it."""

    contrast: bool = True
    """True if there is a contrastive term (Table 3)."""

    projector: Literal["batchnorm", "mlp", "none"] = "batchnorm"
    """Head that is trained and then dropped (Table 5): two layers, Linear+Tanh, or none."""

    exclude_duplicates: bool = True
    """Leave candidates with the text of the anchor or of its positive out of the negatives."""

    task: Literal["rtd", "cmlm", "corrective"] = "rtd"
    """Table 3: find replaced tokens, predict masked ones, or correct replaced ones (corrective)."""

    rtd_weight: NonNegativeFloat = 0.005
    """lambda, the weight of that task (Table 8), where edit_role is difference; 0 leaves it out."""

    copy_weight: NonNegativeFloat = 50.0
    """Of the copy decisions beside the corrections in task corrective (COCO-LM's 50)."""

    rtd_embedding: Literal["projected", "pooled"] = "projected"
    """The embedding of the task: after the projector, as in the authors' code, or before."""

    rtd_reduction: Literal["mean", "sum"] = "mean"
    """Of task rtd, over tokens: the mean of the authors' code, or the paper's sum."""

    rtd_padding: Literal["ignored", "as_reference"] = "ignored"
    """Of task rtd: as_reference divides by the tokens of a padded batch, as the authors' mean."""

    generator: str | None = None
    """The masked language model that edits (Table 6); null takes the encoder's own checkpoint."""

    generator_dropout: bool = False
    """True if its dropout is on, as it is by accident in the authors' code."""

    mask_rate: Share = 0.3
    """Share of the tokens that are masked, inserted or deleted (Table 7)."""

    edit: Literal["argmax", "sample"] = "sample"
    """How a place is filled: the likeliest token (the authors' code), or a draw (paper)."""

    edit_positions: Literal["all", "masked"] = "masked"
    """Where its token is taken: everywhere, as in the authors' code, or where masked."""

    edit_operation: Literal["replace", "insert", "delete", "all"] = "replace"
    """What an edit does (Table 4)."""

    edit_source: Literal["same", "next", "both"] = "same"
    """Which sentence is edited (Table 3): the embedded one, the next in its document, or both."""

    edit_role: Literal["difference", "positives", "negatives"] = "difference"
    """Edits are told from the original, or are further positives or negatives (Table 15)."""


class Conditional(nn.Module):
    """A copy of a backbone that is given an embedding as the first state of every sentence."""

    def __init__(self, backbone: Backbone, heads: Mapping[str, nn.Module]) -> None:
        """Copy ``backbone``, which has to take a first state; ``heads`` make logits of states."""
        super().__init__()
        backbone.require_first_state()
        # Under this name, since it belongs to no encoder.
        self.transformer = copy.deepcopy(backbone)
        self.heads = nn.ModuleDict(heads)

    def forward(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """The last states ``(T, D)`` float32 of the tokens, given an embedding of each sentence."""
        with record_function("discriminator"):
            states: Tensor = self.transformer(batch, first_state=embeddings)[-1]
        return states.float()

    def logits(self, name: str, states: Tensor) -> Tensor:
        """``(N, C)`` float32 of the head ``name``, computed in fp32 if there are few classes."""
        head, device = self.heads[name], states.device.type
        in_fp32 = torch.autocast(device, enabled=False)
        with in_fp32 if isinstance(head, nn.Linear) else nullcontext():
            logits: Tensor = head(states)
        return logits.float()


OPERATIONS = {"replace": masked_lm.replace, "insert": masked_lm.insert, "delete": masked_lm.delete}


class Difference(nn.Module):
    """A task on an edit of each sentence, scored given its embedding ``(S, D)``."""

    def __init__(self, conditional: Conditional, editing: Editing, config: Config) -> None:
        super().__init__()
        self.conditional, self.editing, self._config = conditional, editing, config


class ReplacedTokens(Difference):
    """Detection of edited tokens: replaced, inserted, or preceded by a deletion.

    The cross-entropy (Clark et al. 2020; DiffCSE, section 3), its mean over several operations,
    each with a head. docs/fidelity.md explains reduction and padding.
    """

    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edits = [OPERATIONS[name](batch, self.editing) for name in self.conditional.heads]
        edited = torch.cat([edit.edited for edit in edits])
        operation = [torch.full_like(it.edited, n, dtype=torch.long) for n, it in enumerate(edits)]
        *losses, edited_right, others_right = sums_by_parts(
            self._sums,
            concat([edit.batch for edit in edits]),
            rows=[embeddings.repeat(len(edits), 1)],
            tokens=[edited, torch.cat(operation)],
        )
        means = []
        for loss, edit in zip(losses, edits, strict=True):
            lengths, divisor = edit.batch.lengths, loss.new_tensor(1.0)
            if self._config.rtd_reduction == "mean":
                padded = self._config.rtd_padding == "as_reference"
                divisor = len(lengths) * lengths.max() if padded else len(edit.edited)
            means.append(loss / divisor)
        measures = {
            "rtd_accuracy_edited": edited_right.detach() / edited.sum(),
            "rtd_accuracy_original": others_right.detach() / (~edited).sum(),
            "share_edited": edited.float().mean(),
        }
        return Terms({"rtd": torch.stack(means).mean()}, measures)

    def _sums(self, batch: Batch, embeddings: Tensor, edited: Tensor, operation: Tensor) -> Tensor:
        """The cross-entropy of each operation, and how many edited and other tokens are found."""
        states, one = self.conditional(batch, embeddings), len(self.conditional.heads) == 1
        losses, counts = [], []
        for number, name in enumerate(self.conditional.heads):
            rows = slice(None) if one else operation == number
            logits, label = self.conditional.logits(name, states[rows]), edited[rows]
            losses.append(F.cross_entropy(logits, label.long(), reduction="sum"))
            right = logits.detach().argmax(-1) == label
            counts.append(torch.stack([right & label, right & ~label]).sum(1))
        return torch.cat([torch.stack(losses), torch.stack(counts).sum(0).float()])


class MaskedTokens(Difference):
    """Prediction of masked tokens: a conditional masked LM (Yang et al. 2021, CMLM)."""

    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        editing = self.editing
        masked = mask_tokens(batch, editing.rate, editing.tokenizer)
        hidden = dataclasses.replace(batch, token_ids=masked.token_ids, duplicate_of=None)
        columns = [masked.chosen, batch.token_ids]
        head = partial(self.conditional.logits, "vocabulary")

        def sums(part: Batch, vectors: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
            return hidden_sums(head, self.conditional(part, vectors), chosen, wanted)

        return mean_terms("cmlm", sums_by_parts(sums, hidden, rows=[embeddings], tokens=columns))


class CorrectedTokens(Difference):
    """Correction of replaced tokens: corrective LM (Meng et al. 2021, COCO-LM)."""

    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edit = masked_lm.replace(batch, self.editing)
        corrected, copying, right = sums_by_parts(
            partial(self._shares, len(edit.edited), edit.chosen.sum().clamp(min=1)),
            edit.batch,
            rows=[embeddings],
            tokens=[edit.edited, edit.chosen, batch.token_ids],
        )
        measures = {"copy_accuracy": right.detach(), "share_edited": edit.edited.float().mean()}
        return Terms({"copy": copying, "corrective": corrected}, measures)

    def _shares(self, tokens: int, masked: Tensor, *part: Any) -> Tensor:
        batch, embeddings, edited, chosen, wanted = part
        states = self.conditional(batch, embeddings)
        copies = self.conditional.logits("copy", states).squeeze(-1)
        logits, targets = self.conditional.logits("vocabulary", states[chosen]), wanted[chosen]
        corrected, copying = corrective_lm(logits, targets, copies, edited, chosen)
        right, share = ((copies.detach() < 0) == edited).float().mean(), len(edited) / tokens
        corrected = corrected * (masked.new_full((), max(len(targets), 1)) / masked)
        return torch.stack([corrected, share * copying, share * right])


TASKS = {"rtd": ReplacedTokens, "cmlm": MaskedTokens, "corrective": CorrectedTokens}


class DiffCSE(Objective):
    """A contrastive term on dropout views, and a task on an edit that the embedding helps with."""

    config_class = Config
    in_parts = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        as_views, other_task, problem = config.edit_role != "difference", config.task != "rtd", ""
        if not config.contrast and (as_views or not config.rtd_weight):
            problem = "contrast false needs edit_role difference, and an rtd_weight above 0"
        elif as_views and (config.edit_source != "same" or other_task):
            problem = f"edit_role {config.edit_role} needs edit_source same, and task rtd"
        elif other_task and (config.rtd_reduction != "mean" or config.edit_operation != "replace"):
            problem = f"task {config.task} needs rtd_reduction mean, and edit_operation replace"
        if problem:
            raise ConfigError(f"of the objective's settings {problem}")
        self.views = max(2, start.data_views)
        following = {Need.NEXT_SENTENCES} if config.edit_source != "same" else set()
        self.needs = frozenset({Need.TOKENS, *following})
        self.projector = HEADS[config.projector](start.width)
        every = config.edit_operation == "all"
        self._operations = list(OPERATIONS) if every else [config.edit_operation]
        self._editing: Editing | None = None
        self.difference: Difference | None = None
        if config.edit_role == "difference" and not config.rtd_weight:
            return
        encoder = start.require_encoder()
        tokenizer = encoder.tokenizer
        limits, generator = [encoder.max_tokens], None
        if config.edit_operation != "delete":
            masked_lm.require_mask_token(tokenizer)
            if config.task != "cmlm":
                generator = Generator.load(config.generator or encoder.name, tokenizer)
                limits.append(generator.max_tokens)
        self.max_tokens = min(limits)
        self._editing = Editing(
            generator=generator,
            tokenizer=tokenizer,
            rate=config.mask_rate,
            pick=config.edit,
            positions=config.edit_positions,
            dropout=config.generator_dropout,
            max_tokens=self.max_tokens,
        )
        if config.edit_role == "difference":
            heads: dict[str, nn.Module] = {}
            if config.task == "rtd":
                heads = {name: nn.Linear(start.width, 2) for name in self._operations}
            else:
                heads["vocabulary"] = copy.deepcopy(MaskedLm.load(encoder.name).head)
            if config.task == "corrective":
                heads["copy"] = nn.Linear(start.width, 1)
            start.require_width(encoder.backbone.width)
            conditional = Conditional(encoder.backbone, heads)
            self.difference = TASKS[config.task](conditional, self._editing, config)

    def prepare(self, batch: Batch) -> Batch:
        if self._editing is None or self.difference is not None:
            return batch
        anchors = batch.view(0)
        edits = [OPERATIONS[name](anchors, self._editing).batch for name in self._operations]
        return concat([batch, *edits], batch.views + len(edits))

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        config, projected, terms = self.config, self.projector(encoded.pooled), Terms({})
        if config.contrast:
            terms["contrast"] = self._contrast(projected, batch)
        if self.difference is not None:
            chosen = projected if config.rtd_embedding == "projected" else encoded.pooled
            sources = [] if config.edit_source == "next" else [batch]
            if config.edit_source != "same":
                sources.append(concat([batch.following()] * batch.views))
            embeddings = chosen.flatten(0, 1).repeat(len(sources), 1)
            difference: Terms = self.difference(concat(sources), embeddings)
            for name, term in difference.items():
                weight = config.copy_weight if name == "copy" else 1.0
                terms[name] = config.rtd_weight * weight * term
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
