// Computes the mean and deviation of block 1 without computing block 1.
//
// A window's 256 outputs are b + Σ_t w_t[c_(q+t)]. So their sum over all windows, and the sum of their squares, are
// sums of inner products of table rows. The kernel reads prefix sums over the taps:
//     first[k][u]     = Σ_(t≤k) ( Σ w_t[u],  |w_t[u]|² + 2 b·w_t[u] )
//     pairs[k][d][u][v] = Σ_(t≤k) 2 w_t[u]·w_(t+d)[v]
// The character at position s adds first[high][c_s] and pairs[high][d][c_s][c_(s+d)] for d = 1…6. `high` and `low` cut
// off the taps that would start a window before the text or after the last window. (This follows from expanding
// |Σ_t w_t|². pipeline/kernels/tables.py computes the tables in float64.)
//
// Layout. A warp has one article, and lane l reads positions l, l + 32 and so on. Sums are in fp64 registers.
// Why. Seven small look-ups for each position replace 1,792 values. Characters outside the alphabet have zero rows, so
//   the kernel stops at the end of the text.
//
// Test: tests/engine/test_cuda.py, and tests/kernels/test_tables.py for the tables. Time: broadsheet profile.
#include "common/overflow.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

// ids [articles, pitch]. articles: the number of articles, of which the host only knows the maximum. first
// [KERNEL][id_count] and pairs [KERNEL][KERNEL - 1][id_count][id_count]: as above. sum_of_biases, sum_of_square_biases:
// the sums over one window. statistics [articles]: the mean and 1 / sqrt(variance + epsilon), which is NaN if the
// variance does not fit fp32. text_end [articles]: one past the last position that is not padding.
template <int KERNEL, int CHANNELS, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP)
    norm_statistics(const uint8* ids, const int* articles, int length, int pitch, int id_count, const float2* first,
                    const float* pairs, double sum_of_biases, double sum_of_square_biases, double epsilon,
                    float2* statistics, int* text_end) {
    const int article = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (article >= *articles) return;
    const uint8* text = ids + (int64)article * pitch;
    const int padding = id_count - 1, windows = length - KERNEL + 1;

    int end = 0;
    for (int i = lane; i < length; i += WARP)
        if (text[i] != padding) end = i + 1;
    for (int distance = WARP / 2; distance; distance /= 2) end = max(end, __shfl_xor_sync(ALL_LANES, end, distance));

    double sum = 0, squares = 0;
    for (int s = lane; s < end; s += WARP) {
        const int id = text[s], low = s - windows;  // taps 0…low would begin after the last window
        float2 total = first[min(s, KERNEL - 1) * id_count + id];
        if (low >= 0) {
            const float2 cut = first[low * id_count + id];
            total.x -= cut.x;
            total.y -= cut.y;
        }
#pragma unroll
        for (int d = 1; d < KERNEL; d++) {
            if (s + d >= end) break;
            const int high = min(s, KERNEL - 1 - d), other = text[s + d];
            const int64 row = (int64)(d - 1) * id_count + id, plane = (int64)(KERNEL - 1) * id_count * id_count;
            if (low < high) {
                total.y += pairs[high * plane + row * id_count + other];
                if (low >= 0) total.y -= pairs[low * plane + row * id_count + other];
            }
        }
        sum += total.x;
        squares += total.y;
    }
    sum = warp_sum(sum) + windows * sum_of_biases;
    squares = warp_sum(squares) + windows * sum_of_square_biases;
    if (lane == 0) {
        const double count = (double)windows * CHANNELS, mean = sum / count;
        const double variance = squares / count - mean * mean;
        const float scale = unless_overflow((float)(1 / sqrt(variance + epsilon)), (float)variance);
        statistics[article] = make_float2((float)mean, scale);
        text_end[article] = end;
    }
}
