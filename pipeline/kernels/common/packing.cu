// Packs the rows of a batch: computes how far the text of each article reaches, and from there where its units begin.
// common/packing.cuh describes the layout of the result.
//
// Layout. `first_units` is one block of WARPS warps. It takes WARPS * 32 articles in each round, a thread for each, and
//   computes a running sum by shuffles within a warp and over WARPS sums in shared memory. `gather` and `closing_units`
//   have one warp for each article.
// Why. A batch has some thousand articles, so one block is fast enough and needs no second pass over partial sums.
//
// Test: tests/engine/test_text_frame.py. Time: broadsheet profile.
#include "common/packing.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

// Return the number of pool windows that `rows` rows touch, at most `most`.
__device__ __forceinline__ int pooled(int rows, int pool, int most) { return min((rows + pool - 1) / pool, most); }

// Compute the running sum over the articles in one block. text_end [articles]: from common/statistics.cu. most_rows,
// most_units: the rows of the pooled outputs of blocks 1 and 2. whole: whether every article reaches the whole frame.
// article_count: the number of articles, of which the host only knows the maximum. first [articles + 1] and counts (the
// numbers of units and of articles): the output.
template <int POOL_1, int POOL_2, int HOST_CLOSING_UNITS, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    first_units(const int* text_end, const int* article_count, int most_rows, int most_units, bool whole, int* first,
                int* counts) {
    static_assert(HOST_CLOSING_UNITS == CLOSING_UNITS, "the host plans as many");
    __shared__ int sums[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int before = 0;  // the units of all articles in earlier rounds
    const int articles = *article_count;
    for (int begin = 0; begin < articles; begin += WARPS * WARP) {
        const int article = begin + threadIdx.x;
        int units = 0;
        if (article < articles) {
            const int rows = pooled(text_end[article], POOL_1, most_rows);
            units = CLOSING_UNITS + (whole ? most_units : pooled(rows, POOL_2, most_units));
        }
        int last = units;  // becomes the units of this warp's articles up to this one
#pragma unroll
        for (int distance = 1; distance < WARP; distance *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, last, distance);
            if (lane >= distance) last += other;
        }
        __syncthreads();  // all threads have read the sums of the round before
        if (lane == WARP - 1) sums[warp] = last;
        __syncthreads();
        int total = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            if (i < warp) last += sums[i];
            total += sums[i];
        }
        if (article < articles) first[article] = before + last - units;
        before += total;
    }
    if (threadIdx.x == 0) {
        first[articles] = counts[0] = before;
        counts[1] = articles;
    }
}

// Copy the ids of the articles that the network must score to uint8 [*count, pitch]. rows: the numbers of these
// articles in the batch. A warp copies an article.
template <int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    gather(const uint8* ids, int pitch, const int* rows, const int* count, uint8* out) {
    const int number = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (number >= *count) return;
    const uint4* from = reinterpret_cast<const uint4*>(ids + (int64)rows[number] * pitch);
    uint4* to = reinterpret_cast<uint4*>(out + (int64)number * pitch);
    for (int i = threadIdx.x % WARP; i < pitch / 16; i += WARP) to[i] = from[i];
}

// Set closing [units]: whether each unit is one of the last CLOSING_UNITS units of its article. A warp has an article.
template <int WARPS>
__global__ void __launch_bounds__(WARPS* WARP) closing_units(const int* first, const int* articles, uint8* closing) {
    const int article = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (article >= *articles) return;
    const Packing packing{first};
    uint8* at = closing + packing.first[article];
    for (int unit = threadIdx.x % WARP; unit < packing.units(article); unit += WARP)
        at[unit] = unit >= packing.reach(article);
}
