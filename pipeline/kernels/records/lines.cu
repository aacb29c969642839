// Finds where the records of a block begin and end: at line ends that are not within quotes.
//
// Layout. A warp has a span of the block, and reads it 32 bytes at a time. There are five kernels, in this order:
//   find_changes     for each span: whether it ends within quotes, if it begins within quotes and if it does not
//   find_insides     for each span: whether it begins within quotes (one warp for the whole block)
//   count_line_ends  for each span: the number of line ends outside quotes
//   place_line_ends  the place of each line end, given the running sums of these counts
//   find_lines       for each line: its place, and whether it is a record or skipped (a thread for each line)
//   Files without quotes need only the last three.
// Why. Whether a byte is within quotes depends on all bytes before it. With both outcomes for each span, all spans can
//   be read in parallel.
//
// Test: tests/kernels/test_csv_on_cpu.py, tests/ingest/test_record_blocks_gpu.py, python -m benchmarks.fuzz_records.
#include "records/quotes.cuh"

// Return where a span of `span` bytes begins. It must not begin after a quote, since that may be the first of two. A
// run of quotes that is longer than a span has no such place.
__device__ __forceinline__ int64 begin_of_span(const uint8* block, int64 size, int span, int number, int quote) {
    const int64 at = (int64)number * span, last = min(size, at + span);
    int64 begin = min(size, at);
    while (begin && begin < last && block[begin - 1] == quote) begin++;
    return begin;
}

// Return a reader of the quotes of the span that begins at `begin`, within quotes or not.
__device__ __forceinline__ QuoteReader quotes_from(const uint8* block, int64 begin, Dialect dialect, bool is_inside) {
    const bool may_open = !begin || block[begin - 1] == '\n' || block[begin - 1] == dialect.delimiter;
    return {dialect, is_inside ? EVERY_LANE : 0, may_open};
}

// Go through the span of this warp, 32 bytes at a time, and call use(at, bytes, there).
template <typename Use>
__device__ __forceinline__ void each_part_of_span(const uint8* block, int64 size, int span, int quote, Use use) {
    const int64 begin = begin_of_span(block, size, span, warp_number(), quote);
    const int64 end = begin_of_span(block, size, span, warp_number() + 1, quote);
    for (int64 at = begin; at < end; at += LANES) use(at, load_bytes(block + at, end - at), bytes_there(end - at));
}

// changes [spans]: bit 0 is whether a span ends within quotes if it begins outside, and bit 1 whether it does if it
// begins within. unclear: is increased by the number of spans for which this is not certain.
__global__ void find_changes(const uint8* block, int64 size, int span, int spans, Dialect dialect, uint8* changes,
                             int* unclear) {
    const int number = warp_number();
    if (number >= spans) return;
    const int64 begin = begin_of_span(block, size, span, number, dialect.quote);
    QuoteReader outside = quotes_from(block, begin, dialect, false), inside = quotes_from(block, begin, dialect, true);
    each_part_of_span(block, size, span, dialect.quote, [&](int64, const LaneBytes& bytes, uint32 there) {
        outside.next(bytes, there);
        inside.next(bytes, there);
    });
    each_lane([&](int k) {
        if (k) return;
        changes[number] = (outside.is_inside ? 1 : 0) | (inside.is_inside ? 2 : 0);
        if (begin && begin < size && block[begin - 1] == dialect.quote) add_to(unclear, 1);
    });
}

