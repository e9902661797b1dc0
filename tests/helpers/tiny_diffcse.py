"""DiffCSE on a tiny masked language model without dropout, and what its parts were given."""

from dataclasses import dataclass, field, replace

import torch

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.diffcse import OPERATIONS
from helpers.tiny_models import SENTENCES

FOLLOWING = [
    "the tree",
    "happy people eat food",
    "a cat !",
    "not one bird reads",
    "two dog s",
    "water",
    "the sad man",
]


def still_encoder(folder):
    """An encoder in training, without dropout: two forward passes give the same states."""
    encoder = SentenceEncoder.load(folder, pooler="cls", head="none", device="cpu").train()
    encoder.backbone.set_dropout(0.0)
    return encoder


def build(encoder, data_views=1, seed=0, **settings):
    torch.manual_seed(seed)
    return objectives.build(
        "diffcse", settings, width=encoder.width, data_views=data_views, encoder=encoder
    )


def batch_of(encoder, examples=4, views=2):
    """The first sentences, each with the sentence that follows it."""
    ids, _ = encoder.tokenizer.ids(SENTENCES[:examples], None)
    after, _ = encoder.tokenizer.ids(FOLLOWING[:examples], None)
    return replace(pack(ids * views, views=views), next_sentences=pack(after))


def scored(encoder, objective, batch, seed=7):
    """Embeddings, which keep their gradient, and terms of a batch as the training makes them."""
    torch.manual_seed(seed)
    prepared = objective.prepare(batch)
    encoded = encoder(prepared, objective.layers)
    encoded.pooled.retain_grad()
    return encoded, objective(encoded, prepared)


def sentences(batch, values=None):
    values = batch.token_ids if values is None else values
    return [part.tolist() for part in values.split(batch.lengths.tolist())]


@dataclass
class Noted:
    """What was edited, ``(operation, batch, edit)``; and for what the transformer was called."""

    edits: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    @property
    def call(self):
        (only,) = self.calls
        return only

    def operations(self, monkeypatch):
        """Note every edit from now on."""
        for name, operation in OPERATIONS.items():
            monkeypatch.setitem(OPERATIONS, name, self._noting(name, operation))

    def transformer(self, objective):
        """Note the batches and embeddings that the conditional transformer is given."""
        objective.difference.conditional.register_forward_pre_hook(
            lambda _, given: self.calls.append(given)
        )
        return objective

    def _noting(self, name, operation):
        def edit(batch, editing):
            self.edits.append((name, batch, operation(batch, editing)))
            return self.edits[-1][2]

        return edit
