"""Arrow IPC files and streams (.arrow, .feather). A fragment is a run of rows from one or several record batches.

A batch is decoded as a whole, and only if it and the dictionaries to which it refers take a bounded size in memory. It
is validated before it is used, because it may come from anywhere. Files are not mapped into memory.

The size of a batch and its place are read from its message by this file. pyarrow finds them only by decoding the batch,
which must not be done with a batch that is far larger than its message (a file of 9 KB made pyarrow take 513 MiB).
Decoding also takes longer: the ten batches of a file of 51 MB are found in 0.4 ms here, and pyarrow decodes them in
47 ms.

A message is metadata, as a FlatBuffers table, and a body. A file has a list of its messages at the end. A stream is
followed from message to message, without reading their bodies. The fields of a table are looked up by their numbers,
which count from 0 in format/Message.fbs and format/File.fbs of https://github.com/apache/arrow. A union counts as two
fields, its type and its value.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import SourceError
from ...telemetry.spans import Span, span
from ..open.opening import open_at
from ..rows.chunk import Chunk, Selection, held_together
from ..rows.columns import holding, projected
from ..rows.format import FilePlan, Format, Fragment, InputFile, Schema, Seek
from ..rows.labels import class_names_in
from ..rows.layouts import LIST_VIEWS, has_views, holds, is_json, is_one_of, is_textual, plain_values
from ..rows.limits import Limits
from .tables import Rows, bounded_chunks, decoded_sizes, most_decoded, types_of, view_lengths, why_no_schema

FILE_MAGIC, FEATHER_MAGIC = b"ARROW1", b"FEA1"

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""The kinds of messages, as the union MessageHeader numbers them."""

_CONTINUED = 0xFFFFFFFF
"""The mark before the length of a message. Files of versions before 0.15 lack it."""

_MOST_METADATA = 64 << 20
_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("", "V4"), ("body", "<i8")])
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])


class Message(NamedTuple):
    """A message in a file.

    Attributes
    ----------
    offset, stop : int
        Where the message begins and ends, in bytes of the file.
    rows : int
        The number of rows of a batch.
    size : int
        The bytes that it takes when it is decoded.
    dictionary : int
        The number of the dictionary in the message; -1 for a batch.
    is_delta : bool
        Whether the message adds to that dictionary. Otherwise it replaces the dictionary.

    """

    offset: int
    stop: int
    rows: int
    size: int
    dictionary: int = -1
    is_delta: bool = False


class Index(NamedTuple):
    """The messages of a file in order.

    Attributes
    ----------
    schema_bytes : int
        The bytes of the schema with which a stream begins; 0 for a file.
    dictionaries, batches : tuple of Message
        The messages of each kind.
    problem : str
        Why there may be more batches than these; empty if there are no others.

    """

    schema_bytes: int
    dictionaries: tuple[Message, ...]
    batches: tuple[Message, ...]
    problem: str = ""


def read_index(stream: BinaryIO, size: int) -> Index:
    """Return the messages of a file of `size` bytes. Raises ValueError if it is no Arrow file, or is damaged."""
    head = stream.read(len(FILE_MAGIC))
    if head.startswith(FEATHER_MAGIC):
        raise ValueError("it is a Feather file of version 1: write it again, with pyarrow.feather.write_feather")
    try:
        return _of_file(stream, size) if head == FILE_MAGIC else _of_stream(stream, size)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"not a readable Arrow file ({error})") from error


def _of_file(stream: BinaryIO, size: int) -> Index:
    tail = struct.calcsize("<i6s")
    stream.seek(max(size - tail, 0))
    length, magic = struct.unpack("<i6s", stream.read(tail))
    if magic != FILE_MAGIC or not 0 < length <= min(size, _MOST_METADATA):
        raise ValueError("not a readable Arrow file (cut off: its list of batches is missing)")
    stream.seek(size - tail - length)
    footer = _root(stream.read(length))
    dictionaries, batches = ([_block(stream, size, b) for b in footer.structs(field, _BLOCK)] for field in (2, 3))
    return Index(0, tuple(dictionaries), tuple(batches))


def _block(stream: BinaryIO, size: int, block: np.void) -> Message:
    offset, metadata, body = (int(block[name]) for name in ("offset", "metadata", "body"))
    if min(offset, body) < 0 or not 0 < metadata <= _MOST_METADATA or offset + metadata + body > size:
        raise ValueError("not a readable Arrow file (its list of batches leads out of it)")
    stream.seek(offset)
    data = stream.read(metadata)
    begin = 8 if _unpack("<I", data, 0) == _CONTINUED else 4
    return _message(stream, _root(data[begin:]), offset, offset + metadata, body)


