// Computes a product with bias and activation on Hopper, for the 16-bit rows of encoders.
//
// Layout. A block has three warpgroups. The third feeds the others through a ring of STAGES slabs, as for a convolution
//   of one tap (conv1d.cu, feed.cuh). The first two take turns, each with its own tile of TILE_M rows by TILE_N
//   outputs. A warpgroup starts once the other has seen all of its own tile arrive, because a barrier can distinguish
//   only two rounds of its stage. Shared memory also has 16 rows of outputs for each warp, which the copy engine
//   stores.
// Why. If sums over inputs are short, the work after a tile's last product takes a quarter of the time. So one
//   warpgroup multiplies while the other finishes. A tile of 192 outputs divides the widths of most encoders, and one
//   of 128 divides others (1,024). The rotation of queries and keys and the gates of outputs (ModernBERT) are applied
//   before a tile is stored, since a kernel of its own would read and write all values once more.
//
// Test: tests/engine/test_encoder_gpu.py, and test_families_gpu.py beside it.
// Time: python -m benchmarks.peers.encoders_gpu.
#include "common/launch.cuh"
#include "common/outputs.cuh"
#include "common/rotary.cuh"
#include "common/types.cuh"
#include "sm90/feed.cuh"
#include "sm90/wgmma.cuh"

constexpr int GROUP = 128, COMPUTE_GROUPS = 2;
constexpr int STORED_ROWS = 16;  // the rows that a warp stores at once: a box of `output`
constexpr int LOAD_REGISTERS = 24, COMPUTE_REGISTERS = 240;

// Load two biases. It is volatile, so the load stays where it is: if all biases were loaded at once, there would be no
// registers for them beside the sums.
__device__ __forceinline__ float2 two_biases(const float* at) {
    float2 two;
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "l"(at));
    return two;
}

// Return the thread's lane. It is volatile, since else addresses computed from it would stay in registers between
// tiles.
__device__ __forceinline__ int own_lane() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

template <typename T, int ACTIVATION, int TILE_M, int TILE_N, int STAGES, int CLUSTER>
struct Dense {
    static constexpr int M_BLOCKS = TILE_M / 64, BOXES = TILE_N / 64;  // a box has 128 bytes of each row, or 64 if gated
    static constexpr int OUT_N = IS_GATED<ACTIVATION> ? TILE_N / 2 : TILE_N, BOX = OUT_N / BOXES;
    static constexpr int BEFORE = ACTIVATION == RELU ? NONE : ACTIVATION;  // rounding applies the ReLU
    static constexpr int BOX_ROW = BOX * sizeof(T), BOX_BYTES = STORED_ROWS * BOX_ROW;
    static constexpr int STAGED_BYTES = TILE_N * STORED_ROWS * sizeof(T);  // for each warp
    using F = Feed<1, 1, TILE_M, TILE_N, STAGES, STAGES, 1, CLUSTER, 1, COMPUTE_GROUPS * 4 * STAGED_BYTES>;
    static_assert(TILE_M % 64 == 0 && (TILE_N == 192 || TILE_N == 128), "products of 64 x 192 or 64 x 128");
    static_assert(BOX_ROW == 128 || BOX_ROW == 64, "how a box's rows are permuted");

    F feed;

