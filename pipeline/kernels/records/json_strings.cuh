// Decodes a JSON string: replaces its escapes by characters in UTF-8. Test: tests/kernels/test_json_on_cpu.py.
#pragma once

#include "records/json.cuh"

__device__ __forceinline__ int bytes_of_point(uint32 point) {
    return 1 + (point >= 0x80) + (point >= 0x800) + (point >= 0x10000);
}

// Return the code point of the valid escape that begins at `at`, or -1 for a low surrogate, which belongs to the escape
// before it.
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

__device__ __forceinline__ void write_utf8(uint32 point, int bytes, uint8* out) {
    if (bytes == 1) {
        out[0] = point;
        return;
    }
    out[0] = (0xf00 >> bytes & 0xff) | point >> 6 * (bytes - 1);
    for (int i = 1; i < bytes; i++) out[i] = 0x80 | (point >> 6 * (bytes - 1 - i) & 0x3f);
}

// The escapes among 32 bytes.
struct Escapes {
    uint32 begins;   // the backslashes that begin escapes
    uint32 within;   // the other bytes of escapes
    uint32 escaped;  // the bytes after these backslashes
};

// Finds escapes, 32 bytes at a time.
struct EscapeFinder {
    bool is_escaped = false;  // whether the next byte is escaped
    uint32 passed = 0;        // the next bytes that belong to an escape that began before them

    __device__ __forceinline__ Escapes next(const Article& value, int64 at, const LaneBytes& bytes) {
        const uint32 backslashes = bytes_where(bytes, [](uint8 c) { return c == '\\'; });
        const uint32 escaped = escaped_by(backslashes, is_escaped);
        const uint32 begins = backslashes & ~escaped;
        if (!begins && !passed) return {0, 0, escaped};
        const uint32 long_ones = escapes_where(
            value, at, begins, [](const Article& in, int64 from) { return in.bytes[from + 1] == 'u'; });
        uint64 within = passed | (uint64)begins << 1;
        for (int i = 2; i < 6; i++) within |= (uint64)long_ones << i;
        passed = (uint32)(within >> LANES);
        return {begins, (uint32)within, escaped};
    }
};

// Return how many bytes each of some escapes stands for. None of them counts as a character. `size(text, at)` returns
// this number, at most 7, for the escape at `at`.
template <typename Size>
__device__ __forceinline__ Meaning sizes_of(const Article& value, int64 at, uint32 escapes, Size size) {
    auto of_bit = [&](int bit) {
        return escapes_where(
            value, at, escapes, [&](const Article& in, int64 from) { return size(in, from) >> bit & 1; });
    };
    return {of_bit(0), of_bit(1), of_bit(2), 0};
}

// Goes through a string, 32 bytes at a time.
struct StringReader {
    const Article value;
    EscapeFinder finder;

    // Return the meaning of the bytes from `at` on.
    __device__ __forceinline__ Meaning next(int64 at) {
        const uint32 there = bits_below((int)min((int64)LANES, value.size - at));
        const LaneBytes bytes = load_bytes(value.bytes + at, value.size - at);
        const uint32 continuing = bytes_where(bytes, [](uint8 c) { return (c & 0xc0) == 0x80; });
        const Escapes escapes = finder.next(value, at, bytes);
        const uint32 plain = there & ~escapes.within & ~escapes.begins;
        if (!escapes.begins) return {plain, 0, 0, plain & ~continuing};
        Meaning meaning = sizes_of(value, at, escapes.begins, [](const Article& in, int64 from) {
            const int point = escaped_point(in, from);
            return point < 0 ? 0 : bytes_of_point(point);
        });
        meaning.begins = (plain & ~continuing) | meaning.bit_0 | meaning.bit_1 | meaning.bit_2;
        meaning.bit_0 |= plain;
        return meaning;
    }

    // Write the `bytes` bytes of UTF-8 for which the byte at `at` stands. A backslash begins an escape.
    __device__ __forceinline__ void write(int64 at, int bytes, uint8* out) const {
        if (value.bytes[at] == '\\') write_utf8(escaped_point(value, at), bytes, out);
        else out[0] = value.bytes[at];
    }
};
