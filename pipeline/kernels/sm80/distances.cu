// Computes disentangled attention (He et al., "DeBERTa", 2021), whose scores depend on distances between tokens.
//
// A score is the product of a query and a key, plus the product of the query and the key of their distance, plus the
// product of the key and the query of their distance. Scores never leave the chip.
//
// Layout. As in common/attention.cuh, but a block has one head. The keys and queries of distances depend only on
//   weights, so the host lays them out by distance. Then 16 queries and 64 keys need 79 neighbouring rows of each.
//   These rows move on by 64 with each piece of keys. They are in a ring in shared memory, and each piece fetches 64
//   new rows of each.
// Why. Tensor cores multiply with all of these rows, although each score needs only one of them: score (i, j) takes its
//   terms from row 16 + j - i. A term is in another lane of the same row, or of the same column, at most one block of
//   eight further on. So the lane that has the term chooses between two neighbouring blocks, and one shuffle moves it
//   to its score.
//
// Test: tests/engine/test_families_gpu.py, and tests/kernels/test_encoder_tables.py for the tables.
// Time: python -m benchmarks.peers.deberta_gpu.
#include "common/attention.cuh"
#include "sm80/mma.cuh"

constexpr int HEAD = 64, HEAD_BYTES = HEAD * 2, STEPS = HEAD / 16, TILE_BYTES = TILE * HEAD_BYTES;

// The lanes between which terms move. A lane has row lane / 4 of a block of eight rows, in column lane % 4 * 2 and the
// next.
struct Moves {
    int row_lane[2], column_lane[2];  // the lanes from which terms come: along the row, and along the column
    bool next_along_row[2], next_along_column[2], is_odd;  // whether other lanes want this lane's later block

    __device__ __forceinline__ Moves() {
        const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
        is_odd = row & 1;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row_lane[i] = (lane & ~3) | (column + i - row & 7) >> 1;
            column_lane[i] = (column + i - row & 7) << 2 | lane % 4;
            next_along_row[i] = column + i + row < 8;
            next_along_column[i] = row <= column + i;
        }
    }

    // Add the terms of two neighbouring scores, which are in the row of the scores in two blocks.
    __device__ __forceinline__ void add_along_row(float* score, const float* earlier, const float* later) const {
        const float even = next_along_row[0] ? later[0] : earlier[0], odd = next_along_row[1] ? later[1] : earlier[1];
        score[0] += __shfl_sync(0xffffffffu, is_odd ? odd : even, row_lane[0]);
        score[1] += __shfl_sync(0xffffffffu, is_odd ? even : odd, row_lane[1]);
    }

    // Add the terms of two neighbouring scores, which are in the columns of the scores in two blocks.
    __device__ __forceinline__ void add_along_column(float* score, const float* earlier, const float* later) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
            score[i] += __shfl_sync(0xffffffffu, next_along_column[i] ? later[i] : earlier[i], column_lane[i]);
    }
};

// Load first operands from shared memory: 16 rows of a step of 16 values.
__device__ __forceinline__ void load_rows(uint32 (&matrix)[4], uint32 rows, int step) {
    const int lane = threadIdx.x % 32;
    load_matrices(matrix, rows + swizzled<HEAD_BYTES>(lane % 16, step * 2 + lane / 16));
}

// Load eight rows of two steps: second operands, or halves of first operands.
__device__ __forceinline__ void load_block(uint32 (&matrix)[4], uint32 rows, int steps) {
    const int lane = threadIdx.x % 32;
    load_matrices(matrix, rows + swizzled<HEAD_BYTES>(lane % 8, steps * 4 + lane / 8));
}

