// Encodes UTF-8 to symbol ids. `encode` in pipeline/model/alphabet.py is the specification.
//
// Layout. One warp reads one article, 32 bytes in each step, and no shared memory is used. Each lane decides by itself
//   whether its byte begins a character: it does, unless it is a continuation byte inside a well-formed sequence, and
//   well-formed sequences never overlap. A character's position is the running count plus the characters that begin in
//   lower lanes (ballot and popcount).
// Why. Only the running count is sequential, and a step without bytes above 0x7f skips the check. The
//   warp reads only the part of a long article that the network reads. Many warps then count all its characters.
//
// Test: tests/engine/test_cuda.py. Time: broadsheet profile.
#include "common/reduce.cuh"
#include "common/types.cuh"
#include "common/utf8.cuh"

// Symbols beyond ASCII: their code points in ascending order, and the id of each.
struct Points {
    const uint32* points;
    const uint8* ids;
    int count;
};

__device__ uint8 id_beyond_ascii(const Article& article, int64 at, const Points& symbols, uint8 unknown) {
    const int length = sequence_length(article, at);
    if (length == 1 || symbols.count == 0) return unknown;
    const uint32 point = code_point(article, at, length);
    int low = 0, high = symbols.count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (symbols.points[middle] < point) low = middle + 1;
        else high = middle;
    }
    return low < symbols.count && symbols.points[low] == point ? symbols.ids[low] : unknown;
}

// data: the bytes of the articles, article 0 first. offsets [articles + 1], from any base. articles: the number of
// articles, in device memory, so that one CUDA graph works for any number. head_bytes: articles with more bytes have
// more than `length` characters, which `count_characters` counts. byte_ids [256]: the ids of single bytes. ids
// [articles, pitch]: the output, filled with padding up to the pitch, which is a multiple of 16.
template <int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    encode(const uint8* data, const int64* offsets, const int* articles, int length, int head_bytes, int pitch,
           const uint8* byte_ids, const uint32* points, const uint8* point_ids, int point_count, uint8 unknown,
           uint8* ids, int64* n_chars, uint8* truncated, int64* unknown_chars) {
    const int number = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (number >= *articles) return;
    const Article article = {data + (offsets[number] - offsets[0]), offsets[number + 1] - offsets[number]};
    const Points symbols = {points, point_ids, point_count};
    uint8* out = ids + (int64)number * pitch;

    const uint32 padding = 0x01010101u * (uint8)(unknown + 1);  // four times the id of padding, which follows `unknown`
    for (int i = lane * 16; i < pitch; i += WARP * 16)
        *reinterpret_cast<uint4*>(out + i) = make_uint4(padding, padding, padding, padding);
    __syncwarp();

    const bool is_long = article.size > head_bytes;
    int64 count = 0;
    int misses = 0;
    for (int64 step = 0; step < article.size && !(is_long && count >= length); step += WARP) {
        const int64 at = step + lane;
        const bool inside = at < article.size;
        const uint8 byte = inside ? article.bytes[at] : 0;
        bool begins = inside;
        if (__any_sync(ALL_LANES, byte & 0x80)) begins = inside && begins_character(article, at);
        const uint32 beginning = __ballot_sync(ALL_LANES, begins);
        const int64 position = count + __popc(beginning & ((1u << lane) - 1));
        if (begins && position < length) {
            const uint8 id = byte < 0x80 ? byte_ids[byte] : id_beyond_ascii(article, at, symbols, unknown);
            out[position] = id;
            misses += id == unknown;
        }
        count += __popc(beginning);
    }
    misses = warp_sum(misses);
    if (lane == 0) {
        n_chars[number] = is_long ? 0 : count;
        truncated[number] = is_long || count > length;
        unknown_chars[number] = misses;
    }
}

// Run after `encode`: add to n_chars the characters of articles with more than head_bytes bytes. A warp reads BYTES
// bytes of the batch, whichever articles they belong to. The sum is exact in any order.
template <int WARPS, int BYTES>
__global__ void __launch_bounds__(WARPS* WARP, 4)  // without the 4, NVRTC 13.0 spills for 32 registers on sm_80
    count_characters(const uint8* data, const int64* offsets, const int* article_count, int head_bytes, int64* n_chars) {
    const int lane = threadIdx.x % WARP, articles = *article_count;
    const int64 base = offsets[0], size = offsets[articles] - base;
    const int64 begin = ((int64)blockIdx.x * WARPS + threadIdx.x / WARP) * BYTES, end = min(begin + BYTES, size);
    int low = 0, high = articles - 1;  // the last article that begins at `begin` or before
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (offsets[middle] - base <= begin) low = middle;
        else high = middle - 1;
    }
    for (int number = low; number < articles && offsets[number] - base < end; number++) {
        const int64 first = offsets[number] - base;
        const Article article = {data + first, offsets[number + 1] - offsets[number]};
        if (article.size <= head_bytes) continue;
        const int64 last = min(end - first, article.size);
        int count = 0;
        for (int64 at = max(begin - first, 0ll) + lane; at < last; at += WARP) count += begins_character(article, at);
        count = warp_sum(count);
        if (lane == 0) atomicAdd(reinterpret_cast<uint64*>(n_chars + number), (uint64)count);
    }
}
