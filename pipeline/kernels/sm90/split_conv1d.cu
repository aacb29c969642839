// Computes a valid convolution with fp32 accuracy on Hopper: wgmma over numbers in two fp16 parts (common/split.cuh).
//
// A product x w is high·high + high·low + low·high, since low·low is below the rounding of fp32. wgmma cuts bits that
// do not fit its sums instead of rounding. So a sum has only 64 products (STEPS_IN_SUM times 32), and is then added to
// the total in fp32 registers. The kernel works like sm90/conv1d.cu, with these differences:
//
// Layout. Three warpgroups compute 64 rows each of 128 outputs, so a thread has 64 totals and 64 sums. Before a pool,
//   the warpgroups have the rows 3i, 3i + 1 and 3i + 2 of 64 windows.
// Load. A slab of 128 bytes has 32 channels here, and a stage of weights has those of a whole sum.
// Compute. The two small products come first, so that fewer bits are cut.
// Finish. Before a pool, the warpgroups take turns: each gets the totals of the two others for 32 outputs at a time
//   through shared memory. Then it applies scale, bias and ReLU in registers, splits the result in parts, and stores
//   128 bytes at once.
// Why. While one warpgroup adds its sums to its totals, the tensor cores work for the other two.
//
// Test: tests/kernels/test_fp32_tensor_cores.py, tests/engine/test_cuda.py.
// Time: python -m benchmarks.tune --kernels sm90 --precision fp32.
#include "common/launch.cuh"
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/split.cuh"
#include "common/types.cuh"
#include "sm90/feed.cuh"
#include "sm90/wgmma.cuh"

constexpr int PART_BYTES = ROW_BYTES / 2;
constexpr int GROUP = 128, COMPUTE_GROUPS = 3, GROUP_M = 64;
constexpr int LOAD_REGISTERS = 32, COMPUTE_REGISTERS = 160;
constexpr int STEPS_IN_SUM = 2;

// The compiler may not use a sum before this point.
__device__ __forceinline__ void settle(float (&sum)[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(sum[i])::"memory");
}

// Synchronise the threads that compute.
__device__ __forceinline__ void sync_compute_groups() {
    asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE_GROUPS * GROUP) : "memory");
}

template <typename Out, int KERNEL, int POOL, bool RELU, int TILE_M, int TILE_N, int A_STAGES, int B_STAGES, int CLUSTER>
struct SplitProduct {
    static constexpr int EXCHANGED = SPLIT_GROUP / 2;  // the totals of a thread for 32 outputs
    using F = Feed<KERNEL, POOL, TILE_M, TILE_N, A_STAGES, B_STAGES, STEPS_IN_SUM, CLUSTER, COMPUTE_GROUPS,
                   POOL == 1 ? 0 : (COMPUTE_GROUPS - 1) * GROUP * EXCHANGED * 4>;
    static_assert(TILE_M == COMPUTE_GROUPS * GROUP_M && TILE_N == 128, "a warpgroup's product is 64 x 128");
    static_assert(POOL == 1 || POOL == COMPUTE_GROUPS, "a warpgroup holds one row of each pool window");
    static_assert(A_STAGES >= (KERNEL == 1 ? STEPS_IN_SUM : 2), "a sum reads as many at once");

    char* shared;
    F feed;

    // Compute. A warpgroup calls this for its rows of a tile, one sum after another. It releases stages once read.
    __device__ __forceinline__ void multiply(float (&total)[64], int group, int thread) {
        constexpr uint64 low = PART_BYTES >> 4;
        constexpr int READ_AT_ONCE = KERNEL == 1 ? STEPS_IN_SUM : 1;
        float sum[64];
#pragma unroll
        for (int i = 0; i < 64; i++) total[i] = 0;
        Ring<A_STAGES>& a = feed.a;
        Ring<B_STAGES>& b = feed.b;
        // Before a pool, tap t of row 3i + g is in phase (g + t) % 3 of window i + (g + t) / 3.
        int tap = 0;
#pragma unroll 1
        for (int sums = feed.slabs * KERNEL / STEPS_IN_SUM; sums > 0; sums--) {
            uint64 rows[STEPS_IN_SUM];
            int a_read[READ_AT_ONCE];  // the stages whose last tap has been read
#pragma unroll
            for (int i = 0; i < READ_AT_ONCE; i++) a_read[i] = -1;
#pragma unroll
            for (int i = 0; i < STEPS_IN_SUM; i++) {
                if (tap == 0) wait_barrier(feed.a_full(a.stage), a.parity);
                const int row = POOL == 1 ? group * GROUP_M + tap
                                          : (group + tap) % POOL * F::PHASE_ROWS + (group + tap) / POOL;
                rows[i] = descriptor(feed.a_tile() + row * ROW_BYTES);
                if (++tap == KERNEL) {
                    tap = 0, a_read[i % READ_AT_ONCE] = a.stage;
                    a.advance();
                }
            }
            wait_barrier(feed.b_full(b.stage), b.parity);
            const uint64 weights = descriptor(feed.b_tile());
            warpgroup_arrive();
#pragma unroll
            for (int i = 0; i < STEPS_IN_SUM; i++)
#pragma unroll
                for (int k = 0; k < SPLIT_GROUP / 16; k++) {
                    const uint64 of_step = weights + i * (F::STEP_BYTES >> 4) + 2 * k;
                    multiply_async<Half>(sum, rows[i] + low + 2 * k, of_step, i + k > 0);
                    multiply_async<Half>(sum, rows[i] + 2 * k, of_step + low, true);
                }
#pragma unroll
            for (int i = 0; i < STEPS_IN_SUM; i++)
#pragma unroll
                for (int k = 0; k < SPLIT_GROUP / 16; k++)
                    multiply_async<Half>(sum, rows[i] + 2 * k, weights + i * (F::STEP_BYTES >> 4) + 2 * k, true);
            warpgroup_commit();
            warpgroup_wait<0>();
            settle(sum);
            if (thread == 0) {
#pragma unroll
                for (int other = 0; other < CLUSTER; other++) arrive_at(feed.b_empty(b.stage), other);
#pragma unroll
                for (int i = 0; i < READ_AT_ONCE; i++)
                    if (a_read[i] >= 0) arrive_at(feed.a_empty(a_read[i]), feed.rank);
            }
            __syncwarp();
            b.advance();
#pragma unroll
            for (int i = 0; i < 64; i++) total[i] += sum[i];
        }
    }

