// The values of JSON Lines. `read_objects` finds them, a warp for each record.
//
// A warp loads 32 bytes at a time, and the next 32 bytes are on their way while it works on these.
#include "records/json.cuh"
#include "records/seen_keys.cuh"

// begins, sizes [records]: the first byte of each record in the block, and its bytes. longest: a record of more bytes
// is left to the host. is_odd, odd: as of `note_record`.
__global__ void read_objects(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
                             Keys keys, Values values, uint8* is_odd, int* odd) {
    const int record = warp_number();
    if (record >= records) return;
    const Article text{block + begins[record], sizes[record]};
    const bool is_read = sizes[record] <= longest && read_object(keys, values, text, record, begins[record]);
    note_record(values, record, is_read, is_odd, odd);
}

// Leave records to the host in which a value that is NESTED has a key twice in an object. values: of all records, as
// `read_objects` found them. is_odd, odd: as of `note_record`.
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
