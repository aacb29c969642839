"""Makes chunks of bounded size from the rows of Arrow tables: of Parquet's row groups and Arrow's batches.

A column with a dictionary may refer to one long value very many times. So rows are taken out of a decoded table in runs
of bounded size. If a fragment takes several runs, each text is cut to what the model reads, and its characters are
counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import SourceError
from ..open.ahead import PARSING
from ..rows.assemble import assemble
from ..rows.chunk import Chunk, Selection, concat
from ..rows.columns import fields_of, projected
from ..rows.cutting import Cutting
from ..rows.format import Fragment
from ..rows.layouts import LIST_VIEWS, as_bytes, holds, is_one_of, is_textual, plain_type, plain_values
from ..rows.limits import LIMITS, Limits


def types_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of columns as in `Schema`: all layouts of strings count as one type."""
    return {name: plain_type(kind) for name, kind in fields_of(schema).items()}


def most_decoded(limits: Limits) -> int:
    """Return how many bytes of decoded rows of a file may be in memory."""
    return 4 * limits.chunk_bytes


def why_no_schema(error: Exception) -> str:
    """Return why pyarrow cannot read the columns of a file, and a remedy if one is known."""
    remedy = ": cast the column to 64 bits or to text, or write the file without it" if "64 bits" in str(error) else ""
    return f"{error}{remedy}"


class Rows:
    """Rows that come in tables of any size, from row `first` on. path: their file."""

    def __init__(self, tables: Iterator[pa.Table], first: int, path: str) -> None:
        self._tables, self._path = tables, path
        self._left: pa.Table | None = None
        for _ in self.take(first):
            pass

    def take(self, count: int) -> Iterator[pa.Table]:
        """Yield the next `count` rows. If a table has more, the others are kept for the next call."""
        while count:
            table = next(self._tables, None) if self._left is None else self._left
            if table is None:
                raise SourceError(f"{self._path}: fewer rows than were planned: it was changed while the job ran")
            self._left = table.slice(count) if count < len(table) else None
            yield table.slice(0, count)
            count -= min(count, len(table))


def bounded_chunks(tables: Iterable[pa.Table], fragment: Fragment, selection: Selection) -> Iterator[Chunk]:
    """Yield the rows of a fragment, which come in tables of any size, in one chunk, or in several if they take too much
    memory.

    Raises SourceError if one row takes too much.
    """
    pieces: list[Chunk] = []
    held = 0
    for piece in PARSING.in_order(_parts(tables, fragment, selection)):
        size = piece.kept_bytes + piece.text_bytes
        if pieces and held + size > most_decoded(fragment.file.format.limits):
            yield concat(pieces)
            pieces, held = [], 0
        pieces.append(piece)
        held += size
    yield concat(pieces)


def _parts(tables: Iterable[pa.Table], fragment: Fragment, selection: Selection) -> Iterator[Callable[[], Chunk]]:
    """Yield a call for each part of a fragment's rows. The call makes a chunk of the part."""
    first = fragment.first_row
    for decoded in tables:
        for table, n_chars in _bounded(decoded, selection, fragment.file.format.limits):
            yield partial(_chunk, table, fragment.file.path, first, selection, n_chars)
            first += len(table)


def _bounded(
    table: pa.Table, selection: Selection, limits: Limits
) -> Iterator[tuple[pa.Table, NDArray[np.int64] | None]]:
    """Yield runs of rows that take a bounded size without dictionaries. If their text is cut, yield its number of
    characters too.

    A text column that is the whole text is cut in its dictionary, once for all rows that share a text.
    """
    encoded = [name for name in table.column_names if holds(table.column(name).type, pa.types.is_dictionary)]
    if not encoded:
        yield table, None
        return
    # Cut the texts in their dictionary, so that they take less memory when they are decoded.
    table = table.combine_chunks()
    n_chars = None
    others = {*selection.kept_columns, selection.truth}
    is_whole = len(selection.text) == 1 and not selection.join
    if selection.reads and is_whole and selection.text[0] in {*encoded} - others:
        text = table.column(selection.text[0]).combine_chunks()
        values, counts = _cut_values(text.dictionary, selection.reads)
        place = table.column_names.index(selection.text[0])
        short = pa.DictionaryArray.from_arrays(text.indices, values)
        table, n_chars = table.set_column(place, selection.text[0], short), _gathered(counts, text.indices)
    # Find how much memory each row takes without dictionaries.
    sizes = np.zeros(len(table), np.int64)
    for name in encoded:
        sizes += decoded_sizes(table.column(name).combine_chunks())
    if sizes.max(initial=0) > most_decoded(limits):
        max_mib = most_decoded(limits) >> 20
        raise SourceError(
            f"a row takes {sizes.max() >> 20:,} MiB, more than {max_mib:,}: do not keep its longest column"
        )
    # Cut the rows into runs of bounded size.
    is_nested = any(pa.types.is_nested(table.column(name).type) for name in encoded)
    for first, last, _ in Cutting(len(table), min(limits.part_bytes, limits.chunk_bytes)).cut(sizes):
        run = table.slice(first, last - first)
        if is_nested:  # Arrow would cast all values of the lists, so the values of the slice are copied first
            run = run.take(pa.array(np.arange(len(run))))
        yield run, None if n_chars is None else n_chars[first:last]


