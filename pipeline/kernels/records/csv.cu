// The fields of CSV, and the lines of plain text. `read_fields` finds them, a warp for each record.
#include "records/csv.cuh"

// begins, sizes [records]: the first byte of each record in the block, and its bytes. longest: a record of more bytes
// is left to the host. is_odd, odd: as of `note_record`.
__global__ void read_fields(const uint8* block, const uint32* begins, const uint32* sizes, int records, uint32 longest,
                            Fields fields, Values values, uint8* is_odd, int* odd) {
    const int record = warp_number();
    if (record >= records) return;
    const Article text{block + begins[record], sizes[record]};
    const bool is_read = sizes[record] <= longest && read_record(fields, values, text, record, begins[record]);
    note_record(values, record, is_read, is_odd, odd);
}
