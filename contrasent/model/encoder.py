"""The sentence encoder: backbone, pooler, inference head, normalisation; and how it encodes.

Shapes: N sentences of a call, S sentences of a batch, D embedding width.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from contrasent.data.batch import Batch, pack
from contrasent.data.loader import prefetch
from contrasent.data.tokenizer import require_text
from contrasent.errors import DataError, pick, warn
from contrasent.model import checkpoint
from contrasent.model.backbones import base
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.heads import POOLERS, MlpHead
from contrasent.model.int8 import Int8Bert
from contrasent.model.protocol import Encoded, Encoder, EncoderParts, EncodingOptions
from contrasent.progress import sentence_progress

_BATCH_TOKENS = {False: 4096, True: 65_536}
"""Padded tokens computed at once on a CPU, and on a device beside it."""
_PADDED_TOKENS = 1024  # on a CPU, where padding is computed too, of which a small batch has less
_CHUNK_ON_A_DEVICE = 16_384  # sentences that are tokenized while it computes those before
_BATCHES_ON_A_DEVICE = 16
"""After how many batches their rows are copied: a device stands still while it is asked."""


class SentenceEncoder(nn.Module, Encoder):
    """Sentences in, embeddings out.

    After the backbone come ``convolutions`` over its last states, if any, the pooler, a ``head``
    that inference keeps (supervised SimCSE) or None, and a fitted ``transform`` or None.
    """

    def __init__(  # noqa: PLR0913 - what decides an encoder, by name
        self,
        name: str | Path | EncoderParts,
        *,
        pooler: str | None = None,
        head: str | None = None,
        route: str | None = None,
        device: str | torch.device | None = None,
        engine: str = "torch",
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        similarity_fn_name: str | None = None,
    ) -> None:
        """Load an encoder for inference, or put one together from its parts.

        Args:
            name: a folder (ours, sentence-transformers', Hugging Face's, a training run of ours)
                or a Hugging Face id; or parts in memory, which the next four are not for.
            pooler: overrides what the folder says; `cls` if it says nothing.
            head: `none`, or `mlp` for the stored Linear and Tanh after the pooler; by default
                what the folder says.
            route: of a folder with a Router, `query` or `document`.
            device: by default the accelerator if there is one.
            engine: `torch`, or, to encode on a CPU only, `int8`.
            prompts: texts to put before a sentence, by name, beside those of the folder.
            default_prompt_name: the prompt for every sentence; by default what the folder says.
            truncate_dim: keep only so many leading dimensions of an embedding.
            similarity_fn_name: `cosine`, `dot`, `euclidean` or `manhattan`; by default what the
                folder says.

        Raises:
            CheckpointError: the folder is missing or damaged, or does not store the head.
            ConfigError: no such pooler, head, engine or prompt; an engine that does not compute
                this architecture, or not on this device; too many dimensions.
        """
        super().__init__()
        base.require_engine(engine, device)
        loads = not isinstance(name, EncoderParts)
        parts = (
            name if isinstance(name, EncoderParts) else checkpoint.read(name, pooler, head, route)
        )
        if engine == "int8":
            parts = replace(parts, backbone=Int8Bert.from_backbone(parts.backbone))
        self.backbone = parts.backbone
        self.tokenizer = parts.tokenizer
        self.convolutions = parts.convolutions
        self.head = parts.head
        self.transform = parts.transform
        self.normalize = parts.normalize
        stated_limit = parts.max_tokens or parts.tokenizer.max_tokens
        self.max_tokens = min(filter(None, (parts.backbone.max_tokens, stated_limit)))
        self.name = str(name) if loads else ""
        kind, known = "pooler", POOLERS
        if isinstance(parts.backbone, WordLstm):  # its vectors have another width than its states
            kind = "pooler of an LSTM"
            known = {name: it for name, it in POOLERS.items() if it.layers == (-1,)}
        self._pooler = known[pick(kind, parts.pooler, known)]
        self._serving = base.SharedContext(partial(base.evaluating, self))
        stated = parts.conventions
        self.conventions = replace(
            stated,
            prompts={**stated.prompts, **(prompts or {})},
            default_prompt_name=default_prompt_name or stated.default_prompt_name,
            similarity=similarity_fn_name or stated.similarity,
        )
        self.truncate_dim = stated.truncate_dim if truncate_dim is None else truncate_dim
        if loads:
            self.to(device or (base.default_device() if engine == "torch" else "cpu"))
            self.eval()

    @classmethod
    def load(cls, name: str | Path, **options: Any) -> Self:
        """``SentenceEncoder(name, ...)``, with the same arguments and errors."""
        return cls(name, **options)

    def save(
        self,
        folder: str | Path,
        info: Mapping[str, Any] | None = None,
        *,
        kept_head: MlpHead | None = None,
    ) -> None:
        """Write a sentence-transformers folder, whole, with `info` in its `contrasent.json`.

        `kept_head`, of training, is written beside it, for those who load it with head `mlp`.
        Raises ConfigError unless the engine is `torch`, or if another program filled `folder`.
        """
        if self.engine != "torch":
            self.backbone.refuse("{} has converted weights", "load and save it with engine 'torch'")
        checkpoint.write(folder, self, info or {}, kept_head)

    save_pretrained = save

    @property
    def full_width(self) -> int:
        if self.transform is not None:
            return self.transform.width
        source = self.backbone if self.convolutions is None else self.convolutions
        return source.width if self.head is None else self.head.linear.out_features

    @property
    def pooler(self) -> str:
        return self._pooler.name

    @pooler.setter
    def pooler(self, name: str) -> None:
        self._pooler = POOLERS[name]

    @property
    def head_name(self) -> str:
        return "none" if self.head is None else "mlp"

    @property
    def transform_described(self) -> str | None:
        return None if self.transform is None else self.transform.described

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.backbone.device

    @property
    def engine(self) -> str:
        return self.backbone.engine

    @property
    def most_tokens(self) -> int:
        return self.backbone.max_tokens

    @property
    def is_serving(self) -> bool:
        """True if somebody promised, with `serving`, that only `encode` is called."""
        return self._serving.is_open

    def resolve_precision(self, name: str) -> str:
        is_fitted = self.transform is not None and not self.transform.is_trained
        return self.backbone.resolve_precision(name, amplified=is_fitted)

    def fingerprint(self) -> str:
        parts: tuple[object, ...] = (self.pooler, self.head_name, self.normalize, self.max_tokens)
        parts += (self.tokenizer.fingerprint, *self.backbone.identity)
        mapped = () if self.transform is None else (repr(self.transform.settings()),)
        digest = hashlib.sha256(repr((*parts, *mapped, *self.conventions.identity)).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def forward(self, batch: Batch, layers: Sequence[int] = ()) -> Encoded:
        """Embed a packed batch of S = V * B sentences; ``layers`` are states to be returned too."""
        asked, first_only = (*self._pooler.layers, *layers), self._pooler.first_only and not layers
        states = self.backbone(batch, asked, first_only=first_only)
        convolved = None if self.convolutions is None else self.convolutions(states[-1], batch)
        pooled = self._pooler(states if convolved is None else {-1: convolved}, batch)
        for after in (self.head, self.transform):
            pooled = pooled if after is None else after(pooled)
        return Encoded(pooled.float().view(batch.views, -1, self.full_width), states, convolved)

    def cut_ids(
        self, texts: Sequence[str], task: str | None = None
    ) -> tuple[list[np.ndarray], list[bool]]:
        """Token ids of each text, filled up if it is such a query, and whether it was cut."""
        ids, cut = self.tokenizer.cut_ids(texts, self.limit(task))
        more = self.conventions.expansion_of(task)
        if more is not None and more.attend:
            token = self.tokenizer.filler(more.token)
            ids = [
                np.pad(row, (0, max(0, more.length - len(row))), constant_values=token)
                for row in ids
            ]
        return ids, cut

    def cut(self, texts: Sequence[str], task: str | None = None) -> list[bool]:
        """Of each text, its prompt included, whether it is longer than the encoder reads."""
        return self.cut_ids(texts, task)[1]

    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        tokens = partial(token_ids, self, options)
        total = len(sentences) if isinstance(sentences, Sequence) else None
        is_fast = overlaps(self)
        usual = _PADDED_TOKENS if self.backbone.pads and not is_fast else _BATCH_TOKENS[is_fast]
        budget = options.batch_tokens or usual
        rest = iter(sentences)
        chunk = min(options.chunk, _CHUNK_ON_A_DEVICE) if is_fast else options.chunk
        chunks = zip(count(0, chunk), iter(lambda: list(islice(rest, chunk)), []), strict=False)
        ahead = is_fast and (total is None or total > chunk)
        truncated = wordless = done = 0
        with sentence_progress(total, options.show_progress) as advance:
            for ids, cut in prefetch(chunks, tokens) if ahead else map(tokens, chunks):
                truncated, done = truncated + cut, done + len(ids)
                wordless += self.tokenizer.wordless(ids)
                rows = embed(self, ids, budget, options.precision, advance, options.batch_size)
                yield options.finish(rows)
        options.warn_of_cut(truncated, done, self.limit(options.task))
        if 100 * wordless > done:
            warn(
                f"{wordless} of {done} sentences have no word that {self.tokenizer.source} knows; "
                "their vectors do not tell them apart"
            )

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """The promise that nothing but embedding happens to the encoder inside, by any thread.

        What is made of the weights is then kept, for a server or a loop over single sentences;
        weights changed inside make wrong vectors.
        """
        with self._serving, self.backbone.serving():
            yield self


def overlaps(encoder: SentenceEncoder) -> bool:
    """True if tokenizing leaves the device of ``encoder`` free to compute."""
    return encoder.device.type != "cpu"


def token_ids(
    encoder: SentenceEncoder, options: EncodingOptions, numbered: tuple[int, list[str]]
) -> tuple[list[np.ndarray], int]:
    """Token ids of texts behind the prompt, and how many were cut.

    ``numbered`` are the texts, and how many came before them. DataError with its number if an item
    is no valid string, has no token, or is too long and that is an error.
    """
    before, texts = numbered
    require_text(texts, "sentence", before)
    if options.prompt:
        texts = [options.prompt + text for text in texts]
    ids, is_cut = encoder.cut_ids(texts, options.task)
    cut = sum(is_cut)
    empty = next((n for n, row in enumerate(ids) if not len(row)), None)
    if empty is not None:
        raise DataError(f"text {before + empty} has no token: {texts[empty][:80]!r}; leave it out")
    options.require_whole(cut, before, len(texts), encoder.limit(options.task))
    return ids, cut


def embed(
    encoder: SentenceEncoder,
    ids: Sequence[np.ndarray],
    batch_tokens: int,
    precision: str,
    advance: Callable[[int], None],
    batch_size: int | None = None,
) -> np.ndarray:
    """Embed sentences given as token ids, ``(N, D)`` float32 in their order, of full width.

    ``batch_tokens`` padded tokens, of at most ``batch_size`` sentences, are computed at once;
    ``advance`` is called after each batch with its number of sentences.
    """
    rows = np.empty((len(ids), encoder.full_width), np.float32)
    device = encoder.device
    base.keep_freed_memory()
    together = 1 if device.type == "cpu" else _BATCHES_ON_A_DEVICE
    waiting: list[np.ndarray] = []
    pooled: list[torch.Tensor] = []
    with (
        nullcontext() if encoder.is_serving else base.evaluating(encoder),
        torch.inference_mode(),
        base.matrix_precision(precision, device),
        encoder.backbone.unchanging(),
    ):
        batches = list(by_length([len(i) for i in ids], batch_tokens, batch_size))
        for number, numbers in enumerate(batches, start=1):
            pooled.append(encoder(pack([ids[n] for n in numbers]).to(device)).pooled[0].float())
            waiting.append(numbers)
            if len(waiting) == together or number == len(batches):
                rows[np.concatenate(waiting)] = torch.cat(pooled).cpu().numpy()
                waiting.clear()
                pooled.clear()
            base.give_back_freed_memory()
            advance(len(numbers))
    return rows


def by_length(
    lengths: Sequence[int], batch_tokens: int, batch_size: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the numbers of each batch's sentences, longest first, by a budget of tokens."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        count = max(batch_tokens // max(lengths[order[start]], 1), 1)
        end = start + min(count, batch_size or count)
        yield order[start:end]
        start = end
