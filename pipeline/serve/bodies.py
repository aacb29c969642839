"""Reads and checks requests to `/v1/classify`, in JSON or as an Arrow stream, and writes their answers.

An answer has the columns that `classify` writes, in the form of the request.

Compressed Arrow streams are refused, since 32 KB can become a gigabyte. PyArrow says that a message is compressed only
after it has decompressed the message, so this file reads that from the bytes.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..model.layers import CLASSES
from ..model.preparation import buffers_of
from ..output.columns import REASON, computed_columns
from ..output.formats import to_plain
from ..output.model_columns import N_CHARS, ModelColumns, Names
from ..source.rows.limits import LIMITS
from .http_link import Served
from .requests import Packed

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
_JSON, _ARROW = JSON.encode(), ARROW.encode()
MOST_LABELS = CLASSES[1]

_TOP_K = "Number of most probable classes to return"
_COMPRESSED = "the stream's buffers are compressed: write it without compression"


class BadRequest(Exception):
    """A request that cannot be answered. `status` is its HTTP status, 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Received(NamedTuple):
    """A request to classify, before its body is decoded.

    Attributes
    ----------
    body : bytes
        The whole body.
    kind : bytes
        The content type, without parameters, in lower case.
    headers : dict of bytes to bytes
        The headers, by their names in lower case.
    query : dict of str to str
        The options in the URL.
    model : str or None
        The name of the model in the path, if there is one.
    most_texts : int
        The largest number of texts that the request may have.

    """

    body: bytes
    kind: bytes
    headers: dict[bytes, bytes]
    query: dict[str, str]
    model: str | None
    most_texts: int


class Reply(NamedTuple):
    """An answer.

    Attributes
    ----------
    kind : bytes
        The content type.
    content : bytes
        The body.
    headers : tuple of (bytes, bytes)
        Other headers.

    """

    kind: bytes
    content: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class DecodedRequest(NamedTuple):
    """A decoded request to classify, of any protocol.

    Attributes
    ----------
    texts : list of str or pyarrow.Array
        Strings from JSON, or a large_string array. `packed_of` converts them to `Packed`.
    model : str or None
        The name of the model; None for the default model.
    top_k : int
        The number of most probable classes to find for each text.
    write : callable
        Returns the answer, given the model and the predictions for all texts.

    """

    texts: list[str] | pa.Array
    model: str | None
    top_k: int
    write: Callable[[Served, Predictions], Reply]


class ClassifyOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a request. With an Arrow body, they are in the URL."""

    model: str | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MOST_LABELS, description=_TOP_K)] = 1
    scores: Annotated[bool, msgspec.Meta(description="Also return the probability of every class")] = False


class ClassifyRequest(ClassifyOptions, kw_only=True):
    """The texts to label, and options."""

    texts: list[str]


_decoder = msgspec.json.Decoder(ClassifyRequest)
_Body = TypeVar("_Body")
_WRONG_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {"array": "a list", "string": "a string", "integer": "an integer", "object": "an object"}


def decoded(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """Decode a body. Raises BadRequest: 400 if it is not JSON in UTF-8; 422 for a wrong field or type."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(422, explained(str(error), decoder.type)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(400, f"the body is not JSON in UTF-8: {_no_utf8(body) or error}") from error


def _no_utf8(body: bytes) -> str:
    """Return where in JSON the first string is that holds invalid UTF-8 or half a surrogate pair, or "" without one."""
    try:
        left = [("$", json.loads(body.decode(errors="surrogateescape")))]
    except (ValueError, RecursionError):
        return ""
    while left:
        path, value = left.pop()
        if isinstance(value, str) and _SURROGATE.search(value):
            return f"the string at {path} has bytes, or half a surrogate pair, that are no character"
        if isinstance(value, dict):
            left += [(f"{path}.{name}", one) for name, one in value.items()][::-1]
        elif isinstance(value, list):
            left += [(f"{path}[{number}]", one) for number, one in enumerate(value)][::-1]
    return ""


def explained(told: str, kind: Any) -> str:
    """Return the message of msgspec about a value that is not a `kind`. For a wrong field, name the right one instead.

    >>> explained("Object contains unknown field `text`", ClassifyRequest)
    'unknown field `text`: give `texts`, a list'
    """
    wrong = _WRONG_FIELD.fullmatch(told)
    if wrong is None:
        return told
    fields, name = _fields(kind), wrong[2]
    if wrong[1].startswith("missing"):
        return f"the field `{name}` is missing: give it, {fields[name]}"
    close = get_close_matches(name.casefold(), fields, 1)
    if close:
        return f"unknown field `{name}`: give `{close[0]}`, {fields[close[0]]}"
    return f"unknown field `{name}`: there are " + "; ".join(f"`{field}`, {words}" for field, words in fields.items())


