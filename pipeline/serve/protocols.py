"""Requests and answers in the protocols of other servers.

These are Text Embeddings Inference and Hugging Face, vLLM and Infinity, the Open Inference Protocol (KServe, Triton),
and SageMaker. For each, one function reads a body as `DecodedRequest`, which holds the function that writes the answer.

The answers have no place for a text without a label. So if the model overflows on a text, the whole request fails, and
the error says on which text.
"""

from __future__ import annotations

import csv
import io
import math
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..model.layers import WHOLE
from .bodies import JSON, BadRequest, DecodedRequest, Received, Reply, check_count, decoded, from_json_or_arrow, numbers
from .http_link import Served
from .settings import Settings

if TYPE_CHECKING:
    from .answers import ModelAbout

_JSON = JSON.encode()
_encode = msgspec.json.encode


class Spoken(NamedTuple):
    """The protocol of a route to classify.

    `read` decodes a request, or raises BadRequest. `failed` takes the HTTP status and the message of an error, and
    returns the status and the answer by the protocol.
    """

    read: Callable[[Received], DecodedRequest]
    failed: Callable[[int, str], tuple[int, Reply]]


def _failed(status: int, told: str) -> tuple[int, Reply]:
    return status, Reply(_JSON, _encode({"error": told}))


def _scores(served: Served, predictions: Predictions, is_raw: bool = False) -> NDArray[np.float32]:
    """Return the scores of all classes, float32 [N, classes], or the numbers of a model of numbers, [N, 1].

    With `is_raw`, return logits, up to a constant for each text, which softmax ignores. Raises BadRequest for a text
    without scores.
    """
    scores = predictions.all_scores
    assert scores is not None
    if predictions.overflowed.any():
        number = int(np.argmax(predictions.overflowed))
        raise BadRequest(424, f"the model overflows on text {number}: send the others without it")
    if served.is_number:
        return predictions.scores[:, :1]
    if not is_raw:
        return scores
    tiny = np.finfo(np.float32).tiny
    raw = np.log(np.maximum(scores, tiny))
    return raw if served.thresholds is None else raw - np.log(np.maximum(1 - scores, tiny))


def _rows(values: NDArray[np.float32]) -> list[list[float]]:
    flat, k = numbers(np.ascontiguousarray(values).reshape(-1)), values.shape[1]
    return [flat[first : first + k] for first in range(0, len(flat), k)]


def _ranked(
    served: Served, predictions: Predictions, is_raw: bool = False, top_k: int | None = None
) -> list[list[dict[str, Any]]]:
    """Return scores and labels of each text, the best first. A model of numbers gives one number and its level."""
    scores = _scores(served, predictions, is_raw)
    if served.is_number:
        order = predictions.labels[:, :1].tolist()
    else:
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        order, scores = best.tolist(), np.take_along_axis(scores, best, axis=1)
    rows = zip(order, _rows(scores), strict=True)
    return [[{"score": s, "label": served.classes[i]} for i, s in zip(*row, strict=True)] for row in rows]


def _wants_json(received: Received) -> None:
    if received.kind != _JSON:
        raise BadRequest(415, f"the content type must be {JSON}")


# Text Embeddings Inference, and the form of Hugging Face's own servers, which adds `parameters`.


class HubParameters(msgspec.Struct):
    """The options that Hugging Face's client sends with the texts."""

    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


class PredictRequest(msgspec.Struct):
    """A request of Text Embeddings Inference or of Hugging Face's client. Other fields are ignored."""

    inputs: Annotated[str | list[str | list[str]], msgspec.Meta(description="A text, or a list of texts or of [text]")]
    raw_scores: Annotated[bool, msgspec.Meta(description="Return logits, up to a constant for each text")] = False
    truncate: Annotated[
        bool | None, msgspec.Meta(description="If false, refuse a text that is longer than the model reads")
    ] = None
    truncation_direction: Annotated[str, msgspec.Meta(description="Only Right: cut the end of a long text")] = "Right"
    parameters: Annotated[
        HubParameters | None, msgspec.Meta(description="top_k, function_to_apply. The answer is then a list of lists")
    ] = None


