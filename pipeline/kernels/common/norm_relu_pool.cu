// Layer normalisation over all of an article's [rows, CHANNELS], then ReLU and a max pool, after block 6.
//
// One block an article. Three passes over its rows: mean, variance around that mean, result. Device memory is read once;
// an article is 52 KB in 16 bits, so the second and third pass find it in the L1 cache.
#include "common/overflow.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

// input [articles, rows, CHANNELS]; gamma, beta [rows, CHANNELS]; output [articles, rows / POOL, CHANNELS].
template <typename T, int CHANNELS, int POOL, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP, 4)
    norm_relu_pool(const T* input, const T* gamma, const T* beta, T* output, int rows, float epsilon) {
    static_assert(CHANNELS == 8 * WARP, "a warp takes a row, eight channels a lane");
    __shared__ float scratch[WARPS];
    const int warp = threadIdx.x / WARP, column = threadIdx.x % WARP * 8;
    const T* article = input + (int64)blockIdx.x * rows * CHANNELS + column;
    const float count = (float)rows * CHANNELS;
    float value[8];

    float sum = 0;
    for (int row = warp; row < rows; row += WARPS) {
        load8(article + row * CHANNELS, value);
        sum += ((value[0] + value[1]) + (value[2] + value[3])) + ((value[4] + value[5]) + (value[6] + value[7]));
    }
    const float mean = block_sum<WARPS>(sum, scratch) / count;

    float squares = 0;
    for (int row = warp; row < rows; row += WARPS) {
        load8(article + row * CHANNELS, value);
        float part = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) part += (value[i] - mean) * (value[i] - mean);
        squares += part;
    }
    const float variance = block_sum<WARPS>(squares, scratch) / count;
    const float scale = unless_overflow(1 / sqrtf(variance + epsilon), variance);

    T* result = output + (int64)blockIdx.x * (rows / POOL) * CHANNELS + column;
    for (int window = warp; window < rows / POOL; window += WARPS) {
        float best[8] = {};  // ReLU: nothing below zero
#pragma unroll
        for (int i = 0; i < POOL; i++) {
            const int at = (window * POOL + i) * CHANNELS;
            float g[8], b[8];
            load8(article + at, value);
            load8(gamma + at + column, g);
            load8(beta + at + column, b);
#pragma unroll
            for (int c = 0; c < 8; c++) best[c] = fmaxf(best[c], (value[c] - mean) * scale * g[c] + b[c]);
        }
#pragma unroll
        for (int c = 0; c < 8; c++) best[c] = unless_overflow(best[c], scale);
        store8(result + window * CHANNELS, best);
    }
}
