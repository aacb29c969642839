"""The kernels that find records and their values, compiled for the CPU.

They are plain C++ but for what the lanes of a warp share, and `tests/kernels/on_cpu` has another version of that.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.kernels.compile import FOLDER

COMPILER = shutil.which("c++")

_SOURCE = """
#include "records/csv.cu"
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
        find_lines(block, ends, lines, most_crs, (Skipped)skipped, begins, sizes, is_record, skipped_lines);
}
void objects(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
             const Keys* keys, const Values* values, uint8* is_odd, int* odd) {
    each_warp(records, [&] { read_objects(block, begins, sizes, records, longest, *keys, *values, is_odd, odd); });
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
    """What the kernels say of a record: a value for each column, and the characters of the text; None where they leave
    it to the host.
    """

    values: list[str | None] | None
    characters: int


def compiled(folder: Path) -> ctypes.CDLL:
    """The kernels, as a library in a folder."""
    (folder / "it.cpp").write_text(_SOURCE)
    on_cpu = Path(__file__).parents[1] / "kernels" / "on_cpu"
    command = [str(COMPILER), "-std=c++17", "-O2", "-shared", "-fPIC", "-I", str(on_cpu), "-I", str(FOLDER), "-o"]
    subprocess.run([*command, str(folder / "it.so"), str(folder / "it.cpp")], check=True)
    return ctypes.CDLL(str(folder / "it.so"))


def at(array: NDArray | None) -> ctypes.c_void_p:
    """Where an array is; null where there is none."""
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


class Finding:
    """Records whose values a kernel is to find.

    Parameters
    ----------
    library : CDLL
        The kernels.
    block, begins, sizes : ndarray
        uint8, the block; uint32, its records.
    columns : int
        How many columns there are, the first of which is that of the text.

    """

    def __init__(
        self, library: ctypes.CDLL, block: NDArray, begins: NDArray, sizes: NDArray, columns: int, longest: int
    ) -> None:
        self.library, self.block, self.begins, self.sizes = library, block, begins, sizes
        self.rows, self.columns, self.longest = len(begins), columns, longest
        count = self.rows * columns
        # What nobody has written is seen.
        self.kinds = np.full(count, 2, np.uint8)
        self.firsts, self.longs = np.zeros(count, np.uint32), np.full(count, 3, np.uint32)
        self.is_odd, self.odd = np.full(self.rows, 7, np.uint8), np.zeros(1, np.int32)

    def find(self, kernel: str, wanted: ctypes.Structure) -> None:
        """Have a kernel find the values."""
        values = _Values(*(a.ctypes.data for a in (self.kinds, self.firsts, self.longs)), self.rows, self.columns)
        records = (at(self.block), at(self.begins), at(self.sizes), self.rows, self.longest)
        noted = (at(self.is_odd), at(self.odd))
        getattr(self.library, kernel)(*records, ctypes.byref(wanted), ctypes.byref(values), *noted)
        assert self.odd[0] == self.is_odd.sum()

    def read(self, most: int, quote: int = -1) -> list[Read]:
        """The values as texts; of that of the text column, up to `most` characters."""
        count, long = len(self.kinds), ctypes.c_int64
        lengths, characters = np.zeros(count, np.int64), np.zeros(self.rows, np.int64)
        texts, others = slice(self.rows), slice(self.rows, count)
        for part, kept, counted in ((texts, most, characters), (others, 0, None)):
            values = [at(array[part]) for array in (self.kinds, self.firsts, self.longs)]
            numbers = (long(len(self.kinds[part])), quote, long(kept))
            self.library.measure_all(at(self.block), *values, *numbers, at(lengths[part]), at(counted))
        offsets = np.cumsum(np.append(0, lengths))
        out = np.zeros(int(offsets[-1]), np.uint8)
        values = [at(array) for array in (self.kinds, self.firsts, self.longs)]
        self.library.write_all(at(self.block), *values, long(count), quote, at(offsets), at(out))
        data = out.tobytes()
        found = [data[offsets[i] : offsets[i + 1]].decode() if self.kinds[i] >= 2 else None for i in range(count)]
        of_row = [[found[column * self.rows + i] for column in range(self.columns)] for i in range(self.rows)]
        return [Read(None if self.is_odd[i] else of_row[i], int(characters[i])) for i in range(self.rows)]
