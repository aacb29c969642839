// The values of JSON Lines, by three kernels. `read_objects` finds the values, a warp for each record. `measure_values`
// finds how long each is as text, and `write_values` writes the text, a warp for each value. Values lie column by
// column.
//
// A warp loads 32 bytes at a time, and the next 32 bytes are on their way while it works on these.
#include "records/strings.cuh"

// begins, sizes [records]: the first byte of each record in the block, and its bytes. longest: a record of more bytes
// is left to the host. is_odd [records]: 1 where the host must read the record; it has no values here. odd: the kernel
// adds the number of these.
__global__ void read_objects(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
                             Keys keys, Values values, uint8* is_odd, int* odd) {
    const int record = warp_number();
    if (record >= records) return;
    const Article text{block + begins[record], sizes[record]};
    const bool is_read = sizes[record] <= longest && read_object(keys, values, text, record, begins[record]);
    each_lane([&](int k) {
        if (!is_read && k < values.columns) values.kinds[(int64)k * records + record] = MISSING;
        if (k) return;
        is_odd[record] = !is_read;
        if (!is_read) add_to(odd, 1);
    });
}

// kinds, begins, sizes [count]: the values. lengths [count]: bytes of each as text, up to its first `most` characters,
// or all of them where that is 0. characters [count], or null: characters of each whole text.
__global__ void measure_values(const uint8* block, const uint8* kinds, const uint32* begins, const uint32* sizes,
                               int64 count, int64 most, int64* lengths, int64* characters) {
    const int64 value = warp_number();
    if (value >= count) return;
    Measured found{0, 0};
    if (kinds[value] == STRING) found = measure({block + begins[value], sizes[value]}, most);
    if (kinds[value] == NUMBER) found = {sizes[value], sizes[value]};
    each_lane([&](int k) {
        if (k) return;
        lengths[value] = found.bytes;
        if (characters) characters[value] = found.characters;
    });
}

// Write each value as text to out[offsets[value]] and on, up to out[offsets[value + 1]].
__global__ void write_values(const uint8* block, const uint8* kinds, const uint32* begins, const uint32* sizes,
                             int64 count, const int64* offsets, uint8* out) {
    const int64 value = warp_number();
    if (value >= count) return;
    const int64 size = offsets[value + 1] - offsets[value];
    const Article text{block + begins[value], sizes[value]};
    if (kinds[value] == STRING) write_string(text, size, out + offsets[value]);
    if (kinds[value] != NUMBER) return;
    for (int64 at = 0; at < size; at += LANES)
        each_lane([&](int k) {
            if (at + k < size) out[offsets[value] + at + k] = text.bytes[at + k];
        });
}