// The arguments are those of `attention` in common/attention.cuh, and a block has one head. apart [2 * most, 2 * heads
// * HEAD]: row `most` + j - i has the keys of all heads for the distance of query i from key j, and then the queries.
// `most` is a multiple of a block's queries.
template <typename T, int WARPS, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 8 / WARPS)
    attention_by_distance(const T* rows, const int* ends, const int* texts, const int* firsts, int heads, int pitch,
                          float scale, int out_pitch, T* out, const T* apart, int most) {
    constexpr int THREADS = WARPS * 32, PIECES = HEAD / 8, QUERY_ROWS = WARPS * 16;
    constexpr int CHUNKS = QUERY_ROWS / TILE + 1, RING = CHUNKS + 1;  // chunks of 64 distances: those in use, and one more that is fetched
    static_assert(QUERY_ROWS % TILE == 0 && Launch::THREADS == THREADS, "whole tiles");
    static_assert(Launch::SHARED_BYTES == QUERY_ROWS * HEAD_BYTES + (4 + 2 * RING) * TILE_BYTES, "buffers and rings");
    extern __shared__ __align__(1024) char shared[];
    const uint32 queries = shared_address(shared), all_keys = queries + QUERY_ROWS * HEAD_BYTES;
    const uint32 all_values = all_keys + 2 * TILE_BYTES, keys_at = all_values + 2 * TILE_BYTES;
    const uint32 queries_at = keys_at + RING * TILE_BYTES;
    const int own = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, head = blockIdx.y;
    const int begin = ends[texts[blockIdx.x]], size = ends[texts[blockIdx.x] + 1] - begin, first = firsts[blockIdx.x];

    // A thread copies 16 bytes of every STEP-th row.
    constexpr int STEP = THREADS / PIECES;
    const int own_row = threadIdx.x / PIECES, own_piece = threadIdx.x % PIECES;
    const uint32 own_to = swizzled<HEAD_BYTES>(own_row, own_piece);
    auto fetch = [&](uint32 to, int column, int row, int count) {
        const T* from = rows + ((uint32)(begin + own_row + row) * pitch + column * HEAD + own_piece * 8);
#pragma unroll
        for (int r = 0; r < count; r += STEP, from += STEP * pitch)
            copy_async16(to + own_to + r * HEAD_BYTES, from, own_row + row + r < size);
    };
    const int apart_pitch = 2 * heads * HEAD;
    const T* const own_apart = apart + ((int64)(most - first - QUERY_ROWS + own_row) * apart_pitch + head * HEAD + own_piece * 8);
    auto fetch_chunk = [&](int chunk) {
        const T* from = own_apart + (int64)chunk * TILE * apart_pitch;
        const uint32 to = chunk % RING * TILE_BYTES + own_to;
#pragma unroll
        for (int r = 0; r < TILE; r += STEP, from += STEP * apart_pitch) {
            copy_async16(keys_at + to + r * HEAD_BYTES, from, true);
            copy_async16(queries_at + to + r * HEAD_BYTES, from + heads * HEAD, true);
        }
    };
    auto fetch_piece = [&](int piece) {
        fetch(all_keys + piece % 2 * TILE_BYTES, heads + head, piece * TILE, TILE);
        fetch(all_values + piece % 2 * TILE_BYTES, 2 * heads + head, piece * TILE, TILE);
        fetch_chunk(piece + CHUNKS - 1);
        commit_copies();
    };

    fetch(queries, head, first, QUERY_ROWS);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS - 1; chunk++) fetch_chunk(chunk);
    fetch_piece(0);
    const Moves moves;
    Softmax<T, HEAD> softmax;
    softmax.begin();
    softmax.clear_sums();
    uint32 query[STEPS][4];
    const int from_distance = QUERY_ROWS - own - 16;  // the warp's first row of distances, from the block's
    for (int piece = 0; piece * TILE < size; piece++) {
        wait_for_copies<0>();
        __syncthreads();
        if ((piece + 1) * TILE < size) fetch_piece(piece + 1);
        if (first + own >= size) continue;
        if (piece == 0)
#pragma unroll
            for (int k = 0; k < STEPS; k++) load_rows(query[k], queries + own * HEAD_BYTES, k);
        const uint32 keys = all_keys + piece % 2 * TILE_BYTES, values = all_values + piece % 2 * TILE_BYTES;
        // Return the place of eight rows of distances in a ring. block: their number among the warp's ten such blocks.
        uint32 start = (piece % RING * TILE + from_distance) * HEAD_BYTES;
        auto in_ring = [&](int block) {
            const uint32 at = start + block * 8 * HEAD_BYTES;
            return at < RING * TILE_BYTES ? at : at - RING * TILE_BYTES;
        };

        // The terms of eight keys lie in three neighbouring blocks of eight distances. by_key: the products of the 16
        // queries with the keys of these distances. by_query: those of the queries of these distances with the keys.
        float score[TILE / 2], by_key[3][4] = {};
        uint32 distance[3][STEPS / 2][4];  // the queries of the three blocks
#pragma unroll
        for (int block = 0; block < 2; block++)
#pragma unroll
            for (int steps = 0; steps < STEPS / 2; steps++) {
                uint32 b[4];
                load_block(distance[block][steps], queries_at + in_ring(block), steps);
                load_block(b, keys_at + in_ring(block), steps);
                multiply<T>(by_key[block], query[steps * 2], b[0], b[1]);
                multiply<T>(by_key[block], query[steps * 2 + 1], b[2], b[3]);
            }
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            // Keeps the next loads and their addresses behind this point. Earlier, they would need too many registers.
            __syncwarp();
            asm volatile("" : "+r"(start));
            float by_query[2][4] = {};  // for the first two blocks, and for the last one, repeated
            float (&own_score)[4] = reinterpret_cast<float(&)[4]>(score[n * 4]);
#pragma unroll
            for (int i = 0; i < 4; i++) own_score[i] = by_key[2][i] = 0;
#pragma unroll
            for (int steps = 0; steps < STEPS / 2; steps++) {
                uint32 b[4], c[4];
                load_block(b, keys + n * 8 * HEAD_BYTES, steps);
                load_block(c, keys_at + in_ring(n + 2), steps);
                load_block(distance[2][steps], queries_at + in_ring(n + 2), steps);
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const uint32 (&q)[4] = query[steps * 2 + i / 2], (&d0)[4] = distance[0][steps];
                    const uint32 (&d1)[4] = distance[1][steps], (&d2)[4] = distance[2][steps];
                    multiply<T>(own_score, q, b[i], b[i + 1]);
                    multiply<T>(by_key[2], q, c[i], c[i + 1]);
                    multiply<T>(by_query[0], {d0[i], d1[i], d0[i + 1], d1[i + 1]}, b[i], b[i + 1]);
                    multiply<T>(by_query[1], {d2[i], d2[i], d2[i + 1], d2[i + 1]}, b[i], b[i + 1]);
                }
            }
