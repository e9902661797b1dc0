"""Conventions of use that a sentence-transformers folder states: prompts, lengths, similarity.

Shapes: N and M sentences, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt
from torch import Tensor

from contrasent.errors import CheckpointError, ConfigError, pick, warn
from contrasent.files import read_config, write_json
from contrasent.records import installed_versions
from contrasent.settings import settings

USE_CONFIG = "config_sentence_transformers.json"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
ROLES = ("query", "document")
_UNUSED = ("passage", "corpus")
"""Prompts that sentence-transformers takes for documents only where ``document`` is not known, and
since version 5 it always is."""


@settings
class QueryExpansion:
    """Tokens after a query that is shorter than ``length``, as in ColBERT."""

    strategy: Literal["fixed", "min"]
    """With fixed, a longer query is cut at that length."""

    length: Annotated[StrictInt, Field(gt=0)]

    attend: StrictBool = False
    """Let the query see them, and pool them; otherwise they count for nothing here."""

    token: str | None = None
    """By default the mask, else the end of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """How embeddings are meant to be made and compared.

    ConfigError if one of them cannot be.
    """

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
        if self.default_prompt_name is not None:
            self._require(self.default_prompt_name)
        pick("similarity_fn_name", self.similarity, SIMILARITIES)
        expansion, length = self.query_expansion, self.query_length
        if expansion is not None and length is not None and length < expansion.length:
            raise ConfigError(
                f"query_length {length} is below the {expansion.length} tokens of query_expansion"
            )

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
        lengths = self.stated_lengths
        return (*prompting, *kept, *(("lengths", lengths) if lengths else ()))

    def with_prompt(self, name: str) -> Conventions:
        """The same with the prompt ``name`` for every sentence; ConfigError if there is none."""
        self._require(name)
        return replace(self, default_prompt_name=name, chosen=True)

    def resolve(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """The text to put before a sentence: ``prompt``, the one of that name, or the default.

        Raises ConfigError for an unknown name, or if both are given.
        """
        if prompt is not None and prompt_name is not None:
            raise ConfigError(
                f"prompt is {prompt!r} and prompt_name {prompt_name!r}; give one of them"
            )
        if prompt is not None:
            return prompt
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        self._require(name)
        return self.prompts[name]

    def prompt_of(self, role: str) -> str:
        """The text before a query or document, as in sentence-transformers 6.

        It is the prompt of that name; without one it is empty, whatever the default prompt is.
        """
        return self.resolve() if self.chosen else self.prompts.get(role, "")

    @property
    def unused(self) -> str | None:
        """The name of a prompt that was meant for documents, which get none; else None."""
        if self.prompt_of("document"):
            return None
        return next((name for name in _UNUSED if self.prompts.get(name)), None)

    def length_of(self, role: str | None) -> int | None:
        """The most tokens of a query or document, where that is not as usual."""
        expansion = self.expansion_of(role)
        if expansion is not None and expansion.strategy == "fixed":
            return expansion.length
        return {"query": self.query_length, "document": self.document_length}.get(role or "")

    @property
    def stated_lengths(self) -> dict[str, Any]:
        """What a query and a document have of their own, as the Transformer module states it."""
        expansion = self.query_expansion
        stated = {
            "query_length": self.query_length,
            "document_length": self.document_length,
            "query_expansion": None if expansion is None else asdict(expansion),
        }
        return {name: value for name, value in stated.items() if value is not None}

    def expansion_of(self, role: str | None) -> QueryExpansion | None:
        """The expansion of a query."""
        return self.query_expansion if role == "query" else None

    def _require(self, name: str) -> None:
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise ConfigError(
                f"there is no prompt named {name!r}; the encoder's prompts are: {known}"
            )


def role_options(encoder: object, role: str) -> dict[str, str]:
    """What an ``encode`` call of ``encoder`` takes for the ``role`` query or document.

    Nothing for an encoder that reads both as any text. Warns of a prompt that was meant for
    documents, and is not used for them.
    """
    conventions: Conventions | None = getattr(encoder, "conventions", None)
    if conventions is None:
        return {}
    if role == "document" and (name := conventions.unused):
        text = conventions.prompts[name]
        warn(
            f"the prompt {name!r} ({text!r}) is put before no document, as in "
            "sentence-transformers, which takes 'document' alone; load the encoder with "
            f"prompts={{'document': {text!r}}}, or encode with prompt_name={name!r}"
        )
    reads_apart = conventions.length_of(role) or conventions.expansion_of(role)
    of_task = {"task": role} if reads_apart else {}
    if not of_task and not any(conventions.prompts.values()):
        return {}
    return {"prompt": conventions.prompt_of(role), **of_task}


def similarity_of(encoder: object) -> str:
    """The function by which embeddings of ``encoder`` are compared; the cosine if it states none.

    What ranks by another one takes embeddings as they are, not scaled to length 1.
    """
    return getattr(encoder, "similarity_fn_name", "cosine")


@settings
class _UseConfig:
    """Settings of ``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    truncate_dim: Annotated[StrictInt, Field(gt=0)] | None = None
    similarity_fn_name: Literal["cosine", "dot", "euclidean", "manhattan"] | None = None
    model_type: Literal["SentenceTransformer"] | None = None
    versions: Annotated[Any, Field(validation_alias="__version__")] = None


def read_conventions(folder: Path, **lengths: Any) -> Conventions:
    """What ``folder`` states, with the ``lengths`` of a task; CheckpointError if it cannot be."""
    path = folder / USE_CONFIG
    stated = read_config(_UseConfig, path)
    try:
        return Conventions(
            prompts={name: prompt or "" for name, prompt in (stated.prompts or {}).items()},
            default_prompt_name=stated.default_prompt_name,
            truncate_dim=stated.truncate_dim,
            similarity=stated.similarity_fn_name or "cosine",
            **lengths,
        )
    except ConfigError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def write_conventions(folder: Path, conventions: Conventions) -> None:
    """Write them for ``folder``, in the form that sentence-transformers reads.

    The prompts of queries and documents stand there too where they are empty: older versions would
    take another one.
    """
    installed = installed_versions()
    versions = {"transformers": installed["transformers"], "pytorch": installed["torch"]}
    content: dict[str, Any] = {
        "__version__": versions,
        "prompts": {**conventions.prompts, **{role: conventions.prompt_of(role) for role in ROLES}},
        "default_prompt_name": conventions.default_prompt_name,
        "similarity_fn_name": conventions.similarity,
    }
    if conventions.truncate_dim is not None:
        content["truncate_dim"] = conventions.truncate_dim
    write_json(folder / USE_CONFIG, content)


def similarities(name: str, first: Any, second: Any, *, pairwise: bool = False) -> Tensor:
    """How alike embeddings are: larger is nearer, so distances are negative.

    Of ``(N, D)`` and ``(M, D)``, as arrays, tensors or lists, ``(N, M)``; of rows of the same
    number, if ``pairwise``, ``(N,)``. ConfigError if they are texts, or do not fit.
    """
    import torch
    from torch.nn import functional as F

    left, right = map(_matrix, (first, second))
    left = left.to(right.device)
    if left.shape[1] != right.shape[1] or (pairwise and len(left) != len(right)):
        raise ConfigError(
            f"embeddings of shapes {tuple(left.shape)} and {tuple(right.shape)} cannot be compared"
            f"{' row by row' * pairwise}; give those of one encoder"
        )
    if name == "cosine":
        left, right = F.normalize(left, dim=-1), F.normalize(right, dim=-1)
    if name in ("cosine", "dot"):
        return torch.sum(left * right, dim=-1) if pairwise else torch.matmul(left, right.T)
    order = 2.0 if name == "euclidean" else 1.0
    if pairwise:
        return torch.neg(torch.linalg.vector_norm(left - right, ord=order, dim=-1))
    # By products of matrices, those of near vectors would be lost in rounding.
    exact = "donot_use_mm_for_euclid_dist"
    return torch.neg(torch.cdist(left, right, p=order, compute_mode=exact))


def _matrix(rows: Any) -> Tensor:
    """``(N, D)`` in fp32; of one vector ``(1, D)``."""
    import torch

    is_list = isinstance(rows, list | tuple) and rows and isinstance(rows[0], Tensor)
    try:
        matrix = torch.stack([*rows]) if is_list else torch.as_tensor(rows)
        return matrix.float().view(-1, matrix.shape[-1])
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a similarity is of embeddings (N, D), not of {type(rows).__name__} {rows!r:.60}; "
            "give encoder.encode(texts)"
        ) from error
