// Computes block 1 of a training step and its gradients: sums of table rows, layer norm over an article, ReLU and max
// pool.
//
// Layout. Rows are packed as in pipeline/train/packed.py: ROWS rows of an article are a unit. A thread block computes
//   one unit, and a thread one of its CHANNELS channels. The mean and deviation of the norm are over all rows of the
//   article. So there are two kernels for each direction, and PyTorch joins the units of an article between them. The
//   first kernel writes the sums, 9 KB for each unit, and the others read them. All other values of a unit stay in
//   registers.
// Why. Units are small enough for registers, and articles of any length are a whole number of units.
//
// Test: tests/train/test_train.py, tests/train/test_parallel_training.py. Time: python -m benchmarks.training.
#include "common/reduce.cuh"
#include "common/types.cuh"

// NONE: no row of the pool was chosen. The value of the pool is 0, because of the ReLU or because the text ends before
// it.
enum Choice : uint8 { NONE = 0xff };

__device__ __forceinline__ float read(const float* at) { return *at; }
__device__ __forceinline__ void write(float* at, float value) { *at = value; }
__device__ __forceinline__ float read(const BFloat* at) { return __uint_as_float((uint32)at->bits << 16); }
__device__ __forceinline__ void write(BFloat* at, float value) { at->bits = (uint16)pack<BFloat>(value, 0); }

// windows [units, ROWS, TAPS]: a row of the table for each tap. table [.., CHANNELS]. sums [units, ROWS, CHANNELS].
// statistics [units]: the mean of the unit's sums, and the sum of their squared differences from it.
template <int TAPS, int ROWS, int CHANNELS>
__global__ void __launch_bounds__(CHANNELS)
    sum_rows(const int64* windows, const float* table, float* sums, float2* statistics) {
    __shared__ int picked[ROWS * TAPS];
    __shared__ float scratch[CHANNELS / WARP];
    const int channel = threadIdx.x;
    for (int i = channel; i < ROWS * TAPS; i += CHANNELS) picked[i] = (int)windows[(int64)blockIdx.x * ROWS * TAPS + i];
    __syncthreads();
    sums += (int64)blockIdx.x * ROWS * CHANNELS + channel;
    float value[ROWS], total = 0;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        value[row] = 0;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) value[row] += table[picked[row * TAPS + tap] * CHANNELS + channel];
        sums[row * CHANNELS] = value[row];
        total += value[row];
    }
    const float mean = block_sum<CHANNELS / WARP>(total, scratch) / (ROWS * CHANNELS);
    float squares = 0;
#pragma unroll
    for (int row = 0; row < ROWS; row++) squares += (value[row] - mean) * (value[row] - mean);
    squares = block_sum<CHANNELS / WARP>(squares, scratch);
    if (channel == 0) statistics[blockIdx.x] = make_float2(mean, squares);
}

// norms [units]: the mean and 1 / deviation of the unit's article. number [units]: the number of the unit in its
// article. of_text [units]: the number of rows that the text reaches. gamma, beta [rows of an article, CHANNELS].
// pooled and chosen [units, ROWS / POOL, CHANNELS]: the largest value of a pool, or 0, and the row of the pool that
// has it, or NONE.
template <typename Number, int ROWS, int POOL, int CHANNELS>
__global__ void __launch_bounds__(CHANNELS)
    normalise_and_pool(const float* sums, const float2* norms, const int* number, const int* of_text,
                       const float* gamma, const float* beta, Number* pooled, uint8* chosen) {
    const int unit = blockIdx.x, channel = threadIdx.x, reached = of_text[unit];
    const int64 parameter = (int64)number[unit] * ROWS * CHANNELS + channel;
    const int64 out = (int64)unit * (ROWS / POOL) * CHANNELS + channel;
    const float2 norm = norms[unit];
    sums += (int64)unit * ROWS * CHANNELS + channel;
#pragma unroll
    for (int pool = 0; pool < ROWS / POOL; pool++) {
        float best = 0;
        uint8 which = NONE;
#pragma unroll
        for (int i = 0; i < POOL; i++) {
            const int row = pool * POOL + i;
            if (row >= reached) break;
            const int64 at = parameter + row * CHANNELS;
            const float value = (sums[row * CHANNELS] - norm.x) * norm.y * gamma[at] + beta[at];
            if (best == best && !(value <= best)) {  // NaN is chosen, and stays
                best = value;
                which = i;
            }
        }
        write(pooled + out + pool * CHANNELS, best);
        chosen[out + pool * CHANNELS] = which;
    }
}

