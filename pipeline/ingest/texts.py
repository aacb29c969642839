"""Texts that are on a GPU from the moment they are read, as a `Chunk` holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cupy as cp
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..kernels.driver_calls import copy
from ..source.rows.chunk import OffHost, are_blank, buffers_of
from .workspace import lasting, workspace


@dataclass(frozen=True)
class GpuTexts:
    """N texts on a GPU (see `OffHost`). The GPU has finished writing `data` when this object is made.

    Attributes
    ----------
    data : cupy.ndarray
        uint8 [bytes], the texts one after another.
    offsets : ndarray
        int64 [N + 1], on the host: text i is ``data[offsets[i]:offsets[i + 1]]``.
    is_blank : ndarray
        bool [N], on the host: which texts hold nothing but white space.

    """

    data: cp.ndarray
    offsets: NDArray[np.int64]
    is_blank: NDArray[np.bool_]

    @property
    def nbytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    def __len__(self) -> int:
        return len(self.is_blank)

    def __getitem__(self, rows: slice) -> GpuTexts:
        """Return consecutive texts."""
        first, last, _ = rows.indices(len(self))
        return GpuTexts(self.data, self.offsets[first : last + 1], self.is_blank[first:last])

    def filter(self, which: pa.BooleanArray) -> pa.LargeBinaryArray:
        """Return a copy, on the host, of the texts for which `which`, bool [N], is true."""
        return self.on_host().filter(which)

    def joined(self, others: Sequence[OffHost | pa.LargeBinaryArray]) -> OffHost:
        """Return these texts followed by others, which may be on the host."""
        with self.data.device, workspace() as space:
            every = [self, *(_on_gpu(texts) for texts in others if len(texts))]
            data = lasting(sum(texts.nbytes for texts in every))
            offsets = np.zeros(1 + sum(map(len, every)), np.int64)
            row = at = 0
            for texts in every:
                begin, size = int(texts.offsets[0]), texts.nbytes
                copy(data.data.ptr + at, texts.data.data.ptr + begin, size, space.stream)
                offsets[row + 1 : row + 1 + len(texts)] = texts.offsets[1:] + (at - begin)
                row, at = row + len(texts), at + size
            space.settle()
        return GpuTexts(data, offsets, np.concatenate([texts.is_blank for texts in every]))

    def on_host(self) -> pa.LargeBinaryArray:
        """Return a copy of the texts on the host."""
        begin, end = int(self.offsets[0]), int(self.offsets[-1])
        buffers = [None, pa.py_buffer(self.offsets - begin), pa.py_buffer(cp.asnumpy(self.data[begin:end]))]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    def beginnings(self, rows: Sequence[int], size: int) -> list[bytes]:
        """Return the first `size` bytes of the texts of these rows."""
        bounds = [(int(self.offsets[i]), int(self.offsets[i + 1])) for i in rows]
        return [cp.asnumpy(self.data[begin : min(end, begin + size)]).tobytes() for begin, end in bounds]


def _on_gpu(texts: OffHost | pa.LargeBinaryArray) -> GpuTexts:
    """Return the texts on the current GPU."""
    if isinstance(texts, GpuTexts):
        return texts
    assert isinstance(texts, pa.Array)
    data, offsets = buffers_of(texts)
    begin = offsets[0]
    return GpuTexts(cp.asarray(data[begin : offsets[-1]]), offsets - begin, are_blank(texts))
