"""Masked language models: a backbone, the head that predicts tokens, and masking.

Every head known here is the same map, with its parts under other names: Linear, activation,
LayerNorm, and a decoder. Shapes: T tokens, N token states, D width, E width before the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contrasent.data.batch import Batch
from contrasent.data.tokenizer import SpecialIds, Tokenizer
from contrasent.errors import CheckpointError, ConfigError, warn
from contrasent.model.backbones.base import Backbone
from contrasent.model.checkpoint import read_modules, write_info, writing_encoder
from contrasent.model.hub import resolve
from contrasent.model.weights import backbone_of, load_masked_lm, quiet, refuse_random

_MASKED, _MASKED_OR_RANDOM = 0.8, 0.9


@dataclass(frozen=True, slots=True)
class Masked:
    """A batch's tokens, some of them hidden; ``chosen (T,)`` bool are those to predict."""

    token_ids: Tensor
    chosen: Tensor


def mask_tokens(
    batch: Batch,
    rate: float,
    special_ids: SpecialIds,
    vocabulary: int,
    *,
    always_mask: bool = False,
) -> Masked:
    """Choose tokens to predict, each by itself with probability ``rate``; never a special one.

    Of the chosen 80 % become the mask token, 10 % a random token of the ``vocabulary``, special
    ones included, and 10 % stay, unless ``always_mask``. Drawn on the batch's device.
    """
    mask = require_mask_token(special_ids)
    tokens = batch.token_ids
    device, shape = tokens.device, tokens.shape
    special = torch.isin(tokens, _on(device, special_ids.every))
    chosen = (torch.rand(shape, device=device) < rate) & ~special
    if always_mask:
        return Masked(tokens.masked_fill(chosen, mask), chosen)
    kind = torch.rand(shape, device=device)
    random = torch.randint(vocabulary, shape, device=device)
    replaced = torch.where(kind < _MASKED_OR_RANDOM, random, tokens)
    replaced = replaced.masked_fill(kind < _MASKED, mask)
    return Masked(torch.where(chosen, replaced, tokens), chosen)


def require_mask_token(special_ids: SpecialIds) -> int:
    """The id of the mask token; ConfigError if there is none."""
    if special_ids.mask is None:
        raise ConfigError(
            "this tokenizer has no mask token, so no token can be hidden; start from a masked "
            "language model (BERT, RoBERTa, DistilBERT, ...)"
        )
    return special_ids.mask


@lru_cache(maxsize=8)
def _on(device: torch.device, ids: tuple[int, ...]) -> Tensor:
    """Kept on the device: a copy from the host would make every step wait."""
    return torch.tensor(ids, device=device)


_PREDICTIONS = ("cls.predictions.transform", "dense", "transform_act_fn", "LayerNorm")
_LM_HEAD = ("lm_head", "dense", "", "layer_norm")  # its GELU is no module
_GENERATOR = ("generator_predictions", "dense", "activation", "LayerNorm")
_HEADS = {
    "albert": ("predictions", "dense", "activation", "LayerNorm"),
    "bert": _PREDICTIONS,
    "camembert": _LM_HEAD,
    "convbert": _GENERATOR,
    "deberta": _PREDICTIONS,
    "deberta-v2": _PREDICTIONS,
    "distilbert": ("", "vocab_transform", "activation", "vocab_layer_norm"),
    "electra": _GENERATOR,
    "ernie": _PREDICTIONS,
    "modernbert": ("head", "dense", "act", "norm"),
    "mpnet": _LM_HEAD,
    "roberta": _LM_HEAD,
    "xlm-roberta": _LM_HEAD,
}
"""By ``config.model_type``: where the head is, and its Linear, activation and LayerNorm in it."""


class MlmHead(nn.Module):
    """``decoder(norm(activation(dense(states))))``, from width D to E to the vocabulary's."""

    def __init__(
        self,
        dense: nn.Linear,
        activation: Callable[[Tensor], Tensor],
        norm: nn.LayerNorm,
        decoder: nn.Linear,
    ) -> None:
        super().__init__()
        self.dense, self.activation, self.norm, self.decoder = dense, activation, norm, decoder

    def forward(self, states: Tensor) -> Tensor:
        """Logits ``(N, vocabulary)`` of states ``(N, D)``."""
        logits: Tensor = self.decoder(self.norm(self.activation(self.dense(states))))
        return logits


class MaskedLm(nn.Module):
    """A transformer and its masked-LM head, in fp32; ``tied`` if the decoder has the embeddings."""

    def __init__(self, model: Any, name: str = "") -> None:
        """Take ``model``, a ``transformers`` masked LM of a known architecture, apart."""
        super().__init__()
        self._whole = (model,)  # in a tuple, because its parts are registered below
        self.backbone: Backbone = backbone_of(model.base_model)
        self.head = _head_of(model)
        self.tied: bool = self.head.decoder.weight is model.get_input_embeddings().weight
        self.name = name

    @classmethod
    def load(cls, name: str | Path, *, new_head: bool = False) -> Self:
        """Load a masked LM; CheckpointError if a weight would be random, but for a ``new_head``."""
        folder = resolve(name)
        if not (folder / "config.json").is_file():
            folder = read_modules(folder)[0][1]
        model, lost = load_masked_lm(folder, _HEADS)
        below = f"{model.base_model_prefix}."
        refuse_random(name, [weight for weight in lost if weight.startswith(below)])
        if lost:
            problem = f"{name} has no masked-LM head (first missing: {lost[0]})"
            if not new_head:
                raise CheckpointError(
                    f"{problem}, so that its predictions would be random; make one of it and your "
                    f"text with: contrasent pretrain {name} --data FILE"
                )
            warn(f"{problem}; starting with a new one")
        return cls(model, str(name))

    def share(self, backbone: Backbone) -> None:
        """Take ``backbone``, of the same architecture; a tied decoder is tied to its embeddings."""
        (whole,) = self._whole
        setattr(whole, whole.base_model_prefix, backbone.model)
        self.backbone = backbone
        if self.tied:
            embeddings: Any = backbone.model.get_input_embeddings()
            self.head.decoder.weight = embeddings.weight

    def save(
        self, folder: str | Path, tokenizer: Tokenizer, info: Mapping[str, Any] | None = None
    ) -> None:
        """Write a folder for ``AutoModelForMaskedLM`` and :meth:`load`, replacing it as a whole."""
        with writing_encoder(folder) as partial:
            with quiet():
                self._whole[0].save_pretrained(partial)
            tokenizer.save(partial)
            write_info(partial, {"kind": "masked-lm", **(info or {})})


def _head_of(model: Any) -> MlmHead:
    place, dense, activation, norm = _HEADS[model.config.model_type]
    head = attrgetter(place)(model) if place else model
    return MlmHead(
        getattr(head, dense),
        getattr(head, activation) if activation else F.gelu,
        getattr(head, norm),
        model.get_output_embeddings(),
    )
