"""The interface of every encoder: conventions of its use, options of its calls, its parts.

Shapes: N and M sentences, D embedding width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, StrictBool, StrictInt

from contrasent.data.tokenizer import UNBOUNDED, Tokenizer, sentences_of
from contrasent.errors import ConfigError, DataError, pick, warn
from contrasent.settings import checked, settings

if TYPE_CHECKING:
    import torch

    from contrasent.model.backbones.base import Backbone
    from contrasent.model.heads import Convolutions, MlpHead
    from contrasent.model.transforms import Transform

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
ROLES = ("query", "document")
Count = Annotated[StrictInt, Field(gt=0)]
LENGTHS = ("query_length", "document_length", "query_expansion")
_UNUSED = ("passage", "corpus")
"""Prompts that sentence-transformers takes for documents only where ``document`` is not known, and
since version 5 it always is."""


@settings
class QueryExpansion:
    """Tokens after a query that is shorter than ``length``, as in ColBERT."""

    strategy: Literal["fixed", "min"]  # with fixed, a longer query is cut at that length
    length: Count
    attend: StrictBool = False  # the query sees them, and they are pooled; else they do not count
    token: str | None = None  # by default the mask, else the end of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """The way that embeddings are made and compared; ConfigError if one cannot be."""

    # texts that are put before a sentence, by name
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None  # the one of them that `encode` uses; None for no prompt
    # only so many leading dimensions of an embedding are kept; None for all
    truncate_dim: int | None = None
    similarity: str = "cosine"  # one of `SIMILARITIES`
    # the default prompt was asked for, so that queries and documents get it too
    chosen: bool = False
    query_length: int | None = None  # tokens of a query, special ones included; None for as usual
    document_length: int | None = None
    query_expansion: QueryExpansion | None = None

    def __post_init__(self) -> None:
        pick("similarity_fn_name", self.similarity, SIMILARITIES)
        self.resolve()

    @property
    def identity(self) -> tuple[object, ...]:
        """What decides the vectors of `encode`, `encode_query` and `encode_document`."""
        prompting: tuple[object, ...] = ()
        if any(self.prompts.values()):
            prompting = ("prompts", sorted(self.prompts.items()), self.default_prompt_name)
            of_roles = [self.prompt_of(role) for role in ROLES]
            # Those that roles had when the fingerprints of older indexes were made.
            former = [
                next((n for n in names if n in self.prompts), None)
                for names in (["query"], ["document", *_UNUSED])
            ]
            if of_roles != [self.resolve(prompt_name=name) for name in former]:
                prompting += ("chosen",) if self.chosen else ("roles", *of_roles)
        kept = () if self.truncate_dim is None else ("dimensions", self.truncate_dim)
        return (*prompting, *kept, *(("lengths", self.lengths) if self.lengths else ()))

    @property
    def lengths(self) -> dict[str, Any]:
        """Those of `LENGTHS` that are not as usual, as the Transformer module states them."""
        stated = asdict(self)
        return {name: stated[name] for name in LENGTHS if stated[name] is not None}

    def resolve(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """``prompt``, the one of that name, or the default; ConfigError for an unknown name."""
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if prompt is not None or name is None:
            return prompt or ""
        return self.prompts[pick("prompt", name, self.prompts)]

    def prompt_of(self, role: str) -> str:
        """The text before a query or document: the prompt of that name, or nothing."""
        return self.resolve() if self.chosen else self.prompts.get(role, "")

    def expansion_of(self, role: str | None) -> QueryExpansion | None:
        """The expansion of a query."""
        return self.query_expansion if role == "query" else None

    def length_of(self, role: str | None) -> int | None:
        """The most tokens of a query or document, where that is not as usual."""
        expansion = self.expansion_of(role)
        if expansion is not None and expansion.strategy == "fixed":
            return expansion.length
        return {"query": self.query_length, "document": self.document_length}.get(role or "")


def role_options(encoder: object, role: str) -> dict[str, str]:
    """What an ``encode`` call takes for a query or document; nothing if it reads both as any text.

    Warns of a prompt that was meant for documents, and is not used for them.
    """
    conventions: Conventions | None = getattr(encoder, "conventions", None)
    if conventions is None:
        return {}
    prompt, prompts = conventions.prompt_of(role), conventions.prompts
    unused = next((name for name in _UNUSED if prompts.get(name)), None)
    if role == "document" and unused and not prompt:
        text = prompts[unused]
        warn(
            f"the prompt {unused!r} ({text!r}) is put before no document, as in "
            "sentence-transformers, which takes 'document' alone; load the encoder with "
            f"prompts={{'document': {text!r}}}, or encode with prompt_name={unused!r}"
        )
    is_routed = getattr(encoder, "route", lambda _: encoder)(role) is not encoder
    if is_routed or conventions.length_of(role) or conventions.expansion_of(role):
        return {"prompt": prompt, "task": role}
    return {"prompt": prompt} if any(prompts.values()) else {}


def similarity_of(encoder: object) -> str:
    """The function by which embeddings of ``encoder`` are compared; the usual one is cosine."""
    return getattr(encoder, "similarity_fn_name", "cosine")


def similarities(name: str, first: Any, second: Any, *, pairwise: bool = False) -> torch.Tensor:
    """How alike embeddings are: larger is nearer, so distances are negative.

    ``(N, M)`` of ``(N, D)`` and ``(M, D)``; ``(N,)`` of their rows if ``pairwise``.
    """
    import torch

    def matrix(rows: Any) -> torch.Tensor:
        is_list = isinstance(rows, list | tuple) and rows and isinstance(rows[0], torch.Tensor)
        tensor = torch.stack([*rows]) if is_list else torch.as_tensor(rows)
        return tensor.float().view(*tensor.shape[:-2], -1, tensor.shape[-1])

    try:
        left, right = matrix(first), matrix(second)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"a similarity is of embeddings, not of text: {error}") from error
    left = left.to(right.device)
    if left.shape[1:] != right.shape[1:] or left.ndim > 2 or (pairwise and len(left) != len(right)):
        raise ConfigError(f"embeddings {[*left.shape]} and {[*right.shape]} cannot be compared")
    if name == "cosine":
        left, right = (torch.nn.functional.normalize(it, dim=-1) for it in (left, right))
    if name in ("cosine", "dot"):
        return torch.sum(left * right, dim=-1) if pairwise else torch.matmul(left, right.T)
    order = 2.0 if name == "euclidean" else 1.0
    if pairwise:
        return torch.neg(torch.linalg.vector_norm(left - right, ord=order, dim=-1))
    # By products of matrices, those of near vectors would be lost in rounding.
    return torch.neg(torch.cdist(left, right, order, compute_mode="donot_use_mm_for_euclid_dist"))


@dataclass(frozen=True, slots=True)
class Encoded:
    """Embeddings ``pooled (V, B, D)``, and the token states ``(T, D)`` that were asked for."""

    pooled: torch.Tensor
    states: Mapping[int, torch.Tensor]
    convolved: torch.Tensor | None = None  # the last states after its convolutions, if any
    # of several processes, numbers of the sentences whose states these are
    own: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderParts:
    """What a `SentenceEncoder` is made of: what a folder holds, or parts made in memory."""

    backbone: Backbone
    tokenizer: Tokenizer
    pooler: str = "cls"
    head: MlpHead | None = None
    convolutions: Convolutions | None = None
    transform: Transform | None = None
    normalize: bool = False
    max_tokens: int | None = None
    conventions: Conventions = field(default_factory=Conventions)


@settings
class EncodingOptions:
    """Options of `Encoder.encode_stream`, resolved.

    Of a row of length 1, if ``normalize``, the first ``truncate_dim`` numbers are kept; with
    ``normalize_last`` those have length 1 in the end.
    """

    chunk: Count = 65_536
    batch_tokens: Count | None = None
    batch_size: Count | None = None
    normalize: bool
    normalize_last: bool
    precision: str
    show_progress: bool = False
    on_overflow: Literal["error", "truncate", "warn"] = "warn"
    prompt: str
    task: Literal["query", "document"] | None = None
    truncate_dim: int | None = None

    def require_whole(self, cut: int, before: int, count: int, limit: int) -> None:
        """Raise DataError if ``cut`` of a block's texts, behind others, may not be cut."""
        if cut and self.on_overflow == "error":
            raise DataError(
                f"{cut} of the sentences {before} to {before + count - 1} are longer than {limit} "
                "tokens; shorten them or pass on_overflow='truncate'"
            )

    def warn_of_cut(self, cut: int, done: int, limit: int) -> None:
        """Warn of texts that were cut, unless that was asked for."""
        if cut and self.on_overflow == "warn":
            warn(f"{cut} of {done} sentences were cut at {limit} tokens")

    def finish(self, rows: np.ndarray) -> np.ndarray:
        """The rows of a block, ``(N, D)``, as they are asked for."""
        if self.truncate_dim is None:
            return unit_rows(rows) if self.normalize or self.normalize_last else rows
        if self.normalize and not self.normalize_last:
            unit_rows(rows)
        rows = rows[:, : self.truncate_dim].copy()
        return unit_rows(rows) if self.normalize_last else rows


