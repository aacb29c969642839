"""Turns text that is already on a GPU into `Texts` over CuPy arrays: a column from Arrow's C device interface.

The interface is described at https://arrow.apache.org/docs/format/CDeviceDataInterface.html. The text stays where it
is. Only its offsets and its bitmap of nulls are copied to the host, where batches are planned.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, did_you_mean
from .base import Texts

_METHOD = "__arrow_c_device_array__"
_ON_CUDA, _ON_CUDA_HOST, _ON_CUDA_MANAGED = 2, 3, 13
_OFFSETS: dict[str, np.dtype[Any]] = {
    "u": np.dtype("i4"),
    "z": np.dtype("i4"),
    "U": np.dtype("i8"),
    "Z": np.dtype("i8"),
}
"""The type of the offsets of strings and bytes, by Arrow's format string."""


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _DeviceArray(ctypes.Structure):
    _fields_ = (
        ("array", _Array),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    )


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Column(NamedTuple):
    """A column of strings as its producer describes it. The address of a missing buffer is 0.

    Attributes
    ----------
    rows : int
        The number of rows in the column.
    offset : int
        The row of its buffers at which the column begins.
    nulls : int
        The number of nulls, or -1 if the producer has not counted them.
    validity : int
        The address of the bits that are set for rows that are not null.
    offsets : int
        The address of the offsets.
    data : int
        The address of the bytes of the texts.
    wide : dtype
        The type of an offset, int32 or int64.
    device : int
        The number of the GPU.
    event : int
        The address of a CUDA event to wait for, or 0.
    owner : Any
        An object that keeps the buffers alive.

    """

    rows: int
    offset: int
    nulls: int
    validity: int
    offsets: int
    data: int
    wide: np.dtype[Any]
    device: int
    event: int
    owner: Any


class OnGpu(NamedTuple):
    """N texts on a GPU, and whether each is null, [N]. Null texts are empty."""

    texts: Texts
    null: NDArray[np.bool_]


def texts_on_gpu(source: Any, column: str | None = None) -> OnGpu | None:
    """Return the texts of an object with Arrow's device interface, or None for other objects and those on the host.

    column: the name of the column, for a batch with several. Raises UsageError if the column is missing or does not
    have strings.
    """
    if type(source).__module__.partition(".")[0] == "cudf":
        source = (source if column is None else source[column]).to_pylibcudf()[0]
    if not hasattr(source, _METHOD):
        return None
    capsules = getattr(source, _METHOD)()
    is_on_gpu = _device_array(capsules).device_type in (_ON_CUDA, _ON_CUDA_HOST, _ON_CUDA_MANAGED)
    return _views(column_of(capsules, column)) if is_on_gpu else None


def _device_array(capsules: tuple[Any, Any]) -> _DeviceArray:
    return _DeviceArray.from_address(_pointer_in(capsules[1], b"arrow_device_array"))


def column_of(capsules: tuple[Any, Any], column: str | None = None) -> Column:
    """Return the description of a column from the device interface. Raises UsageError like `texts_on_gpu`."""
    schema, device = _Schema.from_address(_pointer_in(capsules[0], b"arrow_schema")), _device_array(capsules)
    array, offset = device.array, device.array.offset
    if schema.format == b"+s":
        names = [schema.children[i].contents.name.decode() for i in range(schema.n_children)]
        wanted = column or "text"
        if wanted not in names:
            there = f"there are: {', '.join(names) or 'none'}{did_you_mean(wanted, names)}"
            raise UsageError(f"no column {wanted!r}; {there}")
        at = names.index(wanted)
        schema, array = schema.children[at].contents, array.children[at].contents
        offset += array.offset
    kind = "dictionary" if schema.dictionary else schema.format.decode()
    if kind not in _OFFSETS:
        raise UsageError(f"the text on the GPU has Arrow's type {kind!r}: give strings with offsets (utf8, large_utf8)")
    validity, offsets, data = (array.buffers[i] or 0 for i in range(3))
    rows = device.array.length
    event = ctypes.c_void_p.from_address(device.sync_event).value or 0 if device.sync_event else 0
    return Column(
        rows, offset, array.null_count, validity, offsets, data, _OFFSETS[kind],
        device.device_id, event, capsules,
    )  # fmt: skip


def _views(column: Column) -> OnGpu:
    import cupy as cp

    def view(address: int, size: int) -> Any:
        memory = cp.cuda.UnownedMemory(address, size, column.owner, column.device)
        return cp.ndarray(size, np.uint8, cp.cuda.MemoryPointer(memory, 0))

    with cp.cuda.Device(column.device):
        if column.event:
            cp.cuda.runtime.eventSynchronize(column.event)
        end = column.offset + column.rows
        null = np.zeros(column.rows, np.bool_)
        if not column.rows:
            return OnGpu(Texts(np.empty(0, np.uint8), np.zeros(1, np.int64)), null)
        offsets = cp.asnumpy(view(column.offsets, (end + 1) * column.wide.itemsize)).view(column.wide)[column.offset :]
        if column.nulls and column.validity:
            bits = cp.asnumpy(view(column.validity, -(-end // 8)))
            null = np.unpackbits(bits, bitorder="little")[column.offset : end] == 0
        size = int(offsets[-1])
        data = view(column.data, size) if size else np.empty(0, np.uint8)
        return OnGpu(Texts(data, offsets.astype(np.int64)), null)
