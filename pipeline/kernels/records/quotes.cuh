// Finds the bytes of a block that are within quotes. The host's reader (`Csv` in pipeline/source/formats/csv.py) is the
// specification. A quote that is the first byte of a field opens it. Within quotes, the next quote closes the field. It
// may also be the first of two quotes that stand for one, and then the second opens the field again. Any other quote is
// a character.
//
// Test: tests/kernels/test_csv_on_cpu.py.
#pragma once

#include "records/bytes.cuh"

// The characters of a CSV file, or -1 for one that it does not have.
struct Dialect {
    int quote, delimiter;
};

// The quotes among 32 bytes that open or close, and the bytes within quotes: from a quote that opens to the byte before
// the quote that closes.
struct Quoted {
    uint32 quotes, inside;
};

// Goes through bytes, 32 at a time.
struct QuoteReader {
    const Dialect dialect;
    uint32 is_inside;  // whether the last byte was within quotes: all bits or none
    uint32 may_open;   // whether a quote may open as the next byte: the first bit or none

    // there: the mask of the bytes that exist.
    __device__ __forceinline__ Quoted next(const LaneBytes& bytes, uint32 there) {
        if (dialect.quote < 0) return {0, 0};
        uint32 quotes = bytes_where(bytes, [&](uint8 c) { return c == dialect.quote; }) & there;
        const uint32 borders = bytes_where(bytes, [&](uint8 c) { return c == '\n' || c == dialect.delimiter; });
        uint32 inside = parity_so_far(quotes) ^ is_inside;
        // The first quote that would open in the middle of a field is a character, which changes all that follows it.
        while (const uint32 characters = quotes & inside & ~((borders | quotes) << 1 | may_open)) {
            quotes &= ~(characters & ~(characters - 1));
            inside = parity_so_far(quotes) ^ is_inside;
        }
        is_inside = (int32)inside >> (LANES - 1);
        may_open = (borders | quotes) >> (LANES - 1);
        return {quotes, inside};
    }
};

// Return the mask of the bytes that exist among 32, if `left` bytes are left.
__device__ __forceinline__ uint32 bytes_there(int64 left) { return bits_below((int)min((int64)LANES, left)); }
