"""Masked language models, masking, generators that write tokens into sentences, and edits by them.

Every head known here is the same map, with its parts under other names: Linear, activation,
LayerNorm, and a decoder. The product with the vocabulary is as large as a forward pass through a
small transformer, so a generator's weights are laid out once, and its logits used up in pieces.

Shapes: S sentences, T tokens end to end, N states, D width, E width before the decoder, C rows of a
piece, V token ids, V' >= V.
"""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import record_function

from contrasent.data.batch import Batch, rows_by_parts
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.views import share_of
from contrasent.errors import CheckpointError, ConfigError, warn
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.kernels import AS_INTEGER, has_products
from contrasent.model.backbones.packed_bert import ARCHITECTURES, Linear, Map
from contrasent.model.checkpoint import read_modules, write_info, writing_encoder
from contrasent.model.hub import resolve
from contrasent.model.weights import backbone_of, load_masked_lm, quiet, refuse_random
from contrasent.settings import ViewSettings

_MASKED, _MASKED_OR_RANDOM = 0.8, 0.9


@dataclass(frozen=True, slots=True)
class Masked:
    """A batch's tokens, some of them hidden; ``chosen (T,)`` bool are those to predict."""

    token_ids: Tensor
    chosen: Tensor


def mask_tokens(
    batch: Batch, rate: float, tokenizer: Tokenizer, *, always_mask: bool = False
) -> Masked:
    """Choose tokens to predict, each by itself with probability ``rate``; never a special one.

    Of the chosen 80 % become the mask token, 10 % a random token of the vocabulary, special
    ones included, and 10 % stay, unless ``always_mask``. Drawn on the batch's device.
    """
    mask = require_mask_token(tokenizer)
    tokens = batch.token_ids
    device, shape = tokens.device, tokens.shape
    chosen = (torch.rand(shape, device=device) < rate) & _ordinary(tokens, tokenizer)
    if always_mask:
        return Masked(tokens.masked_fill(chosen, mask), chosen)
    kind = torch.rand(shape, device=device)
    random = torch.randint(tokenizer.vocabulary, shape, device=device)
    replaced = torch.where(kind < _MASKED_OR_RANDOM, random, tokens)
    replaced = replaced.masked_fill(kind < _MASKED, mask)
    return Masked(torch.where(chosen, replaced, tokens), chosen)


def require_mask_token(tokenizer: Tokenizer) -> int:
    """The id of the mask token; ConfigError if there is none."""
    if tokenizer.special_ids.mask is None:
        raise ConfigError("this tokenizer has no mask token: start from a masked language model")
    return tokenizer.special_ids.mask


@lru_cache(maxsize=8)
def _on(device: torch.device, ids: tuple[int, ...]) -> Tensor:
    return torch.tensor(ids, device=device)  # kept: a copy from the host makes a step wait


def _ordinary(tokens: Tensor, tokenizer: Tokenizer) -> Tensor:
    return ~torch.isin(tokens, _on(tokens.device, tokenizer.special_ids.every))


_HEADS = ARCHITECTURES["masked_lm"]
"""By ``config.model_type``: where the head is, and its Linear, activation and LayerNorm in it; an
activation without a name is GELU, which is no module there."""


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
        place, *names = _HEADS[model.config.model_type]
        holder = attrgetter(place)(model) if place else model
        parts: list[Any] = [getattr(holder, it) if it else F.gelu for it in names]
        dense, activation, norm = parts
        self.head = MlmHead(dense, activation, norm, model.get_output_embeddings())
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

    def share(self, backbone: Backbone) -> Self:
        """Take ``backbone``, of the same architecture; a tied decoder is tied to its embeddings."""
        (whole,) = self._whole
        setattr(whole, whole.base_model_prefix, backbone.model)
        whole.config.num_hidden_layers = backbone.depth
        self.backbone = backbone
        if self.tied:
            embeddings: Any = backbone.model.get_input_embeddings()
            self.head.decoder.weight = embeddings.weight
        return self

    def save(
        self, folder: str | Path, tokenizer: Tokenizer, info: Mapping[str, Any] | None = None
    ) -> None:
        """Write a folder for ``AutoModelForMaskedLM`` and :meth:`load`, replacing it as a whole."""
        with writing_encoder(folder) as partial:
            with quiet():
                self._whole[0].save_pretrained(partial)
            tokenizer.save(partial)
            write_info(partial, {"kind": "masked-lm", **(info or {})})


_GROUPS = 32
_COLUMNS = _GROUPS * 16
_ROWS, _ROWS_ON_A_CPU = 4096, 128


