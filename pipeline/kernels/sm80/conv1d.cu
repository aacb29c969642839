// Computes a valid convolution on the tensor cores of Ampere and Ada, and in 8 bits also on those of Turing, with
// mma.sync, cp.async and ldmatrix. The product is that of simt/conv1d.cu: rows by (tap, channel) by outputs.
//
// Layout. A block computes TILE_M rows by TILE_N outputs, a warp 48 by 64. Shared memory has A_STAGES slabs of input
//   rows and B_STAGES tiles of weights, which later hold the output. A slab has 128 bytes of each row, which are 64 or
//   128 input channels. The bytes of 8-bit operands have the layout of 16-bit ones, so that only the sums and their
//   outputs (common/outputs.cuh) differ. Before a pool, the three m-blocks of a warp are rows 3i, 3i + 1 and 3i + 2 of
//   its 16 windows.
// Why. The block fetches the rows of a slab once, with KERNEL - 1 more below them, and tap t reads them t rows further
//   down. ldmatrix takes a row address from each lane, so this shift costs nothing, and the swizzle (swizzle.cuh) keeps
//   the rows of a matrix in different banks. Only the weights are fetched for every tap. The maximum of a pool is taken
//   in registers, before bias and ReLU, which commute with it.
//
// It also computes the products of encoders, as convolutions of one tap, on GPUs without sm90/dense.cu.
//
// Test: tests/engine/test_cuda.py, and test_int8_gpu.py, test_encoder_gpu.py and test_families_gpu.py beside it.
// Time: python -m benchmarks.tune --kernels sm80.
#include "common/launch.cuh"
#include "common/outputs.cuh"
#include "common/packing.cuh"
#include "common/rotary.cuh"
#include "common/types.cuh"
#include "sm80/async_copy.cuh"
#include "sm80/mma.cuh"
#include "sm80/swizzle.cuh"

constexpr int WARP_M = 48, WARP_N = 64, M_BLOCKS = WARP_M / 16, N_BLOCKS = WARP_N / 8;

// Store two neighbouring values of the output to shared memory.
template <typename Out, int ACTIVATION>
__device__ __forceinline__ void store_pair(Out* to, float low, float high) {
    if constexpr (sizeof(Out) == 1) *reinterpret_cast<uint16*>(to) = (uint16)to_bytes(low, high, 0, 0);
    else if constexpr (sizeof(Out) == 2) *reinterpret_cast<uint32*>(to) = round_pair<Out, ACTIVATION>(low, high);
    else *reinterpret_cast<float2*>(to) = make_float2(low, high);
}

// input [units * POOL, channels_in]; weight [KERNEL][channels_out][channels_in]; bias [channels_out]; output [units,
// channels_out]. unit_count: the number of units, in device memory; the grid has blocks for more. closing [units],
// constant [channels_out]: see common/packing.cuh. saturated: counts the bytes of 255, for an output of Int8. rotary:
// for the ACTIVATION ROTARY. With a gated ACTIVATION, the four of each 16 outputs that a thread has make two values, so
// output is [units, channels_out / 2].
template <typename T, typename Out, int KERNEL, int POOL, int ACTIVATION, int TILE_M, int TILE_N, int A_STAGES,
          int B_STAGES, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 1)
    conv1d(const T* input, const T* weight, const typename Arithmetic<T>::Bias* bias, Out* output, int channels_in,
           int channels_out, const int* unit_count, const uint8* closing, const Out* constant, uint64* saturated,
           Rotary rotary) {
    constexpr int THREADS = Launch::THREADS, WARPS_M = TILE_M / WARP_M;
    constexpr int SLAB = ROW_BYTES / sizeof(T), IN_PIECE = 16 / sizeof(T), OUT_PIECE = 16 / sizeof(Out);
    constexpr int OUT_N = IS_GATED<ACTIVATION> ? TILE_N / 2 : TILE_N, WARP_OUT = OUT_N / (TILE_N / WARP_N);
    constexpr int C_PITCH = OUT_N + OUT_PIECE;  // the pitch of the staged output, so that rows start four banks apart
    constexpr int A_ROWS = TILE_M + (KERNEL > 1 ? 8 : 0);
    constexpr int A_BYTES = A_ROWS * ROW_BYTES, B_BYTES = TILE_N * ROW_BYTES;
    constexpr int AHEAD = B_STAGES - 1;  // steps fetched before they are needed
    constexpr int UNITS = TILE_M / POOL, WARP_UNITS = WARP_M / POOL;
    static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0, "whole shares of warps");
    static_assert(THREADS == WARPS_M * (TILE_N / WARP_N) * 32, "a warp's share of a tile");
    static_assert(Launch::SHARED_BYTES == A_STAGES * A_BYTES + B_STAGES * B_BYTES, "the stages");
    static_assert(POOL == 1 || POOL == M_BLOCKS, "an m-block holds one row of each pool window");
    static_assert(KERNEL <= 9, "the rows below a slab");
    static_assert((A_STAGES - 1) * KERNEL >= AHEAD, "a slab is fetched while an older one computes");
    static_assert(UNITS * C_PITCH * (int)sizeof(Out) <= Launch::SHARED_BYTES, "the output is staged in their place");
    static_assert(ACTIVATION != ROTARY || WARP_N == Rotary::HEAD, "a warp has one head");
    extern __shared__ __align__(128) char shared[];
    const uint32 a_base = shared_address(shared), b_base = a_base + A_STAGES * A_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const Units<Out> units{*unit_count, closing, constant};
    const int first_unit = blockIdx.y * UNITS, first_row = first_unit * POOL, rows = units.count * POOL;
    if (!units.exist(first_unit)) return;
    const int first_column = blockIdx.x * TILE_N;
    const int steps = channels_in / SLAB * KERNEL;

    auto fetch = [&](int step) {
        const int slab = step / KERNEL, tap = step % KERNEL;
        if (step < steps) {
            if (tap == 0)
                for (int i = threadIdx.x; i < A_ROWS * PIECES; i += THREADS) {
                    const int row = i / PIECES, piece = i % PIECES;
                    const bool valid = first_row + row < rows;
                    const T* from =
                        input + (int64)(valid ? first_row + row : 0) * channels_in + slab * SLAB + piece * IN_PIECE;
                    copy_async16(a_base + slab % A_STAGES * A_BYTES + swizzled(row, piece), from, valid);
                }
#pragma unroll
            for (int i = threadIdx.x; i < TILE_N * PIECES; i += THREADS) {
                const int row = i / PIECES, piece = i % PIECES;
                const T* from = weight + ((int64)tap * channels_out + first_column + row) * channels_in + slab * SLAB +
                                piece * IN_PIECE;
                copy_async16(b_base + step % B_STAGES * B_BYTES + swizzled(row, piece), from, true);
            }
        }
        commit_copies();
    };

    typename Arithmetic<T>::Sum sum[M_BLOCKS][N_BLOCKS][4] = {};
    const int a_lane = lane % 16, a_half = lane / 16;
    const int b_row = warp_n * WARP_N + lane / 16 * 8 + lane % 8, b_half = lane / 8 % 2;
