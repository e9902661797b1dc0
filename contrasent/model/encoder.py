"""The sentence encoder: backbone, pooler, inference head, normalisation.

Shapes: N sentences of a call, S sentences of a batch, D embedding width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError
from contrasent.model import checkpoint
from contrasent.model.backbones.base import Backbone
from contrasent.model.encoding import encode_blocks, evaluating
from contrasent.model.engines import base as engines
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.pooling import pooler as pooler_named
from contrasent.model.precision import SharedContext, default_device
from contrasent.model.protocol import Encoded, Encoder, EncodingOptions
from contrasent.model.transforms.base import Transform


def digest_of(described: tuple[object, ...], module: nn.Module) -> str:
    """Hexadecimal SHA-256 of a description and of the names and values of all weights, in fp32."""
    digest = hashlib.sha256(repr(described).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class SentenceEncoder(nn.Module, Encoder):
    """Sentences in, embeddings out.

    After the backbone come ``convolutions`` over its last states, if any, the pooler, a ``head``
    that inference keeps (supervised SimCSE) or None, and a fitted ``transform`` or None.
    """

    def __init__(  # noqa: PLR0913 - its parts, by name
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        pooler: str = "cls",
        head: MlpHead | None = None,
        *,
        convolutions: Convolutions | None = None,
        transform: Transform | None = None,
        normalize: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.convolutions = convolutions
        self.head = head
        self.transform = transform
        self.normalize = normalize
        self.max_tokens = min(filter(None, (backbone.max_tokens, tokenizer.max_tokens, max_tokens)))
        self.name = ""
        self._pooler = pooler_named(pooler)
        self._serving = SharedContext(partial(evaluating, self))

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        pooler: str | None = None,
        head: str | None = None,
        device: str | torch.device | None = None,
        engine: str = "torch",
    ) -> Self:
        """Load an encoder for inference.

        Args:
            name: a folder (ours, sentence-transformers', Hugging Face's, a training run of ours)
                or a Hugging Face id.
            pooler: overrides what the folder says; `cls` if it says nothing.
            head: `none`, or `mlp` for the stored Linear and Tanh after the pooler; by default
                what the folder says.
            device: by default the accelerator if there is one.
            engine: `torch`, or, to encode on a CPU only, `int8`, `onnx` or `openvino`.

        Raises:
            CheckpointError: the folder is missing or damaged, or does not store the head.
            ConfigError: no such pooler, head or engine; an engine that does not compute this
                architecture, or not on this device.
            MissingExtraError: the engine's packages are not installed.
        """
        engines.require(engine, device)
        parts = checkpoint.read(name, pooler=pooler, head=head)
        encoder = cls(**{**vars(parts), "backbone": engines.build(engine, parts.backbone)})
        encoder.name = str(name)
        encoder.to(device or (default_device() if engine == "torch" else "cpu"))
        return encoder.eval()

    def save(
        self,
        folder: str | Path,
        info: Mapping[str, Any] | None = None,
        *,
        kept_head: MlpHead | None = None,
    ) -> None:
        """Write a sentence-transformers folder, whole, with `info` in its `contrasent.json`.

        `kept_head`, of training, is written beside it, for those who load it with head `mlp`.

        Raises ConfigError unless the engine is `torch`: others have weights in another form.
        """
        if self.engine != "torch":
            raise ConfigError(
                f"an encoder with engine {self.engine!r} cannot be saved: its weights are "
                "converted; load it with engine 'torch' and save that one"
            )
        checkpoint.write(folder, self, info or {}, kept_head)

    @property
    @override
    def width(self) -> int:
        if self.transform is not None:
            return self.transform.width
        source = self.backbone if self.convolutions is None else self.convolutions
        return source.width if self.head is None else self.head.linear.out_features

    @property
    @override
    def pooler(self) -> str:
        return self._pooler.name

    @property
    @override
    def head_name(self) -> str:
        return "none" if self.head is None else "mlp"

    @property
    @override
    def transform_described(self) -> str | None:
        return None if self.transform is None else self.transform.described

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.backbone.device

    @property
    @override
    def engine(self) -> str:
        return self.backbone.engine

    @property
    def is_serving(self) -> bool:
        """Whether somebody promised, with :meth:`serving`, that only `encode` is called."""
        return self._serving.is_open

    @override
    def resolve_precision(self, name: str) -> str:
        return self.backbone.resolve_precision(name, amplified=self.transform is not None)

    @override
    def fingerprint(self) -> str:
        described = (self.pooler, self.head_name, self.normalize, self.max_tokens)
        parts = (*described, self.tokenizer.fingerprint, *self.backbone.identity)
        mapped = () if self.transform is None else (repr(self.transform.settings()),)
        return digest_of((*parts, *mapped), self)

    @override
    def forward(self, batch: Batch, layers: Sequence[int] = ()) -> Encoded:
        """Embed a packed batch of S = V * B sentences; ``layers`` are states to be returned too."""
        asked, first_only = (*self._pooler.layers, *layers), self._pooler.first_only and not layers
        states = self.backbone(batch, asked, first_only=first_only)
        convolved = None if self.convolutions is None else self.convolutions(states[-1], batch)
        pooled = self._pooler(states if convolved is None else {-1: convolved}, batch)
        for after in (self.head, self.transform):
            pooled = pooled if after is None else after(pooled)
        return Encoded(pooled.float().view(batch.views, -1, self.width), states, convolved)

    @override
    def count_truncated(self, texts: Sequence[str]) -> int:
        return self.tokenizer.ids(texts, self.max_tokens)[1]

    @override
    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        return encode_blocks(self, sentences, options)

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """The promise that nothing but embedding happens to the encoder inside, by any thread.

        What is made of the weights is then kept, for a server or a loop over single sentences;
        weights changed inside make wrong vectors.
        """
        with self._serving, self.backbone.serving():
            yield self
