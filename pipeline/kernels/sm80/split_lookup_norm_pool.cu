// Computes block 1 in fp32 with its table in shared memory. Its output is in two fp16 parts (common/split.cuh).
//
// Layout. As in sm80/lookup_norm_pool.cu: a block has a slice of the table, here in fp32, and a thread has gamma and
//   beta of one pooled position, here for four channels, and loops over ARTICLES articles. Windows after the text are
//   the bias, or zero. gamma and beta include the scales of the channels (pipeline/kernels/split.py).
// Why. The table does not fit in shared memory as a whole, and gamma and beta are read once for many articles.
//
// Test: tests/kernels/test_fp32_tensor_cores.py, tests/engine/test_cuda.py. Time: broadsheet profile.
#include "common/launch.cuh"
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/split.cuh"
#include "common/types.cuh"
#include "sm80/article_group.cuh"

// ids [articles, pitch]; article_count: the number of articles, in device memory; text_end, statistics [articles]: from
// common/statistics.cu; first_unit [articles + 1]: see common/packing.cuh; table fp32 [slices][KERNEL][IDS][CHANNELS];
// bias [WIDTH]; gamma, beta [windows, WIDTH]; output [units, UNIT_ROWS, WIDTH] in parts. TEXT: whether windows from the
// text's end on are zero after ReLU. rows: the most rows of an article. Dynamic shared memory: `Shared`, below.
template <int KERNEL, int WIDTH, int POOL, int UNIT_ROWS, bool TEXT, int IDS, int CHANNELS, int POSITIONS, int ARTICLES,
          typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 1)
    split_lookup_norm_pool(const uint8* ids, int pitch, const int* article_count, const int* text_end, const float2* statistics,
                           const int* first_unit, const float* table, const float* bias, const float* gamma,
                           const float* beta, Split* output, int rows) {
    constexpr int LANES = CHANNELS / 4, THREADS = Launch::THREADS, SLICES = WIDTH / CHANNELS;
    constexpr int WORDS = (POSITIONS * POOL + KERNEL + POOL + 2) / 4;  // the words of ids that a slab reads
    constexpr int READ = KERNEL + POOL - 1;                             // the ids that a thread reads
    static_assert(POSITIONS * POOL % 4 == 0, "a slab's ids begin at a whole word");
    static_assert(ARTICLES % GROUP == 0 && WIDTH % CHANNELS == 0 && CHANNELS % 4 == 0, "whole groups and slices");
    static_assert(THREADS == LANES * POSITIONS, "a thread takes four channels at a position");
    static_assert(THREADS > GROUP && THREADS >= ARTICLES && THREADS % 32 == 0,
                  "whole warps, and a thread for each article's statistics and units");
    struct Shared {
        float table[KERNEL][IDS][CHANNELS];
        ArticleGroup<WORDS> group;
    };
    static_assert(sizeof(Shared) == Launch::SHARED_BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(16) char shared[];
    Shared& local = *reinterpret_cast<Shared*>(shared);
    float* entries = &local.table[0][0][0];

    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const int articles = *article_count;
    const int slabs = (rows + POSITIONS - 1) / POSITIONS, chunks = (articles + ARTICLES - 1) / ARTICLES;
    int loaded = -1;  // the slice whose table is in shared memory
#pragma unroll 1
    for (int task = blockIdx.x; task < SLICES * slabs * chunks; task += gridDim.x) {
        // Slabs rotate with the chunk, so that every block gets its share of the first slabs, which have the text.
        const int slice = task / (slabs * chunks), chunk = task % (slabs * chunks) / slabs;
        const int slab = (task + chunk) % slabs, row = slab * POSITIONS + slot;
        const int channel = slice * CHANNELS + lane * 4;
        const int first = chunk * ARTICLES, last = min(first + ARTICLES, articles);
        const bool is_reached =
            threadIdx.x < last - first && Packing{first_unit}.units(first + threadIdx.x) * UNIT_ROWS > slab * POSITIONS;
        // After this barrier the previous task no longer uses the memory written below. Skip a slab that no text
        // reaches.
        if (!__syncthreads_or(is_reached)) continue;
        if (slice != loaded) {
            loaded = slice;
            constexpr int count = KERNEL * IDS * CHANNELS;
#pragma unroll 1
            for (int i = threadIdx.x * 4; i < count; i += THREADS * 4)
                *reinterpret_cast<float4*>(entries + i) =
                    *reinterpret_cast<const float4*>(table + (int64)slice * count + i);
        }
        const float4 b = *reinterpret_cast<const float4*>(bias + channel);
        float4 g[POOL], shift[POOL];
        if (row < rows) {
#pragma unroll
            for (int w = 0; w < POOL; w++) {
                const int64 at = (int64)(row * POOL + w) * WIDTH + channel;
                g[w] = *reinterpret_cast<const float4*>(gamma + at);
                shift[w] = *reinterpret_cast<const float4*>(beta + at);
            }
        }
        auto fetch = [&](int begin, int buffer) {
            const int first_word = slab * (POSITIONS * POOL / 4);
            local.group.template fetch<THREADS>(buffer, begin, last, ids, pitch, first_word, statistics, text_end,
                                                first_unit);
        };
        fetch(first, 0);
#pragma unroll 1
        for (int begin = first, buffer = 0; begin < last; begin += GROUP, buffer ^= 1) {
            wait_for_copies<0>();
            __syncthreads();  // this group has arrived, and the previous one has been read
            fetch(begin + GROUP, buffer ^ 1);
            const Packing packing{local.group.first_unit[buffer]};
            const int count = min(GROUP, last - begin);
#pragma unroll 1
            for (int a = 0; a < count; a++) {
                if (row >= packing.units(a) * UNIT_ROWS) continue;
                const int in_text = local.group.text_end[buffer][a] - row * POOL;  // windows from this one on need no look-up
                const float2 norm = local.group.statistics[buffer][a];
                float4 best = make_float4(0, 0, 0, 0);  // ReLU: nothing below zero
                if (!TEXT || in_text > 0) {
                    float4 sum[POOL];
#pragma unroll
                    for (int w = 0; w < POOL; w++) sum[w] = b;
                    if (in_text > 0) {
#pragma unroll
                        for (int t = 0; t < READ; t++) {
                            const float* entry = entries + local.group.id(buffer, a, slot * POOL, t) * CHANNELS + lane * 4;
#pragma unroll
                            for (int w = 0; w < POOL; w++)
                                if (t - w >= 0 && t - w < KERNEL) {
                                    const float4 part =
                                        *reinterpret_cast<const float4*>(entry + (t - w) * IDS * CHANNELS);
                                    sum[w].x += part.x, sum[w].y += part.y, sum[w].z += part.z, sum[w].w += part.w;
                                }
                        }
                    }
#pragma unroll
                    for (int w = 0; w < POOL; w++)
                        if (!TEXT || w < in_text) {
                            best.x = fmaxf(best.x, (sum[w].x - norm.x) * norm.y * g[w].x + shift[w].x);
                            best.y = fmaxf(best.y, (sum[w].y - norm.x) * norm.y * g[w].y + shift[w].y);
                            best.z = fmaxf(best.z, (sum[w].z - norm.x) * norm.y * g[w].z + shift[w].z);
                            best.w = fmaxf(best.w, (sum[w].w - norm.x) * norm.y * g[w].w + shift[w].w);
                        }
                    best.x = unless_overflow(best.x, norm.y), best.y = unless_overflow(best.y, norm.y);
                    best.z = unless_overflow(best.z, norm.y), best.w = unless_overflow(best.w, norm.y);
                }
                const int64 target = (int64)packing.first[a] * UNIT_ROWS + row;
                Half* high = high_part(output + target * WIDTH + channel);
                const SplitPair xy(best.x, best.y), zw(best.z, best.w);
                *reinterpret_cast<uint2*>(high) = make_uint2(xy.high, zw.high);
                *reinterpret_cast<uint2*>(high + SPLIT_GROUP) = make_uint2(xy.low, zw.low);
            }
        }
    }
}