@lru_cache
def _fields(kind: Any) -> dict[str, str]:
    """Return the fields of a struct, required ones first, each with the type of its values in words."""
    schema = msgspec.json.schema_components((kind,))[1][kind.__name__]
    words = {}
    for name in dict.fromkeys([*schema["required"], *schema["properties"]]):
        about = schema["properties"][name]
        kinds = [one.get("type", "object") for one in about.get("anyOf", [about])]
        words[name] = " or ".join(_KINDS.get(kind, "true or false") for kind in kinds if kind != "null")
    return words


def from_json_or_arrow(received: Received) -> DecodedRequest:
    """Read a request to `/v1/classify`.

    Raises BadRequest: 400 if the body is neither JSON nor an Arrow stream, 413 for too many texts, 415 for another
    content type, 422 for wrong fields, types or columns, or a null.
    """
    if received.kind == _ARROW:
        return _from_arrow(received)
    if received.kind != _JSON:
        raise BadRequest(415, f"the content type must be {JSON} (in UTF-8) or {ARROW}")
    if received.query:
        raise BadRequest(422, "with JSON, options are fields of the body, not of the URL")
    request = decoded(_decoder, received.body)
    check_count(len(request.texts), received.most_texts)
    return DecodedRequest(request.texts, request.model, request.top_k, partial(_reply, _JSON, request))


