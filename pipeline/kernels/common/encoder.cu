// Computes the parts of an encoder beside products and attention: the first vectors of tokens, the norms, and the head.
// pipeline/model/encoder.py is the specification.
//
// Layout. A warp reads a row of 16-bit values, eight values in each lane, and sums in fp32. Values from the width to
//   the pitch of a row are zero. Only `head` has dynamic shared memory, with two vectors of each of its texts.
// Why. A row stays in the registers of one warp, so a norm reads it once and needs no barrier of the block. A block of
//   `head` reads the weights once for all its texts.
//
// Test: tests/engine/test_encoder_gpu.py. Time: python -m benchmarks.peers.encoders_gpu.
#include "common/reduce.cuh"
#include "common/types.cuh"

// A row of `pitch` values in the registers of a warp.
template <typename T, int PIECES>
struct Row {
    static constexpr int PIECE = 8;
    float value[PIECES][PIECE] = {};

    // Return the place of value 0 of a lane's piece p.
    static __device__ __forceinline__ int at(int p) { return (p * WARP + threadIdx.x % WARP) * PIECE; }

    __device__ __forceinline__ void load(const T* from, int pitch) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            if (at(p) >= pitch) break;
            load8(from + at(p), value[p]);
        }
    }

    // Load the sum of two rows. Both are fetched completely before the sum waits for them.
    __device__ __forceinline__ void load_sum(const T* one, const T* other, int pitch) {
        Vector16 first[PIECES] = {}, second[PIECES] = {};
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (at(p) < pitch) {
                first[p] = *reinterpret_cast<const Vector16*>(one + at(p));
                second[p] = *reinterpret_cast<const Vector16*>(other + at(p));
            }
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int i = 0; i < PIECE; i += 2) {
                const float2 a = unpack<T>(first[p].pair[i / 2]), b = unpack<T>(second[p].pair[i / 2]);
                value[p][i] = a.x + b.x, value[p][i + 1] = a.y + b.y;
            }
    }

    __device__ __forceinline__ void store(T* to, int pitch) const {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            if (at(p) >= pitch) break;
            store8(to + at(p), value[p]);
        }
    }

    // Store the layer norm of the row to `to` [pitch]. gamma and beta [pitch] are fp32, and zero beyond the width.
    __device__ __forceinline__ void store_normed(T* to, const float* gamma, const float* beta, float epsilon, int width,
                                                 int pitch) {
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
                if (at(p) + i < width) value[p][i] -= mean;
                squares = fmaf(value[p][i], value[p][i], squares);
            }
        const float scale = rsqrtf(warp_sum(squares) / width + epsilon);
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            if (at(p) >= pitch) break;
            float weight[PIECE], bias[PIECE];
            load8(gamma + at(p), weight);
            load8(beta + at(p), bias);
#pragma unroll
            for (int i = 0; i < PIECE; i++) value[p][i] = fmaf(value[p][i] * scale, weight[i], bias[i]);
            store8(to + at(p), value[p]);
        }
    }
};

// Compute the first vectors of the tokens, a block for each text. ids: the tokens of all texts. rooms [texts]: where
// those of each text begin. ends [texts + 1]: the first row of each text, and the end of the last. embedding [entries,
// pitch], places [positions, pitch]: the vectors of tokens and of positions. place_of: the row of `places` for each
// token, in the order of ids, or null if it is the token's number in its text.
template <typename T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * WARP)
    embed(const int* ids, const int* place_of, const int64* rooms, const int* ends, const T* embedding, const T* places,
          const float* gamma, const float* beta, float epsilon, int width, int pitch, T* out) {
    const int first = ends[blockIdx.x], rows = ends[blockIdx.x + 1] - first;
    const int64 room = rooms[blockIdx.x];
    for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
        const int64 place = place_of == nullptr ? row : place_of[room + row];
        Row<T, PIECES> own;
        own.load_sum(embedding + (int64)ids[room + row] * pitch, places + place * pitch, pitch);
        own.store_normed(out + (int64)(first + row) * pitch, gamma, beta, epsilon, width, pitch);
    }
}

