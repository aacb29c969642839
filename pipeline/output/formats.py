"""Writes the rows of a chunk to files in several formats and reads them back.

The files may lie in folders named after the values of columns. Text files hold numbers, booleans, strings, and lists
and structs of these. Values of other types become text, as Arrow writes it ("2024-05-01 12:00:00"); bytes become base64
and a duration an integer. A float32 becomes the float64 with the fewest digits that reads back as the same float32: 0.9
instead of 0.8999999761581421.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Sequence
from functools import cache, reduce
from typing import Protocol
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from ..errors import OutputError, UsageError, did_you_mean
from ..labelling.scored import set_aside
from ..source.rows.chunk import Chunk
from ..storage.disk import Content
from .json_texts import json_texts, lines_of
from .layout import NULL_FOLDER, PART_FORMAT_NAMES, PartNames, folder_values, value_folder
from .model_columns import N_CHARS, TRUTH, Names, names_in

_MOST_FOLDERS = 1000
"""The limit of folders for one chunk, because each has a file that is flushed to the disk."""

_TAKEN_FROM_FOLDER = ("parquet",)
"""Formats whose readers take the value from the folder's name.

Some of these readers refuse a file that holds the column as well. Among the readers of other formats, only DuckDB knows
such folders.
"""

_LONGEST_NAME, _SHOWN = 255, 60
"""The limit of a file name on common file systems, in bytes, and how many characters of a value a message shows."""

_REPEATING = ("file", TRUTH.name)
"""Columns of texts with few different values."""

_DAY = "1970-01-01 "


class PartFormat(Protocol):
    """Turns rows into the bytes of a file, and back. The same rows always give the same bytes."""

    def write(self, table: pa.Table) -> memoryview:
        """Return the file, in Arrow's memory, because copying it would take the GIL.

        Raises UnwritableType if the format cannot hold the type of a column.
        """

    def read(self, data: bytes, schema: pa.Schema, chosen: pa.Schema) -> pa.Table:
        """Return the chosen columns of the rows of a file.

        schema: the schema of the table that was written. Raises ValueError, KeyError, TypeError, OSError,
        RecursionError or pyarrow.ArrowException if `data` is not such a file.
        """

    def join(self, files: Sequence[bytes], schema: pa.Schema) -> Content:
        """Return one file with the rows of several files, one after the other.

        schema: the schema of each file's table. Raises the same errors as `read`.
        """


class UnwritableType(TypeError):
    """Raised for a type that a format cannot hold."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(f"cannot hold {kind}")


class _Parquet(PartFormat):
    """Parquet files, whose dictionaries and delta encoding make them a third of the size that the defaults give."""

    def write(self, table: pa.Table) -> memoryview:
        repeating, counts = [*_REPEATING], ["row", N_CHARS.name]
        for names in names_in(table.column_names) or [Names()]:
            repeating += [f"{names.label}.list.element" if names.multi_label else names.label]
            repeating.append(f"{names.top_labels}.list.element")
            counts.append(names.unknown_chars)
        sink = pa.BufferOutputStream()
        encoding = dict.fromkeys(counts, "DELTA_BINARY_PACKED")
        # Parquet ends a page where a piece ends. Rows may be read in other pieces, and the bytes must be the same.
        table = table.combine_chunks()
        try:
            pq.write_table(table, sink, compression="zstd", use_dictionary=repeating, column_encoding=encoding)
        except pa.ArrowNotImplementedError as error:
            if not len(table):  # `check_writable` asks whether the format can hold such a column at all
                raise
            # For example, fixed-size lists that are null, before PyArrow 26.
            raise OutputError(
                f"PyArrow {pa.__version__} cannot write a kept column to Parquet ({error}): update it, give --format "
                "jsonl, or do not keep the column"
            ) from error
        return memoryview(sink.getvalue()).cast("B")

    def read(self, data: bytes, schema: pa.Schema, chosen: pa.Schema) -> pa.Table:
        coded = [name for name in _REPEATING if name in schema.names and schema.field(name).type == pa.string()]
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=coded)  # a cast of a text would copy it
        if not file.schema_arrow.equals(_stored(schema, *coded)):
            raise ValueError(f"its columns are {_described(file.schema_arrow)}, those of the job {_described(schema)}")
        return file.read(chosen.names, use_threads=False).select(chosen.names).cast(chosen)

    def join(self, files: Sequence[bytes], schema: pa.Schema) -> Content:
        tables = (self.read(data, schema, schema) for data in files)
        return self.write(pa.concat_tables([schema.empty_table(), *tables]))