    // Compute. A warpgroup calls this for tile number `turn` of those that are fetched.
    __device__ __forceinline__ void multiply(float (&sum)[M_BLOCKS][TILE_N / 2], int turn, bool is_last, int thread) {
        const int slab = turn * feed.slabs;
        if (turn > 0) wait_turn(turn % COMPUTE_GROUPS);
        Ring<STAGES> at{slab % STAGES, slab / STAGES % 2};  // both rings are alike
        int used = -1;
        for (int i = 0; i < feed.slabs; i++) {
            wait_barrier(feed.a_full(at.stage), at.parity);
            wait_barrier(feed.b_full(at.stage), at.parity);
            const uint32 a_tile = feed.base + F::A + at.stage * F::A_BYTES;
            const uint32 b_tile = feed.base + F::B + at.stage * F::B_BYTES;
            warpgroup_arrive();
#pragma unroll
            for (int k = 0; k < ROW_BYTES / 32; k++)
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++)
                    multiply_async<T>(sum[m], descriptor(a_tile + m * 64 * ROW_BYTES + k * 32),
                                      descriptor(b_tile + k * 32), true);
            warpgroup_commit();
            warpgroup_wait<1>();
            if (used >= 0) release(used, thread);
            used = at.stage;
            at.advance();
        }
        if (!is_last) give_turn((turn + 1) % COMPUTE_GROUPS);
        warpgroup_wait<0>();
        release(used, thread);
    }
    // The warpgroup whose turn it is waits, and the other gives it the turn. Named barrier 0 is that of __syncthreads.
    __device__ __forceinline__ void wait_turn(int group) const {
        asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(COMPUTE_GROUPS * GROUP) : "memory");
    }
    __device__ __forceinline__ void give_turn(int group) const {
        asm volatile("bar.arrive %0, %1;" ::"r"(1 + group), "n"(COMPUTE_GROUPS * GROUP) : "memory");
    }
    __device__ __forceinline__ void release(int stage, int thread) const {
        if (thread < CLUSTER) arrive_at(feed.b_empty(stage), thread);
        if (thread == 0) arrive_at(feed.a_empty(stage), feed.rank);
        __syncwarp();
    }

    // Finish. Each warp calls this for its rows of every m-block, which it rearranges in its own shared memory. It also
    // stores rows beyond the last, for which the output has room.
    __device__ __forceinline__ void finish(const float (&sum)[M_BLOCKS][TILE_N / 2], int tile, int thread,
                                           const float* bias, const TensorMap& output, const Rotary& rotary,
                                           int rows) const {
        const int lane = own_lane(), column = feed.first_output(tile);
        const uint32 staged = feed.base + F::OWN + threadIdx.x / 32 * STAGED_BYTES;
        const uint32 staged_row = staged + lane % STORED_ROWS * BOX_ROW;
        bias += column + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < M_BLOCKS; m++) {
            if (lane == 0) wait_stored();
            __syncwarp();
            if constexpr (ACTIVATION == ROTARY)
                stage_turned(sum[m], staged_row, lane, column, first_row(tile, m, thread), bias, rotary, rows);
            else if constexpr (IS_GATED<ACTIVATION>) stage_gated(sum[m], staged_row, lane, bias);
            else stage(sum[m], staged_row, lane, bias);
            publish_to_copy_engine();
            __syncwarp();
            if (lane == 0) {
                const int row = first_row(tile, m, thread);
                for (int i = 0; i < BOXES; i++)
                    store_box(output, staged + i * BOX_BYTES, (column / (TILE_N / OUT_N) + i * BOX) * sizeof(T), row);
                commit_stores();
            }
        }
    }

    // Return the first row of a warp's part of an m-block.
    __device__ __forceinline__ int first_row(int tile, int m, int thread) const {
        return feed.first_unit(tile) + m * 64 + thread / 32 * STORED_ROWS;
    }

    // Write an m-block of a warp to its shared memory. j: the number of a group of eight columns.
    __device__ __forceinline__ void stage(const float (&sum)[TILE_N / 2], uint32 staged_row, int lane,
                                          const float* bias) const {
#pragma unroll
        for (int j = 0; j < TILE_N / 8; j += 2) {
            uint32 piece[4];
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float2 by = two_biases(bias + (j + i / 2) * 8);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int at = (j + i / 2) * 4 + half * 2;
                    const float low[1] = {sum[at]}, high[1] = {sum[at + 1]};
                    piece[i + half] =
                        round_pair<T, ACTIVATION>(output_of<BEFORE>(low, by.x), output_of<BEFORE>(high, by.y));
                }
            }
            store_matrices(staged_row + j / 8 * BOX_BYTES + (((j % 8 + lane / 16) ^ (lane & 7)) << 4), piece[0], piece[1],
                           piece[2], piece[3]);
        }
    }

    // Write queries, keys and values, a box for each head. Heads that turn share the angles of their rows.
    __device__ __forceinline__ void stage_turned(const float (&sum)[TILE_N / 2], uint32 staged_row, int lane, int column,
                                                 int row, const float* bias, const Rotary& rotary, int rows) const {
        constexpr int HEAD_BLOCKS = Rotary::HEAD / 8;
        static_assert(BOX == Rotary::HEAD, "a box is of a head");
        const float2* const by_row[2] = {rotary.of_row(row + lane / 4, rows) + lane % 4,
                                         rotary.of_row(row + 8 + lane / 4, rows) + lane % 4};
#pragma unroll
        for (int j = 0; j < HEAD_BLOCKS; j += 2) {
            float2 angle[4];
#pragma unroll
            for (int i = 0; i < 4; i++) angle[i] = by_row[i % 2][(j + i / 2) * 4];
#pragma unroll
            for (int head = 0; head < BOXES; head++) {
                const bool is_turned = column + head * BOX < rotary.outputs;
                uint32 piece[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int block = head * HEAD_BLOCKS + j + i / 2;
                    const float2 by = two_biases(bias + block * 8);
                    float low = sum[block * 4 + i % 2 * 2] + by.x, high = sum[block * 4 + i % 2 * 2 + 1] + by.y;
                    if (is_turned) turn(low, high, angle[i]);
                    piece[i] = pack<T>(low, high);
                }
                store_matrices(staged_row + head * BOX_BYTES + (((j + lane / 16) ^ (lane & 7)) << 4), piece[0], piece[1],
                               piece[2], piece[3]);
            }
        }
    }

    // Write gated outputs, of which two make one value: 16 columns make eight, of which a thread has two neighbours.
    __device__ __forceinline__ void stage_gated(const float (&sum)[TILE_N / 2], uint32 staged_row, int lane,
                                                const float* bias) const {
#pragma unroll
        for (int j = 0; j < OUT_N / 8; j += 2) {
            uint32 piece[4];
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int block = (j + i / 2) * 2;
                const float2 first = two_biases(bias + block * 8), second = two_biases(bias + block * 8 + 8);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float* const own = sum + block * 4 + half * 2;
                    piece[i + half] = pack<T>(gated<ACTIVATION>(own[0] + first.x, own[1] + first.y),
                                              gated<ACTIVATION>(own[4] + second.x, own[5] + second.y));
                }
            }
            store_matrices(staged_row + j / 4 * BOX_BYTES + (((j % 4 + lane / 16) ^ (lane >> 1 & 3)) << 4), piece[0],
                           piece[1], piece[2], piece[3]);
        }
    }
};

