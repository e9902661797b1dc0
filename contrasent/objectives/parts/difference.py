"""Tasks that only a good embedding of a sentence makes easy (Chuang et al. 2022, section 3).

A transformer that is given the embedding of a sentence in place of its first token reads an edit
of that sentence, and tells what was edited. The gradient reaches the encoder through the embedding.

Shapes: S sentences, T tokens end to end, D width.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from contrasent.data.batch import Batch, joined
from contrasent.functional import corrective_lm, masked_cross_entropy, replaced_token_loss
from contrasent.model.conditional import Conditional
from contrasent.model.edits import Edit, Editing, delete, insert, replace
from contrasent.model.masking import mask_tokens
from contrasent.objectives.base import Terms

OPERATIONS: dict[str, Callable[[Batch, Editing], Edit]] = {
    "replace": replace,
    "insert": insert,
    "delete": delete,
}


class Difference(nn.Module, ABC):
    """A task of a transformer that knows the embedding."""

    def __init__(self, conditional: Conditional, editing: Editing) -> None:
        super().__init__()
        self.conditional = conditional
        self.editing = editing

    @abstractmethod
    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        """Score what the transformer makes of an edit of each sentence.

        Args:
            batch: S sentences.
            embeddings: ``(S, D)``, what it is told of each.

        Returns:
            The terms, not weighted yet.
        """


class ReplacedTokens(Difference):
    """Which tokens were edited: replaced, inserted, or preceded by a deletion.

    With several operations each sentence is edited by each, each has a head of its own, and the
    loss is their mean.
    """

    def __init__(
        self,
        conditional: Conditional,
        editing: Editing,
        operations: Sequence[str],
        reduction: Literal["mean", "sum"],
        padding: Literal["ignored", "as_reference"],
    ) -> None:
        """Detect edits by ``operations``; the rest as in ``replaced_token_loss``."""
        super().__init__(conditional, editing)
        self._operations = operations
        self._reduction, self._padding = reduction, padding

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edits = [OPERATIONS[name](batch, self.editing) for name in self._operations]
        together = joined([edit.batch for edit in edits])
        states = self.conditional(together, embeddings.repeat(len(edits), 1))
        parts = torch.split(states, [len(edit.edited) for edit in edits])
        found = [
            self.conditional.logits(name, part)
            for name, part in zip(self._operations, parts, strict=True)
        ]
        losses = [self._loss(*pair) for pair in zip(found, edits, strict=True)]
        edited = torch.cat([edit.edited for edit in edits])
        right = torch.cat(found).argmax(-1) == edited
        measures = {
            "rtd_accuracy_edited": (right & edited).sum() / edited.sum(),
            "rtd_accuracy_original": (right & ~edited).sum() / (~edited).sum(),
            "share_edited": edited.float().mean(),
        }
        return Terms({"rtd": torch.stack(losses).mean()}, measures)

    def _loss(self, logits: Tensor, edit: Edit) -> Tensor:
        return replaced_token_loss(
            logits,
            edit.edited,
            edit.batch.lengths,
            reduction=self._reduction,
            padding=self._padding,
        )


class MaskedTokens(Difference):
    """Which tokens were masked: a conditional masked language model (Yang et al. 2021, CMLM)."""

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        editing = self.editing
        masked = mask_tokens(batch, editing.rate, editing.special_ids, editing.vocabulary)
        hidden = dataclasses.replace(batch, token_ids=masked.token_ids, texts=None)
        states = self.conditional(hidden, embeddings)[masked.chosen]
        logits = self.conditional.logits("vocabulary", states)
        wanted = batch.token_ids[masked.chosen]
        right = (logits.argmax(-1) == wanted).float()
        return Terms(
            {"cmlm": masked_cross_entropy(logits, wanted)}, {"cmlm_accuracy": right.mean()}
        )


class CorrectedTokens(Difference):
    """What the replaced tokens were: corrective language modelling (Meng et al. 2021, COCO-LM)."""

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edit = replace(batch, self.editing)
        states = self.conditional(edit.batch, embeddings)
        copies = self.conditional.logits("copy", states).squeeze(-1)
        logits = self.conditional.logits("vocabulary", states[edit.chosen])
        wanted = batch.token_ids[edit.chosen]
        corrected, copying = corrective_lm(logits, wanted, copies, edit.edited, edit.chosen)
        right = ((copies < 0) == edit.edited).float()
        measures = {"copy_accuracy": right.mean(), "share_edited": edit.edited.float().mean()}
        return Terms({"copy": copying, "corrective": corrected}, measures)
