"""What a request holds: texts from JSON or an Arrow stream, checked like any input."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..model.layers import CLASSES
from ..source.limits import LIMITS
from .requests import Packed

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
MOST_LABELS = CLASSES[1]

_COMPRESSED = "its buffers are compressed: write the stream without compression"


class BadRequest(Exception):
    """A request that cannot be answered. status: of HTTP, 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Asked(NamedTuple):
    """What a client asks for. texts: strings of JSON, or a large_string array; `packed_of` makes `Packed` of them."""

    texts: list[str] | pa.Array
    model: str | None
    top_k: int
    scores: bool


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    texts: list[str]
    model: str | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MOST_LABELS)] = 1
    scores: bool = False


class _Query(msgspec.Struct, forbid_unknown_fields=True):
    model: str | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MOST_LABELS)] = 1
    scores: bool = False


_decode = msgspec.json.Decoder(_Body).decode


def from_json(body: bytes, most: int) -> Asked:
    """Raises BadRequest: 400 for what is no JSON in UTF-8, 422 for other fields or types, 413 for too many texts."""
    try:
        asked = _decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(422, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(400, f"the body is not JSON in UTF-8: {error}") from error
    _check_count(len(asked.texts), most)
    return Asked(asked.texts, asked.model, asked.top_k, asked.scores)


def from_arrow(body: bytes, query: dict[str, str], most: int) -> Asked:
    """Raises BadRequest: 400 for what is no Arrow stream, 422 for other columns or a null, 413 for too many texts."""
    try:
        options = msgspec.convert(query, _Query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(422, str(error)) from error
    try:
        texts = _column(body, most)
    except (pa.ArrowException, struct.error, OSError, ValueError) as error:
        raise BadRequest(400, f"the body is not an Arrow IPC stream: {error}") from error
    return Asked(texts, options.model, options.top_k, options.scores)


def packed_of(asked: Asked, reads: int) -> Packed:
    """The texts up to the `reads` characters that the model reads. Raises BadRequest for one that is too long."""
    if isinstance(asked.texts, list):
        encoded = [text[:reads].encode() for text in asked.texts]
        n_chars = array("q", map(len, asked.texts))
        if max(n_chars, default=0) > LIMITS.field_bytes // 4:  # a character has four bytes at most
            for number, text in enumerate(asked.texts):
                _check_length(number, len(text.encode()))
        offsets = array("q", accumulate(map(len, encoded), initial=0))
        return Packed(b"".join(encoded), offsets.tobytes(), n_chars.tobytes())
    column = asked.texts
    sizes = pc.binary_length(column).to_numpy(zero_copy_only=False)
    if sizes.max(initial=0) > LIMITS.field_bytes:
        number = int(np.argmax(sizes))
        _check_length(number, int(sizes[number]))
    n_chars = pc.utf8_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if n_chars.max(initial=0) > reads:
        column = pc.utf8_slice_codeunits(column, 0, reads)
    return Packed(*_buffers(column), n_chars.tobytes())


def _buffers(column: pa.Array) -> tuple[bytes, bytes]:
    """Texts and offsets."""
    _, offsets, data = column.buffers()
    if not len(column):
        return b"", np.zeros(1, np.int64).tobytes()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    whole = memoryview(data) if data is not None else memoryview(b"")
    return bytes(whole[bounds[0] : bounds[-1]]), (bounds - bounds[0]).tobytes()


def _column(body: bytes, most: int) -> pa.Array:
    """The stream's one column as a large_string. Nothing in it decides how much memory is used but its own size."""
    buffer = pa.py_buffer(body)
    messages = pa.ipc.MessageReader.open_stream(buffer)
    reader = pa.ipc.open_stream(buffer)
    kinds = (pa.string(), pa.large_string())
    if reader.schema.names != ["text"] or reader.schema.field("text").type not in kinds:
        raise BadRequest(422, "the stream must have one column: text, of strings")
    for message in messages:
        if message.type == "record batch" and _is_compressed(message.metadata):
            raise BadRequest(422, _COMPRESSED)
    pieces, count = [], 0
    for batch in reader:
        batch.validate(full=True)
        column = batch.column(0)
        count += len(column)
        _check_count(count, most)
        if column.null_count:
            raise BadRequest(422, f"text {count - len(column) + column.is_null().index(True).as_py()} is null")
        pieces.append(column.cast(pa.large_string()))
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays([pa.array([], pa.large_string()), *pieces])


def _is_compressed(metadata: Any) -> bool:
    """Whether a message of a record batch says that its buffers are compressed, and might be much larger than it is.

    The metadata is a flatbuffer, which Arrow has checked: Message has the field `header` at 2, and the RecordBatch
    there `compression` at 3 (Message.fbs).
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


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise BadRequest(413, f"more than {most:,} texts: send them in several requests")


def _check_length(number: int, size: int) -> None:
    if size > LIMITS.field_bytes:
        raise BadRequest(413, f"text {number} is longer than {LIMITS.field_bytes >> 20} MiB")
