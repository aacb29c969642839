// Rows of 128 bytes in shared memory, whose 16-byte pieces are permuted by the row number (an XOR), so that the eight rows
// of a matrix lie in different banks, whichever of them it begins with.
#pragma once
#include "common/types.cuh"

constexpr int ROW_BYTES = 128, PIECES = ROW_BYTES / 16;

// Byte offset of a piece of a row.
__device__ __forceinline__ uint32 swizzled(int row, int piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }
