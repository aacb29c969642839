// Computes a valid convolution on Hopper: TMA feeds wgmma through rings of mbarriers, with one persistent block on each
// SM. The product is that of simt/conv1d.cu: rows by (tap, channel) by outputs.
//
// Layout. A block computes TILE_M rows by TILE_N outputs. Two of its three warpgroups compute, each all of the rows
//   and half of the outputs. Before a pool, the three m-blocks are rows 3i, 3i + 1 and 3i + 2 of 64 windows: tap t of
//   block m reads phase (m + t) % 3 from window (m + t) / 3 on. The maximum is taken in registers, before bias and
//   ReLU. Shared memory has A_STAGES slabs of rows, B_STAGES tiles of weights, and 16 rows of outputs for each warp.
// Load. One thread of the third warpgroup drives the copy engine (feed.cuh). A slab of 128 bytes has 64 channels in 16
//   bits, or 128 in 8 bits.
// Compute. wgmma reads tap t at t rows further down: 128-byte rows under the 128-byte swizzle may start at any row.
// Finish. Bias, ReLU and rounding are done in registers. Then each warp rearranges its 16 rows in its own shared memory
//   (stmatrix, without a barrier) and stores 16 bytes per lane, in whole pieces of a row of 128 outputs. Closing units
//   get the constant of the layer. For an output in 8 bits the host has permuted the weights within groups of 16
//   outputs, so that a thread has four neighbours (weights.py).
// Why. M_BLOCKS products of 64 x 128 share each fetched weight, and the blocks of a cluster share the fetch. Loads of
//   the next tile go on while a tile is finished.
//
// Test: tests/engine/test_cuda.py, and test_int8_gpu.py beside it. Time: python -m benchmarks.tune --kernels sm90.
#include "common/launch.cuh"
#include "common/outputs.cuh"
#include "common/packing.cuh"
#include "common/types.cuh"
#include "sm90/feed.cuh"
#include "sm90/wgmma.cuh"

constexpr int GROUP = 128, COMPUTE_GROUPS = 2;
constexpr int LOAD_REGISTERS = 40, COMPUTE_REGISTERS = 232;

template <typename T, typename Out, int KERNEL, int POOL, int ACTIVATION, int TILE_M, int TILE_N, int A_STAGES,
          int B_STAGES, int CLUSTER>
struct Product {
    using Sum = typename Arithmetic<T>::Sum;
    using Bias = typename Arithmetic<T>::Bias;

    static constexpr int OUT_PIECE = 16 / sizeof(Out);
    static constexpr int M_BLOCKS = TILE_M / 64, GROUP_N = TILE_N / COMPUTE_GROUPS;
    static constexpr int STAGED_BYTES = 16 * GROUP_N * 2;  // for each warp: 16 rows of its warpgroup's outputs
    using F = Feed<KERNEL, POOL, TILE_M, TILE_N, A_STAGES, B_STAGES, 1, CLUSTER, COMPUTE_GROUPS,
                   COMPUTE_GROUPS * 4 * STAGED_BYTES>;
    static_assert(TILE_M % 64 == 0 && GROUP_N == 128, "products of 64 x 128");
    static_assert(POOL == 1 || POOL == M_BLOCKS, "an m-block holds one row of each pool window");

    char* shared;
    F feed;

