// Computes a valid convolution in plain fp32, as one matrix product: the GPU's own reference.
//
// In channels-last order, output row r of an article is Σ_tap input[r + tap] · weight[tap]. This is a product whose K
// dimension runs over (tap, channel), and whose A rows for tap t are the rows t further down. A linear layer has one
// tap. Rows whose taps would read the next article are computed as well, and a constant is stored in their place.
//
// Layout. A block computes TILE_M x TILE_N outputs, a thread 9 x 8. Operands go through two buffers in shared memory,
//   and the loads of the next step are in flight while this step computes.
// Why. Nine consecutive rows are three whole pool windows, so the pool is a maximum within a thread. Sums are split
//   into partial sums of 64 products: over 8,704 inputs, one long fp32 sum would be ten times less accurate.
//
// Test: tests/engine/test_cuda.py. Time: broadsheet profile, python -m benchmarks.ladder.
#include "common/launch.cuh"
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/types.cuh"

constexpr int STEP = 16;
constexpr int ROWS = 9, COLUMNS = 8;       // outputs of a thread; a block has 16 x 16 threads
constexpr int PARTIAL = 64;                // products in a partial sum

// input [units * POOL, channels_in]; weight [KERNEL][channels_in][channels_out]; bias [channels_out]; output [units,
// channels_out]. unit_count: the number of units, in device memory; the grid has blocks for more. closing [units],
// constant [channels_out]: see common/packing.cuh.
template <int KERNEL, int POOL, bool RELU, int TILE_M, int TILE_N, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 1)
    conv1d(const float* input, const float* weight, const float* bias, float* output, int channels_in,
           int channels_out, const int* unit_count, const uint8* closing, const float* constant) {
    constexpr int THREADS = Launch::THREADS;
    constexpr int A_PITCH = TILE_M + 4;  // so that transposed stores use different banks
    constexpr int A_LOADS = (TILE_M * STEP / 4 + THREADS - 1) / THREADS, B_LOADS = STEP * TILE_N / 4 / THREADS;
    static_assert(TILE_M == 16 * ROWS && TILE_N == 16 * COLUMNS && THREADS == 16 * 16, "a thread's share of a tile");
    static_assert(POOL == 1 || ROWS % POOL == 0, "a thread holds whole pool windows");
    struct Shared {
        float a_tile[2][STEP][A_PITCH];
        float b_tile[2][STEP][TILE_N];
    };
    static_assert(sizeof(Shared) == Launch::SHARED_BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(16) char shared[];
    auto& a_tile = reinterpret_cast<Shared*>(shared)->a_tile;
    auto& b_tile = reinterpret_cast<Shared*>(shared)->b_tile;
    const int column = threadIdx.x % 16, group = threadIdx.x / 16;
    const Units<float> units{*unit_count, closing, constant};
    const int first_row = blockIdx.y * TILE_M, rows = units.count * POOL;
    if (first_row >= rows) return;
    const int first_column = blockIdx.x * TILE_N;
    const int steps_a_tap = channels_in / STEP, steps = KERNEL * steps_a_tap;

    float4 a_next[A_LOADS], b_next[B_LOADS];
    auto load = [&](int step) {
        const int tap = step / steps_a_tap, channel = step % steps_a_tap * STEP;
#pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int piece = i * THREADS + threadIdx.x;
            const int row = first_row + piece / 4 + tap;
            a_next[i] = make_float4(0, 0, 0, 0);
            if (piece < TILE_M * STEP / 4 && row < rows)
                a_next[i] = *reinterpret_cast<const float4*>(input + (int64)row * channels_in + channel + piece % 4 * 4);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; i++) {
            const int piece = i * THREADS + threadIdx.x;
            const int64 row = (int64)step * STEP + piece / (TILE_N / 4);
            b_next[i] = *reinterpret_cast<const float4*>(weight + row * channels_out + first_column +
                                                         piece % (TILE_N / 4) * 4);
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int piece = i * THREADS + threadIdx.x;
            if (piece < TILE_M * STEP / 4) {
                a_tile[buffer][piece % 4 * 4][piece / 4] = a_next[i].x;
                a_tile[buffer][piece % 4 * 4 + 1][piece / 4] = a_next[i].y;
                a_tile[buffer][piece % 4 * 4 + 2][piece / 4] = a_next[i].z;
                a_tile[buffer][piece % 4 * 4 + 3][piece / 4] = a_next[i].w;
            }
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; i++) {
            const int piece = i * THREADS + threadIdx.x;
            *reinterpret_cast<float4*>(&b_tile[buffer][piece / (TILE_N / 4)][piece % (TILE_N / 4) * 4]) = b_next[i];
        }
    };

    float total[ROWS][COLUMNS] = {}, partial[ROWS][COLUMNS] = {};
    load(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) load(step + 1);
        const int buffer = step & 1;
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float a[ROWS], b[COLUMNS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) a[i] = a_tile[buffer][k][group * ROWS + i];
            *reinterpret_cast<float4*>(b) = *reinterpret_cast<const float4*>(&b_tile[buffer][k][column * 4]);
            *reinterpret_cast<float4*>(b + 4) = *reinterpret_cast<const float4*>(&b_tile[buffer][k][TILE_N / 2 + column * 4]);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) partial[i][j] = fmaf(a[i], b[j], partial[i][j]);
        }
        if ((step + 1) % (PARTIAL / STEP) == 0 || step + 1 == steps) {
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) total[i][j] += partial[i][j], partial[i][j] = 0;
        }
        if (step + 1 < steps) store(buffer ^ 1);
        __syncthreads();
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = first_column + half * (TILE_N / 2) + column * 4;
        float b[4];
        *reinterpret_cast<float4*>(b) = *reinterpret_cast<const float4*>(bias + at);
#pragma unroll
        for (int i = 0; i < ROWS; i += POOL) {
            float value[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float best = total[i][half * 4 + j];
#pragma unroll
                for (int w = 1; w < POOL; w++) best = fmaxf(best, total[i + w][half * 4 + j]);
                value[j] = best + b[j];
                if (RELU) {
                    value[j] = fmaxf(value[j], 0);
#pragma unroll
                    for (int w = 0; w < POOL; w++) value[j] = unless_overflow(value[j], total[i + w][half * 4 + j]);
                }
            }
            const int unit = (first_row + group * ROWS + i) / POOL;
            float4 stored = make_float4(value[0], value[1], value[2], value[3]);
            if (units.is_closing(unit)) stored = *reinterpret_cast<const float4*>(units.constant + at);
            if (units.exist(unit)) *reinterpret_cast<float4*>(output + (int64)unit * channels_out + at) = stored;
        }
    }
}