def _of_stream(stream: BinaryIO, size: int) -> Index:
    """Return the messages of a stream. A stream that is cut off is read up to the damage."""
    at = schema_bytes = 0
    dictionaries: list[Message] = []
    batches: list[Message] = []
    problem = ""
    while at < size:
        # Read the length of the next message. A length of 0 ends the stream.
        stream.seek(at)
        prefix = stream.read(8).ljust(8, b"\xff")
        continued = _unpack("<I", prefix, 0) == _CONTINUED
        length = _unpack("<i", prefix, 4 if continued else 0)
        if length == 0:
            break
        # Read the metadata of the message, unless the file is cut off before its end.
        begin = at + (8 if continued else 4)
        problem = f"cut off or damaged at byte {at:,}; all before is read"
        if not 0 < length <= _MOST_METADATA or begin + length > size:
            break
        stream.seek(begin)
        table = _root(stream.read(length))
        kind, body = table.integer(1, "<B"), table.integer(3, "<q")
        if body < 0 or begin + length + body > size:
            break
        # Note the message by its kind.
        if kind == _SCHEMA and not at:
            schema_bytes = begin + length + body
        elif kind in (_DICTIONARY, _BATCH) and schema_bytes:
            message = _message(stream, table, at, begin + length, body)
            (batches if kind == _BATCH else dictionaries).append(message)
        else:
            break
        at, problem = begin + length + body, ""
    if not schema_bytes:
        raise ValueError("not a readable Arrow file")
    return Index(schema_bytes, tuple(dictionaries), tuple(batches), problem)


def _message(stream: BinaryIO, message: _Table, offset: int, body: int, body_bytes: int) -> Message:
    """Return the place, rows and size of a message.

    Parameters
    ----------
    stream : BinaryIO
        The file.
    message : _Table
        The metadata of the message.
    offset, body : int
        Where the message and its body begin, in bytes of the file.
    body_bytes : int
        The size of the body.

    """
    table, dictionary, is_delta = message.table(2), -1, False
    if message.integer(1, "<B") == _DICTIONARY:
        dictionary, is_delta = table.integer(0, "<q"), bool(table.integer(2, "<B"))
        table = table.table(1)
    size = body_bytes
    if table.has(3):  # each compressed buffer begins with its decompressed length, or with -1 if it is not compressed
        size = 0
        for buffer in table.structs(2, _BUFFER):
            if buffer["length"]:
                stream.seek(body + max(int(buffer["offset"]), 0))
                whole = _unpack("<q", stream.read(8), 0)
                size += int(buffer["length"]) if whole == -1 else whole
                if whole < -1:
                    raise ValueError("not a readable Arrow file (a buffer has a negative number of bytes)")
    rows = table.integer(0, "<q")
    if rows < 0:
        raise ValueError("not a readable Arrow file (a batch has a negative number of rows)")
    return Message(offset, body + body_bytes, rows, max(size, body_bytes), dictionary, is_delta)


