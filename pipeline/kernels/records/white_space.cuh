// Finds white space in texts.
#pragma once

#include "common/utf8.cuh"

// Return whether Python and Arrow treat a code point as white space: Unicode's categories Zs, Zl and Zp, and the
// separators among the control characters.
__device__ __forceinline__ bool is_white_space(uint32 point) {
    return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20) || point == 0x85 || point == 0xa0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
           point == 0x202f || point == 0x205f || point == 0x3000;
}

// Return whether the character of `length` bytes at `at` is white space.
__device__ __forceinline__ bool is_space_at(const Article& text, int64 at, int length) {
    return is_white_space(length == 1 ? text.bytes[at] : code_point(text, at, length));
}

// Move `first` and `last`, the two ends of a text, past the white space at these ends.
__device__ __forceinline__ void trim(const Article& text, int64& first, int64& last) {
    while (first < last) {
        const int length = sequence_length(text, first);
        if (!is_space_at(text, first, length)) break;
        first += length;
    }
    while (last > first) {
        int64 at = last - 1;
        while (at > first && (text.bytes[at] & 0xc0) == 0x80) at--;
        if (!is_space_at(text, at, sequence_length(text, at))) break;
        last = at;
    }
}
