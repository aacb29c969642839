// Computes a valid convolution with fp32 accuracy on Ampere and Ada: mma.sync over numbers in two fp16 parts
// (common/split.cuh).
//
// Layout. As in sm80/conv1d.cu, with slabs of 32 channels, whose high and low parts fill the same 128 bytes of a row.
//   Stores need no shared memory.
// Compute. A product x w is high·high + high·low + low·high, since low·low is below the rounding of fp32. Tensor cores
//   cut bits that do not fit their sums instead of rounding. So a sum has only the 32 products of a step, and is then
//   added to the total in fp32 registers.
// Why. A warp computes 32 of its 64 outputs at a time, so that totals and sums fit in registers.
//
// Test: tests/kernels/test_fp32_tensor_cores.py, tests/engine/test_cuda.py.
// Time: python -m benchmarks.tune --kernels sm80 --precision fp32.
#include "common/launch.cuh"
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/split.cuh"
#include "common/types.cuh"
#include "sm80/async_copy.cuh"
#include "sm80/mma.cuh"
#include "sm80/swizzle.cuh"

constexpr int WARP_M = 48, WARP_N = 64, M_BLOCKS = WARP_M / 16;
constexpr int CHUNKS = WARP_N / SPLIT_GROUP, N_BLOCKS = SPLIT_GROUP / 8;  // chunks of 32 outputs
constexpr int PART_PIECES = PIECES / 2, PARTS = ROW_BYTES / 2;

