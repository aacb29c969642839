// Block 1 with its table in shared memory: seven table rows summed, layer norm, ReLU, max pool, in 16-bit storage.
//
// The whole table is 258 KB, more than any SM holds, so a block works on one slice of CHANNELS channels, whose table
// stays in shared memory for the block's life. A thread owns eight channels at one pooled position of a slab of
// POSITIONS positions: gamma and beta of its windows stay in 24 registers while it goes through ARTICLES articles, so
// that the 1 MB of gamma and beta is read once for many articles, not once an article. Sums are fp32.
//
// Most of an article of usual length is padding. A window wholly behind the text is exactly the bias, so there the
// look-ups fall away and one packed multiply-add a window and register pair remains.
#include "common/types.cuh"
#include "sm80/async_copy.cuh"

constexpr int GROUP = 16;  // articles whose ids are fetched at a time, the next group while one computes

// What the articles of a group need besides their ids.
struct Facts {
    float mean, scale;
    int text_end;
};

// ids [articles, pitch]; text_end, statistics [articles] (common/statistics.cu); table [slices][KERNEL][id_count]
// [CHANNELS]; bias fp32; gamma, beta [windows, WIDTH]; output [articles, row_pitch, WIDTH], of which `rows` are written.
// Dynamic shared memory: the table's slice, then two buffers of GROUP rows of ids and of Facts.
template <typename T, int KERNEL, int WIDTH, int POOL, int CHANNELS, int POSITIONS, int ARTICLES>
__global__ void __launch_bounds__(CHANNELS / 8 * POSITIONS, 1)
    lookup_norm_pool(const uint8* ids, int pitch, int articles, int id_count, const int* text_end,
                     const float2* statistics, const T* table, const float* bias, const T* gamma, const T* beta,
                     T* output, int rows, int row_pitch) {
    constexpr int LANES = CHANNELS / 8, THREADS = LANES * POSITIONS, SLICES = WIDTH / CHANNELS;
    constexpr int WORDS = (POSITIONS * POOL + KERNEL + POOL + 2) / 4;  // of ids that a slab reads
    constexpr int TEXT = KERNEL + POOL - 1;                             // ids that a thread reads
    static_assert(POSITIONS * POOL % 4 == 0, "a slab's ids begin at a whole word");
    static_assert(ARTICLES % GROUP == 0 && WIDTH % CHANNELS == 0 && CHANNELS % 8 == 0, "whole groups and slices");
    static_assert(THREADS >= GROUP && THREADS % 32 == 0, "whole warps, and a thread for each article's facts");
    extern __shared__ __align__(16) char shared[];
    T* rows_of_table = reinterpret_cast<T*>(shared);
    uint32* words = reinterpret_cast<uint32*>(rows_of_table + KERNEL * id_count * CHANNELS);
    Facts* facts = reinterpret_cast<Facts*>(words + 2 * GROUP * WORDS);

    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const int slabs = (rows + POSITIONS - 1) / POSITIONS, chunks = (articles + ARTICLES - 1) / ARTICLES;
    int loaded = -1;
    for (int task = blockIdx.x; task < SLICES * slabs * chunks; task += gridDim.x) {
        // Slabs rotate with the chunk, so that every block gets its share of the first slabs, which hold the text.
        const int slice = task / (slabs * chunks), chunk = task % (slabs * chunks) / slabs;
        const int slab = (task + chunk) % slabs, row = slab * POSITIONS + slot;
        const int channel = slice * CHANNELS + lane * 8;
        const int first = chunk * ARTICLES, last = min(first + ARTICLES, articles);
        __syncthreads();  // the last task is done with the table and the ids
        if (slice != loaded) {
            const int count = KERNEL * id_count * CHANNELS;
            for (int i = threadIdx.x * 8; i < count; i += THREADS * 8)
                *reinterpret_cast<uint4*>(rows_of_table + i) =
                    *reinterpret_cast<const uint4*>(table + (int64)slice * count + i);
            loaded = slice;
        }
        uint32 g[POOL][4], shift[POOL][4];
        float b[8];
        if (row < rows) {
#pragma unroll
            for (int w = 0; w < POOL; w++) {
                const int64 at = (int64)(row * POOL + w) * WIDTH + channel;
                *reinterpret_cast<uint4*>(g[w]) = *reinterpret_cast<const uint4*>(gamma + at);
                *reinterpret_cast<uint4*>(shift[w]) = *reinterpret_cast<const uint4*>(beta + at);
            }
            load8(bias + channel, b);
        }
        auto fetch = [&](int begin, int buffer) {
            for (int i = threadIdx.x; i < GROUP * WORDS; i += THREADS) {
                const int article = begin + i / WORDS, word = slab * (POSITIONS * POOL / 4) + i % WORDS;
                if (article < last && word * 4 < pitch)
                    copy_async4(words + buffer * GROUP * WORDS + i, ids + (int64)article * pitch + word * 4);
            }
            if (threadIdx.x < GROUP && begin + threadIdx.x < last) {
                Facts& fact = facts[buffer * GROUP + threadIdx.x];
                fact.mean = statistics[begin + threadIdx.x].x;
                fact.scale = statistics[begin + threadIdx.x].y;
                fact.text_end = text_end[begin + threadIdx.x];
            }
            commit_copies();
        };
        fetch(first, 0);
        for (int begin = first, buffer = 0; begin < last; begin += GROUP, buffer ^= 1) {
            wait_for_copies<0>();
            __syncthreads();  // this group is there, and the other buffer's readers are through
            fetch(begin + GROUP, buffer ^ 1);
            if (row >= rows) continue;
            const uint8* group_ids = reinterpret_cast<const uint8*>(words + buffer * GROUP * WORDS);
            for (int a = 0; a < min(GROUP, last - begin); a++) {
                const Facts fact = facts[buffer * GROUP + a];
                uint32 best[4] = {};  // ReLU: nothing below zero
                if (row * POOL >= fact.text_end) {
                    uint32 value[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        value[i] = pack<T>((b[2 * i] - fact.mean) * fact.scale, (b[2 * i + 1] - fact.mean) * fact.scale);
#pragma unroll
                    for (int w = 0; w < POOL; w++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            best[i] = max_pair<T>(best[i], fma_pair<T>(value[i], g[w][i], shift[w][i]));
                } else {
                    int entry[TEXT];
#pragma unroll
                    for (int t = 0; t < TEXT; t++) entry[t] = group_ids[a * WORDS * 4 + slot * POOL + t];
#pragma unroll
                    for (int w = 0; w < POOL; w++) {
                        float sum[8], part[8];
#pragma unroll
                        for (int i = 0; i < 8; i++) sum[i] = b[i];
#pragma unroll
                        for (int t = 0; t < KERNEL; t++) {
                            load8(rows_of_table + (t * id_count + entry[w + t]) * CHANNELS + lane * 8, part);
#pragma unroll
                            for (int i = 0; i < 8; i++) sum[i] += part[i];
                        }
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const uint32 value = pack<T>((sum[2 * i] - fact.mean) * fact.scale,
                                                         (sum[2 * i + 1] - fact.mean) * fact.scale);
                            best[i] = max_pair<T>(best[i], fma_pair<T>(value, g[w][i], shift[w][i]));
                        }
                    }
                }
                const int64 at = ((int64)(begin + a) * row_pitch + row) * WIDTH + channel;
                *reinterpret_cast<uint4*>(output + at) = *reinterpret_cast<uint4*>(best);
            }
        }
    }
}
