// Turns values into texts: `measure_values` finds how long each text is, and `write_values` writes it.
//
// Layout. A warp has one value, and reads it 32 bytes at a time. No shared memory is used.
// Why. The first kernel's lengths give the place of each text, so the second can write all texts in parallel.
//
// Test: tests/kernels/test_json_on_cpu.py and test_csv_on_cpu.py, tests/ingest/test_record_blocks_gpu.py.
// Time: python -m benchmarks.corpora.
#include "records/csv.cuh"
#include "records/json_nested.cuh"

// kinds, begins, sizes [count]: the values. quote: the quote of QUOTED fields. lengths [count]: the bytes of each text
// up to its first `most` characters, or of the whole text if `most` is 0. characters [count], or null: the number of
// characters in each whole text, or of bytes if the value is PLAIN.
__global__ void measure_values(const uint8* block, const uint8* kinds, const uint32* begins, const uint32* sizes,
                               int64 count, int quote, int64 most, int64* lengths, int64* characters) {
    const int64 value = warp_number();
    if (value >= count) return;
    const Article text{block + begins[value], sizes[value]};
    const uint8 kind = kinds[value];
    Measured found{0, 0};
    if (kind == STRING) found = measure(StringReader{text}, most);
    if (kind == NESTED) found = measure(NestedReader{text}, most);
    if (kind == FIELD || kind == QUOTED) found = measure(FieldReader{text, kind == QUOTED ? quote : -1}, most);
    if (kind == PLAIN) found = {text.size, text.size};
    each_lane([&](int k) {
        if (k) return;
        lengths[value] = found.bytes;
        if (characters) characters[value] = found.characters;
    });
}

// Write each value as text to out, from offsets[value] to before offsets[value + 1].
__global__ void write_values(const uint8* block, const uint8* kinds, const uint32* begins, const uint32* sizes,
                             int64 count, int quote, const int64* offsets, uint8* out) {
    const int64 value = warp_number();
    if (value >= count) return;
    const int64 size = offsets[value + 1] - offsets[value];
    const Article text{block + begins[value], sizes[value]};
    out += offsets[value];
    const uint8 kind = kinds[value];
    if (kind == STRING) write_text(StringReader{text}, size, out);
    if (kind == NESTED) write_text(NestedReader{text}, size, out);
    if (kind == FIELD || kind == QUOTED) write_text(FieldReader{text, kind == QUOTED ? quote : -1}, size, out);
    if (kind != PLAIN) return;
    for (int64 at = 0; at < size; at += LANES)
        each_lane([&](int k) {
            if (at + k < size) out[at + k] = text.bytes[at + k];
        });
}
