// Computes block 1 with its table in shared memory: the sum of seven table rows, layer norm, ReLU and max pool, in
// 16-bit storage.
//
// Layout. A block has one slice of CHANNELS channels, whose table stays in shared memory. A thread has eight channels
//   at one pooled position of a slab of POSITIONS positions, with gamma and beta of its windows in 24 registers, and
//   loops over ARTICLES articles. Their ids and statistics arrive in groups (article_group.cuh).
// Why. The whole table has 258 KB, more than an SM can hold. The 1 MB of gamma and beta is read once for many articles
//   instead of once for each.
// Compute. Table entries are 16-bit integers, scaled by channel so that a sum over the taps is below 65,536. So one
//   32-bit addition adds two channels, exactly and in any order; fp16 entries would take four instructions to widen and
//   add. A sum becomes a float through the bits of 2^23 + sum. The channel's zero then takes 2^23 away again, which
//   makes it a quarter of a unit less accurate. The scale costs less accuracy than rounding each entry to fp16.
//
// Most of an article of usual length is padding. A window that begins after the text is exactly the bias, so it needs
// no look-ups. Its normalised bias is computed once for each article and channel, and one packed multiply-add remains.
// In the text frame it is zero, and only rows that the text reaches are written, with the zeros that block 2's taps
// read below.
//
// All values are computed in T. An output in 8 bits is a value in T, in steps. Bytes cannot show that block 1 overflows
// on an article, so the head then reads its statistics.
//
// Test: tests/engine/test_cuda.py, test_int8_gpu.py and test_text_frame.py beside it. Time: broadsheet profile.
#include "common/launch.cuh"
#include "common/outputs.cuh"
#include "common/packing.cuh"
#include "common/types.cuh"
#include "sm80/article_group.cuh"

constexpr float TWO_TO_23 = 8388608;

// Return the two integers of a pair as floats, each 2^23 larger: the bits of 2^23 + n are 0x4b000000 + n.
__device__ __forceinline__ float2 integers_to_floats(uint32 pair) {
    constexpr uint32 bits = 0x4b000000;
    return make_float2(__uint_as_float(__byte_perm(pair, bits, 0x7610)),
                       __uint_as_float(__byte_perm(pair, bits, 0x7632)));
}

// Store eight values, given as pairs. by: how many steps make 1, for 8 bits. Return how many values are saturated.
template <typename T, typename Out>
__device__ __forceinline__ int store_values(Out* output, int target, const uint32 (&pair)[4], float by) {
    if constexpr (IS_INT8<Out>) {
        const float2 a = unpack<T>(pair[0]), b = unpack<T>(pair[1]), c = unpack<T>(pair[2]), d = unpack<T>(pair[3]);
        const uint2 bytes = make_uint2(to_bytes(a.x * by, a.y * by, b.x * by, b.y * by),
                                       to_bytes(c.x * by, c.y * by, d.x * by, d.y * by));
        reinterpret_cast<uint2*>(output)[target] = bytes;
        return saturated_bytes(bytes);
    } else {
        reinterpret_cast<uint4*>(output)[target] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
        return 0;
    }
}