#pragma unroll
            for (int low = 0; low < 2; low++) {  // the upper eight queries, and the lower eight
                moves.add_along_row(own_score + low * 2, by_key[1 - low] + low * 2, by_key[2 - low] + low * 2);
                moves.add_along_column(own_score + low * 2, by_query[0] + (1 - low) * 2,
                                       by_query[1 - low] + low * 2);
            }
#pragma unroll
            for (int block = 0; block < 2; block++) {
#pragma unroll
                for (int i = 0; i < 4; i++) by_key[block][i] = by_key[block + 1][i];
#pragma unroll
                for (int i = 0; i < STEPS * 2; i++) distance[block][i / 4][i % 4] = distance[block + 1][i / 4][i % 4];
            }
        }

        uint32 power[TILE / 16][4];
        softmax.template weigh<false>(score, size - piece * TILE, scale, power);
        softmax.add_to_totals(score);
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int n = 0; n < HEAD / 16; n++) {
                uint32 b[4];
                load_transposed(b, values + swizzled<HEAD_BYTES>(k * 16 + lane % 16, n * 2 + lane / 16));
                multiply<T>(reinterpret_cast<float(&)[4]>(softmax.sum[n * 8]), power[k], b[0], b[1]);
                multiply<T>(reinterpret_cast<float(&)[4]>(softmax.sum[n * 8 + 4]), power[k], b[2], b[3]);
            }
    }

    // Results first overwrite the warp's own queries, which no other warp reads.
    if (first + own >= size) return;
    softmax.end(shared, own);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * PIECES; i += 32) {
        const int row = own + i / PIECES, piece = i % PIECES;
        if (first + row < size)
            *reinterpret_cast<uint4*>(out + ((uint32)(begin + first + row) * out_pitch + head * HEAD + piece * 8)) =
                *reinterpret_cast<uint4*>(shared + swizzled<HEAD_BYTES>(row, piece));
    }
}
