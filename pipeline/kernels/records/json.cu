// Finds the values of JSON Lines.
//
// Layout. A warp reads one record, 32 bytes at a time. Every lane has the same state, and lane k writes column k. No
//   shared memory is used.
// Why. The next 32 bytes are on their way while the warp works on these. Masks of 32 bits find the tokens (bytes.cuh),
//   so the warp loops over tokens and skips all other bytes.
//
// Test: tests/kernels/test_json_on_cpu.py, tests/ingest/test_record_blocks_gpu.py, python -m benchmarks.fuzz_records.
// Time: python -m benchmarks.corpora.
#include "records/json.cuh"
#include "records/seen_keys.cuh"

// begins, sizes [records]: the first byte of each record in the block, and its number of bytes. longest: the host reads
// records with more bytes. is_odd, odd: see `note_record`.
__global__ void read_objects(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
                             Keys keys, Values values, uint8* is_odd, int* odd) {
    const int record = warp_number();
    if (record >= records) return;
    const Article text{block + begins[record], sizes[record]};
    const bool is_read = sizes[record] <= longest && read_object(keys, values, text, record, begins[record]);
    note_record(values, record, is_read, is_odd, odd);
}

// Leave a record to the host if an object in a NESTED value has a key twice. values: the values of all records, from
// `read_objects`. is_odd, odd: see `note_record`.
__global__ void refuse_repeated_keys(const uint8* block, Values values, uint8* is_odd, int* odd) {
    const int record = warp_number();
    if (record >= values.records) return;
    bool is_read = true;
    for (int column = 0; column < values.columns; column++) {
        const int64 at = (int64)column * values.records + record;
        if (values.kinds[at] != NESTED) continue;
        if (!has_distinct_keys({block + values.begins[at], values.sizes[at]})) is_read = false;
    }
    if (!is_read) note_record(values, record, false, is_odd, odd);
}
