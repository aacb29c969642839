// Writes an object or array as Python's `json.dumps(value, ensure_ascii=False)` does, except that the digits of numbers
// stay as they are. The host writes kept values in the same way: `_written` in pipeline/source/formats/jsonl.py.
//
// A space follows each comma and each colon, and there is no other white space outside strings. In strings, characters
// stay as they are, except those that JSON must escape. Test: tests/kernels/test_json_on_cpu.py.
#pragma once

#include "records/json_strings.cuh"

// Return the letter of the two-character escape for a character, or 0 if there is none.
__device__ __forceinline__ uint8 short_escape(uint32 point) {
    switch (point) {
        case '"': return '"';
        case '\\': return '\\';
        case '\b': return 'b';
        case '\f': return 'f';
        case '\n': return 'n';
        case '\r': return 'r';
        case '\t': return 't';
        default: return 0;
    }
}

__device__ __forceinline__ int bytes_in_string(uint32 point) {
    if (short_escape(point)) return 2;
    return point < ' ' ? 6 : bytes_of_point(point);  // \u00XX
}

__device__ __forceinline__ void write_in_string(uint32 point, int bytes, uint8* out) {
    const uint8 letter = short_escape(point);
    if (!letter && point >= ' ') {
        write_utf8(point, bytes, out);
        return;
    }
    out[0] = '\\';
    out[1] = letter ? letter : 'u';
    if (letter) return;
    out[2] = out[3] = '0';
    out[4] = '0' + (point >> 4);
    out[5] = (point & 15) + ((point & 15) < 10 ? '0' : 'a' - 10);
}

// Goes through an object or array, 32 bytes at a time.
struct NestedReader {
    const Article value;
    EscapeFinder finder;
    uint32 is_in_string = 0;  // whether the last byte was in a string: all bits or none

    // Return the meaning of the bytes from `at` on.
    __device__ __forceinline__ Meaning next(int64 at) {
        const uint32 there = bits_below((int)min((int64)LANES, value.size - at));
        const LaneBytes bytes = load_bytes(value.bytes + at, value.size - at);
        const Escapes escapes = finder.next(value, at, bytes);
        const uint32 quotes = bytes_where(bytes, [](uint8 c) { return c == '"'; }) & ~escapes.escaped;
        const uint32 in_string = parity_so_far(quotes) ^ is_in_string;  // from the quote that opens to the byte before the other
        is_in_string = (int32)in_string >> (LANES - 1);
        const uint32 outside = ~in_string & ~quotes;
        const uint32 spaces = bytes_where(bytes, is_space) & outside;
        const uint32 plain = there & ~escapes.within & ~escapes.begins & ~spaces;
        const uint32 separators = bytes_where(bytes, [](uint8 c) { return c == ',' || c == ':'; }) & outside & plain;
        Meaning meaning{0, 0, 0, 0};
        if (escapes.begins)
            meaning = sizes_of(value, at, escapes.begins, [](const Article& in, int64 from) {
                const int point = escaped_point(in, from);
                return point < 0 ? 0 : bytes_in_string(point);
            });
        meaning.bit_0 |= plain & ~separators;
        meaning.bit_1 |= separators;
        return meaning;
    }

    // Write the `bytes` bytes for which the byte at `at` stands. A backslash begins an escape.
    __device__ __forceinline__ void write(int64 at, int bytes, uint8* out) const {
        if (value.bytes[at] == '\\') {
            write_in_string(escaped_point(value, at), bytes, out);
            return;
        }
        out[0] = value.bytes[at];
        if (bytes == 2) out[1] = ' ';
    }
};
