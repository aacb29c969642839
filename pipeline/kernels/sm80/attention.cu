// Attention of each text over itself, for rows that lie without padding; its scores never leave the registers.
//
// A block computes 64 queries of one head of one text, a warp 16 of them, and goes through the text's keys 64 at a time:
// while one piece of keys and values is multiplied, the next is fetched. The softmax is that of Milakov and Gimelshein,
// "Online normalizer calculation for softmax" (2018), within the loop of Dao et al., "FlashAttention" (2022): each piece
// may raise the maximum so far, by which the sums before it are scaled. Of a score, a thread holds what it multiplies with
// the values next: the sums of mma.sync lie as its first operand does.
#include "common/launch.cuh"
#include "common/types.cuh"
#include "sm80/async_copy.cuh"
#include "sm80/mma.cuh"
#include "sm80/swizzle.cuh"

constexpr int TILE = 64, WARPS = 4, THREADS = WARPS * 32, TILE_BYTES = TILE * ROW_BYTES;

// rows [all rows, pitch]: queries, keys and values, each of `heads` times HEAD. ends [texts + 1]: rows of each text.
// texts, firsts [blocks]: which text a block computes, and its first query. scale: of scores, for powers of two. out [all
// rows, out_pitch].
template <typename T, int HEAD, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS)
    attention(const T* rows, const int* ends, const int* texts, const int* firsts, int heads, int pitch, float scale,
              int out_pitch, T* out) {
    static_assert(Launch::THREADS == THREADS && Launch::SHARED_BYTES == 5 * TILE_BYTES, "queries, two of keys and values");
    static_assert(HEAD == 32 || HEAD == 64, "a head's vector within a row of shared memory");
    constexpr int HEAD_PIECES = HEAD / 8;
    extern __shared__ __align__(128) char shared[];
    const uint32 queries = shared_address(shared), keys = queries + TILE_BYTES, values = keys + 2 * TILE_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = ends[texts[blockIdx.x]], size = ends[texts[blockIdx.x] + 1] - begin, first = firsts[blockIdx.x];
    const T* own = rows + (int64)begin * pitch + blockIdx.y * HEAD;

    auto fetch = [&](uint32 to, const T* from, int row) {
        for (int i = threadIdx.x; i < TILE * HEAD_PIECES; i += THREADS) {
            const int r = i / HEAD_PIECES, piece = i % HEAD_PIECES;
            const bool valid = row + r < size;
            copy_async16(to + swizzled(r, piece), from + (int64)(valid ? row + r : 0) * pitch + piece * 8, valid);
        }
    };
    auto fetch_piece = [&](int piece) {
        if (piece * TILE < size) {
            fetch(keys + piece % 2 * TILE_BYTES, own + heads * HEAD, piece * TILE);
            fetch(values + piece % 2 * TILE_BYTES, own + 2 * heads * HEAD, piece * TILE);
        }
        commit_copies();
    };
    const float lowest = __int_as_float(0xff800000);  // minus infinity
    fetch(queries, own, first);
    fetch_piece(0);

    float sum[HEAD / 8][4] = {}, most[2] = {lowest, lowest}, total[2] = {};
    uint32 query[HEAD / 16][4];
    for (int piece = 0; piece * TILE < size; piece++) {
        fetch_piece(piece + 1);
        wait_for_copies<1>();
        __syncthreads();
        if (piece == 0)
#pragma unroll
            for (int k = 0; k < HEAD / 16; k++)
                load_matrices(query[k], queries + swizzled(warp * 16 + lane % 16, k * 2 + lane / 16));
        const uint32 key = keys + piece % 2 * TILE_BYTES, value = values + piece % 2 * TILE_BYTES;

        float score[TILE / 8][4] = {};
#pragma unroll
        for (int n = 0; n < TILE / 16; n++)
#pragma unroll
            for (int k = 0; k < HEAD / 16; k++) {
                uint32 b[4];
                load_matrices(b, key + swizzled(n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
                multiply<T>(score[2 * n], query[k], b[0], b[1]);
                multiply<T>(score[2 * n + 1], query[k], b[2], b[3]);
            }

        // Of rows lane / 4 and that plus 8: the maximum so far, the powers, and their sum.
        float highest[2] = {most[0], most[1]};
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool exists = piece * TILE + n * 8 + lane % 4 * 2 + i % 2 < size;
                score[n][i] = exists ? score[n][i] * scale : lowest;
                highest[i / 2] = fmaxf(highest[i / 2], score[n][i]);
            }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffu, highest[half], 1));
            highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffu, highest[half], 2));
            const float by = exp2f(most[half] - highest[half]);
            most[half] = highest[half];
            total[half] *= by;
#pragma unroll
            for (int n = 0; n < HEAD / 8; n++) sum[n][2 * half] *= by, sum[n][2 * half + 1] *= by;
        }
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                score[n][i] = exp2f(score[n][i] - most[i / 2]);
                total[i / 2] += score[n][i];
            }

#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            const uint32 a[4] = {pack<T>(score[2 * k][0], score[2 * k][1]), pack<T>(score[2 * k][2], score[2 * k][3]),
                                 pack<T>(score[2 * k + 1][0], score[2 * k + 1][1]),
                                 pack<T>(score[2 * k + 1][2], score[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < HEAD / 16; n++) {
                uint32 b[4];
                load_transposed(b, value + swizzled(k * 16 + lane % 16, n * 2 + lane / 16));
                multiply<T>(sum[2 * n], a, b[0], b[1]);
                multiply<T>(sum[2 * n + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();  // the piece has been read
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
        const int row = first + warp * 16 + half * 8 + lane / 4;
        if (row >= size) continue;
        uint32* to = reinterpret_cast<uint32*>(out + (int64)(begin + row) * out_pitch + blockIdx.y * HEAD);
        const float by = 1 / total[half];
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++)
            to[n * 4 + lane % 4] = pack<T>(sum[n][2 * half] * by, sum[n][2 * half + 1] * by);
    }
}
