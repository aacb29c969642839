// Computes logits from the mean rows of texts, for fastText's classifiers that are not folded into their table: the
// product with the output matrix, and the tree of hierarchical softmax. pipeline/model/fasttext.py is the
// specification.
//
// Layout. A block of `product` has TEXTS texts, whose rows are in static shared memory, DEEP columns at a time, and
//   THREADS classes, a thread for each. `tree` has a warp for each text, and a lane for every 32nd class.
// Why. A thread reads each weight once for TEXTS texts. It adds up columns in order, so the bits of a text are the same
//   alone and in a batch.
//
// Test: tests/engine/test_fasttext_gpu.py. Time: python -m benchmarks.fasttext.
#include "common/reduce.cuh"
#include "common/types.cuh"

// Multiply means [texts, columns] with output fp32 [columns, classes], and write logits fp32 [texts, classes].
// text_count: the number of texts, in device memory.
template <int THREADS, int TEXTS, int DEEP>
__global__ void __launch_bounds__(THREADS)
    product(const float* means, const float* output, const int* text_count, int columns, int classes, float* logits) {
    __shared__ float rows[DEEP][TEXTS];
    const int texts = *text_count;
    const int first = blockIdx.x * TEXTS, label = blockIdx.y * THREADS + threadIdx.x;
    if (first >= texts) return;
    float sum[TEXTS] = {};
    for (int base = 0; base < columns; base += DEEP) {
        const int deep = min(DEEP, columns - base);
        __syncthreads();
        for (int i = threadIdx.x; i < deep * TEXTS; i += THREADS) {
            const int text = first + i / deep, column = i % deep;
            rows[column][i / deep] = text < texts ? means[(int64)text * columns + base + column] : 0;
        }
        __syncthreads();
        if (label >= classes) continue;
        for (int column = 0; column < deep; column++) {
            const float weight = output[(int64)(base + column) * classes + label];
#pragma unroll
            for (int text = 0; text < TEXTS; text++) sum[text] = fmaf(rows[column][text], weight, sum[text]);
        }
    }
    if (label >= classes) return;
#pragma unroll
    for (int text = 0; text < TEXTS; text++)
        if (first + text < texts) logits[(int64)(first + text) * classes + label] = sum[text];
}

// Compute hierarchical softmax: the score of a class is the product of the scores of all turns on its path in the tree.
// nodes fp32 [texts, classes - 1]; steps, ends: the paths, see `Paths`; scores fp32 [texts, classes].
template <int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    tree(const float* nodes, const int* steps, const int* ends, const int* texts, int classes, float* scores) {
    const int number = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (number >= *texts) return;
    const float* node = nodes + (int64)number * (classes - 1);
    for (int label = threadIdx.x % WARP; label < classes; label += WARP) {
        float score = 1;
        for (int i = label ? ends[label - 1] : 0; i < ends[label]; i++) {
            const float right = 1 / (1 + expf(-node[steps[i] / 2]));
            score *= steps[i] & 1 ? right : 1 - right;
        }
        scores[(int64)number * classes + label] = score;
    }
}
