// The products of common/attention.cuh with mma.sync, for Ampere and later GPUs.
//
// Layout. Each warp multiplies its own M_BLOCKS * 16 queries. It loads matrices of 8 x 8 from shared memory with
//   ldmatrix.
// Why. A warp uses each matrix of keys and values for all its queries.
//
// Test: tests/engine/test_encoder_gpu.py. Time: python -m benchmarks.peers.encoders_gpu.
#include "common/attention.cuh"
#include "sm80/mma.cuh"

template <typename T, int HEAD, int M_BLOCKS>
struct Products {
    static constexpr int ROWS = M_BLOCKS * 16;  // the queries that a warp multiplies together

    // Each thread calls this once its copies have arrived.
    static __device__ __forceinline__ void publish() {}

    // Compute score = the warp's queries times a piece of keys.
    static __device__ __forceinline__ void score(float (&score)[M_BLOCKS][TILE / 2], uint32 queries, uint32 keys) {
        const int lane = threadIdx.x % 32, row = lane % 16;
        uint32 query[M_BLOCKS][HEAD / 16][4];
#pragma unroll
        for (int m = 0; m < M_BLOCKS; m++) {
#pragma unroll
            for (int k = 0; k < HEAD / 16; k++)
                load_matrices(query[m][k], queries + swizzled<HEAD * 2>(row + m * 16, k * 2 + lane / 16));
#pragma unroll
            for (int i = 0; i < TILE / 2; i++) score[m][i] = 0;
        }
#pragma unroll
        for (int n = 0; n < TILE / 16; n++)
#pragma unroll
            for (int k = 0; k < HEAD / 16; k++) {
                uint32 b[4];
                load_matrices(b, keys + swizzled<HEAD * 2>(n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++) {
                    multiply<T>(four(score[m], n * 8), query[m][k], b[0], b[1]);
                    multiply<T>(four(score[m], n * 8 + 4), query[m][k], b[2], b[3]);
                }
            }
    }

    // Add powers times a piece of values to the sums of the softmax.
    static __device__ __forceinline__ void begin_add(Softmax<T, HEAD> (&softmax)[M_BLOCKS],
                                                     const uint32 (&power)[M_BLOCKS][TILE / 16][4],
                                                     const float (&)[M_BLOCKS][TILE / 2], uint32 values) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < M_BLOCKS; m++) {
            if (softmax[m].is_empty) softmax[m].clear_sums();
            softmax[m].is_empty = false;
        }
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int n = 0; n < HEAD / 16; n++) {
                uint32 b[4];
                load_transposed(b, values + swizzled<HEAD * 2>(k * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++) {
                    multiply<T>(four(softmax[m].sum, n * 8), power[m][k], b[0], b[1]);
                    multiply<T>(four(softmax[m].sum, n * 8 + 4), power[m][k], b[2], b[3]);
                }
            }
    }

    static __device__ __forceinline__ void end_add(Softmax<T, HEAD> (&)[M_BLOCKS],
                                                   const uint32 (&)[M_BLOCKS][TILE / 16][4]) {}

  private:
    template <int SIZE>
    static __device__ __forceinline__ float (&four(float (&all)[SIZE], int at))[4] {
        return reinterpret_cast<float(&)[4]>(all[at]);
    }
};