_predict = msgspec.json.Decoder(PredictRequest)


def _read_predict(received: Received) -> DecodedRequest:
    _wants_json(received)
    request = decoded(_predict, received.body)
    inputs = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    if not inputs:
        raise BadRequest(400, "`inputs` is empty: give at least one text")
    check_count(len(inputs), received.most_texts)
    if request.truncation_direction.lower() != "right":
        raise BadRequest(422, "truncation_direction: the models here read a text from its beginning: leave it out")
    texts = []
    for number, given in enumerate(inputs):
        if not isinstance(given, str) and len(given) != 1:
            raise BadRequest(422, f"inputs[{number}] has {len(given)} texts: the models here read one, not a pair")
        texts.append(given if isinstance(given, str) else given[0])
    is_one = len(inputs) == 1 and isinstance(inputs[0], str) and request.parameters is None
    return DecodedRequest(texts, None, 1, partial(_write_predict, request, is_one))


def _write_predict(request: PredictRequest, is_one: bool, served: Served, predictions: Predictions) -> Reply:
    chosen = request.parameters or HubParameters()
    function = "none" if served.is_number else "softmax" if served.thresholds is None else "sigmoid"
    if chosen.function_to_apply not in (None, "none", function):
        told = "numbers" if served.is_number else f"of {function}; `none` gives logits"
        raise BadRequest(422, f"function_to_apply: the scores of this model are {told}")
    if request.truncate is False and predictions.truncated.any():
        number = int(np.argmax(predictions.truncated))
        some = "" if served.reads == WHOLE else f"the {served.reads:,} characters that "
        raise BadRequest(413, f"text {number} is longer than {some}the model reads: leave out truncate to cut it")
    is_raw = request.raw_scores or chosen.function_to_apply == "none"
    answers = _ranked(served, predictions, is_raw, chosen.top_k)
    return Reply(_JSON, _encode(answers[0] if is_one else answers))


def _predict_failed(status: int, told: str) -> tuple[int, Reply]:
    kind = {400: "empty", 424: "backend", 503: "overloaded"}.get(status, "validation")
    return 429 if status == 503 else status, Reply(_JSON, _encode({"error": told, "error_type": kind}))


def tei_info(model: ModelAbout, settings: Settings) -> dict[str, Any]:
    """Return the answer of Text Embeddings Inference to `/info`."""
    label_of = {str(number): name for number, name in enumerate(model.classes)}
    number_of = {name: number for number, name in enumerate(model.classes)}
    return {
        "model_id": model.name,
        "model_sha": model.digest,
        "model_dtype": model.backend,
        "model_type": {"classifier": {"id2label": label_of, "label2id": number_of}},
        "max_concurrent_requests": settings.max_connections,
        "max_input_length": WHOLE if model.reads == "whole text" else model.reads,
        "max_batch_tokens": settings.max_queue,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": True,
        "version": version("broadsheet"),
    }


# vLLM, and Infinity, whose client always sends `raw_scores`.

_NOT_SPECIFIED = "default/not-specified"
"""The name that Infinity's client sends if the user names no model."""


class ClassifyInput(msgspec.Struct):
    """A request of vLLM or Infinity. Other fields are ignored."""

    input: Annotated[str | list[str], msgspec.Meta(description="A text, or a list of texts")]
    model: Annotated[str | None, msgspec.Meta(description="The model that labels the texts")] = None
    use_activation: Annotated[
        bool | None, msgspec.Meta(description="If false, return logits, up to a constant for each text")
    ] = None
    activation: Annotated[bool | None, msgspec.Meta(description="An older name of use_activation")] = None
    softmax: Annotated[bool | None, msgspec.Meta(description="An older name of use_activation")] = None
    truncate_prompt_tokens: Annotated[
        int | None, msgspec.Meta(description="Only -1, the length that the model reads, since it has no tokens")
    ] = None
    raw_scores: Annotated[
        bool | UnsetType, msgspec.Meta(description="Answer in the form of Infinity; if true, with logits")
    ] = UNSET


