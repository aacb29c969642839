// Computes the attention of each text over itself, for rows stored without padding. Scores never leave the registers.
// sm80/attention.cu and sm90/attention.cu have the products.
//
// Layout. A block goes through some heads of one text. For each head, a warp computes 16 queries, or twice 16. Keys and
//   values arrive in pieces of 64. Shared memory has two buffers each of queries, keys and values: while the block
//   multiplies one piece, it fetches the next piece, or the first piece of the next head.
// Compute. The softmax is that of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), within
//   the loop of Dao et al., "FlashAttention" (2022). Each piece may raise the maximum so far, which scales the earlier
//   sums.
// Why. The queries of a warp share each read of keys and values. A thread holds exactly the scores that it multiplies
//   with the values next, since the sums of a product have the layout of its first operand.
//
// If a token attends only to tokens at most `window` away (ModernBERT's local layers), a block visits only the pieces
// that one of its queries sees. These are three or four, however long the text is. Warps that multiply together skip a
// piece in which none of their queries sees a key, and only pieces at the edge of a window are masked.
//
// Test: tests/engine/test_encoder_gpu.py, and test_families_gpu.py beside it for windows.
// Time: python -m benchmarks.peers.encoders_gpu, and benchmarks.peers.modernbert_gpu for windows.
#pragma once
#include "common/launch.cuh"
#include "common/types.cuh"
#include "sm80/async_copy.cuh"

constexpr int TILE = 64;
constexpr int MINUS_INFINITY = 0xff800000;  // the bits of a float

// Return the byte offset of a 16-byte piece of a row. An XOR permutes the pieces, so that the eight rows of a matrix
// are in different banks.
template <int ROW_BYTES>
__device__ __forceinline__ uint32 swizzled(int row, int piece) {
    return row * ROW_BYTES + ((ROW_BYTES == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3)) << 4);
}

// Return 2^x. Scores are scaled by log2(e), so that this one instruction replaces e^x.
__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// The softmax of a warp's 16 queries. Index n * 4 + i of a score or a sum is at row lane / 4, plus 8 if i is above 1,
// and at column n * 8 + lane % 4 * 2 + i % 2. most, total, by: for each of the thread's two rows, the highest score so
// far, the sum of the powers of its own columns, and the factor by which `weigh` has scaled the earlier sums.
template <typename T, int HEAD>
struct Softmax {
    float sum[HEAD / 2], most[2], total[2], by[2];
    bool is_empty;  // whether no values are in the sums yet, which may then hold anything

    __device__ __forceinline__ void begin() {
        most[0] = most[1] = __int_as_float(MINUS_INFINITY);
        total[0] = total[1] = 0;
        is_empty = true;
    }
    __device__ __forceinline__ void clear_sums() {
#pragma unroll
        for (int i = 0; i < HEAD / 2; i++) sum[i] = 0;
    }

