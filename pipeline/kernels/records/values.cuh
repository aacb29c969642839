// The values of the records of a block: where each value is, its kind, and how its text is measured and written.
// Test: tests/kernels/test_json_on_cpu.py and test_csv_on_cpu.py.
#pragma once

#include "records/bytes.cuh"

// The kind of value that a record has in a column. PLAIN values are copied as they are: numbers, true and false of
// JSON. A STRING is a JSON string with its escapes. A FIELD is a field of CSV, a line of text, or a value that the host
// has read. In a QUOTED field two quotes stand for one. A NESTED value is an object or array of JSON, written like
// Python's `json.dumps`.
enum Kind : uint8 { MISSING, NONE, STRING, PLAIN, FIELD, QUOTED, NESTED };

constexpr int MOST_COLUMNS = LANES;

// The kinds and places of the values, column by column: [columns, records].
struct Values {
    uint8* kinds;
    uint32* begins;
    uint32* sizes;
    int records, columns;
};

// Note whether a record was read. The host reads a record that was not, and its values are MISSING here. is_odd
// [records]: 1 for such a record. odd: is increased by one for each.
__device__ __forceinline__ void note_record(const Values& values, int record, bool is_read, uint8* is_odd, int* odd) {
    each_lane([&](int k) {
        if (!is_read && k < values.columns) values.kinds[(int64)k * values.records + record] = MISSING;
        if (k) return;
        is_odd[record] = !is_read;
        if (!is_read) add_to(odd, 1);
    });
}

// The meaning of 32 bytes of a value. Some bytes stand for nothing, such as all bytes of an escape except the first.
struct Meaning {
    uint32 bit_0, bit_1, bit_2;  // the bits of how many bytes of UTF-8 each byte stands for, 0 to 4
    uint32 begins;               // the bytes that begin a character

    // Return how many bytes of UTF-8 the bytes of a mask stand for.
    __device__ __forceinline__ int bytes_of(uint32 mask) const {
        return count_bits(bit_0 & mask) + 2 * count_bits(bit_1 & mask) + 4 * count_bits(bit_2 & mask);
    }
};

// The length of a value as text.
struct Measured {
    int64 bytes, characters;  // the bytes of the part that is kept; the characters of the whole text
};

// Measure the text of a value, of which up to `most` characters are kept, or all if `most` is 0. reader: `next(at)`
// returns the meaning of the 32 bytes from place `at` of `reader.value`.
template <typename Reader>
__device__ __forceinline__ Measured measure(Reader reader, int64 most) {
    Measured found{0, 0};
    for (int64 at = 0; at < reader.value.size; at += LANES) {
        const Meaning meaning = reader.next(at);
        const int characters = count_bits(meaning.begins);
        uint32 kept = EVERY_LANE;
        if (most && found.characters + characters > most) {
            uint32 begins = meaning.begins;  // becomes the beginnings of characters that are not kept
            for (int64 left = most - found.characters; left > 0; left--) begins &= begins - 1;
            kept = found.characters > most ? 0 : bits_below(first_bit(begins));
        }
        found.bytes += meaning.bytes_of(kept);
        found.characters += characters;
    }
    return found;
}

// Write the first `size` bytes of the text of a value. reader: see `measure`. Its `write(at, bytes, out)` writes the
// `bytes` bytes for which the byte at `at` stands.
template <typename Reader>
__device__ __forceinline__ void write_text(Reader reader, int64 size, uint8* out) {
    for (int64 at = 0, written = 0; written < size; at += LANES) {
        const Meaning meaning = reader.next(at);
        each_lane([&](int k) {
            const int64 place = written + meaning.bytes_of(bits_below(k));
            const int bytes = meaning.bytes_of(1u << k);
            if (bytes && place < size) reader.write(at + k, bytes, out + place);
        });
        written += meaning.bytes_of(EVERY_LANE);
    }
}