// input, output: rank 2 [rows, inputs or outputs], with room for more rows than there are. weight: rank 2 [outputs,
// inputs]. bias [outputs]. n_tiles: the number of tiles along the outputs. row_count: the number of rows, in device
// memory. rotary: for the ACTIVATION ROTARY. With a gated ACTIVATION, output is [rows, outputs / 2]: the weights of 16
// outputs make eight values, in the order that stage_gated reads.
template <typename T, typename Out, int KERNEL, int POOL, int ACTIVATION, int TILE_M, int TILE_N, int STAGES, int CLUSTER,
          typename Launch>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(Launch::THREADS, 1)
    dense(const __grid_constant__ TensorMap input, const __grid_constant__ TensorMap weight,
          const __grid_constant__ TensorMap output, const float* bias, int slabs, int n_tiles, const int* row_count,
          Rotary rotary) {
    using D = Dense<T, ACTIVATION, TILE_M, TILE_N, STAGES, CLUSTER>;
    static_assert(KERNEL == 1 && POOL == 1 && sizeof(T) == 2 && sizeof(Out) == 2, "a product of 16 bits");
    static_assert(Launch::THREADS == GROUP * (COMPUTE_GROUPS + 1), "two warpgroups compute, one loads");
    static_assert(Launch::SHARED_BYTES == D::F::BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(1024) char shared[];
    const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP, rows = *row_count;
    const int clusters = gridDim.x / CLUSTER, own = blockIdx.x / CLUSTER;
    const int tiles = (rows + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER) * n_tiles;  // tiles of a whole cluster
    const int blocks = tiles * CLUSTER;  // a tile each; comparing with `tiles` takes one more register
    D product{{(uint32)__cvta_generic_to_shared(shared), (int)(blockIdx.x % CLUSTER), slabs, n_tiles}};
    if (threadIdx.x == 0) product.feed.init_barriers();
    sync_cluster();

    if (group == COMPUTE_GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOAD_REGISTERS));
        if (thread == 0)
            for (int tile = own; tile < tiles; tile += clusters) product.feed.produce(input, weight, tile);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTE_REGISTERS));
        for (int i = group; (int)(blockIdx.x + i * gridDim.x) < blocks; i += COMPUTE_GROUPS) {
            const int tile = own + i * clusters;
            float sum[D::M_BLOCKS][TILE_N / 2] = {};  // zeroed, so that the last tile's sums leave their registers
            product.multiply(sum, i, tile + clusters >= tiles, thread);
            product.finish(sum, tile, thread, bias, output, rotary, rows);
        }
    }
    wait_stored();
    __syncwarp();
    sync_cluster();  // a block may not end while a neighbour may still write or arrive in its shared memory
}