    // Set scores to minus infinity if the key is farther than `window` from the query, or beyond the text. query: the
    // place of the warp's first query, counted from the piece's first key. left: the keys from there to the end of the
    // text.
    static __device__ __forceinline__ void mask(float (&score)[TILE / 2], int query, int left, int window) {
        if (query + 15 - window <= 0 && min(query + window + 1, left) >= TILE) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = query + threadIdx.x % 32 / 4 + half * 8, lane = threadIdx.x % 4 * 2;
            const int from = own - window - lane, to = min(own + window + 1, left) - lane;
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (n * 8 + i < from || n * 8 + i >= to)
                        score[n * 4 + 2 * half + i] = __int_as_float(MINUS_INFINITY);
        }
    }

    // Turn scores into powers, of which the first `left` columns count, and round them to 16 bits as the factors of the
    // values. Scale the earlier sums if a maximum rose. WINDOWED: whether a query may have seen no key yet.
    template <bool WINDOWED>
    __device__ __forceinline__ void weigh(float (&score)[TILE / 2], int left, float scale, uint32 (&power)[TILE / 16][4]) {
        if (left < TILE) {
            asm volatile("");  // keeps this a branch, which only one piece of a long text takes
            left -= threadIdx.x % 4 * 2;
#pragma unroll
            for (int i = 0; i < TILE / 2; i++)
                if (i / 4 * 8 + i % 2 >= left) score[i] = __int_as_float(MINUS_INFINITY);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float highest = most[half];
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
                highest = fmaxf(highest, fmaxf(score[n * 4 + 2 * half], score[n * 4 + 2 * half + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
            const float reached = WINDOWED && highest == __int_as_float(MINUS_INFINITY) ? 0 : highest;
            const float offset = reached * scale;
            by[half] = power_of_two((most[half] - reached) * scale);
            most[half] = highest;
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int i = n * 4 + 2 * half; i < n * 4 + 2 * half + 2; i++)
                    score[i] = power_of_two(fmaf(score[i], scale, -offset));
        }
        if (__any_sync(0xffffffffu, by[0] != 1 || by[1] != 1))  // a maximum rose
#pragma unroll
            for (int i = 0; i < HEAD / 2; i++) sum[i] *= by[i / 2 % 2];
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) power[k][i] = pack<T>(score[k * 8 + i * 2], score[k * 8 + i * 2 + 1]);
    }

    // Add the powers of `weigh` to the totals.
    __device__ __forceinline__ void add_to_totals(const float (&power)[TILE / 2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[half] *= by[half];
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int i = n * 4 + 2 * half; i < n * 4 + 2 * half + 2; i++) total[half] += power[i];
        }
    }

    // Write the results to the rows from `row` on.
    __device__ __forceinline__ void end(char* rows, int row) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float all = total[half];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            const float by = 1 / all;
#pragma unroll
            for (int n = 0; n < HEAD / 8; n++)
                *reinterpret_cast<uint32*>(rows + swizzled<HEAD * 2>(row + half * 8 + lane / 4, n) + lane % 4 * 4) =
                    pack<T>(sum[n * 4 + 2 * half] * by, sum[n * 4 + 2 * half + 1] * by);
        }
    }
};

