// The tensor core instructions of a warp: ldmatrix and mma.sync of compute capability 8.0, and for 8 bits also of 7.5.
#pragma once
#include "common/outputs.cuh"
#include "common/types.cuh"

// Load four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32 (&matrix)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
                 : "r"(address)
                 : "memory");
}

// Load four matrices like `load_matrices`, and transpose each.
__device__ __forceinline__ void load_transposed(uint32 (&matrix)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
                 : "r"(address)
                 : "memory");
}

// Compute d [16, 8] += a [16, 16] · b [16, 8], or for 8-bit elements a [16, 32] · b [32, 8]: always 32 bytes along K.
// Lane l has rows l / 4 and l / 4 + 8 of d, in column l % 4 * 2 and the next.
template <typename T>
__device__ __forceinline__ void multiply(typename Arithmetic<T>::Sum (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1);

template <>
__device__ __forceinline__ void multiply<Half>(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply<BFloat>(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply<Int8>(int32 (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Compute d [8, 8] += a [8, 16] · b [16, 8]: a quarter of the product above, for one register each of a and b.
__device__ __forceinline__ void multiply_quarter(int32& d0, int32& d1, uint32 a, uint32 b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d0), "+r"(d1)
                 : "r"(a), "r"(b));
}
template <>
__device__ __forceinline__ void multiply<TuringInt8>(int32 (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    multiply_quarter(d[0], d[1], a[0], b0);
    multiply_quarter(d[2], d[3], a[1], b0);
    multiply_quarter(d[0], d[1], a[2], b1);
    multiply_quarter(d[2], d[3], a[3], b1);
}
