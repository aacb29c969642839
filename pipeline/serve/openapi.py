"""The forms of answers; the interface in OpenAPI; and a page of that for people, which loads nothing from elsewhere."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import UNSET, UnsetType

from .bodies import ARROW, JSON, ClassifyOptions, ClassifyRequest
from .protocols import ClassifyInput, InferRequest, Invocation, PredictRequest
from .settings import Settings

_Count = Annotated[int, msgspec.Meta(ge=0)]
_NO_TOKEN = "The request did not show the server's token"


class TextResult(msgspec.Struct):
    """The columns that `broadsheet classify` writes. With scores there is also score_CLASS for each class."""

    label: Annotated[str | None, msgspec.Meta(description="The class; null for a text that cannot be labelled")]
    score: Annotated[float | None, msgspec.Meta(description="The probability of the label")]
    n_chars: Annotated[_Count, msgspec.Meta(description="Characters of the whole text")]
    truncated: Annotated[bool, msgspec.Meta(description="Whether it is longer than the model reads")]
    unknown_chars: Annotated[_Count, msgspec.Meta(description="Outside the network's alphabet, of those that it reads")]
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
    alphabet: Annotated[str, msgspec.Meta(description="The characters that its network knows; empty without one")]
    meant_for: Annotated[str | None, msgspec.Meta(description="The texts that it was made for, where its file says so")]
    digest: Annotated[str, msgspec.Meta(description="Identifies its weights and settings")]
    loaded: Annotated[_Count, msgspec.Meta(description="How often it was loaded: 1, and 1 more for each reload")]
    backend: Annotated[str | None, msgspec.Meta(description="Device, precision and software that compute the scores")]


class ModelId(msgspec.Struct):
    """A model as OpenAI's clients list it."""

    id: str
    object: str = "model"
    owned_by: str = "broadsheet"


class ModelList(msgspec.Struct):
    """All models; and their names once more, as OpenAI's clients and vLLM's look for them."""

    models: list[ModelAbout]
    object: str
    data: list[ModelId]


class ServerState(msgspec.Struct):
    """engines: what each is doing."""

    status: str
    engines: dict[str, str] | UnsetType = UNSET


class ErrorMessage(msgspec.Struct):
    """Why there is no other answer."""

    error: str