def _within(name: str, value: object, most: int) -> int:
    if not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r}; give a number from 1 to {most}")
    return value


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale each row of ``(N, D)`` to length 1, in place; a row of zeros stays."""
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return rows


def _stated(name: str) -> Any:
    def change(encoder: Encoder, value: Any) -> None:
        encoder.conventions = replace(encoder.conventions, **{name: value})

    return property(lambda encoder: getattr(encoder.conventions, name), change)


class Encoder(ABC):
    """Sentences in, rows of D numbers out."""

    name: str  # what it was loaded from
    normalize: bool  # rows have length 1, unless a call says otherwise
    max_tokens: int  # longer sentences are cut, if that is not 0
    gives_zeros = False  # for a sentence without a known word
    conventions: Conventions = Conventions()
    prompts = _stated("prompts")  # texts to put before a sentence, by name
    default_prompt_name = _stated("default_prompt_name")  # of the one that `encode` uses, or None
    similarity_fn_name = _stated("similarity")  # cosine, dot, euclidean or manhattan
    # where sentence-transformers' evaluators write their scores, which cards here do not have
    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_: None)

    @property
    @abstractmethod
    def full_width(self) -> int:
        """Dimensions of an embedding before `truncate_dim` cuts it."""

    @property
    def width(self) -> int:
        """D, dimensions of an embedding."""
        return self.truncate_dim or self.full_width

    @property
    @abstractmethod
    def pooler(self) -> str:
        """How token states become an embedding."""

    @property
    @abstractmethod
    def head_name(self) -> str:
        """The map after the pooler, ``none`` or ``mlp``."""

    @property
    def engine(self) -> str:
        """What computes the transformer."""
        return "torch"

    @property
    def transform_described(self) -> str | None:
        """The fitted map and the text it was fitted on, in words; None without one."""
        return None

    @property
    def truncate_dim(self) -> int | None:
        """How many leading dimensions of an embedding are kept; None for all."""
        return self.conventions.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, dimensions: int | None) -> None:
        if dimensions is not None:
            _within("truncate_dim", dimensions, self.full_width)
        self.conventions = replace(self.conventions, truncate_dim=dimensions)

    @property
    def max_seq_length(self) -> int:
        """``max_tokens``, as sentence-transformers calls it."""
        return self.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        for part in {self.route(role) for role in ROLES}:
            part.max_tokens = _within("max_seq_length", tokens, part.most_tokens)

    @property
    def most_tokens(self) -> int:
        """The largest `max_tokens` that it can have."""
        return UNBOUNDED

    def limit(self, task: str | None = None) -> int:
        """The most tokens of a text, or of a query or document."""
        part: Encoder = self.route(task)
        return min(part.conventions.length_of(task) or part.max_tokens, part.most_tokens)

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that is equal for encoders that give equal embeddings."""

    def local_fingerprint(self) -> str:
        """As `fingerprint`, for embeddings that are kept on this machine alone."""
        return self.fingerprint()

    @abstractmethod
    def resolve_precision(self, name: str) -> str:
        """The precision that `encode` uses when asked for ``name``; errors as there."""

    @abstractmethod
    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        """The embeddings of ``sentences``, of at most ``options.chunk`` at a time."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Self:
        """Move it to ``device``; ConfigError if it cannot compute there."""

    def route(self, task: str | None = None) -> Any:
        """The encoder of a query, a document or another text: itself, unless it is a `Router`."""
        return self

    def encode_stream(self, sentences: Iterable[str], **options: Any) -> Iterator[np.ndarray]:
        """Embed any number of sentences in bounded memory, ``chunk`` of them at a time.

        Options are ``chunk``, and those of `encode` that say how, with its errors. They are checked
        at once, sentences as they are read. Blocks of at most ``(chunk, D)`` float32 are in the
        order of ``sentences``.
        """
        sentences = sentences_of(sentences)
        given = {name: value for name, value in options.items() if value is not None}
        precision = str(given.pop("precision", "auto"))
        part = self.route(given.get("task"))
        usual: dict[str, Any] = {"normalize": part.normalize, "truncate_dim": self.truncate_dim}
        prompt = self.conventions.resolve(given.pop("prompt", None), given.pop("prompt_name", None))
        usual |= {"prompt": prompt, "normalize_last": bool(given.get("normalize"))}
        usual |= {"precision": part.resolve_precision(precision.replace("float32", "fp32"))}
        resolved = checked(EncodingOptions, {**usual, **given})
        if resolved.truncate_dim is not None:
            _within("truncate_dim", resolved.truncate_dim, self.full_width)
        return self.blocks(sentences, resolved)

    def encode(  # noqa: PLR0913 - the options of a call, by name
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        batch_tokens: int | None = None,
        normalize: bool | None = None,
        normalize_embeddings: bool | None = False,
        precision: str | None = "auto",
        show_progress: bool | None = False,
        on_overflow: str | None = "warn",
        truncate_dim: int | None = None,
        convert_to_tensor: bool | None = False,
        convert_to_numpy: bool | None = True,
        device: str | torch.device | None = None,
        task: str | None = None,
    ) -> Any:
        """Embed sentences, in their order.

        ConfigError if an option is not one of its choices, there is no such prompt or device, or
        sentences are a table, a mapping or a set. DataError if an item is not a string, has no
        token, or is too long under `on_overflow="error"`. An option that is None is as left out.

        Args:
            sentences: N sentences, any iterable; or one, whose embedding is then ``(D,)``.
            prompt_name: the prompt of the encoder to put before each sentence; by default its
                default prompt, if it has one.
            prompt: a text to put before each sentence, in place of those; empty for none.
            batch_size: most sentences computed at once; by default as many as ``batch_tokens``.
            show_progress_bar: as ``show_progress``.
            batch_tokens: tokens computed at once, padding counted; by default 4,096 on a CPU and
                65,536 on an accelerator. Memory grows with it; the vectors do not depend on it
                beyond float tolerance.
            normalize: scale each embedding to length 1; by default what the encoder was saved
                with.
            normalize_embeddings: as ``normalize=True``.
            precision: `fp32`, `bf16`, or `auto`: bf16 where the hardware multiplies it natively
                and no fitted map follows, which would amplify its rounding errors; with an engine
                other than `torch`, what that engine computes in.
            show_progress: a progress bar on standard error.
            on_overflow: what to do about sentences longer than `max_tokens`: cut them and `warn`
                once with their number, stop with an `error`, or `truncate` silently.
            truncate_dim: keep only so many leading dimensions; by default the encoder's own
                ``truncate_dim``. They have length 1 only if ``normalize`` is given.
            convert_to_tensor: give a tensor on the encoder's device, in place of an array.
            convert_to_numpy: if false, and no tensor is asked for, give a list of tensors.
            device: move the encoder there first.
            task: `query` or `document`, for an encoder that reads these to another length, or by
                another encoder.

        Returns:
            ``(N, D)`` float32, an array unless a tensor or a list is asked for.
        """
        if device is not None:
            from contrasent.model.backbones.base import device_named

            self.to(device_named(device))
        texts = [sentences] if isinstance(sentences, str) else sentences_of(sentences)
        blocks = self.encode_stream(
            texts,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
            normalize=True if normalize_embeddings else normalize,
            precision=precision,
            show_progress=show_progress or show_progress_bar,
            on_overflow=on_overflow,
            prompt=prompt,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
            task=task,
        )
        width = truncate_dim or self.width
        if isinstance(texts, Sequence):  # each block is freed once it is copied
            rows: Any = np.empty((len(texts), width), np.float32)
            done = 0
            for block in blocks:
                rows[done : done + len(block)] = block
                done += len(block)
        else:
            rows = np.concatenate([np.empty((0, width), np.float32), *blocks])
        as_list = convert_to_numpy is not None and not (convert_to_numpy or convert_to_tensor)
        if convert_to_tensor or as_list:
            import torch

            rows = torch.from_numpy(rows).to(getattr(self, "device", "cpu"))
        if isinstance(sentences, str):
            return rows[0]
        return list(rows) if as_list else rows

    def encode_query(self, sentences: str | Iterable[str], **options: Any) -> Any:
        """`encode` with the prompt ``query``, if the encoder has one, in place of its default one.

        A prompt or a name of one among ``options`` comes first.
        """
        return self._encode_as("query", sentences, options)

    def encode_document(self, sentences: str | Iterable[str], **options: Any) -> Any:
        """`encode` with the prompt ``document``, as `encode_query`."""
        return self._encode_as("document", sentences, options)

    def similarity(self, first: Any, second: Any) -> torch.Tensor:
        """``(N, M)``, by `similarity_fn_name`, of embeddings ``(N, D)`` and ``(M, D)``."""
        return similarities(self.similarity_fn_name, first, second)

    def similarity_pairwise(self, first: Any, second: Any) -> torch.Tensor:
        """``(N,)``, by `similarity_fn_name`, of the rows of embeddings ``(N, D)`` each."""
        return similarities(self.similarity_fn_name, first, second, pairwise=True)

    def get_embedding_dimension(self) -> int:
        """``width``, as sentence-transformers calls it."""
        return self.width

    get_sentence_embedding_dimension = get_embedding_dimension

    def _encode_as(self, role: str, sentences: str | Iterable[str], options: dict[str, Any]) -> Any:
        given = {name: value for name, value in options.items() if value is not None}
        how = role_options(self, role)
        if "prompt" in given or "prompt_name" in given:
            how.pop("prompt", None)
        return self.encode(sentences, **{**how, **given})
