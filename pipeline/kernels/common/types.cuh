// Storage types and their packed arithmetic. This needs no headers of the CUDA toolkit, which need not be installed.
//
// Activations and weights are float, Half (IEEE fp16) or BFloat (bfloat16). Sums are always in fp32 registers. Every
// kernel includes this file, and tests/kernels/test_compile.py compiles them all.
#pragma once

using uint8 = unsigned char;
using uint16 = unsigned short;
using int32 = int;
using uint32 = unsigned int;
using int64 = long long;
using uint64 = unsigned long long;

struct Half {
    uint16 bits;
};
struct BFloat {
    uint16 bits;
};

// Eight neighbouring elements, the unit of every vector access of 16-bit activations.
struct __align__(16) Vector16 {
    uint32 pair[4];
};

// Round two fp32 values to nearest even, and pack them in one register. `low` is in its lower half.
template <typename T>
__device__ __forceinline__ uint32 pack(float low, float high);

template <>
__device__ __forceinline__ uint32 pack<Half>(float low, float high) {
    uint32 pair;
    asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
        : "=r"(pair) : "f"(low), "f"(high));
    return pair;
}

template <typename T>
__device__ __forceinline__ float2 unpack(uint32 pair);

template <>
__device__ __forceinline__ float2 unpack<Half>(uint32 pair) {
    float2 value;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(value.x), "=f"(value.y) : "r"(pair));
    return value;
}

template <>
__device__ __forceinline__ float2 unpack<BFloat>(uint32 pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ uint32 pack<BFloat>(float low, float high) {
    uint32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Pack two values like `pack`, after ReLU: a negative value becomes 0, and NaN stays NaN.
template <typename T>
__device__ __forceinline__ uint32 pack_relu(float low, float high);

template <>
__device__ __forceinline__ uint32 pack_relu<Half>(float low, float high) {
    uint32 pair;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <>
__device__ __forceinline__ uint32 pack_relu<BFloat>(float low, float high) {
    uint32 pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Compute a * b + c, or the larger of two values, on both halves at once. The result is NaN if an operand is NaN.
template <typename T>
__device__ __forceinline__ uint32 fma_pair(uint32 a, uint32 b, uint32 c);
template <typename T>
__device__ __forceinline__ uint32 max_pair(uint32 a, uint32 b);

template <>
__device__ __forceinline__ uint32 fma_pair<Half>(uint32 a, uint32 b, uint32 c) {
    uint32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <>
__device__ __forceinline__ uint32 fma_pair<BFloat>(uint32 a, uint32 b, uint32 c) {
    uint32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <>
__device__ __forceinline__ uint32 max_pair<Half>(uint32 a, uint32 b) {
    uint32 d;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
template <>
__device__ __forceinline__ uint32 max_pair<BFloat>(uint32 a, uint32 b) {
    uint32 d;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
#endif

// Load eight elements to fp32 registers, or store them. `at` is a multiple of eight elements.
template <typename T>
__device__ __forceinline__ void load8(const T* at, float (&value)[8]) {
    const Vector16 vector = *reinterpret_cast<const Vector16*>(at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = unpack<T>(vector.pair[i]);
        value[2 * i] = two.x;
        value[2 * i + 1] = two.y;
    }
}
template <>
__device__ __forceinline__ void load8<float>(const float* at, float (&value)[8]) {
    *reinterpret_cast<float4*>(value) = *reinterpret_cast<const float4*>(at);
    *reinterpret_cast<float4*>(value + 4) = *reinterpret_cast<const float4*>(at + 4);
}

template <typename T>
__device__ __forceinline__ void store8(T* at, const float (&value)[8]) {
    Vector16 vector;
#pragma unroll
    for (int i = 0; i < 4; i++) vector.pair[i] = pack<T>(value[2 * i], value[2 * i + 1]);
    *reinterpret_cast<Vector16*>(at) = vector;
}
template <>
__device__ __forceinline__ void store8<float>(float* at, const float (&value)[8]) {
    *reinterpret_cast<float4*>(at) = *reinterpret_cast<const float4*>(value);
    *reinterpret_cast<float4*>(at + 4) = *reinterpret_cast<const float4*>(value + 4);
}
