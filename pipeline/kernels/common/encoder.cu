// What an encoder computes beside products and attention: the vectors that it begins with, norms, and the head.
// pipeline/model/encoder.py is the specification. Rows of 16 bits are read by one warp, eight values a lane, and summed in
// fp32; what lies beyond the width, up to the pitch of a row, is zero.
#include "common/reduce.cuh"
#include "common/types.cuh"

// One row: out [pitch] = layer norm of one + other, by a warp. gamma and beta [pitch], fp32, zero beyond the width.
template <typename T, int PIECES>
__device__ __forceinline__ void normed_sum(const T* one, const T* other, const float* gamma, const float* beta,
                                           float epsilon, int width, int pitch, T* out) {
    constexpr int PIECE = 8;
    const int lane = threadIdx.x % WARP;
    float value[PIECES][PIECE] = {};
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int at = (p * WARP + lane) * PIECE;
        if (at >= pitch) break;
        float more[PIECE];
        load8(one + at, value[p]);
        load8(other + at, more);
#pragma unroll
        for (int i = 0; i < PIECE; i++) value[p][i] += more[i];
    }
    float sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < PIECE; i++) sum += value[p][i];
    const float mean = warp_sum(sum) / width;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            if ((p * WARP + lane) * PIECE + i < width) value[p][i] -= mean;
            squares = fmaf(value[p][i], value[p][i], squares);
        }
    const float scale = rsqrtf(warp_sum(squares) / width + epsilon);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int at = (p * WARP + lane) * PIECE;
        if (at >= pitch) break;
        float weight[PIECE], bias[PIECE];
        load8(gamma + at, weight);
        load8(beta + at, bias);
#pragma unroll
        for (int i = 0; i < PIECE; i++) value[p][i] = fmaf(value[p][i] * scale, weight[i], bias[i]);
        store8(out + at, value[p]);
    }
}

// The first vectors of the tokens of texts, a block each. ids, rooms: as common/wordpiece.cu leaves them. ends [texts +
// 1]: rows of each text. embedding [entries, pitch], places [most or one more, pitch]. place_of: of each token its row of
// places, beside ids; null where that is its number in its text.
template <typename T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * WARP)
    embed(const int* ids, const int* place_of, const int64* rooms, const int* ends, const T* embedding, const T* places,
          const float* gamma, const float* beta, float epsilon, int width, int pitch, T* out) {
    const int first = ends[blockIdx.x], rows = ends[blockIdx.x + 1] - first;
    const int64 room = rooms[blockIdx.x];
    for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
        const int64 place = place_of == nullptr ? row : place_of[room + row];
        normed_sum<T, PIECES>(embedding + (int64)ids[room + row] * pitch, places + place * pitch, gamma, beta, epsilon,
                              width, pitch, out + (int64)(first + row) * pitch);
    }
}

// rows [count, pitch] = norm(rows + added), a warp each. added [count, added_pitch].
template <typename T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * WARP)
    add_norm(T* rows, const T* added, int count, const float* gamma, const float* beta, float epsilon, int width,
             int pitch, int added_pitch) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= count) return;
    T* own = rows + (int64)row * pitch;
    normed_sum<T, PIECES>(own, added + (int64)row * added_pitch, gamma, beta, epsilon, width, pitch, own);
}

// A step of a head. kind: as _HEAD_STEPS in pipeline/kernels/tables.py numbers them. weight [inputs, outputs] and bias
// [outputs] begin there in the head's weights.
struct Step {
    int kind, inputs, outputs, weight, bias;
};
enum { IDENTITY, TANH, RELU, GELU, NORMALISE };

__device__ __forceinline__ float activated(float x, int kind) {
    switch (kind) {
        case TANH: return tanhf(x);
        case RELU: return x > 0 || x != x ? x : 0;
        case GELU: return 0.5f * x * (1 + erff(x * 0.70710678f));
        default: return x;
    }
}

// A number of each of some texts.
template <int TEXTS>
struct __align__(4 * TEXTS) OfTexts {
    float of[TEXTS];
};

// What a head makes of `all` texts: fp32 [all, outputs of its last step]. A block has TEXTS of them, for which it reads the
// weights once. is_mean: of all vectors, instead of the first. Dynamic shared memory: two vectors of `most` numbers of
// each of its texts.
template <typename T, int WARPS, int TEXTS>
__global__ void __launch_bounds__(WARPS * WARP, 2)
    head(const T* rows, const int* ends, int all, int width, int pitch, int is_mean, const Step* steps, int count,
         const float* weights, int most, float* out) {
    constexpr int THREADS = WARPS * WARP;
    using Numbers = OfTexts<TEXTS>;
    extern __shared__ __align__(16) char shared[];
    __shared__ float scratch[WARPS];
    Numbers *from = reinterpret_cast<Numbers*>(shared), *to = from + most;
    for (int t = 0; t < TEXTS; t++) {
        const int text = min((int)blockIdx.x * TEXTS + t, all - 1);  // beyond the last, that one again
        const int first = ends[text], last = is_mean ? ends[text + 1] : first + 1;
        for (int at = threadIdx.x * 2; at < width; at += THREADS * 2) {
            float low = 0, high = 0;
            for (int row = first; row < last; row++) {
                const float2 two = unpack<T>(*reinterpret_cast<const uint32*>(rows + (int64)row * pitch + at));
                low += two.x, high += two.y;
            }
            from[at].of[t] = low / (last - first);
            if (at + 1 < most) from[at + 1].of[t] = high / (last - first);
        }
    }
    int size = width;
    for (int i = 0; i < count; i++) {
        __syncthreads();
        const Step step = steps[i];
        if (step.kind == NORMALISE) {
            for (int t = 0; t < TEXTS; t++) {
                float squares = 0;
                for (int at = threadIdx.x; at < size; at += THREADS) squares = fmaf(from[at].of[t], from[at].of[t], squares);
                const float length = fmaxf(1e-12f, sqrtf(block_sum<WARPS>(squares, scratch)));
                for (int at = threadIdx.x; at < size; at += THREADS) from[at].of[t] /= length;
            }
            continue;
        }
        for (int at = threadIdx.x; at < step.outputs; at += THREADS) {
            const float* weight = weights + step.weight + at;
            float sum[TEXTS];
#pragma unroll
            for (int t = 0; t < TEXTS; t++) sum[t] = weights[step.bias + at];
#pragma unroll 8
            for (int k = 0; k < step.inputs; k++) {
                const float by = weight[k * step.outputs];
                const Numbers own = from[k];
#pragma unroll
                for (int t = 0; t < TEXTS; t++) sum[t] = fmaf(own.of[t], by, sum[t]);
            }
#pragma unroll
            for (int t = 0; t < TEXTS; t++) to[at].of[t] = activated(sum[t], step.kind);
        }
        Numbers* const read = from;
        from = to, to = read, size = step.outputs;
    }
    __syncthreads();
    const int own = min(TEXTS, all - (int)blockIdx.x * TEXTS);
    for (int at = threadIdx.x; at < own * size; at += THREADS)
        out[(int64)blockIdx.x * TEXTS * size + at] = from[at % size].of[at / size];
}
