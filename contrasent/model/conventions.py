"""Conventions of use that a sentence-transformers folder states: prompts, lengths, similarity.

Shapes: N and M sentences, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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

    strategy: Literal["fixed", "min"]  # with fixed, a longer query is cut at that length
    length: Annotated[StrictInt, Field(gt=0)]
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
        lengths = self.stated_lengths
        return (*prompting, *kept, *(("lengths", lengths) if lengths else ()))

    def resolve(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """``prompt``, the one of that name, or the default; ConfigError for an unknown name."""
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if prompt is not None or name is None:
            return prompt or ""
        if name not in self.prompts:
            raise ConfigError(
                f"there is no prompt named {name!r}; the encoder's prompts are: "
                f"{', '.join(self.prompts) or 'none'}"
            )
        return self.prompts[name]

    def prompt_of(self, role: str) -> str:
        """The text before a query or document: the prompt of that name, or nothing."""
        return self.resolve() if self.chosen else self.prompts.get(role, "")

    def length_of(self, role: str | None) -> int | None:
        """The most tokens of a query or document, where that is not as usual."""
        expansion = self.expansion_of(role)
        if expansion is not None and expansion.strategy == "fixed":
            return expansion.length
        return {"query": self.query_length, "document": self.document_length}.get(role or "")

    def expansion_of(self, role: str | None) -> QueryExpansion | None:
        """The expansion of a query."""
        return self.query_expansion if role == "query" else None

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
    if conventions.length_of(role) or conventions.expansion_of(role):
        return {"prompt": prompt, "task": role}
    return {"prompt": prompt} if any(prompts.values()) else {}


def similarity_of(encoder: object) -> str:
    """The function by which embeddings of ``encoder`` are compared; the usual one is cosine."""
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
    """Write them in the form that sentence-transformers reads.

    Empty prompts of roles stand there too: older versions would take another one.
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

    ``(N, M)`` of ``(N, D)`` and ``(M, D)``; ``(N,)`` of their rows if ``pairwise``.
    """
    import torch
    from torch.nn import functional as F

    def matrix(rows: Any) -> Tensor:
        is_list = isinstance(rows, list | tuple) and rows and isinstance(rows[0], Tensor)
        made = torch.stack([*rows]) if is_list else torch.as_tensor(rows)
        return made.float().view(-1, made.shape[-1])

    try:
        left, right = map(matrix, (first, second))
        left = left.to(right.device)
        if left.shape[1] != right.shape[1] or (pairwise and len(left) != len(right)):
            raise ValueError(f"shapes {tuple(left.shape)} and {tuple(right.shape)} do not fit")
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a similarity is of embeddings (N, D) and (M, D) of one encoder ({error}); give "
            "encoder.encode(texts)"
        ) from error
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
