// What a JSON string says: its characters in UTF-8, in place of its escapes.
#pragma once

#include "records/json.cuh"

__device__ __forceinline__ int bytes_of_point(uint32 point) {
    return 1 + (point >= 0x80) + (point >= 0x800) + (point >= 0x10000);
}

// The code point of the valid escape that begins at `at`; -1 for a low surrogate, which is a part of what is before it.
__device__ __forceinline__ int escaped_point(const Article& string, int64 at) {
    switch (string.bytes[at + 1]) {
        case 'b': return '\b';
        case 'f': return '\f';
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        case 'u': break;
        default: return string.bytes[at + 1];
    }
    const int unit = code_unit(string, at);
    if (is_low_surrogate(unit)) return -1;
    if (!is_high_surrogate(unit)) return unit;
    return 0x10000 + ((unit - 0xd800) << 10) + (code_unit(string, at + 6) - 0xdc00);
}

// Goes through a string, 32 bytes at a time.
struct StringReader {
    const Article value;
    bool is_escaped = false;  // whether the next byte is
    uint32 passed = 0;        // which of the next bytes an escape before them has passed

    // What the bytes from `at` on stand for.
    __device__ __forceinline__ Meaning next(int64 at) {
        const uint32 there = bits_below((int)min((int64)LANES, value.size - at));
        const LaneBytes bytes = load_bytes(value.bytes + at, value.size - at);
        const uint32 backslashes = lanes_where([&](int k) { return bytes[k] == '\\'; });
        const uint32 continuing = lanes_where([&](int k) { return (bytes[k] & 0xc0) == 0x80; });
        const uint32 escaped = escaped_by(backslashes, is_escaped);
        const uint32 escapes = backslashes & ~escaped;
        if (!escapes && !passed) return {there, 0, 0, there & ~continuing};
        const uint32 long_ones = escapes_where(
            value, at, escapes, [](const Article& in, int64 from) { return in.bytes[from + 1] == 'u'; });
        uint64 within = passed | (uint64)escapes << 1;
        for (int i = 2; i < 6; i++) within |= (uint64)long_ones << i;
        passed = (uint32)(within >> LANES);
        const uint32 plain = there & ~(uint32)within & ~escapes;
        auto of_size = [&](int bit) {
            return lanes_where([&](int k) {
                if (!(escapes >> k & 1)) return false;
                const int point = escaped_point(value, at + k);
                return point >= 0 && (bytes_of_point(point) >> bit & 1);
            });
        };
        const uint32 bit_0 = of_size(0), bit_1 = of_size(1), bit_2 = of_size(2);
        return {plain | bit_0, bit_1, bit_2, (plain & ~continuing) | bit_0 | bit_1 | bit_2};
    }

    // Write the `bytes` bytes of UTF-8 for which the byte at `at` stands. A backslash there begins an escape.
    __device__ __forceinline__ void write(int64 at, int bytes, uint8* out) const {
        if (value.bytes[at] != '\\') {
            out[0] = value.bytes[at];
            return;
        }
        const uint32 point = escaped_point(value, at);
        if (bytes == 1) {
            out[0] = point;
            return;
        }
        out[0] = (0xf00 >> bytes & 0xff) | point >> 6 * (bytes - 1);
        for (int i = 1; i < bytes; i++) out[i] = 0x80 | (point >> 6 * (bytes - 1 - i) & 0x3f);
    }
};
