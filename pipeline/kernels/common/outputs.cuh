// Turns the sums of a product into stored values: their types, the bias or scale, the pool and the rounding.
//
// Sums of 16-bit and 32-bit elements are fp32, and a bias is added. Sums of 8-bit elements (Int8: unsigned activations,
// signed weights) are exact in int32. pipeline/model/quantised.py specifies each operation on them, so that every
// kernel generation gives the same bits.
//
// Test: tests/engine/test_cuda.py, test_int8_gpu.py and test_encoder_gpu.py beside it.
#pragma once
#include "common/overflow.cuh"
#include "common/types.cuh"

struct Int8 {
    uint8 bits;
};
struct TuringInt8 {  // like Int8, with the tensor core instructions of compute capability 7.5
    uint8 bits;
};

// The bias and the scale of an output in 8 bits.
struct __align__(8) Rescale {
    int32 bias;
    float scale;
};

template <typename T>
struct Arithmetic {
    using Sum = float;
    using Bias = float;
    using TwoBiases = float2;  // for neighbouring outputs, in one load
};
template <>
struct Arithmetic<Int8> {
    using Sum = int32;
    using Bias = Rescale;
    using TwoBiases = int4;
};
template <>
struct Arithmetic<TuringInt8> : Arithmetic<Int8> {};

__device__ __forceinline__ float low_of(float2 two) { return two.x; }
__device__ __forceinline__ float high_of(float2 two) { return two.y; }
__device__ __forceinline__ Rescale low_of(int4 two) { return {two.x, __int_as_float(two.y)}; }
__device__ __forceinline__ Rescale high_of(int4 two) { return {two.z, __int_as_float(two.w)}; }

template <typename T>
constexpr bool IS_INT8 = false;
template <>
constexpr bool IS_INT8<Int8> = true;
template <>
constexpr bool IS_INT8<TuringInt8> = true;

// The activation of a product's output. GELU_TANH is the approximation of GELU by Hendrycks and Gimpel (2016). The
// GATED_ ones make one value of two outputs: the activation of the first times the second. ROTARY is in
// common/rotary.cuh.
enum Activation { NONE, RELU, GELU, GELU_TANH, GATED_RELU, GATED_GELU, GATED_GELU_TANH, ROTARY };
template <int ACTIVATION>
constexpr bool IS_GATED = ACTIVATION >= GATED_RELU && ACTIVATION <= GATED_GELU_TANH;

// Compute GELU. The tanh of a polynomial, fitted to the error function, replaces the error function. It is at most
// 2.5e-5 off, and the instruction for tanh is half an ulp of fp16 off.
template <int ACTIVATION>
__device__ __forceinline__ float gelu(float x) {
    const float square = fminf(x * x, 25.f);
    const float by = ACTIVATION == GELU ? fmaf(fmaf(-3.51517588e-4f, square, 3.70056491e-2f), square, 7.97507881e-1f)
                                        : fmaf(0.7978845608f * 0.044715f, x * x, 0.7978845608f);
    float tanh;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tanh) : "f"(x * by));
    return fmaf(0.5f * x, tanh, 0.5f * x);
}

// Return the value of an output, before ReLU, from the sums of a pool window.
template <int ACTIVATION, int POOL>
__device__ __forceinline__ float output_of(const float (&sums)[POOL], float bias) {
    float best = sums[0];
#pragma unroll
    for (int w = 0; w < POOL; w++) {
        best = fmaxf(best, sums[w]);
        if (ACTIVATION == RELU) bias = unless_overflow(bias, sums[w]);
    }
    return ACTIVATION == GELU || ACTIVATION == GELU_TANH ? gelu<ACTIVATION>(best + bias) : best + bias;
}

// Return the one value of two gated outputs. With ReLU, NaN stays NaN.
template <int ACTIVATION>
__device__ __forceinline__ float gated(float value, float gate) {
    if constexpr (ACTIVATION == GATED_RELU) value = value < 0 ? 0 : value;
    else value = gelu<ACTIVATION == GATED_GELU ? GELU : GELU_TANH>(value);
    return value * gate;
}
template <int ACTIVATION, int POOL>
__device__ __forceinline__ float output_of(const int32 (&sums)[POOL], Rescale by) {
    int32 best = sums[0];
#pragma unroll
    for (int w = 1; w < POOL; w++) best = max(best, sums[w]);
    return __fmul_rn(__int2float_rn(best + by.bias), by.scale);
}

// Round two values to 16 bits. ReLU, if it is the activation, keeps NaN.
template <typename T, int ACTIVATION>
__device__ __forceinline__ uint32 round_pair(float low, float high) {
    if constexpr (ACTIVATION == RELU) return pack_relu<T>(low, high);
    else return pack<T>(low, high);
}

// Pack four values as bytes, the first in the lowest byte. They are rounded to nearest even and then clipped to 0 to
// 255, which is also the ReLU. NaN becomes 0.
__device__ __forceinline__ uint32 to_bytes(float a, float b, float c, float d) {
    uint32 high, all;
    asm("{.reg .s32 c, d; cvt.rni.s32.f32 c, %1; cvt.rni.s32.f32 d, %2; cvt.pack.sat.u8.s32.b32 %0, d, c, 0;}"
        : "=r"(high) : "f"(c), "f"(d));
    asm("{.reg .s32 a, b; cvt.rni.s32.f32 a, %1; cvt.rni.s32.f32 b, %2; cvt.pack.sat.u8.s32.b32 %0, b, a, %3;}"
        : "=r"(all) : "f"(a), "f"(b), "r"(high));
    return all;
}

// Set the highest bit of each byte that is 255. The other bits have no meaning.
__device__ __forceinline__ uint32 saturated_bits(uint32 bytes) { return ((bytes & 0x7f7f7f7fu) + 0x01010101u) & bytes; }
__device__ __forceinline__ int saturated_count(uint32 bytes) { return __popc(saturated_bits(bytes) & 0x80808080u); }

// Return how many of the bytes are 255. Hardly any byte is, and counting bits takes four times as long as a logical
// operation, so the function tests first whether there is one.
__device__ __forceinline__ int saturated_bytes(uint2 bytes) {
    const uint32 any = saturated_bits(bytes.x) | saturated_bits(bytes.y);
    return any & 0x80808080u ? saturated_count(bytes.x) + saturated_count(bytes.y) : 0;
}
__device__ __forceinline__ int saturated_bytes(uint4 bytes) {
    const uint32 any = (saturated_bits(bytes.x) | saturated_bits(bytes.y)) |
                       (saturated_bits(bytes.z) | saturated_bits(bytes.w));
    if (!(any & 0x80808080u)) return 0;
    return saturated_bytes(make_uint2(bytes.x, bytes.y)) + saturated_bytes(make_uint2(bytes.z, bytes.w));
}

// Add the counts of all threads of a warp to `total`. Every thread of the warp must call this.
__device__ __forceinline__ void add_count(uint64* total, int count) {
    __syncwarp();  // shuffles converge a warp too, but in more instructions
#pragma unroll
    for (int distance = 16; distance; distance /= 2) count += __shfl_xor_sync(0xffffffffu, count, distance);
    if (threadIdx.x % 32 == 0 && count) atomicAdd(total, (uint64)count);
}
