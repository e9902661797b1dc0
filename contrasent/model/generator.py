"""A frozen masked language model that writes tokens into sentences.

Shapes: S sentences, T tokens end to end, D width.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.data.tokens import Tokenizer
from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.hub import resolve
from contrasent.model.masked_lm import MaskedLm
from contrasent.model.masking import Masked
from contrasent.model.prediction import Predictor
from contrasent.profiling import part


class Generator:
    """Predicts hidden tokens; it is never trained, and no part of what holds it.

    It is no module, so that its weights are in no state, no optimiser and no saved encoder. It
    moves to the device of the batches it gets, and computes in the precision that it is called
    in. Its weights are cast and laid out once.
    """

    def __init__(self, masked_lm: MaskedLm, vocabulary: int) -> None:
        """Take ``masked_lm`` over; it must not change any more.

        Args:
            masked_lm: what predicts.
            vocabulary: how many token ids its tokenizer has.
        """
        self.name = masked_lm.name
        self._masked_lm = masked_lm.requires_grad_(False)
        self._vocabulary = vocabulary
        self._device: torch.device | None = None
        self._predictors: dict[torch.dtype, Predictor] = {}
        self._promise = ExitStack()

    @classmethod
    def load(cls, name: str | Path, tokenizer: Tokenizer) -> Self:
        """Load a generator for sentences that ``tokenizer`` cut into tokens.

        Args:
            name: of a masked language model, as :meth:`MaskedLm.load` takes it.
            tokenizer: the encoder's.

        Raises:
            CheckpointError: it cannot be loaded, or has no masked-LM head.
            ConfigError: its vocabulary is another.
        """
        refuse_other_vocabulary(name, tokenizer)
        masked_lm = MaskedLm.load(name)
        rows = len(masked_lm.head.decoder.weight)
        if rows < tokenizer.vocabulary:
            raise ConfigError(
                f"the generator {name} predicts {rows} tokens, but the tokenizer of "
                f"{tokenizer.source} has {tokenizer.vocabulary}; name a generator with the "
                "vocabulary of the encoder"
            )
        return cls(masked_lm, tokenizer.vocabulary)

    @property
    def max_tokens(self) -> int:
        """The longest sentence it has positions for, special tokens included."""
        return self._masked_lm.backbone.max_tokens

    @torch.no_grad()
    def fill(
        self,
        batch: Batch,
        masked: Masked,
        *,
        pick: Literal["argmax", "sample"] = "argmax",
        positions: Literal["all", "masked"] = "masked",
        dropout: bool = False,
    ) -> Tensor:
        """The tokens of ``batch`` after the generator has written into it.

        Args:
            batch: the sentences as they were.
            masked: the same with tokens hidden, which the generator reads.
            pick: the most probable token, or one drawn from the softmax.
            positions: write at every token, also where none was hidden (as DiffCSE's reference
                implementation), or only at those that were chosen.
            dropout: with the generator's dropout (as that implementation), or without.

        Returns:
            ``(T,)`` int64; the first token of each sentence is always the original one.
        """
        self._move_to(batch.token_ids.device)
        backbone = self._masked_lm.backbone
        if backbone.training != dropout:
            backbone.train(dropout)
        hidden = Batch(masked.token_ids, batch.offsets, batch.views, batch.longest)
        rows = _behind_the_first(batch) if positions == "all" else _chosen(batch, masked)
        if not len(rows):
            return batch.token_ids
        predictor = self._predictor()
        with part("generator"):
            states = backbone(hidden)[-1].index_select(0, rows)
        write = predictor.most_probable if pick == "argmax" else predictor.drawn
        with part("vocabulary"):
            return batch.token_ids.index_copy(0, rows, write(states))

    def _move_to(self, device: torch.device) -> None:
        """Move, and promise that the weights stay as they are from now on."""
        if device == self._device:
            return
        self._promise.close()
        self._predictors.clear()
        self._masked_lm.to(device)
        self._promise.enter_context(self._masked_lm.backbone.unchanging())
        self._device = device

    def _predictor(self) -> Predictor:
        device = self._masked_lm.backbone.device.type
        narrow = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if narrow else torch.float32
        if dtype not in self._predictors:
            self._predictors[dtype] = Predictor(self._masked_lm.head, dtype, self._vocabulary)
        return self._predictors[dtype]

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Itself: it never changes, so that copies of what holds it may share it."""
        return self


def refuse_other_vocabulary(name: str | Path, tokenizer: Tokenizer) -> None:
    """Make sure that the model ``name`` numbers tokens as ``tokenizer`` does.

    A folder without a tokenizer passes: only its size can be compared.

    Raises:
        CheckpointError: there is no such folder.
        ConfigError: one token has two numbers, or one number stands for two tokens.
    """
    try:
        other = Tokenizer.load(resolve(name))
    except CheckpointError:
        if any(resolve(name).glob("*token*")):
            raise
        return
    mine = {number: token for token, number in tokenizer.vocabulary_map.items()}
    theirs = {number: token for token, number in other.vocabulary_map.items()}
    if mine == theirs:
        return
    first = min(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))
    raise ConfigError(
        f"the generator {name} has another vocabulary than the encoder ({tokenizer.source}): "
        f"token {first} is {theirs.get(first)!r} there and {mine.get(first)!r} here "
        f"({len(theirs)} and {len(mine)} tokens); name one with the encoder's vocabulary, or make "
        "one of the encoder and your text with: contrasent pretrain"
    )


def _behind_the_first(batch: Batch) -> Tensor:
    """``(T - S,)`` the numbers of all tokens but the first of each sentence."""
    count = len(batch.token_ids) - batch.sentences
    skipped = torch.repeat_interleave(batch.lengths - 1, output_size=count) + 1
    return torch.arange(count, device=skipped.device) + skipped


def _chosen(batch: Batch, masked: Masked) -> Tensor:
    """The numbers of the chosen tokens, without the first of a sentence."""
    chosen = masked.chosen.index_fill(0, batch.offsets[:-1], False)
    return chosen.nonzero().squeeze(1)
