// The products of common/attention.cuh with wgmma, for Hopper.
//
// Layout. A warpgroup multiplies 64 queries together, 16 for each of its warps.
// Why. wgmma reads queries, keys and values directly from shared memory, so they take no registers.
//
// Test: tests/engine/test_encoder_gpu.py. Time: python -m benchmarks.peers.encoders_gpu.
#include "common/attention.cuh"
#include "sm90/wgmma.cuh"

template <typename T, int HEAD, int M_BLOCKS>
struct Products {
    static constexpr int ROW_BYTES = HEAD * 2;
    static constexpr int ROWS = 64;  // the queries that a warpgroup multiplies together
    static_assert(M_BLOCKS == 1, "a warp has 16 of its group's 64 queries");

    // Each thread calls this once its copies have arrived. It makes them visible to wgmma, which reads by the async
    // proxy.
    static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

    // Compute score = the warpgroup's queries times a piece of keys.
    static __device__ __forceinline__ void score(float (&score)[1][TILE / 2], uint32 queries, uint32 keys) {
        const uint64 query = descriptor<ROW_BYTES>(queries), key = descriptor<ROW_BYTES>(keys);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < HEAD / 16; k++) multiply_async<T>(score[0], query + (k * 32 >> 4), key + (k * 32 >> 4), k > 0);
        warpgroup_commit();
        warpgroup_wait<0>();
        settle(score[0]);
    }

    // Start to add powers times a piece of values to the sums of the softmax. Meanwhile the caller adds `score` to the
    // totals, and `settle` keeps these additions behind the start.
    static __device__ __forceinline__ void begin_add(Softmax<T, HEAD> (&softmax)[1], uint32 (&power)[1][TILE / 16][4],
                                                     float (&score)[1][TILE / 2], uint32 values) {
        const uint64 value = descriptor<ROW_BYTES>(values);
        settle(softmax[0].sum);
        settle_powers(power);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
            multiply_by_rows<T>(softmax[0].sum, power[0][k], value + (k * 16 * ROW_BYTES >> 4),
                                k > 0 || !softmax[0].is_empty);
        warpgroup_commit();
        softmax[0].is_empty = false;
        settle(score[0]);
    }
    static __device__ __forceinline__ void end_add(Softmax<T, HEAD> (&softmax)[1], uint32 (&power)[1][TILE / 16][4]) {
        warpgroup_wait<0>();
        settle(softmax[0].sum);
        settle_powers(power);  // the products read these registers until now
    }

  private:
    static __device__ __forceinline__ void settle_powers(uint32 (&power)[1][TILE / 16][4]) {
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) settle(power[0][k]);
    }
};
