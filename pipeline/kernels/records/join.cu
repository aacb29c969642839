// Joins the texts of several columns to one, with a space between them and without white space at either end. `joined`
// in pipeline/source/rows/columns.py is the specification.
//
// Layout. `join_texts` has a warp for each record, which copies 32 bytes at a time. `trim_texts` has a thread for each
//   text.
// Why. A copy by a whole warp reads and writes neighbouring bytes. White space at the ends is rare and short, so one
//   thread finds it.
//
// Test: tests/ingest/test_record_blocks_gpu.py, python -m benchmarks.fuzz_records.
#include "records/values.cuh"
#include "records/white_space.cuh"

// data: UTF-8. offsets [columns * records + 1]: where the text of each value begins, column by column, and where the
// last ends. out: the joined texts. kinds, begins, sizes [records]: see `Values`.
__global__ void join_texts(const uint8* data, const int64* offsets, int records, int columns, uint8* out, uint8* kinds,
                           uint32* begins, uint32* sizes) {
    const int record = warp_number();
    if (record >= records) return;
    int64 begin = (int64)record * (columns - 1);  // after the texts of the records before, and the spaces between them
    for (int column = 0; column < columns; column++) {
        const int64* of_column = offsets + (int64)column * records;
        begin += of_column[record] - of_column[0];
    }
    int64 to = begin;
    for (int column = 0; column < columns; column++) {
        const int64 value = (int64)column * records + record, from = offsets[value], size = offsets[value + 1] - from;
        if (column) {
            each_lane([&](int k) {
                if (!k) out[to] = ' ';
            });
            to++;
        }
        for (int64 at = 0; at < size; at += LANES)
            each_lane([&](int k) {
                if (at + k < size) out[to + at + k] = data[from + at + k];
            });
        to += size;
    }
    each_lane([&](int k) {
        if (k) return;
        kinds[record] = FIELD;
        begins[record] = (uint32)begin;
        sizes[record] = (uint32)(to - begin);
    });
}

// begins, sizes [texts]: the place of each text in `data`, UTF-8. The kernel changes them to exclude white space at
// either end.
__global__ void trim_texts(const uint8* data, int texts, uint32* begins, uint32* sizes) {
    const int number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= texts) return;
    const Article text{data + begins[number], sizes[number]};
    int64 first = 0, last = text.size;
    trim(text, first, last);
    begins[number] += (uint32)first;
    sizes[number] = (uint32)(last - first);
}
