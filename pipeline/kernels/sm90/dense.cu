// A product with bias and activation on Hopper, for rows of 16 bits: two warpgroups in turns, each with a tile of its own.
//
// What feeds them is as for a convolution of one tap (conv1d.cu, feed.cuh), but where the sums over inputs are short, what
// follows a tile's last product takes a quarter of the time. So one warpgroup multiplies while the other finishes: the
// producer thread fetches tiles one after another into the one ring, and the warpgroups take every other of them, each
// once the other has seen all of its own arrive (a barrier tells only two rounds of its stage apart).
// A tile of 192 outputs divides the widths of most encoders.
#include "common/launch.cuh"
#include "common/outputs.cuh"
#include "common/types.cuh"
#include "sm90/feed.cuh"
#include "sm90/wgmma.cuh"

constexpr int GROUP = 128, COMPUTE_GROUPS = 2;
constexpr int STORED_ROWS = 16;  // by a warp at once: a box of `output`
constexpr int LOAD_REGISTERS = 24, COMPUTE_REGISTERS = 240;

// In the place where it stands (volatile): fetched all at once, there would be no registers for them beside the sums.
__device__ __forceinline__ float2 two_biases(const float* at) {
    float2 two;
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "l"(at));
    return two;
}

// The thread's lane. Volatile too, or addresses computed from it would stay in registers from one tile to the next.
__device__ __forceinline__ int own_lane() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

template <typename T, int ACTIVATION, int TILE_M, int TILE_N, int STAGES, int CLUSTER>
struct Dense {
    static constexpr int M_BLOCKS = TILE_M / 64, BOX = 64, BOXES = TILE_N / BOX;  // a box is 128 bytes of each row
    static constexpr int BEFORE = ACTIVATION == RELU ? NONE : ACTIVATION;  // rounding is the ReLU
    static constexpr int BOX_BYTES = STORED_ROWS * ROW_BYTES, STAGED_BYTES = BOXES * BOX_BYTES;  // of a warp
    using F = Feed<1, 1, TILE_M, TILE_N, STAGES, STAGES, 1, CLUSTER, 1, COMPUTE_GROUPS * 4 * STAGED_BYTES>;
    static_assert(TILE_M % 64 == 0 && TILE_N == 192, "products of 64 x 192");

    F feed;

    // Compute: by a warpgroup, the tile that is number `turn` of those that are fetched.
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
    // By the warpgroup whose turn it is, and by the other: named barriers, of which 0 is that of __syncthreads.
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

    // Finish: by each warp, its rows of every m-block, rearranged in its own shared memory. Rows beyond the last are stored
    // too, where there is room for them.
    __device__ __forceinline__ void finish(const float (&sum)[M_BLOCKS][TILE_N / 2], int tile, int thread,
                                           const float* bias, const TensorMap& output) const {
        const int lane = own_lane(), column = feed.first_output(tile);
        const uint32 staged = feed.base + F::OWN + threadIdx.x / 32 * STAGED_BYTES;
        const uint32 staged_row = staged + lane % STORED_ROWS * ROW_BYTES;
        bias += column + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < M_BLOCKS; m++) {
            if (lane == 0) wait_stored();
            __syncwarp();
#pragma unroll
            for (int j = 0; j < TILE_N / 8; j += 2) {
                uint32 piece[4];
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const float2 by = two_biases(bias + (j + i / 2) * 8);
#pragma unroll
                    for (int row = 0; row < 2; row++) {
                        const int at = (j + i / 2) * 4 + row * 2;
                        const float low[1] = {sum[m][at]}, high[1] = {sum[m][at + 1]};
                        piece[i + row] =
                            round_pair<T, ACTIVATION>(output_of<BEFORE>(low, by.x), output_of<BEFORE>(high, by.y));
                    }
                }
                store_matrices(staged_row + j / 8 * BOX_BYTES + (((j % 8 + lane / 16) ^ (lane & 7)) << 4), piece[0],
                               piece[1], piece[2], piece[3]);
            }
            publish_to_copy_engine();
            __syncwarp();
            if (lane == 0) {
                const int row = feed.first_unit(tile) + m * 64 + thread / 32 * STORED_ROWS;
                for (int i = 0; i < BOXES; i++)
                    store_box(output, staged + i * BOX_BYTES, (column + i * BOX) * sizeof(T), row);
                commit_stores();
            }
        }
    }
};

// input, output: rank 2 [rows, inputs or outputs], with room for more rows than there are. weight: rank 2 [outputs, inputs].
// bias [outputs]. n_tiles: of outputs. row_count: in device memory.
template <typename T, typename Out, int KERNEL, int POOL, int ACTIVATION, int TILE_M, int TILE_N, int STAGES, int CLUSTER,
          typename Launch>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(Launch::THREADS, 1)
    dense(const __grid_constant__ TensorMap input, const __grid_constant__ TensorMap weight,
          const __grid_constant__ TensorMap output, const float* bias, int slabs, int n_tiles, const int* row_count) {
    using D = Dense<T, ACTIVATION, TILE_M, TILE_N, STAGES, CLUSTER>;
    static_assert(KERNEL == 1 && POOL == 1 && sizeof(T) == 2 && sizeof(Out) == 2, "a product of 16 bits");
    static_assert(Launch::THREADS == GROUP * (COMPUTE_GROUPS + 1), "two warpgroups compute, one loads");
    static_assert(Launch::SHARED_BYTES == D::F::BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(1024) char shared[];
    const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP, rows = *row_count;
    const int clusters = gridDim.x / CLUSTER, own = blockIdx.x / CLUSTER;
    const int tiles = (rows + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER) * n_tiles;  // of a whole cluster
    const int blocks = tiles * CLUSTER;  // a tile each: compared in place of `tiles`, which takes a register more
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
            float sum[D::M_BLOCKS][TILE_N / 2] = {};  // zeroed, the last tile's sums leave their registers once stored
            product.multiply(sum, i, tile + clusters >= tiles, thread);
            product.finish(sum, tile, thread, bias, output);
        }
    }
    wait_stored();
    __syncwarp();
    sync_cluster();  // a block's shared memory stays while its neighbour may write or arrive there
}
