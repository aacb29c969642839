"""The forms of answers; the interface in OpenAPI; and a page of that for people, which loads nothing from elsewhere."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import UNSET, UnsetType

from .bodies import ClassifyOptions, ClassifyRequest
from .protocols import ClassifyInput, InferRequest, Invocation, PredictRequest
from .settings import Settings

_Count = Annotated[int, msgspec.Meta(ge=0)]


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
    reads: Annotated[
        _Count | Literal["whole text"], msgspec.Meta(description="How many characters of a text decide its label")
    ]
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
    described: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("openapi.yaml").read_text())
    del described["x-shared"]
    described["info"]["version"] = version("broadsheet")
    schemas = described["components"]["schemas"] = _schemas(settings)
    described["paths"]["/v1/classify"]["post"]["parameters"] = [
        {"name": name, "in": "query", "description": "With Arrow", "schema": schema.get("anyOf", [schema])[0]}
        for name, schema in schemas["ClassifyOptions"]["properties"].items()
    ]
    for operations in described["paths"].values():
        for operation in operations.values():
            if settings.token is not None and "401" in operation["responses"]:
                operation.setdefault("security", [{"bearer": []}])
    return described


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


def _schemas(settings: Settings) -> dict[str, Any]:
    """The schemas of the structs of requests and answers, by name."""
    own = (ClassifyOptions, ClassifyRequest, ClassifyAnswer, ModelList, ModelAbout, ServerState, ErrorMessage)
    others = (PredictRequest, ClassifyInput, InferRequest, Invocation)
    _, schemas = msgspec.json.schema_components((*own, *others), ref_template="#/components/schemas/{name}")
    properties = schemas["ClassifyRequest"]["properties"]
    properties["texts"] |= {"maxItems": settings.max_texts, "description": "The texts to label"}
    properties["model"]["description"] = f"Which model labels them. Default: {settings.default_model}"
    return schemas
