"""What is answered; the interface as OpenAPI says it; and a page of that for people, which needs no other host."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import UNSET, UnsetType

from .bodies import ARROW, JSON, ClassifyOptions, ClassifyRequest
from .settings import Settings

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TextResult(msgspec.Struct):
    """The columns that `broadsheet classify` writes; with scores, score_CLASS for each class."""

    label: Annotated[str | None, msgspec.Meta(description="null for a text on which the model overflows")]
    score: float | None
    n_chars: Annotated[_Count, msgspec.Meta(description="Characters of the whole text")]
    truncated: Annotated[bool, msgspec.Meta(description="Whether it is longer than the model reads")]
    unknown_chars: Annotated[_Count, msgspec.Meta(description="Outside the model's alphabet, of those that it reads")]
    top_labels: Annotated[list[str | None] | UnsetType, msgspec.Meta(description="With top_k above 1")] = UNSET
    top_scores: list[float | None] | UnsetType = UNSET
    reason: Annotated[str | UnsetType, msgspec.Meta(description="Why a text has no label")] = UNSET


class ClassifyAnswer(msgspec.Struct):
    """A result for each text, in order."""

    model: str
    results: list[TextResult]


class ModelAbout(msgspec.Struct):
    """A model as it is served."""

    name: str
    default: Annotated[bool, msgspec.Meta(description="Whether it is the one for requests that name none")]
    classes: tuple[str, ...]
    reads: Annotated[_Count, msgspec.Meta(description="Characters of a text on which its label depends")]
    alphabet: str
    meant_for: str | None
    digest: str
    loaded: Annotated[_Count, msgspec.Meta(description="How often it was loaded: 1, and 1 more for each reload")]
    backend: Annotated[str | None, msgspec.Meta(description="What decides the bits of a score")]


class ModelList(msgspec.Struct):
    """All models."""

    models: list[ModelAbout]


class ServerState(msgspec.Struct):
    """engines: what each is doing."""

    status: str
    engines: dict[str, str] | UnsetType = UNSET


class ErrorMessage(msgspec.Struct):
    """Why there is no other answer."""

    error: str


def describe(settings: Settings) -> dict[str, Any]:
    """The document at `/openapi.json`."""
    described = {
        "openapi": "3.1.0",
        "info": {
            "title": "Broadsheet",
            "version": version("broadsheet"),
            "description": "Labels for texts, by a character-level CNN.",
        },
        "paths": {
            "/v1/classify": {"post": _classify(settings)},
            "/v1/models": {"get": _get("The models, and what they read", "ModelList")},
            "/v1/models/{name}/reload": {"post": _reload()},
            "/healthz": {"get": _open("Whether the server is alive")},
            "/readyz": {"get": _open("Whether an engine is warm", also={"503": _answer("None is", "ServerState")})},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "schemas": _schemas(settings),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    if settings.token is not None:
        for path in ("/v1/classify", "/v1/models", "/metrics"):
            for operation in described["paths"][path].values():  # type: ignore[index]
                operation["security"] = [{"bearer": []}]
    return described


def page(described: dict[str, Any]) -> str:
    """The document as HTML."""
    environment = Environment(
        loader=PackageLoader("broadsheet.pipeline.serve", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    schemas = described["components"]["schemas"]
    pretty = {
        name: msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() for name, schema in schemas.items()
    }
    return environment.get_template("docs.html.j2").render(document=described, schemas=pretty)


def _classify(settings: Settings) -> dict[str, Any]:
    return {
        "operationId": "classify",
        "summary": "Label texts",
        "description": "Results have the order of the texts. A request is refused at once, with 503 and Retry-After, "
        "where it could not be answered in time. An Arrow stream has one column, text; options are then in the URL, "
        "and the answer is a stream too, of a row for each text.",
        "parameters": [
            {"name": name, "in": "query", "description": "With Arrow", "schema": schema.get("anyOf", [schema])[0]}
            for name, schema in _schemas(settings)["ClassifyOptions"]["properties"].items()
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"$ref": "#/components/schemas/ClassifyRequest"}},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": {
            "200": {
                "description": "The labels",
                "content": {
                    JSON: {"schema": {"$ref": "#/components/schemas/ClassifyAnswer"}},
                    ARROW: {"schema": {"type": "string", "format": "binary"}},
                },
            },
            "400": _answer("Neither JSON in UTF-8 nor an Arrow stream"),
            "401": _answer("The token was not shown"),
            "404": _answer("There is no such model"),
            "413": _answer("The body is too long, or has too many texts"),
            "415": _answer("Another content type"),
            "422": _answer("Another field, type or column, or a null"),
            "503": {
                **_answer("Refused, since it could not be answered in time, or was lost with its engine: try again"),
                "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
            },
        },
    }


def _reload() -> dict[str, Any]:
    return {
        "operationId": "reload",
        "summary": "Load a model's file again; no request is lost",
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "security": [{"bearer": []}],
        "responses": {
            "200": _answer("The model that is served now", "ModelAbout"),
            "401": _answer("The admin token was not shown"),
            "403": _answer("The server has no admin token"),
            "404": _answer("There is no such model"),
            "409": _answer("The file holds no model that can be served: the one before stays"),
        },
    }


def _get(summary: str, schema: str) -> dict[str, Any]:
    answers = {"200": _answer("As it is now", schema), "401": _answer("The token was not shown")}
    return {"summary": summary, "responses": answers}


def _open(summary: str, also: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _answer("Yes", "ServerState"), **(also or {})}}


def _metrics() -> dict[str, Any]:
    text = {"description": "In Prometheus's text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"summary": "What the server counts", "responses": {"200": text, "401": _answer("The token was not shown")}}


def _answer(description: str, schema: str = "ErrorMessage") -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _schemas(settings: Settings) -> dict[str, Any]:
    """Those of the structs that requests and answers are read and written with, by name."""
    kinds = (ClassifyOptions, ClassifyRequest, ClassifyAnswer, ModelList, ModelAbout, ServerState, ErrorMessage)
    _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    properties = found["ClassifyRequest"]["properties"]
    properties["texts"]["maxItems"] = settings.max_texts
    properties["model"]["description"] = f"Default: {settings.default_model}"
    return found
