// Finds the wanted fields in one record of CSV, or the text of one line.
//
// `read_record` returns true only if the host would read the same values; the host reads the other records. Its reader,
// `Csv` in pipeline/source/formats/csv.py, is the specification.
#pragma once

#include "records/quotes.cuh"
#include "records/values.cuh"

// The dialect of a file and the fields of its records.
struct Fields {
    Dialect dialect;
    int count;
    const int* wanted;  // [columns]: the number of the field that is in each column, or -1 where the file has none
};

// Return the place of set bit number n of `bits`, counted from 0.
__device__ __forceinline__ int place_of_bit(uint32 bits, int n) {
    for (; n > 0; n--) bits &= bits - 1;
    return first_bit(bits);
}

// Notes where the wanted fields of a record are. Each lane has a column.
struct FieldNotes {
    const Fields& fields;
    const Values& values;
    const int record;
    const uint32 offset;  // where the record begins in the block

    // Call note(i, field) for each column: where its value is noted, and the number of its field.
    template <typename Note>
    __device__ __forceinline__ void each_column(Note note) const {
        each_lane([&](int k) {
            if (k < values.columns) note((int64)k * values.records + record, fields.wanted[k]);
        });
    }

    // The first field begins with the record.
    __device__ __forceinline__ void begin() const {
        each_column([&](int64 i, int field) {
            values.kinds[i] = MISSING;
            values.begins[i] = offset;
        });
    }

    // Note the delimiters outside quotes among 32 bytes from place `at` on. passed: the number of delimiters before
    // these.
    __device__ __forceinline__ void end_some(int64 at, uint32 delimiters, int passed) const {
        const int count = count_bits(delimiters);
        each_column([&](int64 i, int field) {
            // The indices, among these delimiters, of the ones before and after the field.
            const int before = field - 1 - passed, after = field - passed;
            if (field > 0 && before >= 0 && before < count)
                values.begins[i] = offset + (uint32)at + place_of_bit(delimiters, before) + 1;
            if (after >= 0 && after < count)
                values.sizes[i] = offset + (uint32)at + place_of_bit(delimiters, after) - values.begins[i];
        });
    }

    // The last field, number `last`, ends with the record. The values of quoted fields exclude the quotes.
    __device__ __forceinline__ void end(const Article& text, int last) const {
        each_column([&](int64 i, int field) {
            if (field < 0) return;
            const uint32 begin = values.begins[i] - offset;
            const uint32 size = field == last ? (uint32)text.size - begin : values.sizes[i];
            const bool is_quoted = size && text.bytes[begin] == fields.dialect.quote;
            values.kinds[i] = is_quoted ? QUOTED : FIELD;
            values.begins[i] += is_quoted;
            values.sizes[i] = size - (is_quoted ? 2 : 0);
        });
    }
};

// Read a record. Return false if the host must read it, because it has too many or too few fields, text after the quote
// that closes a field, or bytes that are not UTF-8. text: the record, which begins at byte `offset` of its block.
__device__ inline bool read_record(const Fields& fields, const Values& values, const Article& text, int record,
                                   uint32 offset) {
    const FieldNotes notes{fields, values, record, offset};
    const Dialect dialect = fields.dialect;
    QuoteReader reader{dialect, 0, 1};
    int passed = 0;
    notes.begin();
    LaneBytes next = load_bytes(text.bytes, text.size);
    for (int64 at = 0; at < text.size; at += LANES) {
        const LaneBytes bytes = next;
        if (at + LANES < text.size) next = load_bytes(text.bytes + at + LANES, text.size - at - LANES);
        const uint32 there = bytes_there(text.size - at);
        const Quoted quoted = reader.next(bytes, there);
        if (!is_utf8(text, at, bytes)) return false;
        const uint32 closing = quoted.quotes & ~quoted.inside;
        if (closing && lanes_where([&](int k) {
                if (!(closing >> k & 1) || at + k + 1 == text.size) return false;
                const uint8 after = text.bytes[at + k + 1];
                return after != dialect.quote && after != dialect.delimiter;
            }))
            return false;
        const uint32 delimiters =
            bytes_where(bytes, [&](uint8 c) { return c == dialect.delimiter; }) & there & ~quoted.inside;
        if (!delimiters) continue;
        notes.end_some(at, delimiters, passed);
        passed += count_bits(delimiters);
    }
    if (passed + 1 != fields.count) return false;
    notes.end(text, passed);
    return true;
}

// Goes through a field, 32 bytes at a time. quote: the quote of a QUOTED field, or -1 for other fields. All quotes in a
// QUOTED field come in pairs, and the second quote of a pair stands for nothing.
struct FieldReader {
    const Article value;
    const int quote;
    uint32 is_second = 0;  // whether the next quote is the second of two: all bits or none

    __device__ __forceinline__ Meaning next(int64 at) {
        const uint32 there = bytes_there(value.size - at);
        const LaneBytes bytes = load_bytes(value.bytes + at, value.size - at);
        const uint32 continuing = lanes_where([&](int k) { return (bytes[k] & 0xc0) == 0x80; });
        const uint32 quotes = bytes_where(bytes, [&](uint8 c) { return c == quote; }) & there;
        const uint32 between = parity_so_far(quotes) ^ is_second;  // from the first quote of a pair to the byte before the second
        is_second = (int32)between >> (LANES - 1);
        const uint32 said = there & ~(quotes & ~between);
        return {said, 0, 0, said & ~continuing};
    }

    __device__ __forceinline__ void write(int64 at, int, uint8* out) const { out[0] = value.bytes[at]; }
};
