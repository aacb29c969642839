// Attention with products by wgmma, each of a warpgroup, 64 queries: operands are read straight from shared memory.
#include "common/attention.cuh"
#include "sm90/wgmma.cuh"

template <typename T, int HEAD, int M_BLOCKS>
struct Products {
    static constexpr int ROW_BYTES = HEAD * 2;
    static constexpr int ROWS = 64;  // queries that are multiplied together, by a warpgroup
    static_assert(M_BLOCKS == 1, "a warp has 16 of its group's 64 queries");

    // By each thread, once what it copied has arrived: for the tensor cores' own way to shared memory.
    static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

    // score = queries times a piece of keys.
    static __device__ __forceinline__ void score(float (&score)[1][TILE / 2], uint32 queries, uint32 keys) {
        queries += threadIdx.x / 128 * 64 * ROW_BYTES;
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < HEAD / 16; k++)
            multiply_async<T>(score[0], descriptor<ROW_BYTES>(queries + k * 32), descriptor<ROW_BYTES>(keys + k * 32), k > 0);
        warpgroup_commit();
        warpgroup_wait<0>();
        settle(score[0]);
    }

    // The softmax's sums, plus powers times a piece of values.
    static __device__ __forceinline__ void add(Softmax<T, HEAD> (&softmax)[1], uint32 (&power)[1][TILE / 16][4],
                                               uint32 values) {
        settle(softmax[0].sum);
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) settle(power[0][k]);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
            multiply_by_rows<T>(softmax[0].sum, power[0][k], descriptor<ROW_BYTES>(values + k * 16 * ROW_BYTES));
        warpgroup_commit();
        warpgroup_wait<0>();
        settle(softmax[0].sum);
    }
};