// rows [all rows, pitch]: queries, keys and values, each with `heads` times HEAD values. ends [texts + 1]: the first
// row of each text, and the end of the last. texts, firsts [blocks]: the text that a block computes, and its first
// query. A block computes every gridDim.y-th head. scale: the factor of scores, log2(e) / sqrt(HEAD before padding).
// out [all rows, out_pitch]. window: if WINDOWED, how far a key may be from its query. Products: how a kernel
// generation multiplies, for T, HEAD and M_BLOCKS.
template <typename Products, typename T, int HEAD, int M_BLOCKS, int BLOCKS_OF_AN_SM, bool WINDOWED, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, BLOCKS_OF_AN_SM)
    attention(const T* rows, const int* ends, const int* texts, const int* firsts, int heads, int pitch, float scale,
              int out_pitch, T* out, int window) {
    constexpr int THREADS = Launch::THREADS, ROW_BYTES = HEAD * 2, PIECES = HEAD / 8, TILE_BYTES = TILE * ROW_BYTES;
    constexpr int WARP_ROWS = M_BLOCKS * 16, QUERY_ROWS = THREADS / 32 * WARP_ROWS, QUERY_BYTES = QUERY_ROWS * ROW_BYTES;
    static_assert(HEAD == 32 || HEAD == 64, "how rows are permuted");
    static_assert(Launch::SHARED_BYTES == 2 * (QUERY_BYTES + 2 * TILE_BYTES), "two buffers");
    extern __shared__ __align__(1024) char shared[];
    const uint32 all_queries = shared_address(shared), all_keys = all_queries + 2 * QUERY_BYTES;
    const uint32 all_values = all_keys + 2 * TILE_BYTES;
    const int own = threadIdx.x / 32 * WARP_ROWS, lane = threadIdx.x % 32;
    // The first query, in the block, of the warps that multiply together. By __shfl_sync the compiler knows that a warp
    // agrees on it, and keeps addresses in uniform registers.
    const int of_group = __shfl_sync(0xffffffffu, own / Products::ROWS, 0) * Products::ROWS;
    const int begin = ends[texts[blockIdx.x]], size = ends[texts[blockIdx.x] + 1] - begin, first = firsts[blockIdx.x];
    const int first_piece = WINDOWED ? max(first - window, 0) / TILE : 0;  // the first in which a query sees a key

    // A thread copies 16 bytes of every STEP-th row. The permutation repeats after eight rows.
    constexpr int STEP = THREADS / PIECES;
    static_assert(STEP % 8 == 0 && TILE % STEP == 0, "of whole groups of rows");
    const int own_row = threadIdx.x / PIECES, own_piece = threadIdx.x % PIECES;
    const T* const own_from = rows + ((uint32)(begin + own_row) * pitch + own_piece * 8);  // 32 bits can index all rows
    const uint32 own_to = swizzled<ROW_BYTES>(own_row, own_piece);
    auto fetch = [&](uint32 to, int column, int row, int count) {
        const T* from = own_from + ((uint32)row * pitch + column * HEAD);
#pragma unroll
        for (int r = 0; r < count; r += STEP, from += STEP * pitch)
            copy_async16(to + own_to + r * ROW_BYTES, from, own_row + row + r < size);
    };
    // step: the number of the piece in the block, which chooses the buffer of keys and values. turn: the number of the
    // head in the block, which chooses the buffer of queries.
    auto fetch_piece = [&](int step, int turn, int head, int piece) {
        if (head < heads) {
            if (piece == first_piece) fetch(all_queries + turn % 2 * QUERY_BYTES, head, first, QUERY_ROWS);
            fetch(all_keys + step % 2 * TILE_BYTES, heads + head, piece * TILE, TILE);
            fetch(all_values + step % 2 * TILE_BYTES, 2 * heads + head, piece * TILE, TILE);
        }
        commit_copies();
    };

    Softmax<T, HEAD> softmax[M_BLOCKS];
#pragma unroll
    for (int m = 0; m < M_BLOCKS; m++) softmax[m].clear_sums();
    fetch_piece(0, 0, blockIdx.y, first_piece);
    for (int step = 0, turn = 0, head = blockIdx.y, piece = first_piece; head < heads; step++) {
        // The piece has arrived, and no thread reads the previous one.
        wait_for_copies<0>();
        Products::publish();
        __syncthreads();
        const bool is_last = (piece + 1) * TILE >= (WINDOWED ? min(first + QUERY_ROWS + window, size) : size);
        if (is_last) fetch_piece(step + 1, turn + 1, head + gridDim.y, first_piece);
        else fetch_piece(step + 1, turn, head, piece + 1);
        if (piece == first_piece)
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++) softmax[m].begin();
        const int ahead = first + of_group - piece * TILE;  // of the queries multiplied together
        if (!WINDOWED || (ahead + Products::ROWS + window > 0 && ahead - window < TILE)) {
            float score[M_BLOCKS][TILE / 2];
            uint32 power[M_BLOCKS][TILE / 16][4];
            const uint32 queries = all_queries + turn % 2 * QUERY_BYTES + of_group * ROW_BYTES;
            Products::score(score, queries, all_keys + step % 2 * TILE_BYTES);
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++) {
                const int left = size - piece * TILE;
                if constexpr (WINDOWED)
                    softmax[m].mask(score[m], first + own + m * 16 - piece * TILE, left, window);
                softmax[m].template weigh<WINDOWED>(score[m], WINDOWED ? TILE : left, scale, power[m]);
            }
            Products::begin_add(softmax, power, score, all_values + step % 2 * TILE_BYTES);
            if (piece * TILE < size)  // always true: the branch keeps these additions behind the products, which run meanwhile
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++) softmax[m].add_to_totals(score[m]);
            Products::end_add(softmax, power);
        }

        if (is_last) {  // results first overwrite the warp's own queries, which no other warp reads
            char* const computed = shared + turn % 2 * QUERY_BYTES;
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++) softmax[m].end(computed, own + m * 16);
            __syncwarp();
#pragma unroll
            for (int i = lane; i < WARP_ROWS * PIECES; i += 32) {
                const int row = own + i / PIECES, piece = i % PIECES;
                if (first + row < size)
                    *reinterpret_cast<uint4*>(out + ((uint32)(begin + first + row) * out_pitch + head * HEAD + piece * 8)) =
                        *reinterpret_cast<uint4*>(computed + swizzled<ROW_BYTES>(row, piece));
            }
            head += gridDim.y, turn++;
        }
        piece = is_last ? first_piece : piece + 1;
    }
}
