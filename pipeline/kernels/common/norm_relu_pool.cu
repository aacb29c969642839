// Computes layer normalisation over all of an article's [ROWS, CHANNELS], then ReLU and a max pool, after block 6.
//
// Only the rows that the text reaches are in memory. All others equal one constant row, which enters the sums as often
// as there are such rows.
//
// Layout. A block takes one article after another. Each of its WARPS warps has some pool windows, and a lane has eight
//   channels of a row. Dynamic shared memory holds γ and β, if two blocks fit on an SM.
// Why. Rows stay in registers from the sum for the mean, through the sum of squares around the mean, to the result. γ
//   and β together are twice as large as an article, so from shared memory they are read once for all articles of a
//   block.
//
// Test: tests/engine/test_cuda.py. Time: broadsheet profile.
#include "common/launch.cuh"
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/reduce.cuh"
#include "common/split.cuh"
#include "common/types.cuh"

template <typename T>
struct __align__(16) Eight {
    T values[8];
};

// input [units, CHANNELS]; first [articles + 1]; constant [CHANNELS]; gamma, beta [ROWS, CHANNELS]; output [articles,
// ROWS / POOL, CHANNELS]. articles: the number of articles, in device memory. least_variance: an article with less
// variance gets NaN. Dynamic shared memory: gamma and beta, or none.
template <typename T, typename Out, int CHANNELS, int POOL, int ROWS, int WARPS, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 2)
    norm_relu_pool(const T* input, const int* first, const T* constant, const T* gamma, const T* beta, Out* output,
                   const int* articles, float epsilon, float least_variance) {
    constexpr int WINDOWS = ROWS / POOL, ALL_WINDOWS = (ROWS + POOL - 1) / POOL;  // the pool drops a partial window
    constexpr int TURNS = (ALL_WINDOWS + WARPS - 1) / WARPS;                      // the windows of each warp
    constexpr bool KEPT = TURNS * POOL * sizeof(Eight<T>) <= 240;                 // in 60 registers
    constexpr bool SHARED = Launch::SHARED_BYTES > 0;
    static_assert(CHANNELS == 8 * WARP && Launch::THREADS == WARPS * WARP, "a warp takes a row, eight channels a lane");
    static_assert(!SHARED || Launch::SHARED_BYTES == 2 * ROWS * CHANNELS * sizeof(T), "gamma and beta");
    extern __shared__ __align__(16) char shared[];
    __shared__ float scratch[WARPS];
    __shared__ volatile int there;  // in shared memory, since no register is free
    const Packing packing{first};
    const int warp = threadIdx.x / WARP, column = threadIdx.x % WARP * 8;
    if (threadIdx.x == 0) there = *articles;
    __syncthreads();
    if (SHARED) {
        T* both = reinterpret_cast<T*>(shared);
        for (int i = threadIdx.x * 8; i < ROWS * CHANNELS; i += Launch::THREADS * 8) {
            *reinterpret_cast<Eight<T>*>(both + i) = *reinterpret_cast<const Eight<T>*>(gamma + i);
            *reinterpret_cast<Eight<T>*>(both + ROWS * CHANNELS + i) = *reinterpret_cast<const Eight<T>*>(beta + i);
        }
        gamma = both, beta = both + ROWS * CHANNELS;
        __syncthreads();
    }
    float after[8];
    load8(constant + column, after);

    for (int article = blockIdx.x; article < there; article += gridDim.x) {
        const T* values = input + (int64)packing.first[article] * CHANNELS + column;
        const int reach = min(packing.reach(article), ROWS);
        const float count = (float)ROWS * CHANNELS;
        Eight<T> kept[KEPT ? TURNS : 1][POOL];
        if (KEPT) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int i = 0; i < POOL; i++) {
                    const int row = (turn * WARPS + warp) * POOL + i;
                    if (row < reach) kept[KEPT ? turn : 0][i] = *reinterpret_cast<const Eight<T>*>(values + row * CHANNELS);
                }
        }
        auto load = [&](int turn, int i, float(&value)[8]) {
            if (KEPT) load8(kept[turn][i].values, value);
            else load8(values + ((turn * WARPS + warp) * POOL + i) * CHANNELS, value);
        };

        float sum = 0, value[8];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int i = 0; i < POOL; i++)
                if ((turn * WARPS + warp) * POOL + i < reach) {
                    load(turn, i, value);
                    sum += ((value[0] + value[1]) + (value[2] + value[3])) + ((value[4] + value[5]) + (value[6] + value[7]));
                }
        if (warp == 0 && reach < ROWS)
            sum += (ROWS - reach) *
                   (((after[0] + after[1]) + (after[2] + after[3])) + ((after[4] + after[5]) + (after[6] + after[7])));
        const float mean = block_sum<WARPS>(sum, scratch) / count;

        float squares = 0;
        auto add_squares = [&](const float(&x)[8], int times) {
            float part = 0;
#pragma unroll
            for (int c = 0; c < 8; c++) part += (x[c] - mean) * (x[c] - mean);
            squares += times * part;
        };
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int i = 0; i < POOL; i++)
                if ((turn * WARPS + warp) * POOL + i < reach) {
                    load(turn, i, value);
                    add_squares(value, 1);
                }
        if (warp == 0 && reach < ROWS) add_squares(after, ROWS - reach);
        const float variance = block_sum<WARPS>(squares, scratch) / count;
        float scale = unless_overflow(1 / sqrtf(variance + epsilon), variance);
        if (variance < least_variance) scale = __int_as_float(0x7fffffff);  // NaN

        const float shift = -mean * scale;  // a normalised value is scale * value + shift
        float normal_after[8];
#pragma unroll
        for (int c = 0; c < 8; c++) normal_after[c] = fmaf(scale, after[c], shift);
        Out* result = output + (int64)article * WINDOWS * CHANNELS + column;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int window = turn * WARPS + warp;
            if (window >= WINDOWS) break;
            float best[8] = {};  // ReLU: nothing below zero
#pragma unroll
            for (int i = 0; i < POOL; i++) {
                const int row = window * POOL + i;
                float g[8], b[8], normal[8];
                load8(gamma + row * CHANNELS + column, g);
                load8(beta + row * CHANNELS + column, b);
                if (row < reach) {
                    load(turn, i, value);
#pragma unroll
                    for (int c = 0; c < 8; c++) normal[c] = fmaf(scale, value[c], shift);
                } else {
#pragma unroll
                    for (int c = 0; c < 8; c++) normal[c] = normal_after[c];
                }
#pragma unroll
                for (int c = 0; c < 8; c++) best[c] = fmaxf(best[c], fmaf(normal[c], g[c], b[c]));
            }
            if (scale != scale)  // an overflow, which fmaxf hides
                for (int c = 0; c < 8; c++) best[c] = scale;
            store8(result + window * CHANNELS, best);
        }
    }
}