def decoded_sizes(values: pa.Array) -> NDArray[np.int64]:
    """Return the bytes that each of N values takes without dictionaries and views, beyond what it takes with them.

    Parameters
    ----------
    values : pyarrow.Array
        N values whose offsets are right.

    Returns
    -------
    ndarray
        int64 [N]: the bytes of texts in dictionaries and views, and of the values of list views. This includes those
        within structs and lists.

    """
    kind, types = values.type, pa.types
    if types.is_dictionary(kind):
        lengths = view_lengths(values.dictionary) if _is_view(kind.value_type) else pc.binary_length(values.dictionary)
        return _gathered(pa.array(lengths), values.indices)
    if _is_view(kind):
        return view_lengths(values)
    if types.is_struct(kind):
        return sum(map(decoded_sizes, values.flatten()), np.zeros(len(values), np.int64))
    if types.is_fixed_size_list(kind):
        values = values.cast(pa.list_(kind.value_type))
    if isinstance(values, pa.ListArray | pa.LargeListArray):  # a map is one
        return np.asarray(np.diff(_sums(values.values)[values.offsets.to_numpy()]))
    if is_one_of(kind, LIST_VIEWS):
        begins, counts = values.offsets.to_numpy(), values.sizes.to_numpy()
        after = _sums(values.values)
        sizes = after[begins + counts] - after[begins] + _LISTED_BYTES * counts
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
    return np.zeros(len(values), np.int64)


_LISTED_BYTES = 8
"""A rough number of bytes that a value in a list takes beside its text."""


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _sums(values: pa.Array) -> NDArray[np.int64]:
    """Return int64 [N + 1], the sizes of the first 0, 1, … N of N values."""
    return np.concatenate([[0], np.cumsum(decoded_sizes(values))])


def view_lengths(views: pa.Array) -> NDArray[np.int64]:
    """Return int64 [N], the bytes of N views; 0 for nulls. Arrow has no function for this."""
    lengths = np.frombuffer(views.buffers()[1] or b"", np.int32)[::4][views.offset : views.offset + len(views)]
    return np.where(views.is_valid().to_numpy(zero_copy_only=False), lengths, 0).astype(np.int64)


def _cut_values(values: pa.Array, length: int) -> tuple[pa.Array, pa.Array]:
    """Return strings up to `length` characters, and how many characters each has. A string that will be quarantined
    stays unchanged.
    """
    values = values.cast(pa.large_binary())
    cut, counts = [], []
    for value in values.to_pylist():
        try:
            text = "" if value is None or len(value) > LIMITS.field_bytes else value.decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        cut.append(text[:length].encode() if text else value)
        counts.append(len(text))
    return pa.array(cut, pa.large_binary()), pa.array(counts, pa.int64())


def _gathered(values: pa.Array, indices: pa.Array) -> NDArray[np.int64]:
    """Return the value for each index, int64; 0 for nulls."""
    numbers = pc.fill_null(pc.take(values, indices), 0)
    return np.asarray(numbers.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _chunk(
    table: pa.Table, path: str, first_row: int, selection: Selection, n_chars: NDArray[np.int64] | None = None
) -> Chunk:
    """Return a chunk of the rows of a table.

    Parameters
    ----------
    table : pyarrow.Table
        N rows.
    path : str
        The file.
    first_row : int
        The number of the first row.
    selection : Selection
        The columns that the job uses.
    n_chars : ndarray, optional
        int64 [N], the characters of each text, if the table holds only its beginning.

    """
    chunk = assemble(path, first_row + np.arange(len(table)), table, selection)
    if n_chars is None:
        return chunk
    return replace(chunk, n_chars=n_chars[chunk.rows.column("row").to_numpy() - first_row])


def plain(table: pa.Table) -> pa.Table:
    """Return the table without dictionaries and views, whose layout says nothing about the rows, and with its strings
    as bytes.
    """
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            kind = pa.large_string() if is_textual(kind) else kind  # Arrow cannot take rows out of an array of views
            chunks = [plain_values(chunk.dictionary).cast(kind).take(chunk.indices) for chunk in table.column(i).chunks]
            table = table.set_column(i, field.name, pa.chunked_array(chunks, kind))
    return as_bytes(table)


def table_chunk(table: pa.Table, file: str, row: int, selection: Selection) -> Chunk:
    """Return a chunk of a table's rows. The first of them is row `row`."""
    return _chunk(plain(projected(table, selection.columns)), file, row, selection)
