"""Descriptors for the copy engine of Hopper GPUs (TMA)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from ..errors import BroadsheetError


@lru_cache(maxsize=1024)
def tensor_map(pointer: int, shape: tuple[int, ...], box: tuple[int, ...]) -> NDArray[np.void]:
    """Return a descriptor of a C-contiguous array for the copy engine (TMA), 128 bytes as void128 [1].

    Kernels of `sm90/` get it by value. The swizzle has as many bytes as a row of a box, 128 or 64. The type of the
    numbers does not matter to a copy, so sizes are in bytes. Raises BroadsheetError if the driver rejects the sizes.

    pointer: the address of the array. shape, box: the sizes of the array and of what one copy moves, in bytes, with the
    outermost dimension first, as in NumPy. The copy engine expects the reverse order.
    """
    swizzles = driver.CUtensorMapSwizzle
    rank = len(shape)
    strides = [int(np.prod(shape[axis:])) for axis in range(rank - 1, 0, -1)]
    error, descriptor = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        rank,
        pointer,
        [driver.cuuint64_t(size) for size in reversed(shape)],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(size) for size in reversed(box)],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        {128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B, 64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B}[box[-1]],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise BroadsheetError(f"no tensor map of {list(shape)} in boxes of {list(box)}: {error.name}")
    value = np.zeros(1, "V128")
    value.view(np.uint64)[:] = np.array(descriptor.opaque, np.uint64)
    return value
