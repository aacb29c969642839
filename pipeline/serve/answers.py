"""The JSON answers of the server. Their docstrings and descriptions appear in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TextResult(msgspec.Struct):
    """The columns that `broadsheet classify` writes for a text. If scores is true, also score_CLASS for each class."""

    label: Annotated[str | None, msgspec.Meta(description="The class, or null if the text cannot be labelled")]
    score: Annotated[float | None, msgspec.Meta(description="The probability of the label")]
    n_chars: Annotated[_Count, msgspec.Meta(description="Number of characters of the whole text")]
    truncated: Annotated[bool, msgspec.Meta(description="Whether the text is longer than the model reads")]
    unknown_chars: Annotated[
        _Count, msgspec.Meta(description="Number of characters that the network reads and its alphabet does not have")
    ]
    top_labels: Annotated[
        list[str | None] | UnsetType,
        msgspec.Meta(description="The most probable classes, the best first, if top_k is above 1"),
    ] = UNSET
    top_scores: Annotated[list[float | None] | UnsetType, msgspec.Meta(description="The scores of top_labels")] = UNSET
    reason: Annotated[str | UnsetType, msgspec.Meta(description="Why label is null; absent otherwise")] = UNSET


class ClassifyAnswer(msgspec.Struct):
    """The name of the model, and a result for each text, in the order of the request."""

    model: str
    results: list[TextResult]


class ModelAbout(msgspec.Struct):
    """A model that the server has loaded."""

    name: str
    default: Annotated[bool, msgspec.Meta(description="Whether requests that name no model use this one")]
    classes: Annotated[tuple[str, ...], msgspec.Meta(description="The labels that the model may give")]
    reads: Annotated[
        _Count | Literal["whole text"], msgspec.Meta(description="Number of characters that the model reads of a text")
    ]
    alphabet: Annotated[
        str, msgspec.Meta(description="The characters that the network knows; empty for a model without a network")
    ]
    meant_for: Annotated[
        str | None, msgspec.Meta(description="The texts that the model was made for, if its file says so")
    ]
    digest: Annotated[str, msgspec.Meta(description="A hash that identifies weights and settings")]
    loaded: Annotated[_Count, msgspec.Meta(description="1 at first, and 1 more after each reload")]
    backend: Annotated[str | None, msgspec.Meta(description="Device, precision and software that compute the scores")]


class ModelId(msgspec.Struct):
    """A model, in the form that OpenAI's clients expect."""

    id: str
    object: str = "model"
    owned_by: str = "broadsheet"


class ModelList(msgspec.Struct):
    """All models. `data` repeats their names in the form that clients of OpenAI and vLLM expect."""

    models: list[ModelAbout]
    object: str
    data: list[ModelId]


class ServerState(msgspec.Struct):
    """The status of the server, and what each engine is doing."""

    status: str
    engines: dict[str, str] | UnsetType = UNSET


class ErrorMessage(msgspec.Struct):
    """The reason why the request failed."""

    error: str
