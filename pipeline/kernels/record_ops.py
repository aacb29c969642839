"""From the bytes of files to the values of their records, on a GPU: launches of the kernels in `records/`.

Arrays are CuPy's, and kernels run on its current stream. The results are views of memory of its pool.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from .catalog import (
    WARP,
    Kernel,
    count_line_ends_kernel,
    find_blank_kernel,
    find_lines_kernel,
    measure_values_kernel,
    place_line_ends_kernel,
    read_objects_kernel,
    write_values_kernel,
)
from .json_keys import JsonKeys
from .ops import load

NULL, PLAIN = 1, 3
"""Kinds of values, as records/json.cuh numbers them."""

_SPAN_BYTES = 2048
"""Bytes of a block in which one warp looks for line ends."""


class RecordOperations:
    """The operations on a GPU of one architecture. They launch kernels, and wait for none.

    Parameters
    ----------
    device : cupy.cuda.Device
        The GPU.

    """

    def __init__(self, device: cp.cuda.Device) -> None:
        self._target = f"sm_{device.compute_capability}"

    def lines(self, block: cp.ndarray, count: int, skip_blank: bool, out: Lines) -> None:
        """Find the lines of a block.

        Parameters
        ----------
        block : uint8 [bytes]
            The block, which ends with a line end.
        count : int
            How many line ends it has.
        skip_blank : bool
            Whether lines of white space are no records.
        out : Lines
            Where the lines go, those too that are no records.

        """
        size, span, spans = np.int64(len(block)), np.int32(_SPAN_BYTES), -(-len(block) // _SPAN_BYTES)
        counts, ends = cp.empty(spans, np.int32), cp.empty(count, np.uint32)
        self._launch_warps(count_line_ends_kernel(), spans, (block, size, span, counts))
        before = cp.cumsum(counts, dtype=np.int32)
        self._launch_warps(place_line_ends_kernel(), spans, (block, size, span, counts, before, ends))
        kernel = find_lines_kernel()
        arguments = (block, ends, np.int32(count), np.uint8(skip_blank), *out)
        self._launch(kernel, -(-count // kernel.threads), arguments)

    def objects(
        self,
        block: cp.ndarray,
        begins: cp.ndarray,
        sizes: cp.ndarray,
        longest: int,
        keys: DeviceKeys,
        values: Values,
        odd: Odd,
    ) -> None:
        """Find the values of JSON objects.

        Parameters
        ----------
        block : uint8 [bytes]
            The block.
        begins, sizes : uint32 [N]
            As of `Lines`.
        longest : int
            The most bytes of a record that is not left to the host.
        keys : DeviceKeys
            The keys of the columns.
        values : Values
            Where the values go.
        odd : Odd
            Where the records that are left to the host are noted.

        """
        records = len(begins)
        addresses = (array.data.ptr for array in values)
        found = np.array([(*addresses, records, keys.columns)], "u8,u8,u8,i4,i4").view("V32")
        arguments = (block, begins, sizes, np.int32(records), np.uint32(longest), keys.record, found, *odd)
        self._launch_warps(read_objects_kernel(), records, arguments)

    def measure(
        self, block: cp.ndarray, values: Values, most: int = 0, characters: cp.ndarray | None = None
    ) -> cp.ndarray:
        """Where the text of each value goes, and where the last one ends: int64 [values + 1].

        Parameters
        ----------
        block : uint8 [bytes]
            The block.
        values : Values
            Where the values are.
        most : int
            How many characters of a value are kept; 0 for all.
        characters : int64 [values], optional
            Where the characters of the whole values are written.

        """
        count = len(values.kinds)
        offsets = cp.zeros(count + 1, np.int64)
        lengths = cp.empty(count, np.int64)
        counted = np.uint64(0) if characters is None else characters
        arguments = (block, *values, np.int64(count), np.int64(most), lengths, counted)
        self._launch_warps(measure_values_kernel(), count, arguments)
        cp.cumsum(lengths, out=offsets[1:])
        return offsets

    def write(self, block: cp.ndarray, values: Values, offsets: cp.ndarray, out: cp.ndarray) -> None:
        """Write each value as text to `out`, uint8 [bytes]. offsets: what `measure` returned."""
        count = len(values.kinds)
        self._launch_warps(write_values_kernel(), count, (block, *values, np.int64(count), offsets, out))

    def blank(self, data: cp.ndarray, offsets: cp.ndarray, out: cp.ndarray) -> None:
        """Find the texts that hold nothing but white space: `out`, uint8 [N], is 1 for each.

        data: uint8 [bytes]. offsets: int64 [N + 1], where each text begins, and where the last ends.
        """
        kernel = find_blank_kernel()
        self._launch(kernel, -(-len(out) // kernel.threads), (data, offsets, np.int32(len(out)), out))

    def _launch_warps(self, kernel: Kernel, warps: int, arguments: tuple[Any, ...]) -> None:
        self._launch(kernel, -(-warps * WARP // kernel.threads), arguments)

    def _launch(self, kernel: Kernel, blocks: int, arguments: tuple[Any, ...]) -> None:
        if blocks:
            load(kernel.file, kernel.expression, self._target)((blocks,), (kernel.threads,), arguments)


class Lines(NamedTuple):
    """The lines of a block.

    Attributes
    ----------
    begins, sizes : uint32 [lines]
        The first byte of each in the block, and its bytes without the line end.
    is_record : uint8 [lines]
        0 for a blank line where those are no records.
    blank : int32 [1]
        Is increased by how many these are.

    """

    begins: cp.ndarray
    sizes: cp.ndarray
    is_record: cp.ndarray
    blank: cp.ndarray


class Values(NamedTuple):
    """Where the values of records are, column by column.

    Attributes
    ----------
    kinds : uint8 [values]
        What each value is: `Kind` of records/json.cuh.
    begins, sizes : uint32 [values]
        The first byte of each in the block, and its bytes there.

    """

    kinds: cp.ndarray
    begins: cp.ndarray
    sizes: cp.ndarray

    def part(self, first: int, last: int) -> Values:
        """The values from number `first` to before `last`."""
        return Values(*(array[first:last] for array in self))


class Odd(NamedTuple):
    """The records that are left to the host.

    Attributes
    ----------
    which : uint8 [N]
        1 for each of them.
    count : int32 [1]
        Is increased by how many these are.

    """

    which: cp.ndarray
    count: cp.ndarray


class DeviceKeys:
    """The keys that a job uses, on a GPU. columns: how many. record: records/json.cuh's `Keys`, by value."""

    def __init__(self, keys: JsonKeys) -> None:
        self.columns = int(np.max(keys.columns, initial=-1)) + 1
        tables: list[NDArray[Any]] = [keys.names, keys.first, keys.edges.view(np.uint8), keys.columns, keys.below]
        self._tables = [cp.asarray(np.append(table, np.zeros(1, table.dtype))) for table in tables]
        numbers = (keys.texts, keys.needed, keys.is_every_key)
        addresses = [table.data.ptr for table in self._tables]
        self.record = np.array([(*addresses, *numbers, b"")], "u8,u8,u8,u8,u8,u4,u4,u1,V7").view("V56")