_classify = msgspec.json.Decoder(ClassifyInput)


def _read_classify(received: Received) -> DecodedRequest:
    _wants_json(received)
    request = decoded(_classify, received.body)
    if request.truncate_prompt_tokens not in (None, -1):
        raise BadRequest(400, "truncate_prompt_tokens: the models here read characters, not tokens: leave it out")
    texts = [request.input] if isinstance(request.input, str) else request.input
    check_count(len(texts), received.most_texts)
    return DecodedRequest(
        texts, None if request.model == _NOT_SPECIFIED else request.model, 1, partial(_write_classify, request)
    )


def _write_classify(request: ClassifyInput, served: Served, predictions: Predictions) -> Reply:
    activations = (request.use_activation, request.activation, request.softmax)
    is_raw = request.raw_scores is True or next((one for one in activations if one is not None), True) is False
    scores = _scores(served, predictions, is_raw)
    answer: dict[str, Any] = {"id": f"classify-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    read = int(np.minimum(predictions.n_chars, served.reads).sum())
    if request.raw_scores is not UNSET:
        answer |= {"id": f"infinity-{uuid.uuid4()}", "object": "classify", "data": _ranked(served, predictions, is_raw)}
        usage: dict[str, Any] = {}
    else:
        data: list[dict[str, Any]] = []
        for best, probs in zip(predictions.labels[:, 0].tolist(), _rows(scores), strict=True):
            label = served.classes[best]
            data.append({"index": len(data), "label": label, "probs": probs, "num_classes": len(probs)})
        answer["data"] = data
        usage = {"completion_tokens": 0, "prompt_tokens_details": None}
    answer |= {"model": served.name, "usage": {"prompt_tokens": read, "total_tokens": read, **usage}}
    return Reply(_JSON, _encode(answer))


def _classify_failed(status: int, told: str) -> tuple[int, Reply]:
    kind = {401: "AuthenticationError", 404: "NotFoundError", 503: "ServiceUnavailableError"}
    error = {"message": told, "type": kind.get(status, "BadRequestError"), "param": None, "code": status}
    return status, Reply(_JSON, _encode({"error": error}))


# The Open Inference Protocol, with the extension for binary tensors, which Triton's client uses by default.

MODELS = ("/v2/models/{name:path}/versions/1", "/v2/models/{name:path}")
_HEAD_BYTES = b"inference-header-content-length"
_DIGITS = 18  # Python refuses to convert very long strings to integers


class InferInput(msgspec.Struct):
    """A tensor of texts. It may have any name."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Annotated[list[Any] | UnsetType, msgspec.Meta(description="The texts, unless they are binary data")] = UNSET


class InferOutput(msgspec.Struct):
    """A tensor to return."""

    name: Literal["label", "score", "scores"]
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """A request of the Open Inference Protocol. Other fields are ignored."""

    inputs: Annotated[list[InferInput], msgspec.Meta(description="One tensor of the datatype BYTES")]
    id: Annotated[str | None, msgspec.Meta(description="An id that the answer repeats")] = None
    outputs: Annotated[list[InferOutput], msgspec.Meta(description="Any of label, score, scores; if empty, all")] = []
    parameters: dict[str, Any] = {}


_infer = msgspec.json.Decoder(InferRequest)


def _read_infer(received: Received) -> DecodedRequest:
    # Split the body into its JSON head and binary tensors.
    length = received.headers.get(_HEAD_BYTES, b"%d" % len(received.body))
    if not length.isdigit() or len(length) > _DIGITS or int(length) > len(received.body):
        raise BadRequest(400, "Inference-Header-Content-Length is not the length of the JSON that begins the body")
    request, binary = decoded(_infer, received.body[: int(length)]), received.body[int(length) :]

    # Take the texts from either.
    if len(request.inputs) != 1 or request.inputs[0].datatype != "BYTES":
        raise BadRequest(422, "give one input of datatype BYTES: the texts")
    given = request.inputs[0]
    if given.shape[1:] not in ([], [1]):
        raise BadRequest(422, f"an input of shape {given.shape}: give [N] or [N, 1], one text for each label")
    size = given.parameters.get("binary_data_size")
    if given.data is UNSET:
        if size != len(binary):
            raise BadRequest(400, f"the body has {len(binary):,} bytes of tensors, and binary_data_size is {size}")
        texts = _texts_of(binary)
    else:
        texts = _flat(given.data)
    if math.prod(given.shape) != len(texts):
        raise BadRequest(422, f"an input of shape {given.shape} has {len(texts):,} texts")
    check_count(len(texts), received.most_texts)
    return DecodedRequest(texts, received.model, 1, partial(_write_infer, request))


def _texts_of(binary: bytes) -> list[str]:
    """Return the texts of a binary tensor. Each is its length, in four bytes, then its UTF-8."""
    texts: list[str] = []
    at = 0
    try:
        while at < len(binary):
            end = at + 4 + struct.unpack_from("<I", binary, at)[0]
            if end > len(binary):
                raise BadRequest(400, f"text {len(texts)} is longer than what is left of the body")
            texts.append(binary[at + 4 : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError) as error:
        raise BadRequest(400, f"text {len(texts)} is not UTF-8 with its length before it: {error}") from error
    return texts


def _flat(data: Sequence[Any]) -> list[str]:
    texts: list[str] = []
    for item in data:
        if isinstance(item, list) and len(item) == 1:
            item = item[0]
        if not isinstance(item, str):
            raise BadRequest(422, f"data[{len(texts)}] is no string")
        texts.append(item)
    return texts


def _write_infer(request: InferRequest, served: Served, predictions: Predictions) -> Reply:
    # Make the tensors that the client wants.
    scores = predictions.all_scores if served.is_number else _scores(served, predictions)
    labels = np.array(served.classes, object)[predictions.labels[:, 0]]
    tensors: dict[str, Any] = {"label": labels, "score": predictions.scores[:, 0], "scores": scores}
    outputs, binary = [], []
    wanted: dict[str, dict[str, Any]] = {output.name: output.parameters for output in request.outputs}
    for name, parameters in (wanted or {name: {} for name in tensors}).items():
        values = tensors[name]
        made: dict[str, Any] = {
            "name": name,
            "datatype": "BYTES" if name == "label" else "FP32",
            "shape": list(values.shape),
        }
        if parameters.get("binary_data", request.parameters.get("binary_data_output", False)):
            binary.append(_packed(values) if name == "label" else np.ascontiguousarray(values, "<f4").tobytes())
            made["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            made["data"] = values.tolist() if name == "label" else numbers(np.ascontiguousarray(values).reshape(-1))
        outputs.append(made)

    # Write the JSON head, and the binary tensors after it.
    own_id = {} if request.id is None else {"id": request.id}
    head = _encode({"model_name": served.name, "model_version": "1", **own_id, "outputs": outputs})
    if not binary:
        return Reply(_JSON, head)
    return Reply(b"application/octet-stream", b"".join((head, *binary)), ((_HEAD_BYTES, b"%d" % len(head)),))


def _packed(labels: NDArray[np.object_]) -> bytes:
    return b"".join(struct.pack("<I", len(data)) + data for data in map(str.encode, labels))


def about_server() -> dict[str, Any]:
    """Return the description of the server in the Open Inference Protocol."""
    return {"name": "broadsheet", "version": version("broadsheet"), "extensions": ["binary_tensor_data"]}


def about_model(model: ModelAbout) -> dict[str, Any]:
    """Return the description of a model's tensors. The scores are in the order of the classes."""
    shapes = {"label": [-1], "score": [-1], "scores": [-1, len(model.classes)]}
    outputs = [{"name": n, "datatype": "BYTES" if n == "label" else "FP32", "shape": s} for n, s in shapes.items()]
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    return {"name": model.name, "versions": ["1"], "platform": "broadsheet", "inputs": inputs, "outputs": outputs}


# SageMaker: JSON in the form of its own text classification or of Hugging Face's containers, lines of JSON, CSV, lines.

_LINES, _CSV, _PLAIN = b"application/jsonlines", b"text/csv", b"text/plain"


class Configuration(msgspec.Struct):
    """k: the number of most probable classes to return."""

    k: Annotated[int, msgspec.Meta(ge=1)] = 1


class Invocation(msgspec.Struct):
    """A request of SageMaker's own text classification, with `instances`; or `inputs` and other fields of /predict."""

    instances: Annotated[list[str] | UnsetType, msgspec.Meta(description="The texts")] = UNSET
    configuration: Annotated[Configuration, msgspec.Meta(description="k: number of classes to return")] = msgspec.field(
        default_factory=Configuration
    )


class InvocationLine(msgspec.Struct):
    """A text in a line of JSON, with the number of most probable classes to return."""

    source: str
    k: Annotated[int, msgspec.Meta(ge=1)] = 1


_invocation, _lines = msgspec.json.Decoder(Invocation), msgspec.json.Decoder(InvocationLine)


def _read_invocation(received: Received) -> DecodedRequest:
    # Read the texts, and how many classes each is to have.
    kind, body = received.kind, received.body
    if kind == _JSON:
        request = decoded(_invocation, body)
        if request.instances is UNSET:
            return _read_predict(received)
        texts, ks = request.instances, [request.configuration.k] * len(request.instances)
    elif kind == _LINES:
        lines = [_line(number, line) for number, line in enumerate(body.splitlines(), 1) if line.strip()]
        texts, ks = [line.source for line in lines], [line.k for line in lines]
    elif kind in (_CSV, _PLAIN):
        texts = _records(body, kind == _CSV)
        ks = [1] * len(texts)
    else:
        raise BadRequest(415, f"the content type must be one of {JSON}, application/jsonlines, text/csv, text/plain")
    check_count(len(texts), received.most_texts)

    # Choose the form of the answer.
    accept = received.headers.get(b"accept", b"").partition(b";")[0].strip().lower()
    wanted = accept if accept in (_JSON, _LINES, _CSV) else _CSV if kind == _PLAIN else kind
    return DecodedRequest(texts, None, 1, partial(_write_invocation, wanted, ks))


def _line(number: int, line: bytes) -> InvocationLine:
    try:
        return decoded(_lines, line)
    except BadRequest as error:
        raise BadRequest(error.status, f"line {number}: {error}") from error


def _records(body: bytes, is_csv: bool) -> list[str]:
    """Return the texts of a CSV with one column, or of plain lines."""
    try:
        text = body.decode()
        if not is_csv:
            return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise BadRequest(400, f"line {line} is no UTF-8: {error}") from error
    except csv.Error as error:
        raise BadRequest(400, f"the body is no CSV: {error}") from error
    for number, row in enumerate(rows):
        if len(row) != 1:
            raise BadRequest(422, f"record {number} has {len(row)} columns: give one, the text, in quotes")
    return [row[0] for row in rows]


def _write_invocation(kind: bytes, ks: Sequence[int], served: Served, predictions: Predictions) -> Reply:
    ranked = _ranked(served, predictions, top_k=max(ks, default=1))
    if kind == _CSV:
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows((row[0]["label"], row[0]["score"]) for row in ranked)
        return Reply(kind, written.getvalue().encode())
    pairs = zip(ks, ranked, strict=True)
    answers = [{"label": [r["label"] for r in row[:k]], "prob": [r["score"] for r in row[:k]]} for k, row in pairs]
    return Reply(kind, _encode(answers) if kind == _JSON else b"".join(_encode(answer) + b"\n" for answer in answers))


SPOKEN = {
    "/v1/classify": Spoken(from_json_or_arrow, _failed),
    "/predict": Spoken(_read_predict, _predict_failed),
    "/": Spoken(_read_predict, _predict_failed),
    "/classify": Spoken(_read_classify, _classify_failed),
    "/invocations": Spoken(_read_invocation, _failed),
    **{f"{path}/infer": Spoken(_read_infer, _failed) for path in MODELS},
}
"""The protocols of the routes to classify, by path."""
