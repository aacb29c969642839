"""The interface as OpenAPI says it, and a page of it for people, which needs no other host."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from .bodies import ARROW, JSON, MOST_LABELS
from .settings import Settings

_TOP_K = {"type": "integer", "minimum": 1, "maximum": MOST_LABELS, "default": 1}
_SCORES = {"type": "boolean", "default": False}


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
            "/v1/models": {"get": _get("The models, and what they read", "Models")},
            "/v1/models/{name}/reload": {"post": _reload()},
            "/healthz": {"get": _open("Whether the server is alive")},
            "/readyz": {"get": _open("Whether an engine is warm", also={"503": _answer("None is", "State")})},
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
            {"name": "model", "in": "query", "description": "With Arrow", "schema": {"type": "string"}},
            {"name": "top_k", "in": "query", "description": "With Arrow", "schema": _TOP_K},
            {"name": "scores", "in": "query", "description": "With Arrow", "schema": _SCORES},
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"$ref": "#/components/schemas/Request"}},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": {
            "200": {
                "description": "The labels",
                "content": {
                    JSON: {"schema": {"$ref": "#/components/schemas/Answer"}},
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
            "200": _answer("The model that is served now", "Model"),
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
    return {"summary": summary, "responses": {"200": _answer("Yes", "State"), **(also or {})}}


def _metrics() -> dict[str, Any]:
    text = {"description": "In Prometheus's text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"summary": "What the server counts", "responses": {"200": text, "401": _answer("The token was not shown")}}


def _answer(description: str, schema: str = "Error") -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _schemas(settings: Settings) -> dict[str, Any]:
    number, label = {"type": ["number", "null"]}, {"type": ["string", "null"]}
    count = {"type": "integer", "minimum": 0}
    return {
        "Request": {
            "type": "object",
            "required": ["texts"],
            "additionalProperties": False,
            "properties": {
                "texts": {"type": "array", "items": {"type": "string"}, "maxItems": settings.max_texts},
                "model": {"type": ["string", "null"], "description": f"Default: {settings.default_model}"},
                "top_k": {**_TOP_K, "description": "Labels of each text"},
                "scores": {**_SCORES, "description": "The probability of every class too"},
            },
        },
        "Answer": {
            "type": "object",
            "required": ["model", "results"],
            "properties": {
                "model": {"type": "string"},
                "results": {"type": "array", "items": {"$ref": "#/components/schemas/Result"}},
            },
        },
        "Result": {
            "type": "object",
            "description": "The columns that `broadsheet classify` writes; with scores, score_CLASS for each class",
            "required": ["label", "score", "n_chars", "truncated", "unknown_chars"],
            "properties": {
                "label": {**label, "description": "null for a text on which the model overflows"},
                "score": number,
                "top_labels": {"type": "array", "items": label, "description": "With top_k above 1"},
                "top_scores": {"type": "array", "items": number},
                "n_chars": {**count, "description": "Characters of the whole text"},
                "truncated": {"type": "boolean", "description": "Whether it is longer than the model reads"},
                "unknown_chars": {**count, "description": "Outside the model's alphabet, of those that it reads"},
                "reason": {"type": "string", "description": "Why a text has no label"},
            },
        },
        "Models": {
            "type": "object",
            "required": ["models"],
            "properties": {"models": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}},
        },
        "Model": {
            "type": "object",
            "required": ["name", "classes", "reads", "alphabet", "loaded"],
            "properties": {
                "name": {"type": "string"},
                "default": {"type": "boolean", "description": "Whether it is the one for requests that name none"},
                "classes": {"type": "array", "items": {"type": "string"}},
                "reads": {**count, "description": "Characters of a text on which its label depends"},
                "alphabet": {"type": "string"},
                "meant_for": {"type": ["string", "null"]},
                "digest": {"type": "string"},
                "loaded": {**count, "description": "How often it was loaded: 1, and 1 more for each reload"},
                "backend": {"type": ["string", "null"], "description": "What decides the bits of a score"},
            },
        },
        "State": {
            "type": "object",
            "required": ["status"],
            "properties": {
                "status": {"type": "string"},
                "engines": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }
