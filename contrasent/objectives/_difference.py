"""Conditional tasks: an edited sentence, read together with the embedding of the original.

A transformer that is given the embedding of a sentence in place of its first token reads an edit
of that sentence, and predicts what was edited (Chuang et al. 2022, section 3).

Shapes: S sentences, T tokens end to end, D width, C classes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from contrasent.data.batch import Batch, concat
from contrasent.functional import corrective_lm, masked_cross_entropy
from contrasent.model.backbones.base import Backbone
from contrasent.model.masked_lm import mask_tokens
from contrasent.model.token_edits import Edit, Editing, delete, insert, replace
from contrasent.objectives.base import Terms
from contrasent.profiling import part


class Conditional(nn.Module):
    """A copy of a backbone whose first state of every sentence is an embedding.

    The embedding takes the place of the first token after the embedding layer, with gradient, so
    that every layer can compare each token with it (Chuang et al. 2022, section 3).
    """

    def __init__(self, backbone: Backbone, heads: Mapping[str, nn.Module]) -> None:
        """Copy ``backbone``, which has to take a first state; ``heads`` make logits of states."""
        super().__init__()
        backbone.require_first_state()
        # Under this name, since it belongs to no encoder.
        self.transformer = copy.deepcopy(backbone)
        self.heads = nn.ModuleDict(heads)

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """The last states ``(T, D)`` float32 of the tokens, given an embedding of each sentence."""
        with part("discriminator"):
            states: Tensor = self.transformer(batch, first_state=embeddings)[-1]
        return states.float()

    def logits(self, name: str, states: Tensor) -> Tensor:
        """``(N, C)`` float32 of the head ``name``, computed in fp32 if there are few classes."""
        head = self.heads[name]
        if isinstance(head, nn.Linear):
            with torch.autocast(states.device.type, enabled=False):
                few: Tensor = head(states)
            return few
        many: Tensor = head(states)
        return many.float()


OPERATIONS: dict[str, Callable[[Batch, Editing], Edit]] = {
    "replace": replace,
    "insert": insert,
    "delete": delete,
}


class Difference(nn.Module):
    """A task on an edit of each sentence, scored given its embedding ``(S, D)``."""

    def __init__(self, conditional: Conditional, editing: Editing) -> None:
        super().__init__()
        self.conditional, self.editing = conditional, editing


class ReplacedTokens(Difference):
    """Detection of edited tokens: replaced, inserted, or preceded by a deletion.

    With several operations each edits every sentence and has a head, and the loss is their mean.
    """

    def __init__(
        self,
        conditional: Conditional,
        editing: Editing,
        operations: Sequence[str],
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__(conditional, editing)
        self._operations, self._loss = operations, loss

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edits = [OPERATIONS[name](batch, self.editing) for name in self._operations]
        together = concat([edit.batch for edit in edits])
        states = self.conditional(together, embeddings.repeat(len(edits), 1))
        parts = torch.split(states, [len(edit.edited) for edit in edits])
        logits = [
            self.conditional.logits(name, part)
            for name, part in zip(self._operations, parts, strict=True)
        ]
        losses = [
            self._loss(logit, edit.edited, edit.batch.lengths)
            for logit, edit in zip(logits, edits, strict=True)
        ]
        edited = torch.cat([edit.edited for edit in edits])
        right = torch.cat(logits).argmax(-1) == edited
        measures = {
            "rtd_accuracy_edited": (right & edited).sum() / edited.sum(),
            "rtd_accuracy_original": (right & ~edited).sum() / (~edited).sum(),
            "share_edited": edited.float().mean(),
        }
        return Terms({"rtd": torch.stack(losses).mean()}, measures)


class MaskedTokens(Difference):
    """Prediction of masked tokens: a conditional masked LM (Yang et al. 2021, CMLM)."""

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        editing = self.editing
        masked = mask_tokens(batch, editing.rate, editing.special_ids, editing.vocabulary)
        hidden = dataclasses.replace(batch, token_ids=masked.token_ids, duplicate_of=None)
        states = self.conditional(hidden, embeddings)[masked.chosen]
        logits = self.conditional.logits("vocabulary", states)
        wanted = batch.token_ids[masked.chosen]
        right = (logits.argmax(-1) == wanted).float()
        return Terms(
            {"cmlm": masked_cross_entropy(logits, wanted)}, {"cmlm_accuracy": right.mean()}
        )


class CorrectedTokens(Difference):
    """Correction of replaced tokens: corrective LM (Meng et al. 2021, COCO-LM)."""

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
