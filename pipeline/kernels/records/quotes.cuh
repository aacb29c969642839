// Which bytes of a block are within quotes, as the host's reader has it (`Csv` in pipeline/source/formats/csv.py). A quote
// that is the first byte of a field opens it. Within quotes, the next quote closes the field, or is the first of two that
// stand for one, of which the second one opens the field again. Any other quote is a character.
#pragma once

#include "records/bytes.cuh"

// The characters of a CSV file; -1 where there is none.
struct Dialect {
    int quote, delimiter;
};

// Of 32 bytes, the quotes that open or close, and the bytes within quotes: from one that opens to before the one that
// closes.
struct Quoted {
    uint32 quotes, inside;
};

// Goes through bytes, 32 at a time.
struct QuoteReader {
    const Dialect dialect;
    uint32 is_inside;  // whether the last byte was within quotes: all bits or none
    uint32 may_open;   // whether a quote may open as the next byte: the first bit or none

    // there: which of the bytes there are.
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

// Which of 32 bytes there are, if `left` bytes are left.
__device__ __forceinline__ uint32 bytes_there(int64 left) { return bits_below((int)min((int64)LANES, left)); }
