"""The forms of the server's answers, in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

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