    // Compute. A warpgroup calls this for all rows of a tile and its half of the outputs. It releases stages once read.
    __device__ __forceinline__ void multiply(Sum (&sum)[M_BLOCKS][GROUP_N / 2], int group, int thread) {
        int a_used = -1, b_used = -1;  // the stages that the wgmma group before the last has read
        Ring<A_STAGES>& a = feed.a;
        Ring<B_STAGES>& b = feed.b;
        for (int slab = 0; slab < feed.slabs; slab++) {
            wait_barrier(feed.a_full(a.stage), a.parity);
#pragma unroll 1
            for (int tap = 0; tap < KERNEL; tap++) {
                wait_barrier(feed.b_full(b.stage), b.parity);
                const uint32 a_tile = feed.a_tile(), b_tile = feed.b_tile() + group * (F::B_BYTES / COMPUTE_GROUPS);
                warpgroup_arrive();
#pragma unroll
                for (int k = 0; k < ROW_BYTES / 32; k++)
#pragma unroll
                    for (int m = 0; m < M_BLOCKS; m++) {
                        const int row = POOL == 1 ? m * 64 + tap : (m + tap) % POOL * F::PHASE_ROWS + (m + tap) / POOL;
                        multiply_async<T>(sum[m], descriptor(a_tile + row * ROW_BYTES + k * 32),
                                          descriptor(b_tile + k * 32), slab + tap + k > 0);
                    }
                warpgroup_commit();
                warpgroup_wait<1>();
                if (b_used >= 0) release_weights(b_used, thread);
                if (a_used >= 0) release_rows(a_used, thread);
                __syncwarp();
                b_used = b.stage;
                a_used = tap == KERNEL - 1 ? a.stage : -1;
                b.advance();
            }
            a.advance();
        }
        warpgroup_wait<0>();
        release_weights(b_used, thread);
        release_rows(a_used, thread);
        __syncwarp();
    }
    __device__ __forceinline__ void release_weights(int stage, int thread) const {
        if (thread < CLUSTER) arrive_at(feed.b_empty(stage), thread);
    }
    __device__ __forceinline__ void release_rows(int stage, int thread) const {
        if (thread == 0) arrive_at(feed.a_empty(stage), feed.rank);
    }

    // Finish. Each warp calls this for its 16 rows of every m-block. Return how many saturated values this thread
    //   stored.
    __device__ __forceinline__ int finish(Sum (&sum)[M_BLOCKS][GROUP_N / 2], int tile, int group, int thread,
                                          const Bias* bias, Out* output, const Units<Out>& units) const {
        constexpr int OUT_BYTES = GROUP_N * sizeof(Out), LANES = GROUP_N / OUT_PIECE;  // the lanes that store a row
        static_assert(16 * OUT_BYTES <= STAGED_BYTES, "what is staged");
        const int lane = thread % 32, warp = thread / 32;
        char* staged = shared + F::OWN + (threadIdx.x / 32) * STAGED_BYTES;
        const uint32 staged_row = feed.base + F::OWN + (threadIdx.x / 32) * STAGED_BYTES + lane % 16 * OUT_BYTES;
        const int column = feed.first_output(tile) + group * GROUP_N;
        int saturated = 0;
#pragma unroll
        for (int m = 0; m < M_BLOCKS / POOL; m++) {
            const int unit = feed.first_unit(tile) + m * 64 + warp * 16;
            const uint32 closing = __ballot_sync(0xffffffffu, units.is_closing(unit + lane % 16));
            if constexpr (IS_INT8<Out>) stage_bytes(sum, m, staged_row, bias + column, lane);
            else stage_pairs(sum, m, staged_row, bias + column, lane);
            __syncwarp();
            constexpr int STEP = 32 / LANES;
            const int at = column + lane % LANES * OUT_PIECE;
            Out* to = output + (int64)(unit + lane / LANES) * (feed.n_tiles * TILE_N) + at;
#pragma unroll
            for (int i = 0; i < 16; i += STEP, to += STEP * feed.n_tiles * TILE_N) {
                const int row = i + lane / LANES, from = row * OUT_BYTES + ((lane % LANES ^ (row & 7)) << 4);
                if (!units.exist(unit + row)) break;
                const bool is_closing = closing >> row & 1;
                const uint4 values = is_closing ? *reinterpret_cast<const uint4*>(units.constant + at)
                                                : *reinterpret_cast<const uint4*>(staged + from);
                *reinterpret_cast<uint4*>(to) = values;
                if (IS_INT8<Out> && !is_closing) saturated += saturated_bytes(values);
            }
            __syncwarp();
        }
        return saturated;
    }

    // Return the value of a pool window, given where its sums are.
    __device__ __forceinline__ float value(const Sum (&sum)[M_BLOCKS][GROUP_N / 2], int m, int at, Bias bias) const {
        Sum window[POOL];
#pragma unroll
        for (int w = 0; w < POOL; w++) window[w] = sum[m + w][at];
        return output_of<ACTIVATION>(window, bias);
    }

