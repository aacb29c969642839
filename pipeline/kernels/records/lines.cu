// Where the records of a block begin and end: at line ends that are not within quotes.
//
// A warp has a span of the block. `count_quotes` counts the quotes of each, from whose sums `count_line_ends` knows
// whether a span begins within quotes. It counts the line ends outside of them, and the quotes that are misplaced. From
// the sums of these counts `place_line_ends` knows where it writes the place of each line end. `find_lines` then tells
// records from lines that are skipped.
#include "records/quotes.cuh"

// Goes through the span of this warp, 32 bytes at a time: calls use(at, bytes, there).
template <typename Use>
__device__ __forceinline__ void each_part_of_span(const uint8* block, int64 size, int span, Use use) {
    const int64 begin = (int64)warp_number() * span, end = min(size, begin + span);
    for (int64 at = begin; at < end; at += LANES) use(at, load_bytes(block + at, end - at), bytes_there(end - at));
}

// The same with what is known of the quotes: calls use(at, quoted, ends), which are the line ends outside of quotes.
// quotes [spans]: quotes up to the end of each span; null where there are none.
template <typename Use>
__device__ __forceinline__ void each_line_end(const uint8* block, int64 size, int span, int quote, const int* quotes,
                                              Use use) {
    const int number = warp_number();
    const bool begins_inside = quotes && number && quotes[number - 1] & 1;
    QuoteReader reader{quote, begins_inside ? EVERY_LANE : 0};
    each_part_of_span(block, size, span, [&](int64 at, const LaneBytes& bytes, uint32 there) {
        const Quoted quoted = reader.next(bytes, there);
        const uint32 line_ends = bytes_where(bytes, [](uint8 c) { return c == '\n'; });
        use(at, quoted, line_ends & there & ~quoted.inside);
    });
}

// counts [spans]: the quotes of each.
__global__ void count_quotes(const uint8* block, int64 size, int span, int spans, int quote, int* counts) {
    if (warp_number() >= spans) return;
    QuoteReader reader{quote, 0};
    int count = 0;
    each_part_of_span(block, size, span, [&](int64, const LaneBytes& bytes, uint32 there) {
        count += count_bits(reader.next(bytes, there).quotes);
    });
    each_lane([&](int k) {
        if (!k) counts[warp_number()] = count;
    });
}

// counts [spans]: the line ends of each that are outside of quotes. misplaced: is increased by the quotes that are.
__global__ void count_line_ends(const uint8* block, int64 size, int span, int spans, Dialect dialect, const int* quotes,
                                int* counts, int* misplaced) {
    if (warp_number() >= spans) return;
    int count = 0, wrong = 0;
    each_line_end(block, size, span, dialect.quote, quotes, [&](int64 at, const Quoted& quoted, uint32 ends) {
        count += count_bits(ends);
        wrong += count_bits(lanes_where([&](int k) {
            return quoted.quotes >> k & 1 && is_misplaced(block, size, at + k, quoted.inside >> k & 1, dialect);
        }));
    });
    each_lane([&](int k) {
        if (k) return;
        counts[warp_number()] = count;
        if (wrong) add_to(misplaced, wrong);
    });
}

// before [spans]: the line ends up to the end of each span. ends: the place of each line end.
__global__ void place_line_ends(const uint8* block, int64 size, int span, int spans, int quote, const int* quotes,
                                const int* before, uint32* ends) {
    if (warp_number() >= spans) return;
    int number = warp_number() ? before[warp_number() - 1] : 0;
    each_line_end(block, size, span, quote, quotes, [&](int64 at, const Quoted&, uint32 found) {
        each_lane([&](int k) {
            if (found >> k & 1) ends[number + count_bits(found & bits_below(k))] = at + k;
        });
        number += count_bits(found);
    });
}

// Which lines are no records.
enum Skipped : uint8 { NO_LINES, EMPTY_LINES, BLANK_LINES };

// Whether a line holds nothing but what JSON takes for white space.
__device__ __forceinline__ bool is_blank(const uint8* line, uint32 size) {
    for (uint32 i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

// most_crs: how many CRs before an LF belong to the line's end. begins, sizes [lines]: of each line without its end.
// is_record [lines]: 0 for a line that is skipped. skipped_lines: is increased by how many there are.
__global__ void find_lines(const uint8* block, const uint32* ends, int lines, uint32 most_crs, Skipped skipped,
                           uint32* begins, uint32* sizes, uint8* is_record, int* skipped_lines) {
    const int line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= lines) return;
    const uint32 begin = line ? ends[line - 1] + 1 : 0;
    uint32 end = ends[line];
    for (uint32 crs = 0; crs < most_crs && end > begin && block[end - 1] == '\r'; crs++) end--;
    begins[line] = begin;
    sizes[line] = end - begin;
    const bool is_skipped =
        skipped == EMPTY_LINES ? end == begin : skipped == BLANK_LINES && is_blank(block + begin, end - begin);
    is_record[line] = !is_skipped;
    if (is_skipped) add_to(skipped_lines, 1);
}
