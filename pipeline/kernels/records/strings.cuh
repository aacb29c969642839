// What a JSON string says: its characters in UTF-8, in place of its escapes.
#pragma once

#include "records/json.cuh"

// What each of 32 bytes of a string stands for. Bytes between an escape's first one and its end stand for nothing.
struct Meaning {
    uint32 bit_0, bit_1, bit_2;  // of how many bytes of UTF-8 a byte stands for, 0 to 4
    uint32 begins;               // which of these begin a character
    uint32 escapes;              // where an escape begins

    // How many bytes of UTF-8 the bytes of a mask stand for.
    __device__ __forceinline__ int bytes_of(uint32 mask) const {
        return count_bits(bit_0 & mask) + 2 * count_bits(bit_1 & mask) + 4 * count_bits(bit_2 & mask);
    }
};

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
    const Article string;
    bool is_escaped = false;  // whether the next byte is
    uint32 passed = 0;        // which of the next bytes an escape before them has passed

    // What the bytes from `at` on stand for.
    __device__ __forceinline__ Meaning next(int64 at) {
        const uint32 there = bits_below((int)min((int64)LANES, string.size - at));
        const LaneBytes bytes = load_bytes(string.bytes + at, string.size - at);
        const uint32 backslashes = lanes_where([&](int k) { return bytes[k] == '\\'; });
        const uint32 continuing = lanes_where([&](int k) { return (bytes[k] & 0xc0) == 0x80; });
        const uint32 escaped = escaped_by(backslashes, is_escaped);
        const uint32 escapes = backslashes & ~escaped;
        if (!escapes && !passed) return {there, 0, 0, there & ~continuing, 0};
        const uint32 long_ones = escapes_where(
            string, at, escapes, [](const Article& in, int64 from) { return in.bytes[from + 1] == 'u'; });
        uint64 within = passed | (uint64)escapes << 1;
        for (int i = 2; i < 6; i++) within |= (uint64)long_ones << i;
        passed = (uint32)(within >> LANES);
        const uint32 plain = there & ~(uint32)within & ~escapes;
        auto of_size = [&](int bit) {
            return lanes_where([&](int k) {
                if (!(escapes >> k & 1)) return false;
                const int point = escaped_point(string, at + k);
                return point >= 0 && (bytes_of_point(point) >> bit & 1);
            });
        };
        const uint32 bit_0 = of_size(0), bit_1 = of_size(1), bit_2 = of_size(2);
        return {plain | bit_0, bit_1, bit_2, (plain & ~continuing) | bit_0 | bit_1 | bit_2, escapes};
    }
};

// How long a string is.
struct Measured {
    int64 bytes, characters;  // of its beginning, which is kept; of all
};

// Up to `most` characters are kept, or all of them where that is 0.
__device__ inline Measured measure(const Article& string, int64 most) {
    StringReader reader{string};
    Measured found{0, 0};
    for (int64 at = 0; at < string.size; at += LANES) {
        const Meaning meaning = reader.next(at);
        const int characters = count_bits(meaning.begins);
        uint32 kept = EVERY_LANE;
        if (most && found.characters + characters > most) {
            uint32 begins = meaning.begins;  // those of characters that are not kept
            for (int64 left = most - found.characters; left > 0; left--) begins &= begins - 1;
            kept = found.characters > most ? 0 : bits_below(first_bit(begins));
        }
        found.bytes += meaning.bytes_of(kept);
        found.characters += characters;
    }
    return found;
}

// Write the first `size` bytes of what a string says.
__device__ inline void write_string(const Article& string, int64 size, uint8* out) {
    StringReader reader{string};
    for (int64 at = 0, written = 0; written < size; at += LANES) {
        const Meaning meaning = reader.next(at);
        each_lane([&](int k) {
            const int64 place = written + meaning.bytes_of(bits_below(k));
            const int bytes = meaning.bytes_of(1u << k);
            if (!bytes || place >= size) return;
            if (!(meaning.escapes >> k & 1)) {
                out[place] = string.bytes[at + k];
                return;
            }
            const uint32 point = escaped_point(string, at + k);
            if (bytes == 1) {
                out[place] = point;
                return;
            }
            out[place] = (0xf00 >> bytes & 0xff) | point >> 6 * (bytes - 1);
            for (int i = 1; i < bytes; i++) out[place + i] = 0x80 | (point >> 6 * (bytes - 1 - i) & 0x3f);
        });
        written += meaning.bytes_of(EVERY_LANE);
    }
}