// input [units * POOL, 2 * channels_in] in fp16 parts; weight [KERNEL][channels_out][2 * channels_in]; affine fp32 [2,
// channels_out]: scales and biases; output [units, channels_out], in parts or fp32. unit_count: the number of units, in
// device memory; the grid has blocks for more. closing [units], constant [channels_out]: see common/packing.cuh.
template <typename Out, int KERNEL, int POOL, bool RELU, int TILE_M, int TILE_N, int A_STAGES, int B_STAGES,
          typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 1)
    split_conv1d(const Half* input, const Half* weight, const float* affine, Out* output, int channels_in,
                 int channels_out, const int* unit_count, const uint8* closing, const Out* constant) {
    constexpr int THREADS = Launch::THREADS;
    constexpr int A_ROWS = TILE_M + (KERNEL > 1 ? 8 : 0);
    constexpr int A_BYTES = A_ROWS * ROW_BYTES, B_BYTES = TILE_N * ROW_BYTES;
    constexpr int FETCHED_AT_ONCE = KERNEL > 1 ? 8 : 1;  // pieces of weights per thread; other numbers make registers spill
    constexpr int AHEAD = B_STAGES - 1;  // steps fetched before they are needed
    constexpr int UNITS = TILE_M / POOL, WARP_UNITS = WARP_M / POOL;
    static_assert(TILE_M == 4 * WARP_M && TILE_N == 2 * WARP_N && THREADS == 8 * 32, "a warp's share of a tile");
    static_assert(Launch::SHARED_BYTES == A_STAGES * A_BYTES + B_STAGES * B_BYTES, "the stages");
    static_assert(POOL == 1 || POOL == M_BLOCKS, "an m-block holds one row of each pool window");
    static_assert(KERNEL <= 9, "the rows below a slab");
    static_assert((A_STAGES - 1) * KERNEL >= AHEAD, "a slab is fetched while an older one computes");
    extern __shared__ __align__(128) char shared[];
    const uint32 a_base = shared_address(shared), b_base = a_base + A_STAGES * A_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % 4, warp_n = warp / 4;
    const Units<Out> units{*unit_count, closing, constant};
    const int first_unit = blockIdx.y * UNITS, first_row = first_unit * POOL, rows = units.count * POOL;
    if (!units.exist(first_unit)) return;
    const int first_column = blockIdx.x * TILE_N;
    const int pitch = 2 * channels_in, steps = channels_in / SPLIT_GROUP * KERNEL;

    auto fetch = [&](int step) {
        const int slab = step / KERNEL, tap = step % KERNEL;
        if (step < steps) {
            if (tap == 0)
#pragma unroll 1
                for (int i = threadIdx.x; i < A_ROWS * PIECES; i += THREADS) {
                    const int row = i / PIECES, piece = i % PIECES;
                    const bool valid = first_row + row < rows;
                    const Half* from = input + (int64)(valid ? first_row + row : 0) * pitch + slab * PARTS + piece * 8;
                    copy_async16(a_base + slab % A_STAGES * A_BYTES + swizzled(row, piece), from, valid);
                }
#pragma unroll FETCHED_AT_ONCE
            for (int i = threadIdx.x; i < TILE_N * PIECES; i += THREADS) {
                const int row = i / PIECES, piece = i % PIECES;
                const Half* from =
                    weight + ((int64)tap * channels_out + first_column + row) * pitch + slab * PARTS + piece * 8;
                copy_async16(b_base + step % B_STAGES * B_BYTES + swizzled(row, piece), from, true);
            }
        }
        commit_copies();
    };

    float total[M_BLOCKS][CHUNKS][N_BLOCKS][4] = {};
    const int a_lane = lane % 16, a_half = lane / 16;
    const int b_row = warp_n * WARP_N + lane / 16 * 8 + lane % 8, b_half = lane / 8 % 2;
#pragma unroll
    for (int step = 0; step < AHEAD; step++) fetch(step);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies<AHEAD - 1>();
        __syncthreads();  // this step's operands have arrived, and the stage to be refilled has been read
        fetch(step + AHEAD);
        const int tap = step % KERNEL;
        const uint32 a_stage = a_base + step / KERNEL % A_STAGES * A_BYTES;
        const uint32 b_stage = b_base + step % B_STAGES * B_BYTES;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            float sum[M_BLOCKS][N_BLOCKS][4] = {};
#pragma unroll
            for (int k = 0; k < SPLIT_GROUP / 16; k++) {
                uint32 high[M_BLOCKS][4], low[M_BLOCKS][4];
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++) {
                    const int row = warp_m * WARP_M + (POOL == 1 ? m * 16 + a_lane : a_lane * POOL + m) + tap;
                    load_matrices(high[m], a_stage + swizzled(row, k * 2 + a_half));
                    load_matrices(low[m], a_stage + swizzled(row, PART_PIECES + k * 2 + a_half));
                }
#pragma unroll
                for (int pair = 0; pair < N_BLOCKS / 2; pair++) {
                    const int row = b_row + chunk * SPLIT_GROUP + pair * 16;
                    uint32 weight_high[4], weight_low[4];
                    load_matrices(weight_high, b_stage + swizzled(row, k * 2 + b_half));
                    load_matrices(weight_low, b_stage + swizzled(row, PART_PIECES + k * 2 + b_half));
#pragma unroll
                    for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            float(&to)[4] = sum[m][2 * pair + i];
                            multiply<Half>(to, low[m], weight_high[2 * i], weight_high[2 * i + 1]);
                            multiply<Half>(to, high[m], weight_low[2 * i], weight_low[2 * i + 1]);
                            multiply<Half>(to, high[m], weight_high[2 * i], weight_high[2 * i + 1]);
                        }
                }
            }
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
                for (int n = 0; n < N_BLOCKS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) total[m][chunk][n][i] += sum[m][n][i];
        }
    }

#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int column = first_column + warp_n * WARP_N + chunk * SPLIT_GROUP;
#pragma unroll
        for (int m = 0; m < M_BLOCKS / POOL; m++) {
            float value[N_BLOCKS][4];
#pragma unroll
            for (int n = 0; n < N_BLOCKS; n++) {
                const int at = column + n * 8 + lane % 4 * 2;
                const float2 factor = *reinterpret_cast<const float2*>(affine + at);
                const float2 bias = *reinterpret_cast<const float2*>(affine + channels_out + at);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float best = total[m][chunk][n][i], shift = i % 2 ? bias.y : bias.x;
#pragma unroll
                    for (int w = 0; w < POOL; w++) {
                        best = fmaxf(best, total[m + w][chunk][n][i]);
                        if (RELU) shift = unless_overflow(shift, total[m + w][chunk][n][i]);
                    }
                    value[n][i] = finished<RELU>(best, i % 2 ? factor.y : factor.x, shift);
                }
            }
            const int unit = first_unit + warp_m * WARP_UNITS + m * 16 + lane / 4;
            store_outputs<Out>(value, output, channels_out, unit, column, units);
        }
    }
}
