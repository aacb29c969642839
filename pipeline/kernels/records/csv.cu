// Finds the fields of CSV, and the lines of plain text.
//
// Layout. A warp reads one record, 32 bytes at a time, and lane k notes the field of column k. No shared memory is
//   used.
// Why. All lanes of a warp test one byte each, so a record of usual length takes a few steps.
//
// Test: tests/kernels/test_csv_on_cpu.py, tests/ingest/test_record_blocks_gpu.py, python -m benchmarks.fuzz_records.
// Time: python -m benchmarks.corpora.
#include "records/csv.cuh"

// begins, sizes [records]: the first byte of each record in the block, and its number of bytes. longest: the host reads
// records with more bytes. is_odd, odd: see `note_record`.
__global__ void read_fields(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
                            Fields fields, Values values, uint8* is_odd, int* odd) {
    const int record = warp_number();
    if (record >= records) return;
    const Article text{block + begins[record], sizes[record]};
    const bool is_read = sizes[record] <= longest && read_record(fields, values, text, record, begins[record]);
    note_record(values, record, is_read, is_odd, odd);
}
