// Computes the last layer and the results: logits, softmax at the model's temperature or sigmoids, and the k best
// classes. `ngrams_alone` does the same for n-grams without the network, and lists the articles that the network must
// score.
//
// Layout. A warp has ARTICLES articles. A logit is the sum of 32 partial sums, one in each lane, in a fixed order. The
//   probabilities of each article are in dynamic shared memory for the selection. A selected class is marked, and the
//   lowest index wins a tie. If a logit is not finite, the scores of the article are NaN and its labels -1.
// Why. A warp reads each row of weights once for all its articles.
//
// Test: tests/engine/test_cuda.py, test_ngrams_gpu.py and test_cascade.py beside it. Time: broadsheet profile.
#include "common/overflow.cuh"
#include "common/reduce.cuh"
#include "common/split.cuh"
#include "common/types.cuh"

constexpr float TAKEN = -3.4028235e38f;  // marks a selected class: the least number, as GIVEN scores may be negative
constexpr int NO_LABEL = -1;
enum Link { SOFTMAX, SIGMOID, STEPS, GIVEN };  // as in pipeline/model/scores.py

// Return the score of a logit that does not depend on other logits. STEPS is fastText's table of 512 sigmoids from -8
// to 8, as `in_steps` in pipeline/model/scores.py computes it.
__device__ __forceinline__ float score_alone(float logit, int link) {
    if (link == GIVEN) return logit;
    if (link == SIGMOID) return 1 / (1 + expf(-logit));
    const float place = floorf((fminf(fmaxf(logit, -8.f), 8.f) + 8) * 32);
    return logit < -8 ? 0 : logit > 8 ? 1 : 1 / (1 + expf(8 - place / 32));
}

// The outputs for an article's logits. sharpness: one over the temperature. link: how scores follow from logits.
// logits, which may be null, and scores fp32 [articles, classes]; labels int32 and best fp32 [articles, k].
struct Outputs {
    float sharpness;
    int link, classes, k;
    float* logits;
    float* scores;
    int* labels;
    float* best;

    // A warp calls this. value: the logits, which it overwrites. total: 0, or NaN if block 1 has overflowed.
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
        // For scores that are not normalised by their sum, the total is 0 or NaN.
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
            const bool found = label < classes;  // false if the probabilities are NaN
            if (lane == 0) {
                labels[article * k + rank] = found ? label : NO_LABEL;
                best[article * k + rank] = found ? score : total;
                if (found) value[label] = TAKEN;
            }
            __syncwarp();
        }
    }
};

// x [articles, INPUTS]; weight fp32 [classes, INPUTS]; bias fp32 [classes]. beside fp32 [articles, classes]: is added
// to the logits, or null; it may be `logits`. statistics [articles]: from common/statistics.cu if blocks 2 to 5 are in
// 8 bits, which cannot show that block 1 overflows, else null. articles: the number of articles. rows: the numbers of
// these articles in the batch, or null; `beside` and all outputs have rows for the articles of the batch. Other
// arguments: see `Outputs`. Dynamic shared memory: BYTES_A_CLASS * classes.
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

// Score by n-grams alone: the logits are beside fp32 [articles, classes] plus the bias. A warp has one article.
//
// asked int32 [articles]: if not null, gets the articles whose margin is not `margin` or more, in any order. Their
// number is added to *asked_count. The margin is the distance between the two largest logits, or, if cuts fp32
// [classes] is not null, the smallest distance between a logit and its cut (pipeline/model/cascade.py). Dynamic shared
// memory: BYTES_A_CLASS * classes.
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
            float highest = none, second = none;  // the nearest distance is the highest number below zero
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