#pragma unroll
    for (int step = 0; step < AHEAD; step++) fetch(step);
    for (int step = 0; step < steps; step++) {
        wait_for_copies<AHEAD - 1>();
        __syncthreads();  // this step's operands have arrived, and the stage to be refilled has been read
        fetch(step + AHEAD);
        const int tap = step % KERNEL;
        const uint32 a_stage = a_base + step / KERNEL % A_STAGES * A_BYTES;
        const uint32 b_stage = b_base + step % B_STAGES * B_BYTES;
#pragma unroll
        for (int k = 0; k < ROW_BYTES / 32; k++) {
            uint32 a[M_BLOCKS][4], b[N_BLOCKS / 2][4];
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++) {
                const int row = warp_m * WARP_M + (POOL == 1 ? m * 16 + a_lane : a_lane * POOL + m) + tap;
                load_matrices(a[m], a_stage + swizzled(row, k * 2 + a_half));
            }
#pragma unroll
            for (int n = 0; n < N_BLOCKS / 2; n++) load_matrices(b[n], b_stage + swizzled(b_row + n * 16, k * 2 + b_half));
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
                for (int n = 0; n < N_BLOCKS; n++)
                    multiply<T>(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
    wait_for_copies<0>();
    __syncthreads();  // the stages are free for the output

    Out* staged = reinterpret_cast<Out*>(shared);
    [[maybe_unused]] float kept[M_BLOCKS][2] = {};  // for gated outputs, the value of each row's first pair
    [[maybe_unused]] const bool is_turned = first_column + warp_n * WARP_N < rotary.outputs;
#pragma unroll
    for (int n = 0; n < N_BLOCKS; n++) {
        const int column = warp_n * WARP_N + n * 8 + lane % 4 * 2;
        const typename Arithmetic<T>::Bias b[2] = {bias[first_column + column], bias[first_column + column + 1]};
#pragma unroll
        for (int m = 0; m < M_BLOCKS / POOL; m++) {
            float value[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                typename Arithmetic<T>::Sum window[POOL];
#pragma unroll
                for (int w = 0; w < POOL; w++) window[w] = sum[m + w][n][i];
                value[i] = output_of<ACTIVATION>(window, b[i % 2]);
            }
            const int row = warp_m * WARP_UNITS + m * 16 + lane / 4;
            if constexpr (IS_GATED<ACTIVATION>) {
                const float low = gated<ACTIVATION>(value[0], value[1]), high = gated<ACTIVATION>(value[2], value[3]);
                const int at = row * C_PITCH + warp_n * WARP_OUT + n / 2 * 8 + lane % 4 * 2;
                if (n % 2 == 0) kept[m][0] = low, kept[m][1] = high;
                else {
                    store_pair<Out, NONE>(staged + at, kept[m][0], low);
                    store_pair<Out, NONE>(staged + at + 8 * C_PITCH, kept[m][1], high);
                }
            } else {
                if constexpr (ACTIVATION == ROTARY)
                    if (is_turned) {
                        const int pair = n * 4 + lane % 4;
                        turn(value[0], value[1], rotary.of_row(first_unit + row, units.count)[pair]);
                        turn(value[2], value[3], rotary.of_row(first_unit + row + 8, units.count)[pair]);
                    }
                store_pair<Out, ACTIVATION>(staged + row * C_PITCH + column, value[0], value[1]);
                store_pair<Out, ACTIVATION>(staged + (row + 8) * C_PITCH + column, value[2], value[3]);
            }
        }
    }
    __syncthreads();
    const int pitch = IS_GATED<ACTIVATION> ? channels_out / 2 : channels_out;
    int count = 0;  // the number of saturated values
    for (int i = threadIdx.x; i < UNITS * OUT_N / OUT_PIECE; i += THREADS) {
        const int row = i / (OUT_N / OUT_PIECE), piece = i % (OUT_N / OUT_PIECE);
        const int unit = first_unit + row, at = blockIdx.x * OUT_N + piece * OUT_PIECE;
        if (!units.exist(unit)) break;
        const bool is_closing = units.is_closing(unit);
        const Out* from = is_closing ? units.constant + at : staged + row * C_PITCH + piece * OUT_PIECE;
        const uint4 values = *reinterpret_cast<const uint4*>(from);
        *reinterpret_cast<uint4*>(output + (int64)unit * pitch + at) = values;
        if (IS_INT8<Out> && !is_closing) count += saturated_bytes(values);
    }
    if (IS_INT8<Out>) add_count(saturated, count);
}
