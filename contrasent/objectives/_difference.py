"""Conditional tasks: an edited sentence, read together with the embedding of the original.

A transformer that is given the embedding of a sentence in place of its first token reads an edit
of that sentence, and predicts what was edited (Chuang et al. 2022, section 3).

Shapes: S sentences, T tokens end to end, D width, C classes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from contrasent.data.batch import Batch, concat, sums_by_parts
from contrasent.functional import corrective_lm, masked_cross_entropy, replaced_token_loss
from contrasent.model.backbones.base import Backbone
from contrasent.model.generator import Edit, Editing, delete, insert, replace
from contrasent.model.masked_lm import mask_tokens
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
        divisor: Callable[[Tensor, int], Tensor | int],
    ) -> None:
        """``divisor`` of the lengths and the number of tokens makes a loss of a sum over tokens."""
        super().__init__(conditional, editing)
        self._operations, self._divisor = operations, divisor

    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edits = [OPERATIONS[name](batch, self.editing) for name in self._operations]
        together = concat([edit.batch for edit in edits])
        edited = torch.cat([edit.edited for edit in edits])
        operation = [
            torch.full_like(edit.edited, number, dtype=torch.long)
            for number, edit in enumerate(edits)
        ]
        *losses, edited_right, others_right = sums_by_parts(
            self._sums,
            together,
            rows=[embeddings.repeat(len(edits), 1)],
            tokens=[edited, torch.cat(operation)],
        )
        means = [
            loss / self._divisor(edit.batch.lengths, len(edit.edited))
            for loss, edit in zip(losses, edits, strict=True)
        ]
        measures = {
            "rtd_accuracy_edited": edited_right.detach() / edited.sum(),
            "rtd_accuracy_original": others_right.detach() / (~edited).sum(),
            "share_edited": edited.float().mean(),
        }
        return Terms({"rtd": torch.stack(means).mean()}, measures)

    def _sums(self, batch: Batch, embeddings: Tensor, edited: Tensor, operation: Tensor) -> Tensor:
        """The cross-entropy of each operation, and how many edited and other tokens are found."""
        states, one = self.conditional(batch, embeddings), len(self._operations) == 1
        losses, edited_right, others_right = [], [], []
        for number, name in enumerate(self._operations):
            rows = slice(None) if one else operation == number
            logits, label = self.conditional.logits(name, states[rows]), edited[rows]
            losses.append(replaced_token_loss(logits, label, batch.lengths, reduction="sum"))
            right = logits.detach().argmax(-1) == label
            edited_right.append((right & label).sum())
            others_right.append((right & ~label).sum())
        counts = torch.stack([torch.stack(edited_right).sum(), torch.stack(others_right).sum()])
        return torch.cat([torch.stack(losses), counts.float()])


class MaskedTokens(Difference):
    """Prediction of masked tokens: a conditional masked LM (Yang et al. 2021, CMLM)."""

    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        editing = self.editing
        masked = mask_tokens(batch, editing.rate, editing.special_ids, editing.vocabulary)
        hidden = dataclasses.replace(batch, token_ids=masked.token_ids, duplicate_of=None)
        columns = [masked.chosen, batch.token_ids]
        loss, right, count = sums_by_parts(self._sums, hidden, rows=[embeddings], tokens=columns)
        return Terms(
            {"cmlm": loss / count.clamp(min=1)}, {"cmlm_accuracy": (right / count).detach()}
        )

    def _sums(self, batch: Batch, embeddings: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        """The cross-entropy of the masked tokens, how many are right, and their number."""
        states = self.conditional(batch, embeddings)[chosen]
        logits, targets = self.conditional.logits("vocabulary", states), wanted[chosen]
        right = (logits.detach().argmax(-1) == targets).float().sum()
        loss = masked_cross_entropy(logits, targets, mean=False)
        return torch.stack([loss, right, loss.new_full((), len(targets))])


class CorrectedTokens(Difference):
    """Correction of replaced tokens: corrective LM (Meng et al. 2021, COCO-LM)."""

    def forward(self, batch: Batch, embeddings: Tensor) -> Terms:
        edit = replace(batch, self.editing)
        columns = [edit.edited, edit.chosen, batch.token_ids]
        some = edit.chosen.sum().clamp(min=1)
        corrected, copying, right = sums_by_parts(
            partial(self._shares, len(edit.edited), some),
            edit.batch,
            rows=[embeddings],
            tokens=columns,
        )
        measures = {"copy_accuracy": right.detach(), "share_edited": edit.edited.float().mean()}
        return Terms({"copy": copying, "corrective": corrected}, measures)

    def _shares(self, tokens: int, masked: Tensor, *part: Any) -> Tensor:
        """What a part adds to both losses, and to the accuracy of copies."""
        batch, embeddings, edited, chosen, wanted = part
        states = self.conditional(batch, embeddings)
        copies = self.conditional.logits("copy", states).squeeze(-1)
        logits, targets = self.conditional.logits("vocabulary", states[chosen]), wanted[chosen]
        corrected, copying = corrective_lm(logits, targets, copies, edited, chosen)
        right, share = ((copies.detach() < 0) == edited).float().mean(), len(edited) / tokens
        corrected = corrected * (masked.new_full((), max(len(targets), 1)) / masked)
        return torch.stack([corrected, share * copying, share * right])
