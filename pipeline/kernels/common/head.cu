// The last layer and what follows it: logits, softmax at the model's temperature or sigmoids, and the k best classes.
//
// A warp takes ARTICLES articles, so that a row of weights is read once for all of them. A logit is 32 partial sums, one
// a lane, added up in a fixed order. Each article's probabilities are in shared memory for the selection; a selected
// class is marked, and the lowest index wins a tie. Where a logit is not finite, neither is any probability of the
// article: its scores are NaN and its labels -1.
#include "common/overflow.cuh"
#include "common/reduce.cuh"
#include "common/split.cuh"
#include "common/types.cuh"

constexpr float TAKEN = -1;  // below every probability
constexpr int NO_LABEL = -1;

// x [articles, INPUTS]; weight fp32 [classes, INPUTS]; bias fp32 [classes]. beside fp32 [articles, classes]: what is added
// to the logits, or null; it may be `logits`. statistics [articles] (common/statistics.cu): where blocks 2 to 5 are in 8
// bits, which cannot tell that block 1 overflows, else null. sharpness: one over the temperature. multi_label: whether
// each class has a score of its own, the sigmoid of its logit. logits and scores fp32 [articles, classes]; labels int32
// and best fp32 [articles, k]. Dynamic shared memory: BYTES_A_CLASS * classes.
template <typename T, int INPUTS, int WARPS, int ARTICLES, int BYTES_A_CLASS>
__global__ void __launch_bounds__(WARPS* WARP)
    head(const T* x, const float* weight, const float* bias, const float* beside, const float2* statistics,
         float sharpness, int multi_label, int articles, int classes, int k, float* logits, float* scores, int* labels,
         float* best) {
    constexpr int PARTS = INPUTS / (8 * WARP);
    static_assert(INPUTS % (8 * WARP) == 0, "a lane takes eight inputs at a time");
    static_assert(BYTES_A_CLASS == WARPS * ARTICLES * sizeof(float), "the shared memory that the host asks for");
    extern __shared__ float shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int first = (blockIdx.x * WARPS + warp) * ARTICLES;
    const int count = min(ARTICLES, articles - first);
    if (count <= 0) return;
    float* values = shared + warp * ARTICLES * classes;

    float input[ARTICLES][PARTS][8];
#pragma unroll
    for (int a = 0; a < ARTICLES; a++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            load8(x + (int64)min(first + a, articles - 1) * INPUTS + (p * WARP + lane) * 8, input[a][p]);

    for (int c = 0; c < classes; c++) {
        float sum[ARTICLES] = {};
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            float w[8];
            load8(weight + (int64)c * INPUTS + (p * WARP + lane) * 8, w);
#pragma unroll
            for (int a = 0; a < ARTICLES; a++)
#pragma unroll
                for (int i = 0; i < 8; i++) sum[a] = fmaf(input[a][p][i], w[i], sum[a]);
        }
#pragma unroll
        for (int a = 0; a < ARTICLES; a++) {
            float logit = warp_sum(sum[a]) + bias[c];
            if (beside && a < count) logit += beside[(int64)(first + a) * classes + c];
            if (lane == 0) values[a * classes + c] = logit;
        }
    }
    __syncwarp();

    for (int a = 0; a < count; a++) {
        float* value = values + a * classes;
        const int64 row = (int64)(first + a) * classes;
        float highest = -__int_as_float(0x7f800000);
        for (int c = lane; c < classes; c += WARP) {
            logits[row + c] = value[c];
            highest = fmaxf(highest, value[c]);
        }
        highest = warp_max(highest);
        float total = statistics ? unless_overflow(0, statistics[first + a].y) : 0;
        for (int c = lane; c < classes; c += WARP) {
            total = unless_overflow(total, value[c]);  // then every probability is NaN
            if (!multi_label) total += value[c] = expf((value[c] - highest) * sharpness);
        }
        total = warp_sum(total);
        // Of sigmoids the total is 0, or NaN.
        for (int c = lane; c < classes; c += WARP)
            scores[row + c] = value[c] = multi_label ? total + 1 / (1 + expf(-value[c])) : value[c] / total;
        __syncwarp();
        for (int rank = 0; rank < k; rank++) {
            float score = TAKEN;
            int label = classes;
            for (int c = lane; c < classes; c += WARP)
                if (value[c] > score) score = value[c], label = c;
            for (int distance = WARP / 2; distance; distance /= 2) {
                const float other = __shfl_xor_sync(ALL_LANES, score, distance);
                const int index = __shfl_xor_sync(ALL_LANES, label, distance);
                if (other > score || (other == score && index < label)) score = other, label = index;
            }
            const bool found = label < classes;  // not where the probabilities are NaN
            if (lane == 0) {
                labels[(int64)(first + a) * k + rank] = found ? label : NO_LABEL;
                best[(int64)(first + a) * k + rank] = found ? score : total;
                if (found) value[label] = TAKEN;
            }
            __syncwarp();
        }
    }
}
