"""Bodies of requests and of refusals.

One rule for all: null means unset, a field that a body does not have is refused, as it may be
misspelt, and nothing is converted: 0 is no boolean.
"""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

NOT_BLANK = Field(pattern=r"[^\s\x1c-\x1f\x85]")
"""A character that prints; pydantic finds halves of surrogate pairs only where it looks."""

_FIRST = Field(fail_fast=True)
"""Of a list only the first mistake is told: each takes a thousand times the memory of its item."""
_SOME = Field(fail_fast=True, min_length=1)
Strings = Annotated[list[str], _SOME]
Texts = str | Strings
Line = Annotated[str, NOT_BLANK]
Lines = Annotated[list[Line], _FIRST]


Count = Annotated[int, Field(gt=0)]


def _with_null(schema: dict[str, Any]) -> None:
    fields = schema["properties"]
    for name in fields.keys() - set(schema.get("required", ())):
        fields[name] = {"anyOf": [fields[name], {"type": "null"}]}


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_with_null)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        for name in given.keys() - fields.keys():  # only the first is told, as of a list
            raise ValueError(f"there is no field {reprlib.repr(name)}, only {', '.join(fields)}")
        return {
            name: value
            for name, value in given.items()
            if value is not None or fields[name].is_required()
        }


_ROLES = {"search_query": "query", "search_document": "document", "passage": "document"}


class TextOptions(Body):
    """How texts are read; ``prompt_name`` goes before ``input_type``."""

    prompt_name: str | None = None
    input_type: (
        Literal["query", "document", "passage", "search_query", "search_document"] | None
    ) = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = None

    @property
    def role(self) -> str | None:
        """Query or document, if the client says which."""
        return None if self.input_type is None else _ROLES.get(self.input_type, self.input_type)


def _text(value: object) -> object:
    """Refuse token ids, which clients send that tokenize for a model of OpenAI's."""
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise ValueError("send text, not token ids (LangChain: check_embedding_ctx_length=False)")
    return value


class OpenAIRequest(TextOptions):
    """OpenAI's request for embeddings."""

    input: Annotated[Texts, BeforeValidator(_text)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None


class EmbedRequest(TextOptions):
    """TEI's request for embeddings, with what huggingface_hub adds."""

    inputs: Texts
    normalize: bool = True
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] = "float"


class SimilarityInputs(Body):
    """A sentence, and those it is compared with."""

    source_sentence: str
    sentences: Strings


class SimilarityRequest(Body):
    """TEI's request for cosines."""

    inputs: SimilarityInputs
    parameters: TextOptions = TextOptions()


class MatrixRequest(Body):
    """Two lists, all sentences of which are compared."""

    first: Strings
    second: Strings


class QueryRequest(Body):
    """Queries, and which hits are wanted: ``only`` is a LIKE pattern of their ids."""

    queries: Line | Annotated[list[Line], _SOME]
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    only: Annotated[str, Field(max_length=1000)] | None = None


class IndexChange(Body):
    """Ids to remove, then texts to add, with one id each or with none."""

    remove: Lines = []
    missing_ok: bool = False
    texts: Lines = []
    ids: Lines | None = None


class Refusal(BaseModel):
    """TEI's body of an error; OpenAI's routes have OpenAI's ``error`` in it."""

    error: str | dict[str, str | None]
    error_type: str