class _JsonLines(PartFormat):
    """JSON lines: an object for each row, with every column. A NaN or an infinity is null, as JSON has neither."""

    def write(self, table: pa.Table) -> memoryview:
        columns = {name: to_plain(table.column(name).combine_chunks()) for name in table.column_names}
        return memoryview(lines_of(columns)).cast("B")

    def read(self, data: bytes, schema: pa.Schema, chosen: pa.Schema) -> pa.Table:
        rows = msgspec.json.Decoder().decode_lines(data)
        if any(list(row) != schema.names for row in rows):
            raise ValueError("a line has other columns than the job")
        columns = ((field.type, [row[field.name] for row in rows]) for field in chosen)
        return pa.table([from_plain(pa.array(values, writable_type(kind)), kind) for kind, values in columns], chosen)

    def join(self, files: Sequence[bytes], schema: pa.Schema) -> Content:
        return b"".join(files)


class _Csv(PartFormat):
    """CSV after RFC 4180, with a header.

    Text is quoted, a null is an empty field without quotes, and a list or a struct is its JSON text. If the metadata of
    a list's field name a separator, the list is a text with the separator between the values.
    """

    def write(self, table: pa.Table) -> memoryview:
        plain = (to_plain(column.combine_chunks()) for column in table.columns)
        columns = [_flat(column, _separator(field)) for field, column in zip(table.schema, plain, strict=True)]
        sink = pa.BufferOutputStream()
        csv.write_csv(pa.table(columns, table.column_names), sink, csv.WriteOptions(quoting_header="needed"))
        return memoryview(sink.getvalue()).cast("B")

    def read(self, data: bytes, schema: pa.Schema, chosen: pa.Schema) -> pa.Table:
        plain = {field.name: writable_type(field.type) for field in schema}
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(
                column_types={name: pa.string() if pa.types.is_nested(kind) else kind for name, kind in plain.items()},
                null_values=[""],
                true_values=["true"],
                false_values=["false"],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if table.column_names != schema.names:
            raise ValueError("its header names other columns than those of the job")
        texts = ((table.column(field.name).combine_chunks(), field) for field in chosen)
        nested = ((_nested(column, plain[field.name], _separator(field)), field) for column, field in texts)
        return pa.table([from_plain(column, field.type) for column, field in nested], chosen)

    def join(self, files: Sequence[bytes], schema: pa.Schema) -> Content:
        header = bytes(self.write(schema.empty_table()))
        if any(not data.startswith(header) for data in files):
            raise ValueError("its header names other columns than those of the job")
        return b"".join([header, *(data[len(header) :] for data in files)])


PART_FORMATS: dict[str, PartFormat] = dict(zip(PART_FORMAT_NAMES, (_Parquet(), _JsonLines(), _Csv()), strict=True))
"""The formats, by the name that the user gives."""


def check_writable(schema: pa.Schema, names: PartNames, classes: Iterable[str]) -> None:
    """Raise UsageError for a column that the format or the folders cannot hold, or a class that cannot name a folder.

    classes: the classes of the labels.
    """
    for field in schema:
        try:
            PART_FORMATS[names.format].write(pa.schema([field]).empty_table())
        except (UnwritableType, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"the column {field.name!r} cannot be written: {names.format} {error}") from error
    for name in names.by:
        if name not in schema.names:
            known, meant = ", ".join(schema.names), did_you_mean(name, schema.names)
            raise UsageError(
                f"there is no column {name!r} for --partition-by (there are {known}; --keep adds one){meant}"
            )
        kind, types = schema.field(name).type, pa.types
        plain = kind.value_type if types.is_dictionary(kind) else kind
        if not (_is_text(plain) or types.is_integer(plain) or types.is_boolean(plain) or types.is_date32(plain)):
            raise UsageError(f"{name!r} is {kind}: --partition-by takes text, integers, dates, true and false")
        for label in classes if name.endswith(Names().label) or name == TRUTH.name else ():
            _check_folder(name, label)


def with_folders(chunk: Chunk, names: PartNames) -> Chunk:
    """Return the chunk after moving to quarantine every row with a value, in `names.by`, that cannot name a folder."""
    for column in names.by:
        if column in chunk.rows.column_names:
            texts = chunk.rows.column(column).cast(pa.string())
            values = [value for value in texts.unique().to_pylist() if not _can_name(column, value)]
            if values:
                lost = pc.is_in(texts, pa.array(values)).to_numpy()
                chunk = set_aside(chunk, lost, f"its {column!r} cannot name a folder, which --partition-by needs")
    return chunk


def _can_name(column: str, value: str | None) -> bool:
    return value != NULL_FOLDER and len(value_folder(column, value)) <= _LONGEST_NAME


def _check_folder(column: str, value: str | None) -> None:
    if not _can_name(column, value):
        raise UsageError(
            f"{str(value)[:_SHOWN]!r} in {column!r} cannot be the name of a folder for --partition-by: a name has at "
            f"most {_LONGEST_NAME} bytes, and is not {NULL_FOLDER}. Choose another column"
        )


def part_files(table: pa.Table, names: PartNames, chunk: str, job: str) -> list[tuple[str, int, memoryview]]:
    """Return the name, the number of rows and the bytes of each part of a chunk.

    Raises UsageError if a value cannot name a folder, or if there are more values than the limit of folders.
    """
    write, texts = PART_FORMATS[names.format].write, [table.column(name).cast(pa.string()) for name in names.by]
    rest = table.drop_columns([*names.by]) if names.format in _TAKEN_FROM_FOLDER else table
    several = pa.table(texts, [*names.by]).group_by([*names.by]).aggregate([]).to_pylist() if names.by else []
    if len(several) > _MOST_FOLDERS:
        flags = " and ".join(f"--partition-by {name!r}" for name in names.by)
        raise UsageError(
            f"{flags} would make {len(several):,} folders for {len(table):,} rows; the limit is {_MOST_FOLDERS:,}: "
            "choose a column with fewer values"
        )
    parts = []
    for name, values in names.files(chunk, job, [tuple(row.values()) for row in several]):
        rows = rest
        for column, value in zip(names.by, values, strict=True):
            _check_folder(column, value)
        if names.by:
            rows = rest.filter(reduce(pc.and_, map(_has, texts, values)))
        parts.append((name, len(rows), write(rows)))
    return parts


def joined_parts(files: Sequence[bytes], name: str, schema: pa.Schema) -> Content:
    """Join parts of the same folder into one. Raises OutputError if one of them is not such a part.

    Parameters
    ----------
    files : sequence of bytes
        The parts, in the order of their rows.
    name : str
        The name of the joined part.
    schema : pyarrow.Schema
        The schema of the job's parts.

    """
    format_, values = PartNames.like(name).format, folder_values(name)
    try:
        return PART_FORMATS[format_].join(files, _in_files(schema, format_, values))
    except (OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError, pa.ArrowException) as error:
        raise OutputError(f"a part of {name} is not one of this job ({error})") from error


def _in_files(schema: pa.Schema, format_: str, values: Container[str]) -> pa.Schema:
    """Return the columns that the files of a format hold. values: the columns whose folders the files are in."""
    if format_ not in _TAKEN_FROM_FOLDER:
        return schema
    return pa.schema([field for field in schema if field.name not in values])


def _has(texts: pa.ChunkedArray, value: str | None) -> pa.ChunkedArray:
    """Return which rows have this value; for None, which rows have a null."""
    return texts.is_null() if value is None else pc.fill_null(pc.equal(texts, value), False)


def read_part(data: bytes, name: str, path: object, schema: pa.Schema, chosen: pa.Schema | None = None) -> pa.Table:
    """Return the rows of a part, or some columns of them. Raises OutputError if it is not a part of the job.

    Parameters
    ----------
    data : bytes
        The part.
    name : str
        The name of the part within the output folder. Its folders may hold values of columns.
    path : object
        The path of the part, for messages.
    schema : pyarrow.Schema
        The schema of the job's parts.
    chosen : pyarrow.Schema or None
        The columns to read; None for all. A column of texts may have the type of a dictionary here.

    """
    format_, values = PartNames.like(name).format, folder_values(name)
    try:
        chosen = schema if chosen is None else chosen
        if format_ not in _TAKEN_FROM_FOLDER:
            table = PART_FORMATS[format_].read(data, schema, chosen)
            for by, value in values.items():
                if by in chosen.names and not pc.all(_has(table.column(by).cast(pa.string()), value)).as_py():
                    raise ValueError(f"it has rows with another {by} than {value!r}")
            return table
        stored, read = (_in_files(one, format_, values) for one in (schema, chosen))
        table = PART_FORMATS[format_].read(data, stored, read)
        for by in (name for name in values if name in chosen.names):
            value = from_plain(pa.array([values[by]], pa.string()), chosen.field(by).type)
            table = table.append_column(chosen.field(by), value.take(pa.array(np.zeros(len(table), np.int64))))
        return table.select(chosen.names)
    except (OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError, pa.ArrowException) as error:
        raise OutputError(f"{path} is not a part of this job ({error})") from error


@cache
def _stored(schema: pa.Schema, *coded: str) -> pa.Schema:
    """Return the schema as a Parquet file has it, in which a time in seconds becomes milliseconds, for example.

    coded: the columns that are read as dictionaries.
    """
    empty = PART_FORMATS["parquet"].write(schema.empty_table())
    return pq.ParquetFile(pa.BufferReader(empty), read_dictionary=coded).schema_arrow


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _separator(field: pa.Field) -> str | None:
    """Return the separator of the values of a list; None if the list is JSON text."""
    separator = (field.metadata or {}).get(b"separator")
    return None if separator is None else separator.decode()


def _flat(column: pa.Array, separator: str | None) -> pa.Array:
    """Return lists and structs as JSON text, or lists joined by a separator; return other columns as they are."""
    if not pa.types.is_nested(column.type):
        return column
    if separator is not None:
        return pc.binary_join(column.cast(pa.list_(pa.string())), separator)
    return pc.if_else(column.is_null(), None, json_texts(column))


def _nested(column: pa.Array, kind: pa.DataType, separator: str | None) -> pa.Array:
    if not pa.types.is_nested(kind):
        return column
    if separator is not None:
        values = [text.split(separator) if text else [] for text in column.to_pylist()]
        return pa.array(values, pa.list_(pa.string())).cast(kind)
    return pa.array([None if text is None else msgspec.json.decode(text) for text in column.to_pylist()], kind)


def writable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `to_plain` gives a column of type `kind`.

    Raises UnwritableType for maps, unions and other rare types.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return writable_type(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(writable_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, writable_type(field.type)) for field in kind])
    if types.is_boolean(kind) or types.is_integer(kind):
        return kind
    if types.is_floating(kind):
        return pa.float64()
    if types.is_duration(kind):
        return pa.int64()
    if isinstance(kind, pa.UuidType):
        return pa.string()
    if _is_text(kind) or _is_bytes(kind) or types.is_temporal(kind) or types.is_decimal(kind) or types.is_null(kind):
        try:
            return pa.nulls(1, kind).cast(pa.string()).type
        except pa.ArrowException:  # an interval, or a time in a zone that nobody knows
            raise UnwritableType(kind) from None
    raise UnwritableType(kind)


