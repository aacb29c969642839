// What the records of a block hold: where each value is, of what kind, and how its text is measured and written.
#pragma once

#include "records/bytes.cuh"

// What a record holds in a column. PLAIN values are copied as they are: numbers, true and false of JSON, and what the
// host has read. A STRING is one of JSON, with its escapes. A FIELD is one of CSV, or a line of text; in one that is
// QUOTED two quotes stand for one. What is NESTED is an object or array of JSON, which is written as `json.dumps` of
// Python writes it.
enum Kind : uint8 { MISSING, NONE, STRING, PLAIN, FIELD, QUOTED, NESTED };

constexpr int MOST_COLUMNS = LANES;

// Where the values are, column by column: [columns, records].
struct Values {
    uint8* kinds;
    uint32* begins;
    uint32* sizes;
    int records, columns;
};

// Note whether a record was read. One that was not has no values here, and is left to the host. is_odd [records]: 1 for
// such a record. odd: is increased by one for it.
__device__ __forceinline__ void note_record(const Values& values, int record, bool is_read, uint8* is_odd, int* odd) {
    each_lane([&](int k) {
        if (!is_read && k < values.columns) values.kinds[(int64)k * values.records + record] = MISSING;
        if (k) return;
        is_odd[record] = !is_read;
        if (!is_read) add_to(odd, 1);
    });
}

// What each of 32 bytes of a value stands for. Some stand for nothing, such as all bytes of an escape but the first.
struct Meaning {
    uint32 bit_0, bit_1, bit_2;  // of how many bytes of UTF-8 a byte stands for, 0 to 4
    uint32 begins;               // which of these begin a character

    // How many bytes of UTF-8 the bytes of a mask stand for.
    __device__ __forceinline__ int bytes_of(uint32 mask) const {
        return count_bits(bit_0 & mask) + 2 * count_bits(bit_1 & mask) + 4 * count_bits(bit_2 & mask);
    }
};

// How long a value is as text.
struct Measured {
    int64 bytes, characters;  // of its beginning, which is kept; of all
};

// Up to `most` characters are kept, or all of them where that is 0. reader: `next(at)` returns what the 32 bytes from
// place `at` of `reader.value` stand for.
template <typename Reader>
__device__ __forceinline__ Measured measure(Reader reader, int64 most) {
    Measured found{0, 0};
    for (int64 at = 0; at < reader.value.size; at += LANES) {
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

// Write the first `size` bytes of the text of a value. reader: as of `measure`; `write(at, bytes, out)` writes the `bytes`
// bytes for which the byte at `at` stands.
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
