// The last layer and what follows it: logits, softmax at the model's temperature or sigmoids, and the k best classes. And
// the same of n-grams alone, which also find the articles about which the network is asked.
//
// A warp takes ARTICLES articles, so that a row of weights is read once for all of them. A logit is 32 partial sums, one
// a lane, added up in a fixed order. Each article's probabilities are in shared memory for the selection; a selected
// class is marked, and the lowest index wins a tie. Where a logit is not finite, neither is any probability of the
// article: its scores are NaN and its labels -1.
#include "common/overflow.cuh"
#include "common/reduce.cuh"
#include "common/split.cuh"
#include "common/types.cuh"

constexpr float TAKEN = -3.4028235e38f;  // the least number: scores that are given may be below zero
constexpr int NO_LABEL = -1;
enum Link { SOFTMAX, SIGMOID, STEPS, GIVEN };  // as in pipeline/model/scores.py

__device__ __forceinline__ float score_alone(float logit, int link) {
    if (link == GIVEN) return logit;
    if (link == SIGMOID) return 1 / (1 + expf(-logit));
    const float place = floorf((fminf(fmaxf(logit, -8.f), 8.f) + 8) * 32);
    return logit < -8 ? 0 : logit > 8 ? 1 : 1 / (1 + expf(8 - place / 32));
}

// What becomes of an article's logits. sharpness: one over the temperature. link: how scores follow from logits. logits,
// which may be null, and scores fp32 [articles, classes]; labels int32 and best fp32 [articles, k].
struct Outputs {
    float sharpness;
    int link, classes, k;
    float* logits;
    float* scores;
    int* labels;
    float* best;

    // By a warp. value: the logits, which are overwritten; total: 0, or NaN where block 1 has overflowed.
    __device__ __forceinline__ void write(float* value, int64 article, float total) const {
        const int lane = threadIdx.x % WARP;
        const int64 row = article * classes;
        float highest = -__int_as_float(0x7f800000);
        for (int c = lane; c < classes; c += WARP) {
            if (logits) logits[row + c] = value[c];
            highest = fmaxf(highest, value[c]);
        }
        highest = warp_max(highest);
        for (int c = lane; c < classes; c += WARP) {
            total = unless_overflow(total, value[c]);  // then every probability is NaN
            if (link == SOFTMAX) total += value[c] = expf((value[c] - highest) * sharpness);
        }
        total = warp_sum(total);
        // Of scores that are not added up the total is 0, or NaN.
        for (int c = lane; c < classes; c += WARP)
            scores[row + c] = value[c] = link == SOFTMAX ? value[c] / total : total + score_alone(value[c], link);
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
                labels[article * k + rank] = found ? label : NO_LABEL;
                best[article * k + rank] = found ? score : total;
                if (found) value[label] = TAKEN;
            }
            __syncwarp();
        }
    }
};

// x [articles, INPUTS]; weight fp32 [classes, INPUTS]; bias fp32 [classes]. beside fp32 [articles, classes]: what is added
// to the logits, or null; it may be `logits`. statistics [articles] (common/statistics.cu): where blocks 2 to 5 are in 8
// bits, which cannot tell that block 1 overflows, else null. articles: how many there are. rows: null, or which articles of
// the batch these are; `beside` and all that is written has the articles of the batch. Then as `Outputs`. Dynamic shared
// memory: BYTES_A_CLASS * classes.
template <typename T, int INPUTS, int WARPS, int ARTICLES, int BYTES_A_CLASS>
__global__ void __launch_bounds__(WARPS* WARP)
    head(const T* x, const float* weight, const float* bias, const float* beside, const float2* statistics,
         const int* rows, const int* articles, float sharpness, int link, int classes, int k,
         float* logits, float* scores, int* labels, float* best) {
    constexpr int PARTS = INPUTS / (8 * WARP);
    static_assert(INPUTS % (8 * WARP) == 0, "a lane takes eight inputs at a time");
    static_assert(BYTES_A_CLASS == WARPS * ARTICLES * sizeof(float), "the shared memory that the host asks for");
    extern __shared__ float shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int first = (blockIdx.x * WARPS + warp) * ARTICLES;
    const int there = *articles;
    const int count = min(ARTICLES, there - first);
    if (count <= 0) return;
    float* values = shared + warp * ARTICLES * classes;

    float input[ARTICLES][PARTS][8];
#pragma unroll
    for (int a = 0; a < ARTICLES; a++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            load8(x + (int64)min(first + a, there - 1) * INPUTS + (p * WARP + lane) * 8, input[a][p]);

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
            if (beside && a < count) logit += beside[(int64)(rows ? rows[first + a] : first + a) * classes + c];
            if (lane == 0) values[a * classes + c] = logit;
        }
    }
    __syncwarp();

    const Outputs out{sharpness, link, classes, k, logits, scores, labels, best};
    for (int a = 0; a < count; a++) {
        const float total = statistics ? unless_overflow(0, statistics[first + a].y) : 0;
        out.write(values + a * classes, rows ? rows[first + a] : first + a, total);
    }
}

// The logits of n-grams alone: beside fp32 [articles, classes], and the bias. A warp takes an article.
//
// asked int32 [articles]: where it is not null, the articles whose margin is not `margin` or more, in any order, their
// number added to *asked_count. The margin is the distance of the two largest logits, or where cuts fp32 [classes] is not
// null, of that of a logit to its cut which is the least (pipeline/model/cascade.py). Dynamic shared memory: BYTES_A_CLASS *
// classes.
template <int WARPS, int BYTES_A_CLASS>
__global__ void __launch_bounds__(WARPS* WARP)
    ngrams_alone(const float* bias, const float* beside, float sharpness, int link, const int* articles, int classes, int k,
                 float* scores, int* labels, float* best, float margin, const float* cuts, int* asked, int* asked_count) {
    static_assert(BYTES_A_CLASS == WARPS * sizeof(float), "the shared memory that the host asks for");
    extern __shared__ float shared[];
    __shared__ bool is_asked[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int article = blockIdx.x * WARPS + warp;
    float* value = shared + warp * classes;
    bool unsure = false;
    if (article < *articles) {
        for (int c = lane; c < classes; c += WARP) value[c] = bias[c] + beside[(int64)article * classes + c];
        if (asked) {
            const float none = -__int_as_float(0x7f800000);
            float highest = none, second = none;  // of distances the nearest, as the highest of what is below zero
            for (int c = lane; c < classes; c += WARP) {
                const float next = cuts ? -fabsf(value[c] - cuts[c]) : value[c];
                second = fmaxf(second, fminf(highest, next));
                highest = fmaxf(highest, next);
            }
            const float most = warp_max(highest);
            const uint32 has = __ballot_sync(ALL_LANES, highest == most);
            second = warp_max(lane == __ffs(has) - 1 ? second : highest);
            unsure = !((cuts ? -most : most - second) >= margin);
        }
        const Outputs out{sharpness, link, classes, k, nullptr, scores, labels, best};
        out.write(value, article, 0);
    }
    if (!asked) return;
    if (lane == 0) is_asked[warp] = unsure;
    __syncthreads();
    if (threadIdx.x > 0) return;
    int count = 0;
    for (int i = 0; i < WARPS; i++) count += is_asked[i];
    if (count == 0) return;
    int at = atomicAdd(asked_count, count);
    for (int i = 0; i < WARPS; i++)
        if (is_asked[i]) asked[at++] = blockIdx.x * WARPS + i;
}
