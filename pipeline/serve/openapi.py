"""The documentation of the HTTP interface: an OpenAPI document, and a page for people, which loads no other file."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from typing import Any

import msgspec
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from .answers import ClassifyAnswer, ErrorMessage, ModelAbout, ModelList, ServerState
from .bodies import ClassifyOptions, ClassifyRequest
from .protocols import ClassifyInput, InferRequest, Invocation, PredictRequest
from .settings import Settings


def describe(settings: Settings) -> dict[str, Any]:
    """Return the document at `/openapi.json`."""
    described: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("openapi.yaml").read_text())
    del described["x-shared"]
    described["info"]["version"] = version("broadsheet")
    schemas = described["components"]["schemas"] = _schemas(settings)
    described["paths"]["/v1/classify"]["post"]["parameters"] = [
        {"name": name, "in": "query", "description": "For an Arrow body", "schema": schema.get("anyOf", [schema])[0]}
        for name, schema in schemas["ClassifyOptions"]["properties"].items()
    ]
    for operations in described["paths"].values():
        for operation in operations.values():
            if settings.token is not None and "401" in operation["responses"]:
                operation.setdefault("security", [{"bearer": []}])
    return described


def page(described: dict[str, Any], model: str) -> str:
    """Return the document as HTML. Its example requests name `model`."""
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
    """Return the schemas of the structs of requests and answers, by name."""
    our_structs = (ClassifyOptions, ClassifyRequest, ClassifyAnswer, ModelList, ModelAbout, ServerState, ErrorMessage)
    others = (PredictRequest, ClassifyInput, InferRequest, Invocation)
    _, schemas = msgspec.json.schema_components((*our_structs, *others), ref_template="#/components/schemas/{name}")
    properties = schemas["ClassifyRequest"]["properties"]
    properties["texts"] |= {"maxItems": settings.max_texts, "description": "The texts to label"}
    properties["model"]["description"] = f"The model that labels the texts. Default: {settings.default_model}"
    return schemas
