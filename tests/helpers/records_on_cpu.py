"""The kernels that find records and their values, compiled for the CPU.

They are plain C++ except for what the lanes of a warp share, for which `tests/kernels/on_cpu` has its own version.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.kernels.compile import FOLDER

COMPILER = shutil.which("c++")

_SOURCE = """
#include "records/csv.cu"
#include "records/join.cu"
#include "records/json.cu"
#include "records/lines.cu"
#include "records/texts.cu"
#include "records/values.cu"
template <typename Work> void each_warp(int64 count, Work work) {
    for (number_of_warp = 0; number_of_warp < count; number_of_warp++) work();
}
extern "C" {
void changes(const uint8* block, int64 size, int span, int spans, const Dialect* dialect, uint8* changes,
             int* unclear) {
    each_warp(spans, [&] { find_changes(block, size, span, spans, *dialect, changes, unclear); });
}
void insides(const uint8* changes, int spans, uint8* insides) {
    each_warp(1, [&] { find_insides(changes, spans, insides); });
}
void line_ends(const uint8* block, int64 size, int span, int spans, const Dialect* dialect, const uint8* insides,
               int* counts) {
    each_warp(spans, [&] { count_line_ends(block, size, span, spans, *dialect, insides, counts); });
}
void place(const uint8* block, int64 size, int span, int spans, const Dialect* dialect, const uint8* insides,
           const int* before, uint32* ends) {
    each_warp(spans, [&] { place_line_ends(block, size, span, spans, *dialect, insides, before, ends); });
}
void lines(const uint8* block, const uint32* ends, int lines, uint32 most_crs, uint8 skipped, uint32* begins,
           uint32* sizes, uint8* is_record, int* skipped_lines) {
    for (threadIdx.x = 0; threadIdx.x < lines; threadIdx.x++)
        find_lines(block, ends, lines, most_crs, (SkippedLines)skipped, begins, sizes, is_record, skipped_lines);
}
void objects(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
             const Keys* keys, const Values* values, uint8* is_odd, int* odd) {
    each_warp(records, [&] { read_objects(block, begins, sizes, records, longest, *keys, *values, is_odd, odd); });
}
void repeated_keys(const uint8* block, const Values* values, uint8* is_odd, int* odd) {
    each_warp(values->records, [&] { refuse_repeated_keys(block, *values, is_odd, odd); });
}
void fields(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
            const Fields* fields, const Values* values, uint8* is_odd, int* odd) {
    each_warp(records, [&] { read_fields(block, begins, sizes, records, longest, *fields, *values, is_odd, odd); });
}
void measure_all(const uint8* block, const uint8* kinds, const uint32* begins, const uint32* sizes, int64 count,
                 int quote, int64 most, int64* lengths, int64* characters) {
    each_warp(count, [&] { measure_values(block, kinds, begins, sizes, count, quote, most, lengths, characters); });
}
void write_all(const uint8* block, const uint8* kinds, const uint32* begins, const uint32* sizes, int64 count,
               int quote, const int64* offsets, uint8* out) {
    each_warp(count, [&] { write_values(block, kinds, begins, sizes, count, quote, offsets, out); });
}
void join(const uint8* data, const int64* offsets, int records, int columns, uint8* out, uint8* kinds, uint32* begins,
          uint32* sizes) {
    each_warp(records, [&] { join_texts(data, offsets, records, columns, out, kinds, begins, sizes); });
}
void trim(const uint8* out, int records, uint32* begins, uint32* sizes) {
    for (threadIdx.x = 0; threadIdx.x < records; threadIdx.x++) trim_texts(out, records, begins, sizes);
}
void map_all(const uint8* data, int64 size, const uint8* table, uint8* out) {
    for (threadIdx.x = 0; threadIdx.x < size; threadIdx.x++) map_bytes(data, size, table, out);
}
void strip_all(const uint8* data, const int64* offsets, int texts, uint8* kinds, uint32* begins, uint32* sizes) {
    for (threadIdx.x = 0; threadIdx.x < texts; threadIdx.x++) strip_texts(data, offsets, texts, kinds, begins, sizes);
}
void blank(const uint8* data, const int64* offsets, int texts, uint8* out) {
    for (threadIdx.x = 0; threadIdx.x < texts; threadIdx.x++) find_blank(data, offsets, texts, out);
}
}
"""


class _Values(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kinds", "begins", "sizes")),
        ("records", ctypes.c_int),
        ("columns", ctypes.c_int),
    )


class Read(NamedTuple):
    """What the kernels read from a record: a value for each column, and the number of characters in the text.

    The values are None where the kernels leave the record to the host.
    """

    values: list[str | None] | None
    characters: int


def compiled(folder: Path) -> ctypes.CDLL:
    """Compile the kernels into a library in this folder, and load it."""
    (folder / "it.cpp").write_text(_SOURCE)
    on_cpu = Path(__file__).parents[1] / "kernels" / "on_cpu"
    command = [str(COMPILER), "-std=c++17", "-O2", "-shared", "-fPIC", "-I", str(on_cpu), "-I", str(FOLDER), "-o"]
    subprocess.run([*command, str(folder / "it.so"), str(folder / "it.cpp")], check=True)
    return ctypes.CDLL(str(folder / "it.so"))


def at(array: NDArray | None) -> ctypes.c_void_p:
    """Return the address of an array, or a null pointer for None."""
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


class Finding:
    """Records whose values a kernel finds.

    Parameters
    ----------
    library : CDLL
        The kernels.
    block, begins, sizes : ndarray
        uint8: the block. uint32: where its records begin, and their sizes.
    columns : int
        How many columns there are, those of texts first.

    """

    def __init__(
        self, library: ctypes.CDLL, block: NDArray, begins: NDArray, sizes: NDArray, columns: int, longest: int
    ) -> None:
        self.library, self.block, self.begins, self.sizes = library, block, begins, sizes
        self.rows, self.columns, self.longest = len(begins), columns, longest
        count = self.rows * columns
        # Values that no kernel has written stand out.
        self.kinds = np.full(count, 2, np.uint8)
        self.firsts, self.longs = np.zeros(count, np.uint32), np.full(count, 3, np.uint32)
        self.is_odd, self.odd = np.full(self.rows, 7, np.uint8), np.zeros(1, np.int32)

    def find(self, kernel: str, wanted: ctypes.Structure) -> None:
        """Have a kernel find the values."""
        values = _Values(*(a.ctypes.data for a in (self.kinds, self.firsts, self.longs)), self.rows, self.columns)
        records = (at(self.block), at(self.begins), at(self.sizes), self.rows, self.longest)
        noted = (at(self.is_odd), at(self.odd))
        getattr(self.library, kernel)(*records, ctypes.byref(wanted), ctypes.byref(values), *noted)
        self.library.repeated_keys(at(self.block), ctypes.byref(values), *noted)
        assert self.odd[0] == self.is_odd.sum()

    def read(self, most: int, quote: int = -1, texts: int = 1) -> list[Read]:
        """Return the values of each record as texts: the joined text, then the other columns.

        The text is the first `texts` columns, joined and cut to `most` characters.
        """
        values = (self.kinds, self.firsts, self.longs)
        block, joined = self.block, tuple(array[: texts * self.rows] for array in values)
        if texts > 1:
            block, joined = self._joined(joined, quote, texts)
        characters = np.zeros(self.rows, np.int64)
        found = self._written(block, joined, quote, most, characters)
        found += self._written(self.block, tuple(array[texts * self.rows :] for array in values), quote)
        of_row = [found[row :: self.rows] for row in range(self.rows)]
        return [Read(None if self.is_odd[i] else of_row[i], int(characters[i])) for i in range(self.rows)]

    def _measured(
        self, block: NDArray, values: tuple[NDArray, ...], quote: int, most: int, characters: NDArray | None
    ) -> NDArray:
        lengths = np.zeros(len(values[0]), np.int64)
        numbers = (ctypes.c_int64(len(lengths)), quote, ctypes.c_int64(most))
        self.library.measure_all(at(block), *map(at, values), *numbers, at(lengths), at(characters))
        return np.cumsum(np.append(0, lengths))

    def _bytes(self, block: NDArray, values: tuple[NDArray, ...], quote: int, offsets: NDArray) -> NDArray:
        out = np.zeros(int(offsets[-1]), np.uint8)
        number = ctypes.c_int64(len(values[0]))
        self.library.write_all(at(block), *map(at, values), number, quote, at(offsets), at(out))
        return out

    def _written(
        self,
        block: NDArray,
        values: tuple[NDArray, ...],
        quote: int,
        most: int = 0,
        characters: NDArray | None = None,
    ) -> list[str | None]:
        offsets = self._measured(block, values, quote, most, characters)
        data = self._bytes(block, values, quote, offsets).tobytes()
        texts = (data[begin:end].decode() for begin, end in pairwise(offsets.tolist()))
        return [text if kind >= 2 else None for text, kind in zip(texts, values[0], strict=True)]

    def _joined(self, values: tuple[NDArray, ...], quote: int, columns: int) -> tuple[NDArray, tuple[NDArray, ...]]:
        offsets = self._measured(self.block, values, quote, 0, None)
        data = self._bytes(self.block, values, quote, offsets)
        assert len(data) <= len(self.block)
        out = np.full(len(self.block) + self.rows * (columns - 1), ord("?"), np.uint8)
        joined = tuple(np.zeros(self.rows, kind) for kind in (np.uint8, np.uint32, np.uint32))
        self.library.join(at(data), at(offsets), self.rows, columns, at(out), *map(at, joined))
        self.library.trim(at(out), self.rows, *map(at, joined[1:]))
        return out, joined
