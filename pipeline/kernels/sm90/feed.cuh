// Brings the operands of a product to shared memory: the layout, and the producer thread that keeps two rings full.
//
// Layout. Shared memory has, in this order, A_STAGES slabs of rows, B_STAGES stages of weights, OWN_BYTES for the
//   warpgroups that compute, and the barriers of both rings. A slab has 128 bytes of each row. The rows of a tile are
//   fetched once for each slab, with a few more rows below them for the taps. The weights are fetched tap by tap, STEPS
//   taps or slabs at a time. Before a pool the input has the shape [windows, POOL, channels], and is fetched by phase.
// Why. The blocks of a cluster compute different rows with the same weights. So each block fetches its share of the
//   weights and multicasts it to all.
//
// Used by conv1d.cu, split_conv1d.cu and dense.cu, which name the tests and benchmarks.
#pragma once
#include "sm90/barrier.cuh"
#include "sm90/tma.cuh"

constexpr int ROW_BYTES = 128;

// CONSUMERS: the number of warpgroups that compute. OWN_BYTES: the bytes that they need beside the rings.
template <int KERNEL, int POOL, int TILE_M, int TILE_N, int A_STAGES, int B_STAGES, int STEPS, int CLUSTER, int CONSUMERS,
          int OWN_BYTES>
struct Feed {
    static constexpr int UNITS = TILE_M / POOL;  // the rows of the output
    static constexpr int PHASE_ROWS = UNITS + (KERNEL > 1 ? 8 : 0);
    static constexpr int PHASE_BYTES = PHASE_ROWS * ROW_BYTES, A_BYTES = POOL * PHASE_BYTES;
    static constexpr int STEP_BYTES = TILE_N * ROW_BYTES, B_BYTES = STEPS * STEP_BYTES;
    static constexpr int A = 0, B = A + A_STAGES * A_BYTES, OWN = B + B_STAGES * B_BYTES;
    static constexpr int A_FULL = OWN + OWN_BYTES, A_EMPTY = A_FULL + 8 * A_STAGES;
    static constexpr int B_FULL = A_EMPTY + 8 * A_STAGES, B_EMPTY = B_FULL + 8 * B_STAGES;
    static constexpr int BYTES = B_EMPTY + 8 * B_STAGES;
    static_assert((POOL - 1 + KERNEL - 1) / POOL <= 8, "the rows below a slab");
    static_assert(PHASE_ROWS <= 256 && TILE_N / CLUSTER <= 256, "a box of the copy engine has at most 256 rows");
    static_assert(A_BYTES % 1024 == 0 && PHASE_BYTES % 1024 == 0 && STEP_BYTES % (1024 * CLUSTER) == 0,
                  "swizzled tiles begin at 1,024 bytes");

    uint32 base;  // of shared memory
    int rank, slabs, n_tiles;
    Ring<A_STAGES> a;
    Ring<B_STAGES> b;

    __device__ __forceinline__ uint32 a_full(int i) const { return base + A_FULL + 8 * i; }
    __device__ __forceinline__ uint32 a_empty(int i) const { return base + A_EMPTY + 8 * i; }
    __device__ __forceinline__ uint32 b_full(int i) const { return base + B_FULL + 8 * i; }
    __device__ __forceinline__ uint32 b_empty(int i) const { return base + B_EMPTY + 8 * i; }
    __device__ __forceinline__ uint32 a_tile() const { return base + A + a.stage * A_BYTES; }
    __device__ __forceinline__ uint32 b_tile() const { return base + B + b.stage * B_BYTES; }
    // Return the first unit, or the first output, of this block's part of a cluster's tile.
    __device__ __forceinline__ int first_unit(int tile) const { return (tile / n_tiles * CLUSTER + rank) * UNITS; }
    __device__ __forceinline__ int first_output(int tile) const { return tile % n_tiles * TILE_N; }

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < A_STAGES; i++) init_barrier(a_full(i), 1), init_barrier(a_empty(i), CONSUMERS);
        for (int i = 0; i < B_STAGES; i++) init_barrier(b_full(i), 1), init_barrier(b_empty(i), CONSUMERS * CLUSTER);
        publish_barriers();
    }

    // One thread calls this: it fetches the rows of a tile and this block's share of the weights.
    __device__ __forceinline__ void produce(const TensorMap& input, const TensorMap& weight, int tile) {
        const int unit = first_unit(tile), output = first_output(tile) + rank * (TILE_N / CLUSTER);
        int part = 0;  // the part of a stage of weights that comes next
#pragma unroll 1
        for (int slab = 0; slab < slabs; slab++) {
            wait_barrier(a_empty(a.stage), a.parity ^ 1);
            arrive_expecting(a_full(a.stage), A_BYTES);
            if (POOL == 1) load_box(a_tile(), input, a_full(a.stage), slab * ROW_BYTES, unit);
            else
                for (int phase = 0; phase < POOL; phase++)
                    load_box(a_tile() + phase * PHASE_BYTES, input, a_full(a.stage), slab * ROW_BYTES, phase, unit);
            a.advance();
#pragma unroll 1
            for (int tap = 0; tap < KERNEL; tap++) {
                if (part == 0) {
                    wait_barrier(b_empty(b.stage), b.parity ^ 1);
                    arrive_expecting(b_full(b.stage), B_BYTES);
                }
                const uint32 share = b_tile() + part * STEP_BYTES + rank * (STEP_BYTES / CLUSTER);
                const int row = tap * n_tiles * TILE_N + output;
                if (CLUSTER == 1) load_box(share, weight, b_full(b.stage), slab * ROW_BYTES, row);
                else load_box_to_all(share, weight, b_full(b.stage), (1 << CLUSTER) - 1, slab * ROW_BYTES, row);
                if (++part == STEPS) {
                    part = 0;
                    b.advance();
                }
            }
        }
    }
};
