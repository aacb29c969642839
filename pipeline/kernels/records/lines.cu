// Where the lines of a block begin and end. `count_line_ends` counts the line ends in spans of the block, a warp for
// each. The counts are added up, and `place_line_ends` writes where each line end is. `find_lines` tells records from
// blank lines.
#include "records/bytes.cuh"

// The line ends among the bytes of a span that begins at `at`, 32 bytes at a time: calls use(at, mask).
template <typename Use>
__device__ __forceinline__ void line_ends_of(const uint8* block, int64 size, int64 at, int span, Use use) {
    const int64 end = min(size, at + span);
    for (; at < end; at += LANES) {
        const LaneBytes bytes = load_bytes(block + at, end - at);
        use(at, lanes_where([&](int k) { return bytes[k] == '\n'; }));
    }
}

// counts [spans]: how many line ends there are in each span of `span` bytes.
__global__ void count_line_ends(const uint8* block, int64 size, int span, int* counts) {
    const int64 at = (int64)warp_number() * span;
    if (at >= size) return;
    int count = 0;
    line_ends_of(block, size, at, span, [&](int64, uint32 ends) { count += count_bits(ends); });
    each_lane([&](int k) {
        if (k == 0) counts[warp_number()] = count;
    });
}

// before [spans]: how many line ends there are up to the end of each span. ends: the place of each line end.
__global__ void place_line_ends(const uint8* block, int64 size, int span, const int* counts, const int* before,
                                uint32* ends) {
    const int64 begin = (int64)warp_number() * span;
    if (begin >= size) return;
    int number = before[warp_number()] - counts[warp_number()];
    line_ends_of(block, size, begin, span, [&](int64 at, uint32 found) {
        each_lane([&](int k) {
            if (found >> k & 1) ends[number + count_bits(found & bits_below(k))] = at + k;
        });
        number += count_bits(found);
    });
}

// Whether a line holds nothing but what JSON takes for white space.
__device__ __forceinline__ bool is_blank(const uint8* line, uint32 size) {
    for (uint32 i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

// begins, sizes [lines]: of each line, without its LF or CRLF. is_record [lines]: 0 for a blank line where those are
// skipped. blank: is increased by how many there are.
__global__ void find_lines(const uint8* block, const uint32* ends, int lines, uint8 skip_blank, uint32* begins,
                           uint32* sizes, uint8* is_record, int* blank) {
    const int line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= lines) return;
    const uint32 begin = line ? ends[line - 1] + 1 : 0;
    uint32 end = ends[line];
    if (end > begin && block[end - 1] == '\r') end--;
    begins[line] = begin;
    sizes[line] = end - begin;
    const bool is_skipped = skip_blank && is_blank(block + begin, end - begin);
    is_record[line] = !is_skipped;
    if (is_skipped) add_to(blank, 1);
}