    // Write 16-bit outputs of m-block m to shared memory. For each 16 x 16 piece, lanes 0 to 15 give the addresses of
    // the rows of its left half, and the other lanes those of its right half.
    __device__ __forceinline__ void stage_pairs(const Sum (&sum)[M_BLOCKS][GROUP_N / 2], int m, uint32 staged_row,
                                                const Bias* bias, int lane) const {
        using Two = typename Arithmetic<T>::TwoBiases;
#pragma unroll
        for (int j = 0; j < GROUP_N / 8; j += 2) {
            uint32 piece[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (j + i / 2) * 4 + i % 2 * 2;
                const Two by = __ldg(reinterpret_cast<const Two*>(bias + (j + i / 2) * 8 + lane % 4 * 2));
                piece[i] = round_pair<Out, ACTIVATION>(value(sum, m, at, low_of(by)), value(sum, m, at + 1, high_of(by)));
            }
            store_matrices(staged_row + (((j + lane / 16) ^ (lane & 7)) << 4), piece[0], piece[1], piece[2], piece[3]);
        }
    }

    // Write 8-bit outputs of m-block m to shared memory, 32 at a time. Lanes 0 to 15 give the addresses of the rows of
    // the first 16 outputs, and the other lanes those of the next 16.
    __device__ __forceinline__ void stage_bytes(const Sum (&sum)[M_BLOCKS][GROUP_N / 2], int m, uint32 staged_row,
                                                const Bias* bias, int lane) const {
#pragma unroll
        for (int j = 0; j < GROUP_N / 8; j += 4) {
            uint32 piece[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int4* four = reinterpret_cast<const int4*>(bias + (j + 2 * i) * 8 + lane % 4 * 4);
                const int4 low = __ldg(four), high = __ldg(four + 1);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int at = (j + 2 * i) * 4 + half * 2;
                    piece[2 * i + half] = to_bytes(value(sum, m, at, low_of(low)), value(sum, m, at + 1, high_of(low)),
                                                   value(sum, m, at + 4, low_of(high)), value(sum, m, at + 5, high_of(high)));
                }
            }
            store_matrices(staged_row + (((j / 2 + lane / 16) ^ (lane & 7)) << 4), piece[0], piece[1], piece[2], piece[3]);
        }
    }
};

// input: rank 2 [units, channels_in], or before a pool rank 3 [units, POOL, channels_in], with room for more units than
// there are. weight: rank 2 [KERNEL * channels_out, channels_in]. bias [channels_out]. output [units, channels_out].
// unit_count: the number of units, in device memory, from the running sum over the articles. closing [units], constant
// [channels_out]: see common/packing.cuh. n_tiles: the number of tiles along the outputs. saturated: counts the bytes
// of 255, for an output of Int8.
template <typename T, typename Out, int KERNEL, int POOL, int ACTIVATION, int TILE_M, int TILE_N, int A_STAGES,
          int B_STAGES, int CLUSTER, typename Launch>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(Launch::THREADS, 1)
    conv1d(const __grid_constant__ TensorMap input, const __grid_constant__ TensorMap weight,
           const typename Arithmetic<T>::Bias* bias, Out* output, int slabs, int n_tiles, const int* unit_count,
           const uint8* closing, const Out* constant, uint64* saturated) {
    using P = Product<T, Out, KERNEL, POOL, ACTIVATION, TILE_M, TILE_N, A_STAGES, B_STAGES, CLUSTER>;
    static_assert(Launch::THREADS == GROUP * (COMPUTE_GROUPS + 1), "two warpgroups compute, one loads");
    static_assert(Launch::SHARED_BYTES == P::F::BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(1024) char shared[];
    const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
    const Units<Out> units{*unit_count, closing, constant};
    const int clusters = gridDim.x / CLUSTER;
    const int tiles = (units.count + P::F::UNITS * CLUSTER - 1) / (P::F::UNITS * CLUSTER) * n_tiles;  // tiles of a whole cluster
    P product{shared, {(uint32)__cvta_generic_to_shared(shared), (int)(blockIdx.x % CLUSTER), slabs, n_tiles}};
    if (threadIdx.x == 0) product.feed.init_barriers();
    sync_cluster();

    if (group == COMPUTE_GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOAD_REGISTERS));
        if (thread == 0)
            for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += clusters) product.feed.produce(input, weight, tile);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTE_REGISTERS));
        typename P::Sum sum[P::M_BLOCKS][P::GROUP_N / 2];
        int count = 0;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += clusters) {
            product.multiply(sum, group, thread);
            count += product.finish(sum, tile, group, thread, bias, output, units);
        }
        if (IS_INT8<Out>) add_count(saturated, count);
    }
    __syncwarp();
    sync_cluster();  // a block may not end while a neighbour may still write or arrive in its shared memory
}
