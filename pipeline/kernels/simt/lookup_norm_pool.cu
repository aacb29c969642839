// Computes block 1 in plain fp32: each window is the bias plus one table row for each tap, then layer norm, ReLU and
// pool.
//
// Layout. A block has POSITIONS pooled positions and all channels, and a thread has four channels at one position.
//   There is no shared memory. A thread holds gamma and beta in registers and loops over ARTICLES articles.
// Why. gamma and beta are read once for many articles. The statistics come from common/statistics.cu, so the [windows,
//   CHANNELS] values before the norm are never stored.
//
// Test: tests/engine/test_cuda.py. Time: broadsheet profile, python -m benchmarks.ladder.
#include "common/launch.cuh"
#include "common/outputs.cuh"
#include "common/packing.cuh"
#include "common/types.cuh"

// ids [articles, pitch]; articles: their number, in device memory; text_end, statistics [articles]: from
// common/statistics.cu; first [articles + 1]: see common/packing.cuh; table [KERNEL][id_count][CHANNELS]; bias
// [CHANNELS]; gamma, beta [windows, CHANNELS]; output [units, UNIT_ROWS, CHANNELS]. TEXT: whether windows from the
// text's end on are zero after ReLU. rows: the most rows of an article. by, saturated: see sm80/lookup_norm_pool.cu.
template <typename Out, int KERNEL, int CHANNELS, int POOL, int UNIT_ROWS, bool TEXT, int POSITIONS, int ARTICLES,
          typename Launch>
__global__ void __launch_bounds__(Launch::THREADS)
    lookup_norm_pool(const uint8* ids, int pitch, const int* articles, int id_count, const int* text_end,
                     const float2* statistics, const int* first, const float* table, const float* bias,
                     const float* gamma, const float* beta, Out* output, int rows, float by, uint64* saturated) {
    constexpr int LANES = CHANNELS / 4;  // threads across the channels, four channels each
    static_assert(Launch::THREADS == LANES * POSITIONS && Launch::SHARED_BYTES == 0, "the tile's threads");
    const Packing packing{first};
    const int channel = threadIdx.x % LANES * 4, row = blockIdx.x * POSITIONS + threadIdx.x / LANES;
    if (row >= rows) return;
    const float4 b = *reinterpret_cast<const float4*>(bias + channel);
    float4 g[POOL], shift[POOL];
#pragma unroll
    for (int w = 0; w < POOL; w++) {
        const int64 at = (int64)(row * POOL + w) * CHANNELS + channel;
        g[w] = *reinterpret_cast<const float4*>(gamma + at);
        shift[w] = *reinterpret_cast<const float4*>(beta + at);
    }
    const int last = min((int)(blockIdx.y + 1) * ARTICLES, *articles);
    int count = 0;  // the number of saturated values
    for (int article = blockIdx.y * ARTICLES; article < last; article++) {
        if (row >= packing.units(article) * UNIT_ROWS) continue;
        const uint8* text = ids + (int64)article * pitch + row * POOL;
        const int in_text = text_end[article] - row * POOL;  // windows from this one on are the bias, or zero
        const float mean = statistics[article].x, scale = statistics[article].y;
        float4 best = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < POOL; w++) {
            if (TEXT && w >= in_text) break;
            float4 sum = b;
            if (w < in_text) {
#pragma unroll
                for (int t = 0; t < KERNEL; t++) {
                    const int64 entry = (int64)(t * id_count + text[w + t]) * CHANNELS + channel;
                    const float4 part = *reinterpret_cast<const float4*>(table + entry);
                    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
                }
            }
            best.x = fmaxf(best.x, (sum.x - mean) * scale * g[w].x + shift[w].x);
            best.y = fmaxf(best.y, (sum.y - mean) * scale * g[w].y + shift[w].y);
            best.z = fmaxf(best.z, (sum.z - mean) * scale * g[w].z + shift[w].z);
            best.w = fmaxf(best.w, (sum.w - mean) * scale * g[w].w + shift[w].w);
        }
        if (!TEXT || in_text > 0) {
            best.x = unless_overflow(best.x, scale), best.y = unless_overflow(best.y, scale);
            best.z = unless_overflow(best.z, scale), best.w = unless_overflow(best.w, scale);
        }
        Out* to = output + ((int64)packing.first[article] * UNIT_ROWS + row) * CHANNELS + channel;
        if constexpr (IS_INT8<Out>) {
            const uint32 bytes = to_bytes(best.x * by, best.y * by, best.z * by, best.w * by);
            *reinterpret_cast<uint32*>(to) = bytes;
            count += saturated_count(bytes);
        } else {
            *reinterpret_cast<float4*>(to) = best;
        }
    }
    if (IS_INT8<Out>) add_count(saturated, count);
}