// ids [articles, pitch]; article_count: the number of articles, in device memory; text_end, statistics [articles]: from
// common/statistics.cu; first_unit [articles + 1]: see common/packing.cuh; table uint16
// [slices][KERNEL][IDS][CHANNELS]; affine fp32 [3][WIDTH]: the unit of each channel, its sum of zero, and its bias;
// gamma, beta [windows, WIDTH]; output [units, UNIT_ROWS, WIDTH]. TEXT: whether windows from the text's end on are zero
// after ReLU. rows: the most rows of an article. by, saturated: for an output of Int8, how many steps make 1, and the
// count of bytes of 255. Dynamic shared memory: `Shared`, below.
template <typename T, typename Out, int KERNEL, int WIDTH, int POOL, int UNIT_ROWS, bool TEXT, int IDS, int CHANNELS,
          int POSITIONS, int ARTICLES, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, 1)
    lookup_norm_pool(const uint8* ids, int pitch, const int* article_count, const int* text_end, const float2* statistics,
                     const int* first_unit, const uint16* table, const float* affine, const T* gamma, const T* beta,
                     Out* output, int rows, float by, uint64* saturated) {
    constexpr int LANES = CHANNELS / 8, THREADS = Launch::THREADS, SLICES = WIDTH / CHANNELS;
    constexpr int WORDS = (POSITIONS * POOL + KERNEL + POOL + 2) / 4;  // the words of ids that a slab reads
    constexpr int READ = KERNEL + POOL - 1;                             // the ids that a thread reads
    static_assert(POSITIONS * POOL % 4 == 0, "a slab's ids begin at a whole word");
    static_assert(ARTICLES % GROUP == 0 && WIDTH % CHANNELS == 0 && CHANNELS % 8 == 0, "whole groups and slices");
    static_assert(THREADS == LANES * POSITIONS, "a thread takes eight channels at a position");
    static_assert(THREADS > GROUP && THREADS >= ARTICLES && THREADS % 32 == 0,
                  "whole warps, and a thread for each article's statistics and units");
    struct Shared {
        uint16 table[KERNEL][IDS][CHANNELS];
        float bias[CHANNELS];
        uint32 after_text[GROUP][LANES][4];  // the normalised bias of each article, in T
        ArticleGroup<WORDS> group;
    };
    static_assert(sizeof(Shared) == Launch::SHARED_BYTES, "the shared memory that the tile asks for");
    extern __shared__ __align__(16) char shared[];
    Shared& local = *reinterpret_cast<Shared*>(shared);
    uint16* entries = &local.table[0][0][0];

    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const int articles = *article_count;
    const int slabs = (rows + POSITIONS - 1) / POSITIONS, chunks = (articles + ARTICLES - 1) / ARTICLES;
    int count_saturated = 0;
    int loaded = -1;  // the slice whose table is in shared memory
#pragma unroll 1
    for (int task = blockIdx.x; task < SLICES * slabs * chunks; task += gridDim.x) {
        // Slabs rotate with the chunk, so that every block gets its share of the first slabs, which hold the text.
        const int slice = task / (slabs * chunks), chunk = task % (slabs * chunks) / slabs;
        const int slab = (task + chunk) % slabs, row = slab * POSITIONS + slot;
        const int channel = slice * CHANNELS + lane * 8;
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
            for (int i = threadIdx.x * 8; i < count; i += THREADS * 8)
                *reinterpret_cast<uint4*>(entries + i) =
                    *reinterpret_cast<const uint4*>(table + (int64)slice * count + i);
            for (int i = threadIdx.x; i < CHANNELS; i += THREADS) local.bias[i] = affine[2 * WIDTH + slice * CHANNELS + i];
        }
        float unit[8], zero[8];
        load8(affine + channel, unit);
        load8(affine + WIDTH + channel, zero);
        uint32 g[POOL][4], shift[POOL][4];
        if (row < rows) {
#pragma unroll
            for (int w = 0; w < POOL; w++) {
                const int64 at = (int64)(row * POOL + w) * WIDTH + channel;
                *reinterpret_cast<uint4*>(g[w]) = *reinterpret_cast<const uint4*>(gamma + at);
                *reinterpret_cast<uint4*>(shift[w]) = *reinterpret_cast<const uint4*>(beta + at);
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
#pragma unroll 1
            for (int i = threadIdx.x; i < GROUP * LANES && !TEXT; i += THREADS) {
                const float2 norm = local.group.statistics[buffer][i / LANES];
                const float* bias = &local.bias[i % LANES * 8];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    local.after_text[i / LANES][i % LANES][j] =
                        pack<T>((bias[2 * j] - norm.x) * norm.y, (bias[2 * j + 1] - norm.x) * norm.y);
            }
            if (!TEXT) __syncthreads();
            const Packing packing{local.group.first_unit[buffer]};
            const int count = min(GROUP, last - begin);
#pragma unroll 1
            for (int a = 0; a < count; a++) {
                if (row >= packing.units(a) * UNIT_ROWS) continue;
                const int target = (packing.first[a] * UNIT_ROWS + row) * (WIDTH / 8) + channel / 8;  // eight channels each
                const int in_text = local.group.text_end[buffer][a] - row * POOL;  // windows from there on need no look-up
                uint32 best[4] = {};  // ReLU: nothing below zero
                if (TEXT && in_text <= 0) {
                    // zeros
                } else if (in_text <= 0) {
                    const uint4 value = *reinterpret_cast<const uint4*>(local.after_text[a][lane]);
#pragma unroll
                    for (int w = 0; w < POOL; w++) {
                        best[0] = max_pair<T>(best[0], fma_pair<T>(value.x, g[w][0], shift[w][0]));
                        best[1] = max_pair<T>(best[1], fma_pair<T>(value.y, g[w][1], shift[w][1]));
                        best[2] = max_pair<T>(best[2], fma_pair<T>(value.z, g[w][2], shift[w][2]));
                        best[3] = max_pair<T>(best[3], fma_pair<T>(value.w, g[w][3], shift[w][3]));
                    }
                } else {
                    const float2 norm = local.group.statistics[buffer][a];
                    int entry[READ];
#pragma unroll
                    for (int t = 0; t < READ; t++)
                        entry[t] = local.group.id(buffer, a, slot * POOL, t) * CHANNELS + lane * 8;
                    uint32 sum[POOL][4];
#pragma unroll
                    for (int w = 0; w < POOL; w++) {
                        sum[w][0] = sum[w][1] = sum[w][2] = sum[w][3] = 0;
#pragma unroll
                        for (int t = 0; t < KERNEL; t++) {
                            const uint4 part =
                                *reinterpret_cast<const uint4*>(entries + t * IDS * CHANNELS + entry[w + t]);
                            sum[w][0] += part.x, sum[w][1] += part.y, sum[w][2] += part.z, sum[w][3] += part.w;
                        }
                    }
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float unit_x = unit[2 * i] * norm.y, unit_y = unit[2 * i + 1] * norm.y;
                        const float zero_x = fmaf(-TWO_TO_23, unit_x, (zero[2 * i] - norm.x) * norm.y);
                        const float zero_y = fmaf(-TWO_TO_23, unit_y, (zero[2 * i + 1] - norm.x) * norm.y);
#pragma unroll
                        for (int w = 0; w < POOL; w++) {
                            const float2 x = integers_to_floats(sum[w][i]);
                            const uint32 value = pack<T>(fmaf(x.x, unit_x, zero_x), fmaf(x.y, unit_y, zero_y));
                            if (!TEXT || w < in_text)
                                best[i] = max_pair<T>(best[i], fma_pair<T>(value, g[w][i], shift[w][i]));
                        }
                    }
                }
                count_saturated += store_values<T>(output, target, best, by);
            }
        }
    }
    if (IS_INT8<Out>) add_count(saturated, count_saturated);
}