// upstream: the gradient of `pooled`. The kernel adds to gamma_gradient and beta_gradient [rows of an article,
// CHANNELS]. totals [units]: the sum of the gradients of the normalised values, and the sum of their products with
// these values.
template <typename Number, int ROWS, int POOL, int CHANNELS>
__global__ void __launch_bounds__(CHANNELS)
    parameter_gradients(const Number* upstream, const uint8* chosen, const float* sums, const float2* norms,
                        const int* number, const float* gamma, float* gamma_gradient, float* beta_gradient,
                        float2* totals) {
    __shared__ float scratch[CHANNELS / WARP];
    const int unit = blockIdx.x, channel = threadIdx.x;
    const int64 parameter = (int64)number[unit] * ROWS * CHANNELS + channel;
    const int64 out = (int64)unit * (ROWS / POOL) * CHANNELS + channel;
    const float2 norm = norms[unit];
    sums += (int64)unit * ROWS * CHANNELS + channel;
    float total = 0, product = 0;
#pragma unroll
    for (int pool = 0; pool < ROWS / POOL; pool++) {
        const uint8 which = chosen[out + pool * CHANNELS];
        if (which == NONE) continue;
        const int row = pool * POOL + which;
        const int64 at = parameter + row * CHANNELS;
        const float gradient = read(upstream + out + pool * CHANNELS);
        const float normalised = (sums[row * CHANNELS] - norm.x) * norm.y;
        atomicAdd(gamma_gradient + at, gradient * normalised);
        atomicAdd(beta_gradient + at, gradient);
        total += gradient * gamma[at];
        product += gradient * gamma[at] * normalised;
    }
    total = block_sum<CHANNELS / WARP>(total, scratch);
    product = block_sum<CHANNELS / WARP>(product, scratch);
    if (channel == 0) totals[unit] = make_float2(total, product);
}

// means [units]: the averages of `totals` over all values of the unit's article. gradient [units, ROWS, CHANNELS]:
// the gradient of the sums. With a normalised value x and its gradient g, it is (g - mean(g) - x mean(g x)) /
// deviation, as for every layer norm.
template <typename Number, int ROWS, int POOL, int CHANNELS>
__global__ void __launch_bounds__(CHANNELS)
    sum_gradients(const Number* upstream, const uint8* chosen, const float* sums, const float2* norms,
                  const int* number, const float* gamma, const float2* means, Number* gradient) {
    const int unit = blockIdx.x, channel = threadIdx.x;
    const int64 parameter = (int64)number[unit] * ROWS * CHANNELS + channel;
    const int64 out = (int64)unit * (ROWS / POOL) * CHANNELS + channel;
    const float2 norm = norms[unit], mean = means[unit];
    sums += (int64)unit * ROWS * CHANNELS + channel;
    gradient += (int64)unit * ROWS * CHANNELS + channel;
#pragma unroll
    for (int pool = 0; pool < ROWS / POOL; pool++) {
        const uint8 which = chosen[out + pool * CHANNELS];
        const float whole = read(upstream + out + pool * CHANNELS);
#pragma unroll
        for (int i = 0; i < POOL; i++) {
            const int row = pool * POOL + i;
            const float own = which == i ? whole * gamma[parameter + row * CHANNELS] : 0;
            const float normalised = (sums[row * CHANNELS] - norm.x) * norm.y;
            write(gradient + row * CHANNELS, norm.y * (own - mean.x - normalised * mean.y));
        }
    }
}