class Predictor:
    """A masked-LM head without gradients; it predicts ids below ``vocabulary``."""

    def __init__(self, head: MlmHead, dtype: torch.dtype, vocabulary: int) -> None:
        self._dtype = dtype
        self._device = head.decoder.weight.device
        self._rows = _ROWS_ON_A_CPU if self._device.type == "cpu" else _ROWS
        self._activation, self._norm = head.activation, head.norm
        dense, decoder = head.dense, head.decoder
        weight, bias = decoder.weight[:vocabulary], decoder.bias
        spare = -vocabulary % _COLUMNS
        offset = weight.new_zeros(vocabulary) if bias is None else bias[:vocabulary]
        padded = F.pad(weight, (0, 0, 0, spare)), F.pad(offset, (0, spare), value=float("-inf"))
        self._dense, self._decoder = self._linear(dense.weight, dense.bias), self._linear(*padded)

    def predict(self, states: Tensor, *, sample: bool = False) -> Tensor:
        """``(N,)`` int64, the likeliest token for ``(N, D)`` states, or one of their softmax."""
        inner = self._activation(self._dense(states.to(self._dtype)))
        normed = self._norm(inner.to(self._norm.weight.dtype)).to(self._dtype)
        pieces = torch.split(normed, self._rows)
        if not sample:
            return torch.cat([argmax(self._decoder(piece)) for piece in pieces])
        numbers = torch.split(torch.rand(len(states), 2, device=self._device), self._rows)
        return torch.cat([draw(self._decoder(p), n) for p, n in zip(pieces, numbers, strict=True)])

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        linear = Linear(*(each.detach().to(self._dtype) for each in (weight, bias)))
        return Map.of(linear, self._rows) if has_products(self._device, self._dtype) else linear


def argmax(logits: Tensor) -> Tensor:
    """``(C,)`` int64, the column with the largest number in each row of ``logits (C, V')``."""
    rows, columns = logits.shape
    if logits.device.type != "cpu" or columns % _GROUPS:
        return logits.argmax(-1)
    # The bits of two numbers of which one is positive compare as integers do, in less time.
    bits = logits.view(AS_INTEGER[logits.element_size()]).view(rows, _GROUPS, -1)
    column = bits.amax(1).argmax(-1)
    columns_of_groups = column[:, None, None].expand(-1, _GROUPS, 1)
    candidates = logits.view(rows, _GROUPS, -1).gather(2, columns_of_groups).squeeze(2)
    largest, group = candidates.max(-1)
    if not bool((largest > 0).all()):
        return logits.argmax(-1)
    return group * bits.shape[2] + column


def draw(logits: Tensor, numbers: Tensor) -> Tensor:
    """``(C,)`` int64, a column drawn in each row from the softmax of ``logits (C, V')``.

    First a group of columns is drawn by its probability, then one of its columns. V' is a multiple
    of 32; ``numbers (C, 2)`` are drawn evenly from [0, 1).
    """
    probabilities = torch.softmax(logits, -1).view(len(logits), _GROUPS, -1)
    # The columns of a group stand V' / 32 apart, so that vector units add whole groups at once.
    column = _exceeding(probabilities.sum(1), numbers[:, :1])
    columns_of_groups = column.unsqueeze(1).expand(-1, _GROUPS, 1)
    group = _exceeding(probabilities.gather(2, columns_of_groups).squeeze(2), numbers[:, 1:])
    return (group * probabilities.shape[2] + column).squeeze(1)


def _exceeding(weights: Tensor, shares: Tensor) -> Tensor:
    """``(C, 1)``, where the weights of a row, summed up, exceed that share of their total."""
    summed = weights.float().cumsum(-1)
    return torch.searchsorted(summed, shares * summed[:, -1:], right=True)


