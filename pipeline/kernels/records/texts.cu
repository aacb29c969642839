// Tests whole texts, and prepares them before a model reads them.
//
// Layout. `find_blank` and `strip_texts` have a thread for each text, and `map_bytes` has a thread for each byte.
// Why. White space is usually short, so a thread decides after a few bytes, and mostly after one.
//
// Test: tests/ingest/test_record_blocks_gpu.py, python -m benchmarks.fuzz_records.
#include "records/values.cuh"
#include "records/white_space.cuh"

// data: UTF-8. offsets [texts + 1]: where each text begins, and where the last ends. blank [texts]: 1 if a text has
// only white space. A text whose first byte is above that of a space is not blank, as on the host (`are_blank` in
// pipeline/source/rows/chunk.py). So the kernel reads one byte of nearly every text.
__global__ void find_blank(const uint8* data, const int64* offsets, int texts, uint8* blank) {
    const int text = blockIdx.x * blockDim.x + threadIdx.x;
    if (text >= texts) return;
    const Article article{data + offsets[text], offsets[text + 1] - offsets[text]};
    bool is_blank = !article.size || article.bytes[0] <= ' ';
    for (int64 at = 0; is_blank && at < article.size;) {
        const int length = sequence_length(article, at);
        is_blank = is_space_at(article, at, length);
        at += length;
    }
    blank[text] = is_blank;
}

// Write table[c] for each byte c of data [size].
__global__ void map_bytes(const uint8* data, int64 size, const uint8* table, uint8* out) {
    const int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < size) out[at] = table[data[at]];
}

// Find the texts without the white space at their ends, as values. data, offsets: see `find_blank`. kinds, begins,
// sizes [texts]: see `Values`.
__global__ void strip_texts(const uint8* data, const int64* offsets, int texts, uint8* kinds, uint32* begins,
                            uint32* sizes) {
    const int number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= texts) return;
    const Article text{data + offsets[number], offsets[number + 1] - offsets[number]};
    int64 first = 0, last = text.size;
    trim(text, first, last);
    kinds[number] = PLAIN;
    begins[number] = (uint32)(offsets[number] + first);
    sizes[number] = (uint32)(last - first);
}
