// Places rows of 128 bytes in shared memory. An XOR with the row number permutes the 16-byte pieces of a row, so that
// the eight rows of a matrix are in different banks, whichever row it begins with.
#pragma once
#include "common/types.cuh"

constexpr int ROW_BYTES = 128, PIECES = ROW_BYTES / 16;

// Return the byte offset of a piece of a row.
__device__ __forceinline__ uint32 swizzled(int row, int piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }
