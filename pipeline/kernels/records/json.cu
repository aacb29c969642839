// The values of JSON Lines: three kernels. `read_objects` finds them, `measure_values` says how long each is as text,
// and `write_values` writes the text. A warp has a record, and in the latter two a value. Values lie column by column.
//
// Of 5 KB texts a warp loads 32 bytes at a time, of which the next are on their way while these are looked at.
#include "records/strings.cuh"

// block: records that begin at `begins` and have `sizes` bytes, [records]. longest: the most bytes of a record that is
// read. is_odd [records]: 1 where the host must read it, which then has no values here. odd: is increased by how many
// there are.
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

// How many bytes each value has as text, up to `most` characters (0: all). kinds, begins, sizes, lengths: [count].
// characters [count], or null: how many the whole text of each has.
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
