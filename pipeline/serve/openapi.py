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
_NO_TOKEN = "The request did not show the server's token"


class TextResult(msgspec.Struct):
    """The columns that `broadsheet classify` writes. With scores there is also score_CLASS for each class."""

    label: Annotated[str | None, msgspec.Meta(description="The class; null for a text that cannot be labelled")]
    score: Annotated[float | None, msgspec.Meta(description="The probability of the label")]
    n_chars: Annotated[_Count, msgspec.Meta(description="Characters of the whole text")]
    truncated: Annotated[bool, msgspec.Meta(description="Whether it is longer than the model reads")]
    unknown_chars: Annotated[_Count, msgspec.Meta(description="Outside the model's alphabet, of those that it reads")]
    top_labels: Annotated[
        list[str | None] | UnsetType,
        msgspec.Meta(description="The best classes, with top_k above 1"),
    ] = UNSET
    top_scores: Annotated[list[float | None] | UnsetType, msgspec.Meta(description="Their scores")] = UNSET
    reason: Annotated[str | UnsetType, msgspec.Meta(description="Only where label is null: why")] = UNSET


class ClassifyAnswer(msgspec.Struct):
    """A result for each text, in order."""

    model: str
    results: list[TextResult]


class ModelAbout(msgspec.Struct):
    """A model as it is served."""

    name: str
    default: Annotated[bool, msgspec.Meta(description="Whether it is the one for requests that name none")]
    classes: Annotated[tuple[str, ...], msgspec.Meta(description="The labels that it may give")]
    reads: Annotated[_Count, msgspec.Meta(description="How many characters of a text decide its label")]
    alphabet: Annotated[str, msgspec.Meta(description="The characters that it knows; empty where it reads bytes")]
    meant_for: Annotated[str | None, msgspec.Meta(description="The texts that it was made for, where its file says so")]
    digest: Annotated[str, msgspec.Meta(description="Identifies its weights and settings")]
    loaded: Annotated[_Count, msgspec.Meta(description="How often it was loaded: 1, and 1 more for each reload")]
    backend: Annotated[str | None, msgspec.Meta(description="Device, precision and software that compute the scores")]


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
            "/v1/models": {"get": _get("List the models", "ModelList")},
            "/v1/models/{name}/reload": {"post": _reload()},
            "/healthz": {"get": _open("Tell whether the server is alive")},
            "/readyz": {
                "get": _open(
                    "Tell whether each model is loaded and can label",
                    also={"503": _answer("One of them has no engine that is ready", "ServerState")},
                )
            },
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
    return environment.get_template("docs.html.j2").render(
        document=described, schemas=described["components"]["schemas"]
    )


def _classify(settings: Settings) -> dict[str, Any]:
    return {
        "operationId": "classify",
        "summary": "Label texts",
        "description": "The answer has a result for each text, in the same order. The body may also be an Arrow IPC "
        "stream with one column, text, that is not compressed. The other fields are then in the URL, and the answer is "
        "a stream with a row for each text.",
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
            "400": _answer("The body is not JSON in UTF-8, or no Arrow stream"),
            "401": _answer(_NO_TOKEN),
            "404": _answer("There is no such model"),
            "413": _answer("The body is too long, or has too many texts"),
            "415": _answer("The content type is neither JSON nor an Arrow stream"),
            "422": _answer("A field, a type or a column is wrong, or a text is null"),
            "503": {
                **_answer("The answer would come too late, or the engine was lost: try again"),
                "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
            },
        },
    }


def _reload() -> dict[str, Any]:
    return {
        "operationId": "reload",
        "summary": "Load a model's file again",
        "description": "Requests meanwhile are answered by the model that was loaded before.",
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "security": [{"bearer": []}],
        "responses": {
            "200": _answer("The model was loaded again", "ModelAbout"),
            "401": _answer("The request did not show the admin token"),
            "403": _answer("The server was started without an admin token"),
            "404": _answer("There is no such model"),
            "409": _answer("The file holds no model that can be served; the old one goes on"),
        },
    }


def _get(summary: str, schema: str) -> dict[str, Any]:
    answers = {"200": _answer("The list", schema), "401": _answer(_NO_TOKEN)}
    return {"summary": summary, "responses": answers}


def _open(summary: str, also: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _answer("It is", "ServerState"), **(also or {})}}


def _metrics() -> dict[str, Any]:
    text = {"description": "In Prometheus's text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"summary": "Show what the server counts", "responses": {"200": text, "401": _answer(_NO_TOKEN)}}


def _answer(description: str, schema: str = "ErrorMessage") -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _schemas(settings: Settings) -> dict[str, Any]:
    """Those of the structs that requests and answers are read and written with, by name."""
    kinds = (ClassifyOptions, ClassifyRequest, ClassifyAnswer, ModelList, ModelAbout, ServerState, ErrorMessage)
    _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    properties = found["ClassifyRequest"]["properties"]
    properties["texts"] |= {"maxItems": settings.max_texts, "description": "The texts to label"}
    properties["model"]["description"] = f"Which model labels them. Default: {settings.default_model}"
    return found
