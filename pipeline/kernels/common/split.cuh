// Stores fp32 numbers as two fp16 parts, x = high + low, for products on tensor cores.
//
// Both parts together hold 22 bits of x, if x is between 2^-3 and 65,504 in size. Below that, they are exact to 2^-25.
// pipeline/kernels/split.py therefore scales each channel by a power of two. For each 32 neighbouring numbers, the high
// parts come first and then the low parts. These 128 bytes are a slab of a product's shared memory.
//
// Test: tests/kernels/test_fp32_tensor_cores.py. Time: python -m benchmarks.tune --precision fp32.
#pragma once
#include "common/overflow.cuh"
#include "common/packing.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

// The space of one number. A pointer to Split counts numbers, whose parts are elsewhere in the same 128 bytes.
struct Split {
    uint32 room;
};

constexpr int SPLIT_GROUP = 32;

// The parts of two numbers. A number beyond fp16 becomes infinity minus infinity, so every product with it is NaN.
struct SplitPair {
    uint32 high, low;
    __device__ __forceinline__ SplitPair(float x, float y) : high(pack<Half>(x, y)) {
        const float2 rounded = unpack<Half>(high);
        low = pack<Half>(x - rounded.x, y - rounded.y);
    }
};

// Return the address of the high part of the number at `at`. Its low part is SPLIT_GROUP elements further.
__device__ __forceinline__ Half* high_part(const Split* at) {
    const uint64 address = reinterpret_cast<uint64>(at);
    return reinterpret_cast<Half*>((address & ~127ull) + (address & 127) / 2);
}

template <>
__device__ __forceinline__ void load8<Split>(const Split* at, float (&value)[8]) {
    float low[8];
    load8(high_part(at), value);
    load8(high_part(at) + SPLIT_GROUP, low);
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] += low[i];
}

template <>
__device__ __forceinline__ void store8<Split>(Split* at, const float (&value)[8]) {
    Vector16 high, low;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const SplitPair pair(value[2 * i], value[2 * i + 1]);
        high.pair[i] = pair.high, low.pair[i] = pair.low;
    }
    *reinterpret_cast<Vector16*>(high_part(at)) = high;
    *reinterpret_cast<Vector16*>(high_part(at) + SPLIT_GROUP) = low;
}

// Transpose among four neighbouring lanes: lane l has element l of four vectors, and gets all elements of vector l.
__device__ __forceinline__ uint4 transpose_four(const uint32 (&element)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    const uint32 a = __shfl_xor_sync(ALL_LANES, odd ? element[0] : element[1], 1);
    const uint32 b = __shfl_xor_sync(ALL_LANES, odd ? element[2] : element[3], 1);
    const uint32 x[4] = {odd ? a : element[0], odd ? element[1] : a, odd ? b : element[2], odd ? element[3] : b};
    const uint32 c = __shfl_xor_sync(ALL_LANES, upper ? x[0] : x[2], 2);
    const uint32 d = __shfl_xor_sync(ALL_LANES, upper ? x[1] : x[3], 2);
    return make_uint4(upper ? c : x[0], upper ? d : x[1], upper ? x[2] : c, upper ? x[3] : d);
}

// Store 32 neighbouring outputs of a product from a warp's registers, where mma and wgmma leave them. Lane l has
// outputs 8j + l % 4 * 2 and the next one, for unit `unit` (in value[j][0] and [1]) and for the unit eight below ([2]
// and [3]).
template <typename Out>
__device__ __forceinline__ void store_outputs(const float (&value)[4][4], Out* output, int channels, int unit, int column,
                                              const Units<Out>& units);

template <>
__device__ __forceinline__ void store_outputs<Split>(const float (&value)[4][4], Split* output, int channels, int unit,
                                                     int column, const Units<Split>& units) {
    const int quarter = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++, unit += 8) {
        uint32 high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const SplitPair pair(value[j][2 * half], value[j][2 * half + 1]);
            high[j] = pair.high, low[j] = pair.low;
        }
        uint4 highs = transpose_four(high), lows = transpose_four(low);
        if (!units.exist(unit)) continue;
        if (units.is_closing(unit)) {
            const uint4* from = reinterpret_cast<const uint4*>(units.constant + column);
            highs = from[quarter], lows = from[4 + quarter];
        }
        uint4* to = reinterpret_cast<uint4*>(output + (int64)unit * channels + column);
        to[quarter] = highs;
        to[4 + quarter] = lows;
    }
}

template <>
__device__ __forceinline__ void store_outputs<float>(const float (&value)[4][4], float* output, int channels, int unit,
                                                     int column, const Units<float>& units) {
#pragma unroll
    for (int half = 0; half < 2; half++, unit += 8) {
        if (!units.exist(unit)) continue;
        const bool is_closing = units.is_closing(unit);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = column + j * 8 + threadIdx.x % 4 * 2;
            float2 pair = make_float2(value[j][2 * half], value[j][2 * half + 1]);
            if (is_closing) pair = *reinterpret_cast<const float2*>(units.constant + at);
            *reinterpret_cast<float2*>(output + (int64)unit * channels + at) = pair;
        }
    }
}

// Return the output for a sum: apply the channel's scale and bias, and ReLU if there is one. NaN stays NaN.
template <bool RELU>
__device__ __forceinline__ float finished(float sum, float factor, float bias) {
    const float value = fmaf(sum, factor, bias);
    return RELU && value < 0 ? 0 : value;
}