def to_plain(column: pa.Array) -> pa.Array:
    """Return a column in a type that text files hold. Raises UnwritableType."""
    kind, types = column.type, pa.types
    target = writable_type(kind)
    if types.is_dictionary(kind):
        return to_plain(column.dictionary_decode())
    if types.is_list(target):
        return _list(column, to_plain(column.flatten()))
    if types.is_struct(target):
        return _struct(column, [to_plain(child) for child in column.flatten()], target)
    if types.is_float16(kind) or types.is_float32(kind):
        return _shortest(column)
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], target)
    if _is_bytes(kind):
        texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return pa.array(texts, target)
    return column.cast(target)


def from_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column of type `kind` that `to_plain` has converted.

    Raises ValueError or pyarrow.ArrowException if a value is not of this type.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return from_plain(column, kind.value_type).cast(kind)
    if types.is_list(column.type):
        return _list(column, from_plain(column.flatten(), kind.value_type)).cast(kind)
    if types.is_struct(column.type):
        children = zip(column.flatten(), kind, strict=True)
        return _struct(column, [from_plain(child, field.type) for child, field in children], kind)
    if isinstance(kind, pa.UuidType):
        values = [None if text is None else UUID(text).bytes for text in column.to_pylist()]
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if _is_bytes(kind):
        values = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
        return pa.array(values, kind)
    if types.is_time(kind):
        unit = "ns" if types.is_time64(kind) else "ms"
        return pc.binary_join_element_wise(_DAY, column, "").cast(pa.timestamp(unit)).cast(kind)
    if types.is_float16(kind):
        return pa.array(column.to_numpy(zero_copy_only=False).astype(np.float16), kind, mask=_nulls(column))
    if types.is_null(kind):
        return pa.nulls(len(column))
    return column.cast(kind)


def _shortest(column: pa.Array) -> pa.Array:
    """Return each float16 or float32 as the float64 with the fewest digits that reads back as the same value.

    Arrow writes the fewest digits as text, so each value goes through its text.
    """
    short = column.cast(pa.string()).cast(pa.float64())
    back = short.to_numpy(zero_copy_only=False).astype(column.type.to_pandas_dtype())
    # The values were rounded twice, so some may differ. A NaN is never equal, but both branches give a NaN.
    same = back == column.to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(same), short, column.cast(pa.float64()))


def _list(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the lists of `column` with other values."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


def _struct(column: pa.Array, children: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return the structs of `column` with other children."""
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


def _nulls(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    of_any_size = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(of_any_size or types.is_fixed_size_binary(kind))