// insides [spans + 1]: whether each span begins within quotes, and whether the block ends within quotes. One warp goes
// through the spans, 32 at a time.
__global__ void find_insides(const uint8* changes, int spans, uint8* insides) {
    if (warp_number()) return;
    uint32 is_inside = 0;  // whether the byte before these spans is within quotes
    LaneBytes next = load_bytes(changes, spans);
    for (int at = 0; at <= spans; at += LANES) {
        const LaneBytes here = next;
        if (at + LANES < spans) next = load_bytes(changes + at + LANES, spans - at - LANES);
        const uint32 there = bytes_there(spans - at);
        // There are four kinds of spans: they end as they begin, or the opposite, or always within quotes, or always
        // outside.
        const uint32 turns = bytes_where(here, [](uint8 change) { return change == 1; }) & there;
        const uint32 always_inside = bytes_where(here, [](uint8 change) { return change == 3; }) & there;
        const uint32 always = always_inside | (bytes_where(here, [](uint8 change) { return change == 0; }) & there);
        auto begins_inside = [&](int k) -> bool {
            const uint32 before = bits_below(k), fixed = always & before;
            const uint32 since = fixed ? before & ~bits_below(last_bit(fixed) + 1) : before;
            const uint32 from = fixed ? always_inside >> last_bit(fixed) : is_inside;
            return (from + count_bits(turns & since)) & 1;
        };
        each_lane([&](int k) {
            if (at + k <= spans) insides[at + k] = begins_inside(k);
        });
        is_inside = begins_inside(LANES);
    }
}

// Find the line ends outside quotes in the span of this warp, 32 bytes at a time, and call use(at, ends). insides: from
// `find_insides`, or null if there are no quotes.
template <typename Use>
__device__ __forceinline__ void each_line_end(const uint8* block, int64 size, int span, Dialect dialect,
                                              const uint8* insides, Use use) {
    const int64 begin = begin_of_span(block, size, span, warp_number(), dialect.quote);
    QuoteReader reader = quotes_from(block, begin, dialect, insides && insides[warp_number()]);
    each_part_of_span(block, size, span, dialect.quote, [&](int64 at, const LaneBytes& bytes, uint32 there) {
        const uint32 line_ends = bytes_where(bytes, [](uint8 c) { return c == '\n'; });
        use(at, line_ends & there & ~reader.next(bytes, there).inside);
    });
}

// counts [spans]: the number of line ends outside quotes in each span.
__global__ void count_line_ends(const uint8* block, int64 size, int span, int spans, Dialect dialect,
                                const uint8* insides, int* counts) {
    if (warp_number() >= spans) return;
    int count = 0;
    each_line_end(block, size, span, dialect, insides, [&](int64, uint32 ends) { count += count_bits(ends); });
    each_lane([&](int k) {
        if (!k) counts[warp_number()] = count;
    });
}

// before [spans]: the number of line ends up to the end of each span. ends: the place of each line end.
__global__ void place_line_ends(const uint8* block, int64 size, int span, int spans, Dialect dialect,
                                const uint8* insides, const int* before, uint32* ends) {
    if (warp_number() >= spans) return;
    int number = warp_number() ? before[warp_number() - 1] : 0;
    each_line_end(block, size, span, dialect, insides, [&](int64 at, uint32 found) {
        each_lane([&](int k) {
            if (found >> k & 1) ends[number + count_bits(found & bits_below(k))] = at + k;
        });
        number += count_bits(found);
    });
}

// The lines that are not records, numbered as in `SkippedLines` of kernels/record_ops.py.
enum SkippedLines : uint8 { SKIP_NONE, SKIP_EMPTY, SKIP_BLANK };

// Return whether a line has only bytes that are white space in JSON.
__device__ __forceinline__ bool is_blank(const uint8* line, uint32 size) {
    for (uint32 i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

// most_crs: how many CRs before an LF belong to the line end. begins, sizes [lines]: each line without its end.
// is_record [lines]: 0 for a line that is skipped. skipped_lines: is increased by the number of skipped lines.
__global__ void find_lines(const uint8* block, const uint32* ends, int lines, uint32 most_crs, SkippedLines skipped,
                           uint32* begins, uint32* sizes, uint8* is_record, int* skipped_lines) {
    const int line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= lines) return;
    const uint32 begin = line ? ends[line - 1] + 1 : 0;
    uint32 end = ends[line];
    for (uint32 crs = 0; crs < most_crs && end > begin && block[end - 1] == '\r'; crs++) end--;
    begins[line] = begin;
    sizes[line] = end - begin;
    const bool is_skipped =
        skipped == SKIP_EMPTY ? end == begin : skipped == SKIP_BLANK && is_blank(block + begin, end - begin);
    is_record[line] = !is_skipped;
    if (is_skipped) add_to(skipped_lines, 1);
}
