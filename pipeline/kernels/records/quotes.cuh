// Which bytes of a block are within quotes. A quote opens a field or closes it, and two within a field stand for one: so
// a byte is within quotes where the number of quotes up to it is odd. That holds as long as no quote is misplaced.
#pragma once

#include "records/bytes.cuh"

// The characters of a CSV file; -1 where there is none.
struct Dialect {
    int quote, delimiter;
};

// Of 32 bytes, those that are quotes, and those within quotes: from one that opens to before the one that closes.
struct Quoted {
    uint32 quotes, inside;
};

// Goes through bytes, 32 at a time.
struct QuoteReader {
    const int quote;
    uint32 is_inside;  // whether the last byte was within quotes: all bits or none

    // there: which of the bytes there are.
    __device__ __forceinline__ Quoted next(const LaneBytes& bytes, uint32 there) {
        const uint32 quotes = bytes_where(bytes, [&](uint8 c) { return c == quote; }) & there;
        const uint32 inside = parity_so_far(quotes) ^ is_inside;
        is_inside = (int32)inside >> (LANES - 1);
        return {quotes, inside};
    }
};

// Which of 32 bytes there are, if `left` bytes are left.
__device__ __forceinline__ uint32 bytes_there(int64 left) { return bits_below((int)min((int64)LANES, left)); }

// Whether a quote neither begins nor ends a field, nor is one of two that stand for one. opens: whether the number of
// quotes before it is even. Then the byte before it is outside of quotes, or the quote that would have closed the field.
__device__ __forceinline__ bool is_misplaced(const uint8* block, int64 size, int64 at, bool opens, Dialect dialect) {
    if (opens && !at) return false;
    if (!opens && at + 1 == size) return true;
    const uint8 beside = block[opens ? at - 1 : at + 1];
    if (!opens && beside == '\r') return at + 2 == size || block[at + 2] != '\n';
    return beside != '\n' && beside != dialect.quote && beside != dialect.delimiter;
}
