// How the rows of a batch are packed: how far the text of each article reaches, and from there where its units begin.
#include "common/packing.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

// The pool windows that `rows` rows touch, `most` at most.
__device__ __forceinline__ int pooled(int rows, int pool, int most) { return min((rows + pool - 1) / pool, most); }

// The running sum over the articles, by one block. text_end [articles] (common/statistics.cu). most_rows, most_units:
// rows of block 1's and of block 2's pooled output. whole: every article reaches all of the frame. article_count: how
// many articles there are; the host knows the most. first [articles + 1]; counts: units and articles.
template <int POOL_1, int POOL_2, int CLOSING_UNITS, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    first_units(const int* text_end, const int* article_count, int most_rows, int most_units, bool whole, int* first,
                int* counts) {
    static_assert(CLOSING_UNITS == CLOSING, "the host plans as many");
    __shared__ int sums[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int before = 0;  // units of the articles of earlier rounds
    const int articles = *article_count;
    for (int begin = 0; begin < articles; begin += WARPS * WARP) {
        const int article = begin + threadIdx.x;
        int units = 0;
        if (article < articles) {
            const int rows = pooled(text_end[article], POOL_1, most_rows);
            units = CLOSING + (whole ? most_units : pooled(rows, POOL_2, most_units));
        }
        int last = units;  // of this warp's articles up to this one
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

// The ids of the articles that the network is asked about, uint8 [*count, pitch], by rows: which articles of the batch they
// are. A warp takes an article.
template <int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    gather(const uint8* ids, int pitch, const int* rows, const int* count, uint8* out) {
    const int number = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (number >= *count) return;
    const uint4* from = reinterpret_cast<const uint4*>(ids + (int64)rows[number] * pitch);
    uint4* to = reinterpret_cast<uint4*>(out + (int64)number * pitch);
    for (int i = threadIdx.x % WARP; i < pitch / 16; i += WARP) to[i] = from[i];
}

// closing: of each unit, whether it is one of the last CLOSING of its article. A warp takes an article.
template <int WARPS>
__global__ void __launch_bounds__(WARPS* WARP) closing_units(const int* first, const int* articles, uint8* closing) {
    const int article = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (article >= *articles) return;
    const Packing packing{first};
    uint8* at = closing + packing.first[article];
    for (int unit = threadIdx.x % WARP; unit < packing.units(article); unit += WARP)
        at[unit] = unit >= packing.reach(article);
}
