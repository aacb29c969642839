"""Launches the kernels in `records/`, which turn the bytes of files into the values of their records on a GPU.

    line_ends -> lines -> objects or fields -> measure -> write

Arrays are CuPy's, and kernels run on its current stream. The results are in memory of its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from numpy.typing import DTypeLike, NDArray

from .catalog import (
    WARP,
    Kernel,
    count_line_ends_kernel,
    find_blank_kernel,
    find_changes_kernel,
    find_insides_kernel,
    find_lines_kernel,
    join_texts_kernel,
    map_bytes_kernel,
    measure_values_kernel,
    place_line_ends_kernel,
    read_fields_kernel,
    read_objects_kernel,
    refuse_repeated_keys_kernel,
    strip_texts_kernel,
    trim_texts_kernel,
    write_values_kernel,
)
from .driver_calls import clear, start
from .json_keys import JsonKeys
from .ops import load

NULL, FIELD = 1, 4
"""Two kinds of values, with their numbers in records/values.cuh."""

NOT_THERE = -1
"""Replaces a character that a dialect does not have, or the number of a field that a file does not have."""

_SPAN_BYTES = 2048
"""The bytes of a block in which one warp looks for line ends."""


class RecordOperations:
    """The operations on records on one GPU. They launch kernels and do not wait for them.

    Parameters
    ----------
    device : cupy.cuda.Device
        The GPU.

    """

    def __init__(self, device: cp.cuda.Device) -> None:
        self._target = f"sm_{device.compute_capability}"

    def line_ends(self, block: cp.ndarray, rules: LineRules) -> LineEnds:
        """Count the line ends of a block that are not within quotes.

        Parameters
        ----------
        block : uint8 [bytes]
            The block.
        rules : LineRules
            The rules for how lines end.

        """
        size, span, spans = np.int64(len(block)), np.int32(_SPAN_BYTES), -(-len(block) // _SPAN_BYTES)
        counts, unclear, insides = cp.empty(spans, np.int32), zeros(1, np.int32), None
        given = (block, size, span, np.int32(spans), rules.dialect)
        if rules.quote != NOT_THERE:
            changes, insides = cp.empty(spans, np.uint8), cp.empty(spans + 1, np.uint8)
            self._launch_warps(find_changes_kernel(), spans, (*given, changes, unclear))
            self._launch_warps(find_insides_kernel(), 1, (changes, np.int32(spans), insides))
        self._launch_warps(count_line_ends_kernel(), spans, (*given, _or_null(insides), counts))
        return LineEnds(cp.cumsum(counts, dtype=np.int32), insides, unclear)

    def lines(self, block: cp.ndarray, found: LineEnds, rules: LineRules, out: Lines) -> None:
        """Find the lines of a block.

        Parameters
        ----------
        block : uint8 [bytes]
            The block, which ends with a line end.
        found : LineEnds
            The line ends of the block.
        rules : LineRules
            The rules for how lines end.
        out : Lines
            The arrays for the lines, including lines that are not records. Their length is the number of line ends.

        """
        spans, ends = len(found.up_to), cp.empty(len(out.begins), np.uint32)
        given = (block, np.int64(len(block)), np.int32(_SPAN_BYTES), np.int32(spans), rules.dialect)
        self._launch_warps(place_line_ends_kernel(), spans, (*given, _or_null(found.insides), found.up_to, ends))
        kernel, rule = find_lines_kernel(), (np.uint32(rules.most_crs), np.uint8(rules.skipped))
        self._launch(kernel, -(-len(ends) // kernel.threads), (block, ends, np.int32(len(ends)), *rule, *out))

    def objects(self, records: RecordsToRead, keys: DeviceKeys) -> None:
        """Find the values of JSON objects. keys: the keys of the columns."""
        self._find(read_objects_kernel(), records, keys.record)

    def refuse_repeated_keys(self, records: RecordsToRead) -> None:
        """Leave a record to the host if an object in a value has a key twice. records: see `objects`."""
        values, count = records.values, len(records.begins)
        arguments = (records.block, values.record(count), *records.odd)
        self._launch_warps(refuse_repeated_keys_kernel(), count, arguments)

    def fields(self, records: RecordsToRead, fields: DeviceFields) -> None:
        """Find the fields of CSV, or lines of text. fields: the fields of the columns."""
        self._find(read_fields_kernel(), records, fields.record)

    def _find(self, kernel: Kernel, records: RecordsToRead, wanted: NDArray[np.void]) -> None:
        block, begins, sizes, longest, values, odd = records
        arguments = (block, begins, sizes, np.int32(len(begins)), np.uint32(longest), wanted)
        self._launch_warps(kernel, len(begins), (*arguments, values.record(len(begins)), *odd))

    def measure(
        self, block: cp.ndarray, values: Values, quote: int, limit: int = 0, characters: cp.ndarray | None = None
    ) -> cp.ndarray:
        """Return where the text of each value begins, and where the last ends: int64 [values + 1].

        Parameters
        ----------
        block : uint8 [bytes]
            The block.
        values : Values
            The places of the values.
        quote : int
            The quote of fields. See `LineRules`.
        limit : int
            The most characters of a value that are kept, or 0 for all.
        characters : int64 [values], optional
            The array for the number of characters in each whole value.

        """
        count = len(values.kinds)
        offsets = cp.empty(count + 1, np.int64)
        clear(offsets[:1], cp.cuda.get_current_stream())
        lengths = cp.empty(count, np.int64)
        arguments = (block, *values, np.int64(count), np.int32(quote), np.int64(limit), lengths, _or_null(characters))
        self._launch_warps(measure_values_kernel(), count, arguments)
        cp.cumsum(lengths, out=offsets[1:])
        return offsets

    def write(self, block: cp.ndarray, values: Values, quote: int, offsets: cp.ndarray, out: cp.ndarray) -> None:
        """Write each value as text.

        Parameters
        ----------
        block, values, quote
            See `measure`.
        offsets : int64 [values + 1]
            The result of `measure`.
        out : uint8 [bytes]
            The array for the texts.

        """
        arguments = (block, *values, np.int64(len(values.kinds)), np.int32(quote), offsets, out)
        self._launch_warps(write_values_kernel(), len(values.kinds), arguments)

    def join(self, block: cp.ndarray, values: Values, quote: int, columns: int) -> tuple[cp.ndarray, Values]:
        """Join the texts of several columns to one text for each of N records.

        Parameters
        ----------
        block, values, quote
            See `measure`. There are [columns * N] values.
        columns : int
            The number of columns.

        Returns
        -------
        data : uint8 [bytes]
            The joined texts.
        joined : Values
            The places of the joined texts in `data`, [N].

        """
        records = len(values.kinds) // columns
        offsets = self.measure(block, values, quote)
        texts = cp.empty(len(block), np.uint8)  # a text never has more bytes than its value in the record
        self.write(block, values, quote, offsets, texts)
        data = cp.empty(len(block) + records * (columns - 1), np.uint8)
        joined = Values(cp.empty(records, np.uint8), cp.empty(records, np.uint32), cp.empty(records, np.uint32))
        count = np.int32(records)
        self._launch_warps(join_texts_kernel(), records, (texts, offsets, count, np.int32(columns), data, *joined))
        kernel = trim_texts_kernel()
        self._launch(kernel, -(-records // kernel.threads), (data, count, joined.begins, joined.sizes))
        return data, joined

    def blank(self, data: cp.ndarray, offsets: cp.ndarray, out: cp.ndarray) -> None:
        """Find the texts that have only white space, and set `out`, uint8 [N], to 1 for each.

        data: uint8 [bytes]. offsets: int64 [N + 1], where each text begins, and where the last ends.
        """
        kernel = find_blank_kernel()
        self._launch(kernel, -(-len(out) // kernel.threads), (data, offsets, np.int32(len(out)), out))

    def map_bytes(self, data: cp.ndarray, table: cp.ndarray, out: cp.ndarray) -> None:
        """Write the table's entry for each byte of data, uint8 [bytes]. table: uint8 [256], from `device_table`."""
        kernel = map_bytes_kernel()
        self._launch(kernel, -(-len(data) // kernel.threads), (data, np.int64(len(data)), table, out))

    def strip(self, data: cp.ndarray, offsets: cp.ndarray) -> Values:
        """Return the places of the texts without the white space at their ends. data, offsets: see `blank`."""
        kernel, count = strip_texts_kernel(), len(offsets) - 1
        found = Values(cp.empty(count, np.uint8), cp.empty(count, np.uint32), cp.empty(count, np.uint32))
        self._launch(kernel, -(-count // kernel.threads), (data, offsets, np.int32(count), *found))
        return found

    def _launch_warps(self, kernel: Kernel, warps: int, arguments: tuple[Any, ...]) -> None:
        self._launch(kernel, -(-warps * WARP // kernel.threads), arguments)

    def _launch(self, kernel: Kernel, blocks: int, arguments: tuple[Any, ...]) -> None:
        if blocks:
            function = load(kernel.file, kernel.expression, self._target)
            start(function, blocks, kernel.threads, arguments, cp.cuda.get_current_stream())


def zeros(count: int, kind: DTypeLike) -> cp.ndarray:
    """Return an array of zeros, which the current stream fills."""
    array = cp.empty(count, kind)
    clear(array, cp.cuda.get_current_stream())
    return array


def _or_null(array: cp.ndarray | None) -> Any:
    return np.uint64(0) if array is None else array


class SkippedLines(IntEnum):
    """The lines that are not records, numbered as in records/lines.cu. BLANK lines have only white space of JSON."""

    NONE = 0
    EMPTY = 1
    BLANK = 2


class LineRules(NamedTuple):
    """The rules for how the records of a format end.

    Attributes
    ----------
    skipped : SkippedLines
        The lines that are not records.
    most_crs : int
        How many CRs before an LF belong to the line end.
    quote, delimiter : int
        The characters of CSV, or `NOT_THERE` if the format has none.

    """

    skipped: SkippedLines
    most_crs: int = 1
    quote: int = NOT_THERE
    delimiter: int = NOT_THERE

    @property
    def dialect(self) -> NDArray[np.void]:
        """The argument `Dialect` of records/quotes.cuh, by value."""
        return np.array([(self.quote, self.delimiter)], "i4,i4").view("V8")


class LineEnds(NamedTuple):
    """The line ends of a block that are not within quotes, in spans of the block.

    Attributes
    ----------
    up_to : int32 [spans]
        The number of line ends up to the end of each span.
    insides : uint8 [spans + 1] or None
        Whether each span begins within quotes, and whether the block ends within quotes. None if there are no quotes.
    unclear : int32 [1]
        The number of spans for which this is not certain. If it is not 0, the line ends cannot be used.

    """

    up_to: cp.ndarray
    insides: cp.ndarray | None
    unclear: cp.ndarray


class Lines(NamedTuple):
    """The lines of a block.

    Attributes
    ----------
    begins, sizes : uint32 [lines]
        The first byte of each line in the block, and its number of bytes without the line end.
    is_record : uint8 [lines]
        0 for a line that is skipped.
    skipped : int32 [1]
        A counter that is increased by the number of skipped lines.

    """

    begins: cp.ndarray
    sizes: cp.ndarray
    is_record: cp.ndarray
    skipped: cp.ndarray


class Values(NamedTuple):
    """The places of the values of records, column by column.

    Attributes
    ----------
    kinds : uint8 [values]
        The kind of each value: `Kind` of records/values.cuh.
    begins, sizes : uint32 [values]
        The first byte of each value in the block, and its number of bytes there.

    """

    kinds: cp.ndarray
    begins: cp.ndarray
    sizes: cp.ndarray

    def part(self, first: int, last: int) -> Values:
        """Return the values from number `first` to before `last`."""
        return Values(*(array[first:last] for array in self))

    def record(self, records: int) -> NDArray[np.void]:
        """Return the argument `Values` of records/values.cuh, by value, for `records` records."""
        addresses = (array.data.ptr for array in self)
        columns = len(self.kinds) // max(records, 1)
        return np.array([(*addresses, records, columns)], "u8,u8,u8,i4,i4").view("V32")


class Odd(NamedTuple):
    """The records that are left to the host.

    Attributes
    ----------
    which : uint8 [N]
        1 for each record that is left to the host.
    count : int32 [1]
        A counter that is increased by the number of these records.

    """

    which: cp.ndarray
    count: cp.ndarray


class RecordsToRead(NamedTuple):
    """Records of a block that are not read yet, and the arrays for their values.

    Attributes
    ----------
    block : uint8 [bytes]
        The block.
    begins, sizes : uint32 [N]
        The places of the records. See `Lines`.
    longest : int
        The most bytes of a record that the GPU reads. Longer records are left to the host.
    values : Values
        The arrays for the values.
    odd : Odd
        The arrays for the records that are left to the host.

    """

    block: cp.ndarray
    begins: cp.ndarray
    sizes: cp.ndarray
    longest: int
    values: Values
    odd: Odd


class DeviceFields:
    """The fields that a job uses, on a GPU.

    Parameters
    ----------
    rules : LineRules
        The rules with the characters of the file.
    count : int
        The number of fields in a record.
    wanted : sequence of int
        The number of the field of each column, or `NOT_THERE`.

    Attributes
    ----------
    record : ndarray
        The argument `Fields` of records/csv.cuh, by value.

    """

    def __init__(self, rules: LineRules, count: int, wanted: Sequence[int]) -> None:
        self._wanted = device_table(np.array(wanted, np.int32))
        numbers = (rules.quote, rules.delimiter, count, b"", self._wanted.data.ptr)
        self.record = np.array([numbers], "i4,i4,i4,V4,u8").view("V24")


class DeviceKeys:
    """The keys that a job uses, on a GPU. record: the argument `Keys` of records/json.cuh, by value."""

    def __init__(self, keys: JsonKeys) -> None:
        tables: list[NDArray[Any]] = [keys.names, keys.first, keys.edges.view(np.uint8), keys.columns, keys.below]
        self._tables = [device_table(np.append(table, np.zeros(1, table.dtype))) for table in tables]
        numbers = (keys.texts, keys.needed, keys.is_every_key)
        addresses = [table.data.ptr for table in self._tables]
        self.record = np.array([(*addresses, *numbers, b"")], "u8,u8,u8,u8,u8,u4,u4,u1,V7").view("V56")


def device_table(content: NDArray[Any]) -> cp.ndarray:
    """Return a table on the current GPU. Ranges and files of a job share tables with the same content."""
    return _shared_table(cp.cuda.runtime.getDevice(), content.dtype.str, content.tobytes())


@lru_cache(maxsize=256)
def _shared_table(device: int, kind: str, content: bytes) -> cp.ndarray:
    # The caller may allocate in a workspace, whose memory the next block reuses. A table must stay.
    with cp.cuda.using_allocator(cp.get_default_memory_pool().malloc):
        table = cp.asarray(np.frombuffer(content, kind))
    cp.cuda.get_current_stream().synchronize()  # other streams do not wait for this one
    return table
