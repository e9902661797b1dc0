"""Bodies of requests and of refusals, and what the OpenAPI document says of them.

One rule for all: null means unset, a field that a body does not have is refused, as it may be
misspelt, and nothing is converted: 0 is no boolean.
"""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from contrasent.errors import ConfigError, pick
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import LoadedEncoder

_NAME = 100
"""Characters of an unknown field's name that are read."""
NOT_BLANK = r"[^\s\x1c-\x1f\x85]"  # a character that Python, Rust and ECMAScript all print
"""Of a text that says something; pydantic finds halves of surrogate pairs only where it looks."""

_FIRST = Field(fail_fast=True)
"""Of a list only the first mistake is told: each takes a thousand times the memory of its item."""
_SOME = Field(fail_fast=True, min_length=1)
Strings = Annotated[list[str], _SOME]
Texts = str | Strings
Lines = Annotated[list[Annotated[str, Field(pattern=NOT_BLANK)]], _FIRST]


def _whole(value: object) -> object:
    """15.0 as 15, which JSON does not tell apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31), _WHOLE]], _SOME]
Count = Annotated[int, Field(gt=0), _WHOLE]


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, given: Any) -> Any:
        """Only the fields that are set; ConfigError names the first that is unknown."""
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        for name in given.keys() - fields.keys():
            try:
                pick("field", name[:_NAME], fields)
            except ConfigError as error:
                raise ConfigError(f"{error} Its value is {reprlib.repr(given[name])}.") from None
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
    truncate_prompt_tokens: Annotated[Literal[-1] | Count | None, _WHOLE] = None

    truncate: bool | None = None
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = None

    @property
    def role(self) -> str | None:
        """Query or document, if the client says which."""
        return None if self.input_type is None else _ROLES.get(self.input_type, self.input_type)


class OpenAIRequest(TextOptions):
    """OpenAI's request for embeddings."""

    input: Texts | TokenIds | Annotated[list[TokenIds], _SOME]
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


class TokenizeRequest(Body):
    """TEI's request for tokens."""

    inputs: Texts
    add_special_tokens: bool = True


class QueryRequest(Body):
    """Queries, and which hits are wanted: ``only`` is a LIKE pattern of their ids."""

    queries: (
        Annotated[str, Field(pattern=NOT_BLANK)]
        | Annotated[list[Annotated[str, Field(pattern=NOT_BLANK)]], _SOME]
    )
    top_k: Annotated[int, Field(ge=1, le=1000), _WHOLE] = 10
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


def limit(schemas: dict[str, Any], encoder: LoadedEncoder, raw_ids: bool) -> None:
    """Say in the schemas of bodies what this encoder takes, and that null means unset."""
    tokenizer = encoder.tokenizer if isinstance(encoder, SentenceEncoder) else None
    side = "right" if tokenizer is None else tokenizer.truncation_side
    least = (encoder.max_tokens or 1) if tokenizer is None else tokenizer.specials + 1
    limits: dict[str, dict[str, Any]] = {
        "dimensions": {"type": "integer", "minimum": 1, "maximum": encoder.width},
        "prompt_name": {"enum": [*encoder.prompts, None]},
        "truncation_direction": {"enum": [side, side.title(), None]},
        "truncate_prompt_tokens": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": least}]},
    }
    if encoder.similarity_fn_name == "cosine":
        limits["threshold"] = {"type": "number", "minimum": -1, "maximum": 1}
    for schema in schemas.values():
        fields = schema["properties"]
        for name in fields.keys() - set(schema.get("required", ())):
            fields[name] = {"anyOf": [limits.get(name, fields[name]), {"type": "null"}]}
    forms = schemas["OpenAIRequest"]["properties"]["input"]["anyOf"]
    if raw_ids and tokenizer is not None:
        for ids in (forms[2], forms[3]["items"]):
            ids["items"]["maximum"] = tokenizer.vocabulary - 1
    else:  # JSON Schema cannot say how a list ends: ids between special tokens are not in it
        del forms[2:]
