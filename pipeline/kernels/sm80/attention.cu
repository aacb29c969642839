// Attention of each text over itself, for rows that lie without padding; its scores never leave the registers.
//
// A block computes 64 queries of one head of one text, or of a longer text 128: a warp 16, or 32, which share what is read
// of keys and values. It goes through the text's keys 64 at a time: while one piece of keys and values is multiplied, the
// next is fetched. The softmax is that of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018),
// within the loop of Dao et al., "FlashAttention" (2022): each piece may raise the maximum so far, by which the sums before
// it are scaled. Of a score, a thread holds what it multiplies with the values next: the sums of mma.sync lie as its first
// operand does.
#include "common/launch.cuh"
#include "common/types.cuh"
#include "sm80/async_copy.cuh"
#include "sm80/mma.cuh"

constexpr int TILE = 64, WARPS = 4, THREADS = WARPS * 32;

// Byte offset of a piece of 16 bytes of a row: pieces are permuted (an XOR), so that the eight rows of a matrix lie in
// different banks.
template <int ROW_BYTES>
__device__ __forceinline__ uint32 swizzled(int row, int piece) {
    return row * ROW_BYTES + ((ROW_BYTES == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3)) << 4);
}

__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// rows [all rows, pitch]: queries, keys and values, each of `heads` times HEAD. ends [texts + 1]: rows of each text.
// texts, firsts [blocks]: which text a block computes, and its first query. scale: of scores, for powers of two. out [all
// rows, out_pitch]. STAGES: buffers of keys and values; with one, texts have no more than fit there.
template <typename T, int HEAD, int M_BLOCKS, int STAGES, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, M_BLOCKS == 1 ? 4 : 2)
    attention(const T* rows, const int* ends, const int* texts, const int* firsts, int heads, int pitch, float scale,
              int out_pitch, T* out) {
    constexpr int ROW_BYTES = HEAD * 2, PIECES = HEAD / 8, TILE_BYTES = TILE * ROW_BYTES, QUERIES = TILE * M_BLOCKS;
    constexpr int PIECES_AT_MOST = STAGES > 1 ? 1 << 30 : 1;
    static_assert(HEAD == 32 || HEAD == 64, "how rows are permuted");
    static_assert(Launch::THREADS == THREADS, "a warp for its queries");
    static_assert(Launch::SHARED_BYTES == QUERIES * ROW_BYTES + 2 * STAGES * TILE_BYTES, "queries, keys and values");
    extern __shared__ __align__(128) char shared[];
    const uint32 queries = shared_address(shared), keys = queries + QUERIES * ROW_BYTES;
    const uint32 values = keys + STAGES * TILE_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = ends[texts[blockIdx.x]], size = ends[texts[blockIdx.x] + 1] - begin, first = firsts[blockIdx.x];
    const T* own = rows + (int64)begin * pitch + blockIdx.y * HEAD;

    auto fetch = [&](uint32 to, const T* from, int row, int count) {
#pragma unroll
        for (int i = threadIdx.x; i < count * PIECES; i += THREADS) {
            const int r = i / PIECES, piece = i % PIECES;
            const bool valid = row + r < size;
            copy_async16(to + swizzled<ROW_BYTES>(r, piece), from + (int64)(valid ? row + r : 0) * pitch + piece * 8, valid);
        }
    };
    auto fetch_piece = [&](int piece) {
        if (piece * TILE < size) {
            fetch(keys + piece % STAGES * TILE_BYTES, own + heads * HEAD, piece * TILE, TILE);
            fetch(values + piece % STAGES * TILE_BYTES, own + 2 * heads * HEAD, piece * TILE, TILE);
        }
        commit_copies();
    };
    fetch(queries, own, first, QUERIES);
    fetch_piece(0);

    const float lowest = __int_as_float(0xff800000);  // minus infinity
    float sum[M_BLOCKS][HEAD / 8][4] = {}, most[M_BLOCKS][2], total[M_BLOCKS][2] = {};
#pragma unroll
    for (int m = 0; m < M_BLOCKS; m++) most[m][0] = most[m][1] = lowest;
    uint32 query[M_BLOCKS][HEAD / 16][4];
    for (int piece = 0; piece * TILE < size && piece < PIECES_AT_MOST; piece++) {
        if (STAGES > 1) fetch_piece(piece + 1);
        wait_for_copies<STAGES - 1>();
        __syncthreads();
        if (piece == 0)
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
                for (int k = 0; k < HEAD / 16; k++)
                    load_matrices(query[m][k], queries + swizzled<ROW_BYTES>((warp * M_BLOCKS + m) * 16 + lane % 16,
                                                                             k * 2 + lane / 16));
        const uint32 key = keys + piece % STAGES * TILE_BYTES, value = values + piece % STAGES * TILE_BYTES;

        float score[M_BLOCKS][TILE / 8][4] = {};
#pragma unroll
        for (int n = 0; n < TILE / 16; n++)
#pragma unroll
            for (int k = 0; k < HEAD / 16; k++) {
                uint32 b[4];
                load_matrices(b, key + swizzled<ROW_BYTES>(n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++) {
                    multiply<T>(score[m][2 * n], query[m][k], b[0], b[1]);
                    multiply<T>(score[m][2 * n + 1], query[m][k], b[2], b[3]);
                }
            }
        if (size - piece * TILE < TILE)
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (piece * TILE + n * 8 + lane % 4 * 2 + i % 2 >= size) score[m][n][i] = lowest;

        // Of rows lane / 4 and that plus 8: the maximum so far, the powers, and their sum.
#pragma unroll
        for (int m = 0; m < M_BLOCKS; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float highest = most[m][half];
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
                    highest = fmaxf(highest, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
                highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
                const float by = power_of_two((most[m][half] - highest) * scale), offset = highest * scale;
                most[m][half] = highest;
                total[m][half] *= by;
#pragma unroll
                for (int n = 0; n < HEAD / 8; n++) sum[m][n][2 * half] *= by, sum[m][n][2 * half + 1] *= by;
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        score[m][n][i] = power_of_two(fmaf(score[m][n][i], scale, -offset));
                        total[m][half] += score[m][n][i];
                    }
            }
        }

#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            uint32 a[M_BLOCKS][4];
#pragma unroll
            for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[m][i] = pack<T>(score[m][2 * k + i / 2][i % 2 * 2], score[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < HEAD / 16; n++) {
                uint32 b[4];
                load_transposed(b, value + swizzled<ROW_BYTES>(k * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < M_BLOCKS; m++) {
                    multiply<T>(sum[m][2 * n], a[m], b[0], b[1]);
                    multiply<T>(sum[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
        if (STAGES > 1) __syncthreads();  // the piece has been read
    }

#pragma unroll
    for (int m = 0; m < M_BLOCKS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float all = total[m][half];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            const int row = first + (warp * M_BLOCKS + m) * 16 + half * 8 + lane / 4;
            if (row >= size) continue;
            uint32* to = reinterpret_cast<uint32*>(out + (int64)(begin + row) * out_pitch + blockIdx.y * HEAD);
            const float by = 1 / all;
#pragma unroll
            for (int n = 0; n < HEAD / 8; n++)
                to[n * 4 + lane % 4] = pack<T>(sum[m][n][2 * half] * by, sum[m][n][2 * half + 1] * by);
        }
}