def describe(settings: Settings) -> dict[str, Any]:
    """The document at `/openapi.json`."""
    not_ready = {"503": _answer("One of the models has no engine that is ready", "ServerState")}
    paths: dict[str, Any] = {
        "/v1/classify": {"post": _classify(settings)},
        "/predict": {"post": _spoken("Label texts, as Text Embeddings Inference does", "PredictRequest")},
        "/": {"post": _spoken("The same, for Hugging Face's client with this server's URL", "PredictRequest")},
        "/classify": {"post": _spoken("Label texts, as vLLM and Infinity do", "ClassifyInput")},
        "/v2/models/{name}/infer": {"post": _spoken("Label texts by the Open Inference Protocol", "InferRequest")},
        "/invocations": {"post": _spoken("Label texts, as a container of SageMaker does", "Invocation", _LINES)},
        "/v1/models": {"get": _get("List the models", "ModelList")},
        "/v1/models/{name}/reload": {"post": _reload()},
        "/info": {"get": _get("Tell of the first model, as Text Embeddings Inference does")},
        "/v2": {"get": _open("Tell of the server, by the Open Inference Protocol", None)},
        "/v2/models/{name}": {"get": _get("Tell of a model's tensors, by the Open Inference Protocol")},
        "/v2/models/{name}/ready": {"get": _open("Tell whether a model can label", None, not_ready)},
        "/healthz": {"get": _open("Tell whether the server is alive")},
        "/readyz": {"get": _open("Tell whether each model is loaded and can label", also=not_ready)},
        "/health": {"get": _open("The same, as Text Embeddings Inference and vLLM have it", also=not_ready)},
        "/ping": {"get": _open("The same, as SageMaker has it", also=not_ready)},
        "/v2/health/live": {"get": _open("Tell whether the server is alive, by the Open Inference Protocol", None)},
        "/v2/health/ready": {
            "get": _open("Tell whether it can label, by the Open Inference Protocol", None, not_ready)
        },
        "/metrics": {"get": _metrics()},
    }
    for path, operations in paths.items():
        for operation in operations.values():
            if settings.token is not None and "401" in operation["responses"]:
                operation.setdefault("security", [{"bearer": []}])
            if "{name}" in path:
                operation["parameters"] = [_NAME]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Broadsheet",
            "version": version("broadsheet"),
            "description": "Labels for texts, by a character-level CNN.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(settings),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def page(described: dict[str, Any], model: str) -> str:
    """The document as HTML, in which requests are about `model`."""
    environment = Environment(
        loader=PackageLoader("broadsheet.pipeline.serve", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("docs.html.j2").render(
        document=described, schemas=described["components"]["schemas"], model=model
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
            **_refusals(),
        },
    }


def _refusals(late: str = "503") -> dict[str, Any]:
    """The answers to a request to classify that has no labels."""
    return {
        "400": _answer("The body is not in UTF-8, or not in the form that its content type names"),
        "401": _answer(_NO_TOKEN),
        "404": _answer("There is no such model"),
        "413": _answer("The body or a text is too long, or there are too many texts"),
        "415": _answer("The content type is none that the route takes"),
        "422": _answer("A field, a type, a column or an option is wrong, or a text is null"),
        late: {
            **_answer("The answer would come too late, or the engine was lost: try again"),
            "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
        },
    }


def _reload() -> dict[str, Any]:
    return {
        "operationId": "reload",
        "summary": "Load a model's file again",
        "description": "Requests meanwhile are answered by the model that was loaded before.",
        "security": [{"bearer": []}],
        "responses": {
            "200": _answer("The model was loaded again", "ModelAbout"),
            "401": _answer("The request did not show the admin token"),
            "403": _answer("The server was started without an admin token"),
            "404": _answer("There is no such model"),
            "409": _answer("The file holds no model that can be served; the old one goes on"),
        },
    }


_LINES = "The body may also be lines of JSON (application/jsonlines), CSV of one column, or lines (text/plain)."
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _spoken(summary: str, schema: str, description: str = "") -> dict[str, Any]:
    """A route as clients of another server have it."""
    return {
        "summary": summary,
        **({"description": description} if description else {}),
        "requestBody": {"required": True, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}},
        "responses": {
            "200": _answer("The labels", None),
            "424": _answer("The model overflows on a text, so that it has no label"),
            **_refusals("429" if schema == "PredictRequest" else "503"),
        },
    }


def _get(summary: str, schema: str | None = None) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _answer("What there is", schema), "401": _answer(_NO_TOKEN)}}


def _open(summary: str, schema: str | None = "ServerState", also: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _answer("It is", schema), **(also or {})}}


def _metrics() -> dict[str, Any]:
    text = {"description": "In Prometheus's text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"summary": "Show what the server counts", "responses": {"200": text, "401": _answer(_NO_TOKEN)}}


def _answer(description: str, schema: str | None = "ErrorMessage") -> dict[str, Any]:
    of_schema = {} if schema is None else {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"description": description, "content": {JSON: of_schema}}


def _schemas(settings: Settings) -> dict[str, Any]:
    """The schemas of the structs of requests and answers, by name."""
    own = (ClassifyOptions, ClassifyRequest, ClassifyAnswer, ModelList, ModelAbout, ServerState, ErrorMessage)
    others = (PredictRequest, ClassifyInput, InferRequest, Invocation)
    _, schemas = msgspec.json.schema_components((*own, *others), ref_template="#/components/schemas/{name}")
    properties = schemas["ClassifyRequest"]["properties"]
    properties["texts"] |= {"maxItems": settings.max_texts, "description": "The texts to label"}
    properties["model"]["description"] = f"Which model labels them. Default: {settings.default_model}"
    return schemas
