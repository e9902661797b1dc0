"""How large the inputs of a transformer's linear maps get, measured once on made-up sentences.

Fixed ranges, unlike ranges of each batch, let a sentence's vector not depend on its company.
Sentences of random tokens serve as well as text: on all-MiniLM-L6-v2, ranges of random tokens and
of Wikipedia gave means over seven STS sets within 0.15 points of each other and of fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from contrasent.model.backbones.layers import LayerModules, layers_of
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.precision import FULL_FP32

_TOKENS = 24
_LOW_IDS = 128
_SENTENCES_AT_ONCE = 64


@dataclass(slots=True)
class LayerRanges:
    """The largest size that each input of a layer's maps had; D width, M inner width.

    Attributes:
        state: ``(D,)`` into query, key and value.
        mixed: ``(D,)`` out of attention, into the output map.
        normed: ``(D,)`` into the up map.
        inner: ``(M,)`` out of the activation, into the down map.
    """

    state: Tensor
    mixed: Tensor
    normed: Tensor
    inner: Tensor


def measure(backbone: PackedBert) -> list[LayerRanges]:
    """The ranges of every layer of ``backbone``, in its own precision."""
    layers = layers_of(backbone.model)
    found = [_none_yet(layer) for layer in layers]
    backbone.eval()
    with torch.inference_mode(), FULL_FP32, _watched(layers, found):
        sentences = _sentences(backbone)
        for start in range(0, len(sentences), _SENTENCES_AT_ONCE):
            backbone.model(input_ids=sentences[start : start + _SENTENCES_AT_ONCE])
    return found


def _none_yet(layer: LayerModules) -> LayerRanges:
    width, inner = layer.up.in_features, layer.up.out_features
    return LayerRanges(*(torch.zeros(size) for size in (width, width, width, inner)))


def _sentences(backbone: PackedBert) -> Tensor:
    """``(256, L)`` token ids: random ones between two low ones that are one or two apart.

    Where a sentence starts and ends, some states are far larger than elsewhere, and only if the
    tokenizer's own tokens stand there; those have low ids, close to each other, in every
    tokenizer of the family (101 and 102; 0 and 2; 5 and 6).
    """
    vocabulary = backbone.model.config.vocab_size
    length = min(_TOKENS, backbone.max_tokens)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (2 * _LOW_IDS, length), generator=generator)
    low = torch.arange(_LOW_IDS).repeat(2)
    ids[:, 0] = low % vocabulary
    ids[:, -1] = (low + torch.tensor([1, 2]).repeat_interleave(_LOW_IDS)) % vocabulary
    padding = backbone.model.config.pad_token_id
    if padding is not None:  # transformers would number the positions of the others differently
        ids[ids == padding] = (padding + 1) % vocabulary
    return ids


@contextmanager
def _watched(layers: Sequence[LayerModules], found: Sequence[LayerRanges]) -> Iterator[None]:
    """Inside, what goes into the layers' maps widens ``found``."""
    hooks = [
        module.register_forward_pre_hook(partial(_widen, ranges, name))
        for layer, ranges in zip(layers, found, strict=True)
        for name, module in (
            ("state", layer.query),
            ("mixed", layer.output),
            ("normed", layer.up),
            ("inner", layer.down),
        )
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _widen(ranges: LayerRanges, name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
    largest = inputs[0].detach().float().flatten(0, -2).abs().amax(0)
    setattr(ranges, name, torch.maximum(getattr(ranges, name), largest))
