// The steps that Broadsheet fuses into its matrix products, here each as a kernel of its own: bias, layer norm, ReLU
// and max pool; and the zeros of the text frame.
//
// Every kernel reads and writes whole activations in device memory, eight channels a thread, and computes little:
// fusion saves this traffic. Bias, norm and ReLU work in place, which favours the slow variant.
#include "common/reduce.cuh"
#include "common/types.cuh"

// This thread's number among all of the grid's.
template <int THREADS>
__device__ __forceinline__ int64 thread_number() { return (int64)blockIdx.x * THREADS + threadIdx.x; }

// values [rows, channels], `vectors` pieces of eight channels; bias fp32 [channels].
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS) add_bias(T* values, const float* bias, int64 vectors, int channels) {
    const int64 i = thread_number<THREADS>();
    if (i >= vectors) return;
    float value[8], shift[8];
    load8(values + i * 8, value);
    load8(bias + i * 8 % channels, shift);
#pragma unroll
    for (int c = 0; c < 8; c++) value[c] += shift[c];
    store8(values + i * 8, value);
}

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS) relu(T* values, int64 vectors) {
    const int64 i = thread_number<THREADS>();
    if (i >= vectors) return;
    float value[8];
    load8(values + i * 8, value);
#pragma unroll
    for (int c = 0; c < 8; c++) value[c] = fmaxf(value[c], 0);
    store8(values + i * 8, value);
}

// values [articles, pitch, channels], `vectors` pieces of eight channels; rows from text_end [articles] on become zero.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    clear_after_text(T* values, const int* text_end, int64 vectors, int pitch, int channels) {
    const int64 i = thread_number<THREADS>();
    if (i >= vectors) return;
    const int64 row = i * 8 / channels;
    constexpr float zeros[8] = {};
    if (row % pitch >= text_end[row / pitch]) store8(values + i * 8, zeros);
}

// input [articles, rows_in, channels]; output [articles, pitch, channels], of which rows_out are written, `vectors`
// pieces of eight channels in all.
template <typename T, int POOL, int THREADS>
__global__ void __launch_bounds__(THREADS)
    max_pool(const T* input, T* output, int64 vectors, int rows_in, int rows_out, int pitch, int channels) {
    const int64 i = thread_number<THREADS>();
    if (i >= vectors) return;
    const int pieces = channels / 8, channel = (int)(i % pieces) * 8;
    const int64 row = i / pieces;
    const int64 article = row / rows_out, at = row % rows_out;
    float best[8];
    load8(input + (article * rows_in + at * POOL) * channels + channel, best);
#pragma unroll
    for (int w = 1; w < POOL; w++) {
        float value[8];
        load8(input + (article * rows_in + at * POOL + w) * channels + channel, value);
#pragma unroll
        for (int c = 0; c < 8; c++) best[c] = fmaxf(best[c], value[c]);
    }
    store8(output + (article * pitch + at) * channels + channel, best);
}

// values [articles, pitch, CHANNELS], normalised over the first `rows` of an article, in place; gamma, beta [rows,
// CHANNELS]. Each article has a block, which makes the passes of common/norm_relu_pool.cu, without its ReLU and pool.
template <typename T, int CHANNELS, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    layer_norm(T* values, const T* gamma, const T* beta, int rows, int pitch, float epsilon) {
    static_assert(CHANNELS == 8 * WARP, "a warp takes a row, eight channels a lane");
    __shared__ float scratch[WARPS];
    const int warp = threadIdx.x / WARP, column = threadIdx.x % WARP * 8;
    T* article = values + (int64)blockIdx.x * pitch * CHANNELS + column;
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
        for (int c = 0; c < 8; c++) part += (value[c] - mean) * (value[c] - mean);
        squares += part;
    }
    const float scale = 1 / sqrtf(block_sum<WARPS>(squares, scratch) / count + epsilon);

    for (int row = warp; row < rows; row += WARPS) {
        float g[8], b[8];
        load8(article + row * CHANNELS, value);
        load8(gamma + row * CHANNELS + column, g);
        load8(beta + row * CHANNELS + column, b);
#pragma unroll
        for (int c = 0; c < 8; c++) value[c] = (value[c] - mean) * scale * g[c] + b[c];
        store8(article + row * CHANNELS, value);
    }
}