// Compute the first vectors if positions have no vectors. Also write row_places [rows], the number of each row's token
// in its text. gridDim.y blocks share a text.
template <typename T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * WARP)
    embed_tokens(const int* ids, const int64* rooms, const int* ends, const T* embedding, const float* gamma,
                 const float* beta, float epsilon, int width, int pitch, T* out, int* row_places) {
    const int first = ends[blockIdx.x], rows = ends[blockIdx.x + 1] - first;
    const int64 room = rooms[blockIdx.x];
    for (int row = blockIdx.y * WARPS + threadIdx.x / WARP; row < rows; row += gridDim.y * WARPS) {
        if (threadIdx.x % WARP == 0) row_places[first + row] = row;
        Row<T, PIECES> own;
        own.load(embedding + (int64)ids[room + row] * pitch, pitch);
        own.store_normed(out + (int64)(first + row) * pitch, gamma, beta, epsilon, width, pitch);
    }
}

// Compute rows [count, pitch] = norm(rows + added), a warp for each row. added [count, added_pitch].
template <typename T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * WARP)
    add_norm(T* rows, const T* added, int count, const float* gamma, const float* beta, float epsilon, int width,
             int pitch, int added_pitch) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= count) return;
    T* own = rows + (int64)row * pitch;
    Row<T, PIECES> sum;
    sum.load_sum(own, added + (int64)row * added_pitch, pitch);
    sum.store_normed(own, gamma, beta, epsilon, width, pitch);
}

// Compute rows [count, pitch] += added and normed [count, pitch] = norm(rows), a warp for each row. This is for models
// whose norms come before attention and products. The norm reads the sums before they are rounded.
template <typename T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * WARP)
    add_then_norm(T* rows, const T* added, int count, const float* gamma, const float* beta, float epsilon, int width,
                  int pitch, int added_pitch, T* normed) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= count) return;
    T* own = rows + (int64)row * pitch;
    Row<T, PIECES> sum;
    sum.load_sum(own, added + (int64)row * added_pitch, pitch);
    sum.store(own, pitch);
    sum.store_normed(normed + (int64)row * pitch, gamma, beta, epsilon, width, pitch);
}

// A step of a head. kind: the number in _HEAD_STEPS of pipeline/kernels/tables.py. weight, bias: where the weight
// [inputs, outputs], or [outputs] for a norm, and the bias [outputs] begin in the head's weights.
struct Step {
    int kind, inputs, outputs, weight, bias;
};
enum { IDENTITY, TANH, RELU, GELU, NORMALISE, LAYER_NORM };

__device__ __forceinline__ float activated(float x, int kind) {
    switch (kind) {
        case TANH: return tanhf(x);
        case RELU: return x > 0 || x != x ? x : 0;
        case GELU: return 0.5f * x * (1 + erff(x * 0.70710678f));
        default: return x;
    }
}

// A number for each of TEXTS texts.
template <int TEXTS>
struct __align__(4 * TEXTS) OfTexts {
    float of[TEXTS];
};

// Compute the head for `all` texts: fp32 [all, outputs of its last step]. A block has TEXTS texts, for which it reads
// the weights once. is_mean: whether the head reads the mean of all vectors instead of the first. epsilon: is added to
// a variance. Dynamic shared memory: two vectors of `most` numbers for each text of the block.
template <typename T, int WARPS, int TEXTS>
__global__ void __launch_bounds__(WARPS * WARP, 2)
    head(const T* rows, const int* ends, int all, int width, int pitch, int is_mean, const Step* steps, int count,
         const float* weights, int most, float epsilon, float* out) {
    constexpr int THREADS = WARPS * WARP;
    using Numbers = OfTexts<TEXTS>;
    extern __shared__ __align__(16) char shared[];
    __shared__ float scratch[WARPS];
    Numbers *from = reinterpret_cast<Numbers*>(shared), *to = from + most;
    for (int t = 0; t < TEXTS; t++) {
        const int text = min((int)blockIdx.x * TEXTS + t, all - 1);  // a number beyond the last text repeats the last
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
        if (step.kind == LAYER_NORM) {
            for (int t = 0; t < TEXTS; t++) {
                float sum = 0, squares = 0;
#pragma unroll 1
                for (int at = threadIdx.x; at < size; at += THREADS) sum += from[at].of[t];
                const float mean = block_sum<WARPS>(sum, scratch) / size;
#pragma unroll 1
                for (int at = threadIdx.x; at < size; at += THREADS) {
                    from[at].of[t] -= mean;
                    squares = fmaf(from[at].of[t], from[at].of[t], squares);
                }
                const float scale = rsqrtf(block_sum<WARPS>(squares, scratch) / size + epsilon);
#pragma unroll 1
                for (int at = threadIdx.x; at < size; at += THREADS)
                    from[at].of[t] = fmaf(from[at].of[t] * scale, weights[step.weight + at], weights[step.bias + at]);
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