class Generator:
    """Predicts hidden tokens; it is never trained, and no module, so that no state has it."""

    def __init__(self, masked_lm: MaskedLm, vocabulary: int) -> None:
        """Take ``masked_lm`` over, which must not change any more."""
        self.name = masked_lm.name
        self._masked_lm = masked_lm.requires_grad_(False)
        self._vocabulary = vocabulary
        self._device: torch.device | None = None
        self._predictors: dict[torch.dtype, Predictor] = {}
        self._promise = ExitStack()

    @classmethod
    def load(cls, name: str | Path, tokenizer: Tokenizer) -> Self:
        """Load the masked LM ``name``; ConfigError if it has other tokens than ``tokenizer``."""
        folder, masked_lm = resolve(name), None
        # Without a tokenizer only its size can be compared.
        known = Tokenizer.load(folder) if any(folder.glob("*token*")) else tokenizer
        if known.vocabulary_map == tokenizer.vocabulary_map:
            masked_lm = MaskedLm.load(name)
        if masked_lm is None or len(masked_lm.head.decoder.weight) < tokenizer.vocabulary:
            raise ConfigError(
                f"the generator {name} has another vocabulary than the encoder "
                f"({tokenizer.source}); name one with the encoder's vocabulary, or make one of the "
                "encoder and your text with: contrasent pretrain"
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
        """``(T,)`` int64, the tokens of ``batch`` after the generator has written into it.

        It reads ``masked``, and writes the likeliest token or one drawn from the softmax, at all
        tokens, as DiffCSE's reference implementation, or at the chosen ones; never at the first.
        """
        backbone, device = self._masked_lm.backbone, batch.token_ids.device
        if device != self._device:  # move, and promise that the weights stay as they are
            self._promise.close()
            self._predictors.clear()
            self._masked_lm.to(device)
            self._promise.enter_context(backbone.unchanging())
            self._device = device
        if backbone.training != dropout:
            backbone.train(dropout)
        write = partial(self._write, pick=pick, positions=positions)
        return rows_by_parts(write, batch, tokens=[masked.token_ids, masked.chosen], of_tokens=True)

    def _write(
        self, batch: Batch, token_ids: Tensor, chosen: Tensor, *, pick: str, positions: str
    ) -> Tensor:
        if positions == "all":  # but the first of each sentence
            count = len(batch.token_ids) - batch.sentences
            skipped = torch.repeat_interleave(batch.lengths - 1, output_size=count) + 1
            rows = torch.arange(count, device=skipped.device) + skipped
        else:
            rows = chosen.index_fill(0, batch.offsets[:-1], False).nonzero().squeeze(1)
        if not len(rows):
            return batch.token_ids
        backbone = self._masked_lm.backbone
        _, dtype = backbone.products(batch.token_ids.device)
        if dtype not in self._predictors:
            self._predictors[dtype] = Predictor(self._masked_lm.head, dtype, self._vocabulary)
        with record_function("generator"):
            hidden = Batch(token_ids, batch.offsets, batch.views, batch.longest)
            states = backbone(hidden)[-1].index_select(0, rows)
        with record_function("vocabulary"):
            tokens = self._predictors[dtype].predict(states, sample=pick == "sample")
            return batch.token_ids.index_copy(0, rows, tokens)

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Itself: it never changes, so that copies of what holds it may share it."""
        return self


@dataclass(frozen=True, slots=True)
class MlmView:
    """Replaces a ``share`` of the tokens of equal views; ``both``: those of the anchors too.

    Gao et al. 2021, Table 1, "MLM k%: use BERT-base to replace k% of words". Tokens are drawn from
    what the generator predicts: the most probable one is the original too often to make a view.
    """

    generator: Generator
    tokenizer: Tokenizer
    share: float
    both: bool

    @classmethod
    def of(cls, settings: ViewSettings, encoder: Any) -> Self:
        """The view mlm of a `SentenceEncoder`; ConfigError without a generator."""
        require_mask_token(encoder.tokenizer)
        generator = Generator.load(settings.generator or encoder.name, encoder.tokenizer)
        share, both = share_of(settings), settings.sides == "both"
        return cls(generator, encoder.tokenizer, share or 0.0, both)

    def __call__(self, batch: Batch) -> Batch:
        """``batch`` with tokens replaced, in the precision of the context."""
        # The views are the same sentences still, so each has as many tokens.
        tokens = 0 if self.both else len(batch.token_ids) // batch.views
        offsets = batch.offsets[0 if self.both else batch.examples :]
        edited = Batch(batch.token_ids[tokens:], offsets - offsets[0], 1, batch.longest)
        masked = mask_tokens(edited, self.share, self.tokenizer, always_mask=True)
        written = self.generator.fill(edited, masked, pick="sample")
        token_ids = torch.cat([batch.token_ids[:tokens], written])
        return dataclasses.replace(batch, token_ids=token_ids, duplicate_of=None)


@dataclass(frozen=True, slots=True)
class Edit:
    """The edited sentences, ``edited`` tokens ``(T',)`` to detect, and ``chosen`` masked ones.

    To detect are tokens that are not the original ones, were inserted, or follow deleted ones.
    """

    batch: Batch
    edited: Tensor
    chosen: Tensor


@dataclass(frozen=True, slots=True)
class Editing:
    """How sentences are edited: a ``rate`` of their ordinary tokens, by ``generator`` if it fills.

    `replace` takes its tokens at all ``positions``, or at the masked ones. No sentence becomes
    longer than ``max_tokens``. Special tokens stay.
    """

    generator: Any  # a `Generator`; None if nothing is filled
    tokenizer: Tokenizer
    rate: float
    pick: Literal["argmax", "sample"]
    positions: Literal["all", "masked"]
    dropout: bool
    max_tokens: int

    def fill(self, batch: Batch, masked: Masked, positions: Literal["all", "masked"]) -> Tensor:
        """``(T,)`` int64, ``batch`` with what the generator makes of ``masked``."""
        how: dict[str, Any] = {"pick": self.pick, "dropout": self.dropout}
        filled: Tensor = self.generator.fill(batch, masked, positions=positions, **how)
        return filled


def replace(batch: Batch, editing: Editing) -> Edit:
    """Mask tokens, and let the generator replace them; one that it restores is not edited."""
    masked = mask_tokens(batch, editing.rate, editing.tokenizer)
    token_ids = editing.fill(batch, masked, editing.positions)
    edited = dataclasses.replace(batch, token_ids=token_ids, duplicate_of=None, next_sentences=None)
    return Edit(edited, token_ids != batch.token_ids, masked.chosen)


def insert(batch: Batch, editing: Editing) -> Edit:
    """Insert masked tokens between the first and the last token, and let the generator fill them.

    A sentence of n ordinary tokens gets ``rate * n``, rounded at random so that the mean is exact.
    Places are drawn one by one, so several may stand side by side.
    """
    tokens, device = len(batch.token_ids), batch.token_ids.device
    gaps, room = batch.lengths - 1, (editing.max_tokens - batch.lengths).clamp(min=0)
    ordinary = _per_sentence(_ordinary(batch.token_ids, editing.tokenizer), batch)
    count = torch.minimum(_share_of_each(ordinary, editing.rate), room) * (gaps > 0)
    sentence = torch.repeat_interleave(count)
    gap = (torch.rand(len(sentence), device=device) * gaps[sentence]).long()
    # A product that is rounded up would be one gap too far.
    after = batch.offsets[sentence] + torch.minimum(gap, gaps[sentence] - 1)
    order = torch.cat([torch.arange(tokens, device=device), after]).argsort(stable=True)
    masks = batch.token_ids.new_full((len(sentence),), require_mask_token(editing.tokenizer))
    masked = Masked(torch.cat([batch.token_ids, masks])[order], order >= tokens)
    longer = Batch(masked.token_ids, batch.offsets + _starts(count), batch.views)
    token_ids = editing.fill(longer, masked, "masked")
    return Edit(dataclasses.replace(longer, token_ids=token_ids), masked.chosen, masked.chosen)


def delete(batch: Batch, editing: Editing) -> Edit:
    """Delete ordinary tokens; a token is labelled if at least one directly before it is gone.

    A sentence of n ordinary tokens loses ``rate * n``, rounded at random so that the mean is exact,
    but never all, nor its first or last token.
    """
    tokens, device = len(batch.token_ids), batch.token_ids.device
    sentence = torch.repeat_interleave(batch.lengths, output_size=tokens)
    edge = torch.zeros(tokens, dtype=torch.bool, device=device)
    edge[batch.offsets[:-1]] = edge[batch.offsets[1:] - 1] = True
    may_go = _ordinary(batch.token_ids, editing.tokenizer) & ~edge
    candidates = _per_sentence(may_go, batch)
    count = torch.minimum(_share_of_each(candidates, editing.rate), candidates - 1)
    # Ranks in a random order within each sentence, those that may go first.
    draws = (torch.rand(tokens, device=device) + ~may_go).argsort()
    order = draws[sentence[draws].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(tokens, device=device) - batch.offsets[sentence]
    gone = rank < count[sentence]
    shorter = batch.offsets - _starts(_per_sentence(gone, batch))
    edited = F.pad(gone[:-1], (1, 0))[~gone]
    left = Batch(batch.token_ids[~gone], shorter, batch.views)
    return Edit(left, edited, torch.zeros_like(edited))


def _per_sentence(chosen: Tensor, batch: Batch) -> Tensor:
    return _starts(chosen)[batch.offsets].diff()


def _share_of_each(counts: Tensor, rate: float) -> Tensor:
    return (counts * rate + torch.rand(len(counts), device=counts.device)).long()


def _starts(counts: Tensor) -> Tensor:
    return F.pad(counts.cumsum(0), (1, 0))
