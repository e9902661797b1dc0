"""Bodies of requests, and the OpenAPI document that describes them and their refusals.

One rule for all: null means unset, a field that a body does not have is refused, as it may be
misspelt, and nothing is converted: 0 is no boolean.
"""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema

from contrasent.errors import ConfigError, pick
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import LoadedEncoder

_NAME = 100
"""Characters of an unknown field's name that are read."""
NOT_BLANK = r"\S"
"""Of a text that says something; pydantic finds halves of surrogate pairs only where it looks."""

_FIRST = Field(fail_fast=True)
"""Of a list only the first mistake is told: each takes a thousand times the memory of its item."""
_SOME = Field(fail_fast=True, min_length=1)
Strings = Annotated[list[str], _SOME]
Texts = str | Strings
Lines = Annotated[list[Annotated[str, Field(pattern=NOT_BLANK)]], _FIRST]


def _whole(value: object) -> object:
    """15.0 as 15, which JSON does not tell apart; and so each of a list."""
    if isinstance(value, list):
        return [*map(_whole, value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], _SOME, BeforeValidator(_whole)]
Count = Annotated[int, Field(gt=0), BeforeValidator(_whole)]


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

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Let every field that has a default be null too."""
        schema = handler.resolve_ref_schema(handler(core))
        null = {"type": "null"}
        for name in schema["properties"].keys() - set(schema.get("required", ())):
            field = schema["properties"][name]
            forms = field.pop("anyOf", None) or [
                {key: field.pop(key) for key in [*field] if key not in ("title", "default")}
            ]
            field["anyOf"] = forms if null in forms else [*forms, null]
        return schema


_ROLES = {"search_query": "query", "search_document": "document", "passage": "document"}


class TextOptions(Body):
    """How texts are read; ``prompt_name`` goes before ``input_type``."""

    prompt_name: str | None = None
    input_type: (
        Literal["query", "document", "passage", "search_query", "search_document"] | None
    ) = None
    truncate_prompt_tokens: Annotated[Literal[-1] | Count | None, BeforeValidator(_whole)] = None

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
    top_k: Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)] = 10
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    only: Annotated[str, Field(max_length=1000)] | None = None


class IndexChange(Body):
    """Ids to remove, then texts to add, with one id each or with none."""

    remove: Lines = []
    missing_ok: bool = False
    texts: Lines = []
    ids: Lines | None = None


class Refusal(BaseModel):
    """TEI's body of an error."""

    error: str
    error_type: str


class OpenAIRefusal(BaseModel):
    """Both bodies of an error, on OpenAI's routes."""

    message: str
    code: int
    error_type: str
    error: dict[Literal["message", "type", "param", "code"], str | None]


_STATUSES = {
    400: "Nothing was sent, token ids without special tokens, or another host was meant",
    401: "The key is missing or wrong",
    403: "A page of another origin may not send",
    404: "There is no such model",
    408: "The body did not come in time",
    409: "The index has not, or has already, what the change names",
    413: "The body, the list or a text is too large",
    415: "The body is not said to be JSON",
    422: "Something is not as the route takes it",
    424: "The model gives a vector that is not finite",
    429: "Overload, with Retry-After",
    500: "A fault, which the log has",
    503: "Nothing can be embedded or written now",
}
_OF_BODIES = (403, 415, 422, 424)


def describe(app: FastAPI, encoder: LoadedEncoder, needs_key: bool, raw_ids: bool) -> None:
    """Let ``app`` describe all refusals, and the limits that are those of its encoder."""
    write = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = write()
            schemas = document["components"]["schemas"]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for kind in (Refusal, OpenAIRefusal):
                schemas[kind.__name__] = kind.model_json_schema()
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    operation["responses"] |= _refusals(path, method, operation, needs_key)
            for schema in schemas.values():
                _limit(schema.get("properties", {}), encoder, raw_ids)
        return app.openapi_schema or write()

    app.openapi = openapi  # type: ignore[method-assign]


def _refusals(
    path: str, method: str, operation: dict[str, Any], needs_key: bool
) -> dict[str, object]:
    kind = "OpenAIRefusal" if path.startswith("/v1/") else "Refusal"
    schema = {"$ref": f"#/components/schemas/{kind}"}
    other = {401: needs_key, 404: "{" in path, 409: (path, method) == ("/index", "post")}
    other |= dict.fromkeys(_OF_BODIES, method == "post")
    other[422] |= "parameters" in operation
    return {
        str(status): {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, text in _STATUSES.items()
        if other.get(status, True)
    }


def _limit(fields: dict[str, Any], encoder: LoadedEncoder, raw_ids: bool) -> None:
    """Say in the schema of a body's fields what of them this encoder takes."""
    tokenizer = encoder.tokenizer if isinstance(encoder, SentenceEncoder) else None
    side = "right" if tokenizer is None else tokenizer.truncation_side
    least = (encoder.max_tokens or 1) if tokenizer is None else tokenizer.specials + 1
    limits: dict[str, dict[str, Any] | None] = {
        "dimensions": {"type": "integer", "minimum": 1, "maximum": encoder.width},
        "prompt_name": {"type": "string", "enum": [*encoder.prompts]} if encoder.prompts else None,
        "truncation_direction": {"type": "string", "enum": [side, side.title()]},
        "threshold": {"type": "number", "minimum": -1, "maximum": 1},
        "truncate_prompt_tokens": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": least}]},
    }
    if encoder.similarity_fn_name != "cosine":
        del limits["threshold"]
    for name in limits.keys() & fields.keys():
        form = limits[name]
        fields[name]["anyOf"] = [*([form] if form else ()), {"type": "null"}]
    if "input" in fields:
        # JSON Schema cannot say how a list ends, so that ids between special tokens are not in it.
        top = -1 if tokenizer is None or not raw_ids else tokenizer.vocabulary - 1
        forms = [form for form in fields["input"]["anyOf"] if "integer" not in str(form)]
        ids = {"type": "integer", "minimum": 0, "maximum": top}
        for _ in range(0 if top < 0 else 2):
            ids = {"type": "array", "items": ids, "minItems": 1}
            forms.append(ids)
        fields["input"] |= {
            "anyOf": forms,
            "description": "Or the token ids of one text, or of several, as /tokenize gives them.",
        }