class _Table:
    """A FlatBuffers table in `data`, at byte `at`. Offsets that lead out of the data raise struct.error
    or ValueError.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def has(self, field: int) -> bool:
        return self._place(field) > 0

    def integer(self, field: int, kind: str) -> int:
        """Return an integer field, or 0 if the table lacks it."""
        place = self._place(field)
        return _unpack(kind, self._data, place) if place else 0

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if not place:
            raise ValueError("not a readable Arrow file (a message without content)")
        return _Table(self._data, place + _unpack("<I", self._data, place))

    def structs(self, field: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
        place = self._place(field)
        if not place:
            return np.empty(0, kind)
        begin = place + _unpack("<I", self._data, place)
        return np.frombuffer(self._data, kind, _unpack("<I", self._data, begin), begin + 4)

    def _place(self, field: int) -> int:
        """Return the place of a field in the data, or 0 if the table lacks it.

        A table begins with the distance back to its vtable: 16-bit numbers, which are the size of the vtable, the size
        of the table, and the offset of each field in the table, 0 if it is missing.
        """
        fields = self._at - _unpack("<i", self._data, self._at)
        slot = 4 + 2 * field
        if slot + 2 > _unpack("<H", self._data, fields):
            return 0
        offset = _unpack("<H", self._data, fields + slot)
        return self._at + offset if offset else 0


def _root(data: bytes) -> _Table:
    return _Table(data, _unpack("<I", data, 0))


def _unpack(kind: str, data: bytes, at: int) -> int:
    if at < 0:
        raise ValueError("not a readable Arrow file")
    return int(struct.unpack_from(kind, data, at)[0])


_MOST_ROWS = 1 << 31  # rows of a batch; a damaged one may claim any number
_MOST_EMPTY_ROWS = 1 << 20  # rows of a file that take no bytes, such as rows of nulls
_MOST_COMPRESSED = 1 << 15  # how many times shorter zstd can make zeros: 4 bytes stand for a block of 128 KiB
_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


class Arrow(Format):
    name = "arrow"
    suffixes = (".arrow", ".feather", ".ipc", ".arrows")
    seeks = Seek.ROWS
    jumps = True
    magic = FILE_MAGIC

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        schema = _schema(file)
        types = types_of(schema)
        kinds = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in types.items()}
        return Schema(tuple(schema.names), kinds, class_names=class_names_in(schema))

    def rows_of(self, file: InputFile) -> int:
        return sum(batch.rows for batch in _index(file).batches)

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int) -> FilePlan:
        # Collect batches until a fragment is full.
        index = _index(file)
        fragments: list[Fragment] = []
        first = rows = held = row = begin = 0

        def close() -> None:
            nonlocal first, rows, held
            if rows:
                fragments.append(Fragment(file, first, first, rows, begin, held))
            first, rows, held = first + rows, 0, 0

        # A batch with more rows than a chunk may have becomes several fragments.
        for batch in index.batches:
            size = held_together(batch.size, batch.rows, selection)
            max_rows = max(1, min(chunk_rows, self.limits.chunk_bytes * batch.rows // max(size, 1)))
            if rows + batch.rows > chunk_rows or held + size > self.limits.chunk_bytes:
                close()
            begin = begin if rows else batch.offset
            for at in range(0, batch.rows, max_rows):
                count = min(max_rows, batch.rows - at)
                rows, held = rows + count, held + size * count // batch.rows
                if batch.rows > max_rows:
                    close()
            row += batch.rows
        close()
        problems = [f"{file.path}: {index.problem}, {row:,} rows"] if index.problem else []
        return FilePlan(fragments, problems)

    def read(self, fragments: Sequence[Fragment], selection: Selection, spans: list[Span] | None) -> Iterator[Chunk]:
        rows: Rows | None = None
        for fragment in fragments:
            with span("decode", spans, "read"):
                rows = rows or _rows_from(fragment, selection.columns)
                yield from bounded_chunks(rows.take(fragment.rows), fragment, selection)


def _rows_from(fragment: Fragment, columns: tuple[str, ...]) -> Rows:
    """Return the rows of a file from the first of a fragment on, in one table for each batch."""
    file, batches = fragment.file, _index(fragment.file).batches
    begins = np.cumsum([0, *(batch.rows for batch in batches)])
    number = int(begins.searchsorted(fragment.start, "right")) - 1
    return Rows(_tables(file, number, columns), fragment.start - int(begins[number]), file.path)


@lru_cache(maxsize=16)
def _index(file: InputFile) -> Index:
    """Return the index of a file. Raises SourceError if the file is damaged, or a batch would take too much memory."""
    try:
        with open_at(file) as stream:
            index = read_index(stream, file.stored)
    except ValueError as error:
        raise SourceError(f"{file.path}: {error}") from error
    max_bytes = _most_bytes(file.format.limits)
    remedy = "write it with smaller record batches, or as Parquet"
    if _most_in_dictionaries(index) > max_bytes:
        raise SourceError(f"{file.path}: its dictionaries take more than {max_bytes >> 20:,} MiB; {remedy}")
    empty = sum(batch.rows for batch in index.batches if batch.rows > _most_bits(batch))
    if empty > _MOST_EMPTY_ROWS:
        raise SourceError(f"{file.path}: it claims to hold {empty:,} rows that take no byte: it is damaged, or empty")
    for number, batch in enumerate(index.batches):
        if batch.size > max_bytes or batch.rows > _MOST_ROWS:
            what = f"{batch.size >> 20:,} MiB for {batch.rows:,} rows, more than {max_bytes >> 20:,} MiB"
            raise SourceError(f"{file.path}: record batch {number} takes {what}; {remedy}")
    return index


def _most_bytes(limits: Limits) -> int:
    """Return the largest number of bytes of a decoded batch."""
    return 4 * most_decoded(limits)


def _schema(file: InputFile) -> pa.Schema:
    index = _index(file)
    try:
        with open_at(file) as stream:
            whole = not index.schema_bytes
            schema = (pa.ipc.open_file(stream) if whole else pa.ipc.open_stream(stream.read(index.schema_bytes))).schema
            tuple(schema.names)  # raises UnicodeDecodeError, a ValueError, if a name is not UTF-8
            return schema
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{file.path}: not a readable Arrow file ({why_no_schema(error)})") from error


def _most_bits(batch: Message) -> int:
    """Return how many bits a batch can hold, judging by the bytes that exist rather than by those that it claims."""
    return 8 * min(batch.size, (batch.stop - batch.offset) * _MOST_COMPRESSED)


def _most_in_dictionaries(index: Index) -> int:
    """Return the bytes of the dictionaries that are in use at the same time. In a stream, a dictionary may replace
    another.
    """
    if not index.schema_bytes:
        return sum(message.size for message in index.dictionaries)
    max_bytes = 0
    sizes: dict[int, int] = {}
    for message in index.dictionaries:
        before = sizes.get(message.dictionary, 0) if message.is_delta else 0
        sizes[message.dictionary] = before + message.size
        max_bytes = max(max_bytes, sum(sizes.values()))
    return max_bytes


def _tables(file: InputFile, first: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Yield the columns of the batches from `first` on. Texts are bytes, or a dictionary of bytes.
    Raises SourceError.
    """
    index, schema = _index(file), _schema(file)
    wanted = [schema.get_field_index(name) for name in holding(schema, columns)]
    options = pa.ipc.IpcReadOptions(included_fields=sorted(wanted), use_threads=False)
    number = first
    try:
        with open_at(file) as stream:
            batches = _batches(stream, index, schema, first, options)
            for number in range(first, len(index.batches)):
                batch = next(batches)
                if len(batch) != index.batches[number].rows:
                    raise ValueError(f"it holds {len(batch):,} rows, its message has {index.batches[number].rows:,}")
                table = projected(batch, columns)
                values = ((name, table.column(name).chunk(0)) for name in table.column_names)
                yield pa.table({name: _checked(array, file.format.limits) for name, array in values})
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise SourceError(f"{file.path}: record batch {number} cannot be read: {error}") from error