def _from_arrow(received: Received) -> DecodedRequest:
    try:
        options = msgspec.convert(received.query, ClassifyOptions, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(422, explained(str(error), ClassifyOptions)) from error
    try:
        texts = _column(received.body, received.most_texts)
    except (pa.ArrowException, struct.error, OSError, ValueError) as error:
        raise BadRequest(400, f"the body is not an Arrow IPC stream: {error}") from error
    return DecodedRequest(texts, options.model, options.top_k, partial(_reply, _ARROW, options))


def _reply(kind: bytes, request: ClassifyOptions, served: Served, predictions: Predictions) -> Reply:
    columns = _columns_of(served.classes, served.thresholds, request.top_k, request.scores)
    is_json = kind == _JSON
    return Reply(kind, to_json(served.name, predictions, columns) if is_json else to_arrow(predictions, columns))


@lru_cache(maxsize=256)
def _columns_of(
    classes: tuple[str, ...], thresholds: tuple[float, ...] | None, top_k: int, scores: bool
) -> ModelColumns:
    """Return the columns that a job would write with these options."""
    names = Names(multi_label=thresholds is not None)
    return ModelColumns(classes, top_k, scores, names, thresholds=thresholds)


def packed_of(request: DecodedRequest, reads: int) -> Packed:
    """Return the texts, each cut to the `reads` characters that the model reads. Raises BadRequest for a huge text."""
    # Strings from JSON.
    if isinstance(request.texts, list):
        encoded = [text[:reads].encode() for text in request.texts]
        n_chars = array("q", map(len, request.texts))
        if max(n_chars, default=0) > LIMITS.field_bytes // 4:  # a character has four bytes at most
            for number, text in enumerate(request.texts):
                _check_length(number, len(text.encode()))
        offsets = array("q", accumulate(map(len, encoded), initial=0))
        return Packed(b"".join(encoded), offsets.tobytes(), n_chars.tobytes())

    # An Arrow array.
    column = request.texts
    sizes = pc.binary_length(column).to_numpy(zero_copy_only=False)
    if sizes.max(initial=0) > LIMITS.field_bytes:
        number = int(np.argmax(sizes))
        _check_length(number, int(sizes[number]))
    n_chars = pc.utf8_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if n_chars.max(initial=0) > reads:
        column = pc.utf8_slice_codeunits(column, 0, reads)
    data, bounds = buffers_of(column)
    return Packed(data.tobytes(), bounds.tobytes(), n_chars.tobytes())


def _column(body: bytes, most_texts: int) -> pa.Array:
    """Return the one column of a stream, as a large_string. The memory that it uses depends on the body's size only."""
    # Check the schema.
    buffer = pa.py_buffer(body)
    messages = pa.ipc.MessageReader.open_stream(buffer)
    reader = pa.ipc.open_stream(buffer)
    kinds = (pa.string(), pa.large_string())
    if reader.schema.names != ["text"] or reader.schema.field("text").type not in kinds:
        raise BadRequest(422, "the stream must have one column: text, of strings")

    # Refuse compressed messages before PyArrow decompresses them.
    for message in messages:
        if message.type == "record batch" and _is_compressed(message.metadata):
            raise BadRequest(422, _COMPRESSED)

    # Validate and convert each batch.
    pieces, count = [], 0
    for batch in reader:
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadRequest(400, f"the batch that begins with text {count}: {error}") from error
        column = batch.column(0)
        count += len(column)
        check_count(count, most_texts)
        if column.null_count:
            number = count - len(column) + column.is_null().index(True).as_py()
            raise BadRequest(422, f"text {number} is null: send a string, which may be empty")
        pieces.append(column.cast(pa.large_string()))
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays([pa.array([], pa.large_string()), *pieces])


def _is_compressed(metadata: Any) -> bool:
    """Return whether the buffers of a record batch are compressed, so that they may be much larger than the message.

    The metadata is a flatbuffer, which Arrow has checked. In Message.fbs, field 2 of a Message is `header`, and field 3
    of the RecordBatch there is `compression`.
    """
    data = memoryview(metadata)

    def field_of(table: int, number: int) -> int | None:
        vtable = table - struct.unpack_from("<i", data, table)[0]
        slot = 4 + 2 * number
        if slot >= struct.unpack_from("<H", data, vtable)[0]:
            return None
        offset = struct.unpack_from("<H", data, vtable + slot)[0]
        return table + offset if offset else None

    header = field_of(struct.unpack_from("<I", data, 0)[0], 2)
    return header is not None and field_of(header + struct.unpack_from("<I", data, header)[0], 3) is not None


def check_count(count: int, most_texts: int) -> None:
    """Raise BadRequest for too many texts."""
    if count > most_texts:
        raise BadRequest(413, f"more than {most_texts:,} texts: send them in several requests")


def _check_length(number: int, size: int) -> None:
    if size > LIMITS.field_bytes:
        raise BadRequest(413, f"text {number} is longer than {LIMITS.field_bytes >> 20} MiB: send its beginning")


_FEW = 64
"""Up to this many numbers, Python converts them faster than Arrow does."""

_NO_LABEL = "the model overflows on this text"


def to_json(model: str, predictions: Predictions, model_columns: ModelColumns) -> bytes:
    """Return an object with the fields `model` and `results`, a list with an object for each text.

    Floats are written as in the JSON lines of a job.
    """
    if model_columns.thresholds is None:
        columns = _lists(predictions, model_columns)
    else:
        columns = {name: _plain(column) for name, column in _columns(predictions, model_columns).items()}
    results = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if predictions.overflowed.any():
        for result, is_lost in zip(results, predictions.overflowed.tolist(), strict=True):
            if is_lost:
                result |= {**dict.fromkeys(set(columns) - _counts(model_columns)), REASON.name: _NO_LABEL}
    return msgspec.json.encode({"model": model, "results": results})


def to_arrow(predictions: Predictions, model_columns: ModelColumns) -> bytes:
    """Return an Arrow stream with the columns that `to_json` writes as fields."""
    columns = _columns(predictions, model_columns)
    if predictions.overflowed.any():
        lost, counts = pa.array(predictions.overflowed), _counts(model_columns)
        for name in set(columns) - counts:
            columns[name] = columns[name].take(pa.array(np.arange(len(lost)), mask=predictions.overflowed))
        columns[REASON.name] = pc.if_else(lost, _NO_LABEL, pa.scalar(None, pa.string()))
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _columns(predictions: Predictions, model_columns: ModelColumns) -> dict[str, pa.Array]:
    """Return the columns by name, in the order of a job. Texts on which the model overflows get the first class."""
    known = replace(predictions, labels=np.maximum(predictions.labels, 0))
    columns = {N_CHARS.name: pa.array(predictions.n_chars), **model_columns.columns(known)}
    return {name: columns[name] for name in computed_columns([model_columns], truth=False).names}


def _lists(predictions: Predictions, model_columns: ModelColumns) -> dict[str, list[Any]]:
    """Return the columns of a model that gives one label, as Python values. For few texts this is faster than Arrow."""
    classes, names = model_columns.classes, model_columns.names
    columns: dict[str, list[Any]] = {
        names.label: [classes[label] for label in np.maximum(predictions.labels[:, 0], 0).tolist()],
        names.score: numbers(predictions.scores[:, 0]),
    }
    if model_columns.scores and predictions.all_scores is not None:
        for name, scores in zip(classes, predictions.all_scores.T, strict=True):
            columns[names.score_of(name)] = numbers(scores)
    if model_columns.top_k > 1:
        columns[names.top_labels] = [[classes[i] for i in row] for row in np.maximum(predictions.labels, 0).tolist()]
        k, scores = predictions.scores.shape[1], numbers(predictions.scores.reshape(-1))
        columns[names.top_scores] = [scores[first : first + k] for first in range(0, len(scores), k)]
    columns[N_CHARS.name] = predictions.n_chars.tolist()
    columns[names.truncated] = predictions.truncated.tolist()
    columns[names.unknown_chars] = predictions.unknown_chars.tolist()
    return columns


def numbers(values: NDArray[np.float32]) -> list[float]:
    """Return each float32 as the float64 with the fewest digits that converts back to the same float32."""
    if len(values) <= _FEW:
        return [float(str(value)) for value in values]
    numbers: list[float] = to_plain(pa.array(np.ascontiguousarray(values))).to_pylist()
    return numbers


def _counts(model_columns: ModelColumns) -> set[str]:
    """Return the names of the columns that have a value even for a text without a label."""
    return {N_CHARS.name, *(field.name for field in model_columns.of_text)}


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = (to_plain(column) if _has_floats(column.type) else column).to_pylist()
    return values


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or (pa.types.is_list(kind) and pa.types.is_float32(kind.value_type)))
