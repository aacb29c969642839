// Layer normalisation over all of an article's [rows, CHANNELS], then ReLU and a max pool, after block 6.
//
// Only the rows that the text reaches are in memory; all others are one constant row, which enters the sums as often as
// there are such rows. A block takes an article for each warp. First a warp sums up its article, twice: mean, and
// variance around that mean. Then warps take pool windows, and keep γ and β of a window in registers for all articles of
// the block, for γ and β of all windows are twice as large as an article.
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

constexpr int IN_FLIGHT = 4;  // rows that a warp loads at a time, and partial sums

struct Sum {
    __device__ __forceinline__ float operator()(const float (&x)[8]) const {
        return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    }
};

struct Squares {
    float mean;
    __device__ __forceinline__ float operator()(const float (&x)[8]) const {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) squares += (x[i] - mean) * (x[i] - mean);
        return squares;
    }
};

// The sum over `reach` rows, and over `others` rows that are `constant`, by a warp; both at this lane's eight channels.
template <int CHANNELS, typename T, typename Term>
__device__ __forceinline__ float total(const T* values, int reach, const T* constant, int others, Term term) {
    float part[IN_FLIGHT] = {}, value[8];
    for (int row = 0; row < reach; row += IN_FLIGHT)
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            load8(values + min(row + i, reach - 1) * CHANNELS, value);
            part[i] += row + i < reach ? term(value) : 0;
        }
    if (others > 0) {
        load8(constant, value);
        part[0] += others * term(value);
    }
    static_assert(IN_FLIGHT == 4, "the sum below");
    return warp_sum((part[0] + part[1]) + (part[2] + part[3]));
}

// input [units, CHANNELS]; first [articles + 1]; constant [CHANNELS]; gamma, beta [rows, CHANNELS]; output [articles,
// rows / POOL, CHANNELS].
template <typename T, int CHANNELS, int POOL, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP, 2)
    norm_relu_pool(const T* input, const int* first, const T* constant, const T* gamma, const T* beta, T* output,
                   int articles, int rows, float epsilon) {
    static_assert(CHANNELS == 8 * WARP, "a warp takes a row, eight channels a lane");
    struct Article {
        const T* values;
        int reach;  // rows of it
        float mean, scale;
    };
    __shared__ Article shared[WARPS];
    const Packing packing{first};
    const int warp = threadIdx.x / WARP, column = threadIdx.x % WARP * 8;
    const int begin = blockIdx.x * WARPS, count = min(WARPS, articles - begin);

    if (warp < count) {
        const T* values = input + (int64)packing.first[begin + warp] * CHANNELS;
        const int reach = min(packing.reach(begin + warp), rows);
        const float elements = (float)rows * CHANNELS;
        const float mean = total<CHANNELS>(values + column, reach, constant + column, rows - reach, Sum{}) / elements;
        const float variance =
            total<CHANNELS>(values + column, reach, constant + column, rows - reach, Squares{mean}) / elements;
        if (threadIdx.x % WARP == 0)
            shared[warp] = {values, reach, mean, unless_overflow(1 / sqrtf(variance + epsilon), variance)};
    }
    __syncthreads();

    const int windows = rows / POOL;
    for (int window = warp; window < windows; window += WARPS) {
        float g[POOL][8], b[POOL][8];
#pragma unroll
        for (int i = 0; i < POOL; i++) {
            load8(gamma + (window * POOL + i) * CHANNELS + column, g[i]);
            load8(beta + (window * POOL + i) * CHANNELS + column, b[i]);
        }
        T* result = output + ((int64)begin * windows + window) * CHANNELS + column;
        for (int a = 0; a < count; a++, result += windows * CHANNELS) {
            const Article article = shared[a];
            float best[8] = {};  // ReLU: nothing below zero
#pragma unroll
            for (int i = 0; i < POOL; i++) {
                const int row = window * POOL + i;
                float value[8];
                load8((row < article.reach ? article.values + row * CHANNELS : constant) + column, value);
#pragma unroll
                for (int c = 0; c < 8; c++)
                    best[c] = fmaxf(best[c], (value[c] - article.mean) * article.scale * g[i][c] + b[i][c]);
            }
#pragma unroll
            for (int c = 0; c < 8; c++) best[c] = unless_overflow(best[c], article.scale);
            store8(result, best);
        }
    }
}