def _batches(
    stream: BinaryIO, index: Index, schema: pa.Schema, first: int, options: pa.ipc.IpcReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file from `first` on.

    Parameters
    ----------
    stream : BinaryIO
        The file.
    index, schema : Index, pyarrow.Schema
        The messages and columns of the file.
    first : int
        The number of the first batch.
    options : pyarrow.ipc.IpcReadOptions
        The options with which pyarrow reads the batches.

    """
    if not index.schema_bytes:
        reader = pa.ipc.open_file(stream, options=options)
        yield from map(reader.get_batch, range(first, len(index.batches)))
        return
    begin = index.batches[first].offset
    parts = [(message.offset, message.stop) for message in _dictionaries_at(begin, index, schema)]
    parts = [(0, index.schema_bytes), *parts, (begin, index.batches[-1].stop)]
    reader = pa.ipc.open_stream(io.BufferedReader(_Parts(stream, parts)), options=options)
    for _ in index.batches[first:]:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            raise ValueError("the stream ends before it") from None
        yield batch


def _dictionaries_at(offset: int, index: Index, schema: pa.Schema) -> Iterator[Message]:
    """Yield the dictionaries that are valid at a byte of a stream, without those that others have replaced."""
    before = [message for message in index.dictionaries if message.offset < offset]
    if any(map(_has_dictionary_within, schema.types)):  # these may refer to a dictionary that was replaced
        yield from before
        return
    last = {message.dictionary: message.offset for message in before if not message.is_delta}
    yield from (message for message in before if message.offset >= last.get(message.dictionary, 0))


def _has_dictionary_within(kind: pa.DataType) -> bool:
    """Whether the values of a dictionary have a dictionary."""
    is_one = pa.types.is_dictionary
    return holds(kind, lambda inner: is_one(inner) and holds(inner.value_type, is_one))


class _Parts(io.RawIOBase):
    """Presents parts of a file, each given by its first byte and the byte after its last, as one stream."""

    def __init__(self, stream: BinaryIO, parts: Sequence[tuple[int, int]]) -> None:
        self._stream, self._parts = stream, [*parts]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while self._parts:
            begin, stop = self._parts[0]
            if begin < stop:
                self._stream.seek(begin)
                data = self._stream.read(min(len(buffer), stop - begin))
                buffer[: len(data)] = data
                self._parts[0] = (begin + len(data), stop) if data else (stop, stop)
                return len(data)
            del self._parts[0]
        return 0


def _checked(values: pa.Array, limits: Limits) -> pa.Array:
    """Return values whose offsets and indices are right, with strings as bytes: each text is checked for UTF-8 in its
    row. There are no views within lists, structs and maps.

    Raises ValueError or ArrowException if offsets or indices are wrong, or the values would take too much memory.
    """
    kind = values.type
    if is_json(kind):
        return _checked(values.storage, limits)
    if pa.types.is_dictionary(kind):
        values.indices.validate(full=True)
        dictionary = _flat(_checked(values.dictionary, limits), limits)
        values = pa.DictionaryArray.from_arrays(values.indices, dictionary)  # this checks the indices
        return values if is_textual(dictionary.type) else values.dictionary_decode()
    values = values.view(_BYTES[kind]) if kind in _BYTES else values
    _validate(values)
    if pa.types.is_binary_view(values.type):
        few = view_lengths(values).sum() <= most_decoded(limits)
        return values.cast(pa.large_binary()) if few else _distinct(values, limits)
    if not has_views(kind):
        return values
    max_bytes = _most_bytes(limits)
    if decoded_sizes(values).sum() > max_bytes:
        raise ValueError(
            f"values of {kind} take more than {max_bytes >> 20:,} MiB; write it with smaller record batches"
        )
    return plain_values(values, decode=False)


def _validate(values: pa.Array) -> None:
    """Raise ValueError or ArrowException if offsets, indices or texts are wrong. This includes those within lists and
    structs.

    Values in a null struct do not count: pyarrow itself leaves indices there that the dictionary does not have.
    """
    kind, types = values.type, pa.types
    if not (holds(kind, types.is_struct) and holds(kind, types.is_dictionary)):
        values.validate(full=True)
        return
    values.validate()  # checks the sizes of buffers, so that it is safe to look into them
    if types.is_struct(kind):
        for child in values.flatten():  # null where the struct is null
            _validate(child)
        return
    if not types.is_fixed_size_list(kind):
        bounds = [values.offsets, values.sizes] if is_one_of(kind, LIST_VIEWS) else [values.offsets]
        made = next(array for test, array in _ARRAYS if test(kind))
        made.from_arrays(*bounds, pa.nulls(len(values.values))).validate(full=True)
    _validate(values.values)


_ARRAYS = (
    (pa.types.is_list, pa.ListArray),
    (pa.types.is_map, pa.ListArray),
    (pa.types.is_large_list, pa.LargeListArray),
    (pa.types.is_list_view, pa.ListViewArray),
    (pa.types.is_large_list_view, pa.LargeListViewArray),
)
"""The class of arrays whose offsets are like those of a type."""


def _distinct(views: pa.Array, limits: Limits) -> pa.Array:
    """Return views, many of which may refer to one long value, as a dictionary."""
    places = np.frombuffer(views.buffers()[1], "V16")[views.offset : views.offset + len(views)]
    distinct, indices = np.unique(places, return_inverse=True)
    buffers = [None, pa.py_buffer(distinct), *views.buffers()[2:]]
    dictionary = _flat(pa.Array.from_buffers(views.type, len(distinct), buffers), limits)
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=~_valid(views)), dictionary)


def _flat(values: pa.Array, limits: Limits) -> pa.Array:
    """Return the values of a dictionary, with texts as bytes, one after the other."""
    if pa.types.is_dictionary(values.type):
        raise ValueError(f"its dictionary takes more than {most_decoded(limits) >> 20:,} MiB")
    if pa.types.is_binary_view(values.type) and view_lengths(values).sum() > _most_bytes(limits):
        raise ValueError(f"its values take more than {_most_bytes(limits) >> 20:,} MiB")
    return values.cast(pa.large_binary()) if is_textual(values.type) else values


def _valid(values: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