    // Finish. A warpgroup calls this for all outputs of its rows, or for some outputs of all pool windows.
    __device__ __forceinline__ void finish(const float (&total)[64], int tile, int group, int thread, const float* affine,
                                           Out* output, const Units<Out>& units) const {
        // Without this, addresses computed from these values would stay in registers that the sums need.
        asm volatile("" : "+r"(thread), "+r"(group));
        const int channels = feed.n_tiles * TILE_N, lane = thread % 32;
        const int unit = feed.first_unit(tile) + (POOL == 1 ? group * GROUP_M : 0) + thread / 32 * 16 + lane / 4;
        float4* exchange = reinterpret_cast<float4*>(shared + F::OWN);
#pragma unroll
        for (int chunk = 0; chunk < TILE_N / SPLIT_GROUP; chunk++) {
            const int owner = chunk % COMPUTE_GROUPS, column = feed.first_output(tile) + chunk * SPLIT_GROUP;
            if (POOL > 1) {
                if (group != owner)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        exchange[((group - (group > owner)) * 4 + j) * GROUP + thread] =
                            make_float4(total[chunk * 16 + j * 4], total[chunk * 16 + j * 4 + 1],
                                        total[chunk * 16 + j * 4 + 2], total[chunk * 16 + j * 4 + 3]);
                sync_compute_groups();
            }
            float value[4][4];
            if (POOL == 1 || group == owner)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int at = column + j * 8 + lane % 4 * 2;
                    const float2 factor = *reinterpret_cast<const float2*>(affine + at);
                    const float2 bias = *reinterpret_cast<const float2*>(affine + channels + at);
                    float4 other[POOL];
#pragma unroll
                    for (int w = 0; w < POOL - 1; w++) other[w] = exchange[(w * 4 + j) * GROUP + thread];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float best = total[chunk * 16 + j * 4 + i], shift = i % 2 ? bias.y : bias.x;
                        if (RELU) shift = unless_overflow(shift, best);
#pragma unroll
                        for (int w = 0; w < POOL - 1; w++) {
                            const float value = i == 0 ? other[w].x : i == 1 ? other[w].y : i == 2 ? other[w].z : other[w].w;
                            best = fmaxf(best, value);
                            if (RELU) shift = unless_overflow(shift, value);
                        }
                        value[j][i] = finished<RELU>(best, i % 2 ? factor.y : factor.x, shift);
                    }
                }
            if (POOL > 1) sync_compute_groups();  // all threads have read the exchanged totals
            if (POOL == 1 || group == owner) store_outputs<Out>(value, output, channels, unit, column, units);
        }
    }
};

// input: rank 2 [units, 2 * channels_in] in fp16 parts, or before a pool rank 3 [units, POOL, 2 * channels_in], with
// room for more units than there are. weight: rank 2 [KERNEL * channels_out, 2 * channels_in]. affine fp32 [2,
// channels_out]: scales and biases. output [units, channels_out], in parts or fp32. unit_count: the number of units, in
// device memory, from the running sum over the articles. closing [units], constant [channels_out]: see
// common/packing.cuh. n_tiles: the number of tiles along the outputs.
template <typename Out, int KERNEL, int POOL, bool RELU, int TILE_M, int TILE_N, int A_STAGES, int B_STAGES, int CLUSTER,
          typename Launch>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(Launch::THREADS, 1)
    split_conv1d(const __grid_constant__ TensorMap input, const __grid_constant__ TensorMap weight, const float* affine,
                 Out* output, int slabs, int n_tiles, const int* unit_count, const uint8* closing, const Out* constant) {
    using P = SplitProduct<Out, KERNEL, POOL, RELU, TILE_M, TILE_N, A_STAGES, B_STAGES, CLUSTER>;
    static_assert(Launch::THREADS == GROUP * (COMPUTE_GROUPS + 1), "three warpgroups compute, one loads");
    static_assert(Launch::SHARED_BYTES == P::F::BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(1024) char shared[];
    const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
    const int clusters = gridDim.x / CLUSTER;
    const int tiles = (*unit_count + P::F::UNITS * CLUSTER - 1) / (P::F::UNITS * CLUSTER) * n_tiles;  // tiles of a whole cluster
    P product{shared, {(uint32)__cvta_generic_to_shared(shared), (int)(blockIdx.x % CLUSTER), slabs, n_tiles}};
    if (threadIdx.x == 0) product.feed.init_barriers();
    sync_cluster();

    if (group == COMPUTE_GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOAD_REGISTERS));
        if (thread == 0)
#pragma unroll 1
            for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += clusters) product.feed.produce(input, weight, tile);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTE_REGISTERS));
        float total[64];
#pragma unroll 1
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
            product.multiply(total, group, thread);
            product.finish(total, tile, group, thread, affine, output, Units<Out>{__ldg(unit_count), closing, constant});
        }
    }
    __syncwarp();
    sync_cluster();  // a block may not end while a neighbour may still write or arrive in its shared memory
}
