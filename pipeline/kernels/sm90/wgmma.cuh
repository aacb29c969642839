// wgmma, the tensor core instruction of Hopper: four warps multiply together, and read operands from shared memory.
#pragma once
#include "common/outputs.cuh"
#include "common/types.cuh"

// Return the descriptor of an operand whose rows have 128 or 64 bytes under TMA's swizzle of that size, one group of
// eight rows after the other. address: the address of the first row, which may be any multiple of 128 bytes in a tile
// aligned to 1,024, since the swizzle is a function of the address. Along K, each product is 32 bytes further.
template <int ROW_BYTES = 128>
__device__ __forceinline__ uint64 descriptor(uint32 address) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "a swizzle");
    constexpr uint64 swizzle = (ROW_BYTES == 128 ? 1ull : 2ull) << 62, eight_rows = (uint64)(8 * ROW_BYTES >> 4) << 32;
    constexpr uint64 unused = 1ull << 16;
    return (uint64)((address & 0x3ffff) >> 4) | unused | eight_rows | swizzle;
}

// Order accesses to registers before the products that follow (wgmma.fence).
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Return once all but the last PENDING groups are complete.
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keep writes to these registers before this point, and reads after it. Else the compiler may move them past a fence or
// a wait, which do not name the registers.
template <int COUNT>
__device__ __forceinline__ void settle(float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(values[i])::"memory");
}
template <int COUNT>
__device__ __forceinline__ void settle(uint32 (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(values[i])::"memory");
}

// Store four 8 x 8 matrices of 16-bit elements to shared memory. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32 address, uint32 m0, uint32 m1, uint32 m2, uint32 m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}

// Compute d [64, 128] = a [64, 16] · b [128, 16]ᵀ, plus d if `add`. With 8-bit elements, 32 replaces 16. Thread t of
// the warpgroup has row t / 32 * 16 + t % 32 / 4 (d[4j], d[4j + 1]) and the row 8 below (d[4j + 2], d[4j + 3]), at
// columns 8j + t % 4 * 2 and the next.
template <typename T>
__device__ __forceinline__ void multiply_async(typename Arithmetic<T>::Sum (&d)[64], uint64 a, uint64 b, bool add);

// The instances. NAME: the shape and types of the instruction. REGISTER: the kind of register of a sum. MORE: operands.
#define BROADSHEET_MULTIPLY_ASYNC(T, NAME, REGISTER, MORE)                                                         \
    template <>                                                                                                    \
    __device__ __forceinline__ void multiply_async<T>(Arithmetic<T>::Sum (&d)[64], uint64 a, uint64 b, bool add) { \
        asm volatile(                                                                                              \
            "{.reg .pred p; setp.ne.b32 p, %66, 0;"                                                                \
            "wgmma.mma_async.sync.aligned.m64n128" NAME " {"                                                       \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                               \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                     \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                     \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                       \
            "}, %64, %65, p" MORE ";}"                                                                             \
            : "+" REGISTER(d[0]), "+" REGISTER(d[1]), "+" REGISTER(d[2]), "+" REGISTER(d[3]),                      \
              "+" REGISTER(d[4]), "+" REGISTER(d[5]), "+" REGISTER(d[6]), "+" REGISTER(d[7]),                      \
              "+" REGISTER(d[8]), "+" REGISTER(d[9]), "+" REGISTER(d[10]), "+" REGISTER(d[11]),                    \
              "+" REGISTER(d[12]), "+" REGISTER(d[13]), "+" REGISTER(d[14]), "+" REGISTER(d[15]),                  \
              "+" REGISTER(d[16]), "+" REGISTER(d[17]), "+" REGISTER(d[18]), "+" REGISTER(d[19]),                  \
              "+" REGISTER(d[20]), "+" REGISTER(d[21]), "+" REGISTER(d[22]), "+" REGISTER(d[23]),                  \
              "+" REGISTER(d[24]), "+" REGISTER(d[25]), "+" REGISTER(d[26]), "+" REGISTER(d[27]),                  \
              "+" REGISTER(d[28]), "+" REGISTER(d[29]), "+" REGISTER(d[30]), "+" REGISTER(d[31]),                  \
              "+" REGISTER(d[32]), "+" REGISTER(d[33]), "+" REGISTER(d[34]), "+" REGISTER(d[35]),                  \
              "+" REGISTER(d[36]), "+" REGISTER(d[37]), "+" REGISTER(d[38]), "+" REGISTER(d[39]),                  \
              "+" REGISTER(d[40]), "+" REGISTER(d[41]), "+" REGISTER(d[42]), "+" REGISTER(d[43]),                  \
              "+" REGISTER(d[44]), "+" REGISTER(d[45]), "+" REGISTER(d[46]), "+" REGISTER(d[47]),                  \
              "+" REGISTER(d[48]), "+" REGISTER(d[49]), "+" REGISTER(d[50]), "+" REGISTER(d[51]),                  \
              "+" REGISTER(d[52]), "+" REGISTER(d[53]), "+" REGISTER(d[54]), "+" REGISTER(d[55]),                  \
              "+" REGISTER(d[56]), "+" REGISTER(d[57]), "+" REGISTER(d[58]), "+" REGISTER(d[59]),                  \
              "+" REGISTER(d[60]), "+" REGISTER(d[61]), "+" REGISTER(d[62]), "+" REGISTER(d[63])                   \
            : "l"(a), "l"(b), "r"((int)add));                                                                      \
    }
BROADSHEET_MULTIPLY_ASYNC(Half, "k16.f32.f16.f16", "f", ", 1, 1, 0, 0")
BROADSHEET_MULTIPLY_ASYNC(BFloat, "k16.f32.bf16.bf16", "f", ", 1, 1, 0, 0")
BROADSHEET_MULTIPLY_ASYNC(Int8, "k32.s32.u8.s8", "r", "")
#undef BROADSHEET_MULTIPLY_ASYNC

// Compute d [64, 192] in the same way.
template <typename T>
__device__ __forceinline__ void multiply_async(float (&d)[96], uint64 a, uint64 b, bool add);

#define BROADSHEET_SUMS(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define BROADSHEET_MULTIPLY_ASYNC_192(T, TYPE)                                                             \
    template <>                                                                                            \
    __device__ __forceinline__ void multiply_async<T>(float (&d)[96], uint64 a, uint64 b, bool add) {      \
        asm volatile(                                                                                      \
            "{.reg .pred p; setp.ne.b32 p, %98, 0;"                                                        \
            "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE " {"                              \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"               \
            "}, %96, %97, p, 1, 1, 0, 0;}"                                                                 \
            : BROADSHEET_SUMS(d, 0),                                                                       \
              BROADSHEET_SUMS(d, 8),                                                                       \
              BROADSHEET_SUMS(d, 16),                                                                      \
              BROADSHEET_SUMS(d, 24),                                                                      \
              BROADSHEET_SUMS(d, 32),                                                                      \
              BROADSHEET_SUMS(d, 40),                                                                      \
              BROADSHEET_SUMS(d, 48),                                                                      \
              BROADSHEET_SUMS(d, 56),                                                                      \
              BROADSHEET_SUMS(d, 64),                                                                      \
              BROADSHEET_SUMS(d, 72),                                                                      \
              BROADSHEET_SUMS(d, 80),                                                                      \
              BROADSHEET_SUMS(d, 88)                                                                       \
            : "l"(a), "l"(b), "r"((int)add));                                                              \
    }
BROADSHEET_MULTIPLY_ASYNC_192(Half, "f16")
BROADSHEET_MULTIPLY_ASYNC_192(BFloat, "bf16")
#undef BROADSHEET_MULTIPLY_ASYNC_192

// The products of attention. Compute d [64, 64] = a [64, 16] · b [64, 16]ᵀ, plus d if `add`.
template <typename T>
__device__ __forceinline__ void multiply_async(float (&d)[32], uint64 a, uint64 b, bool add);
// Compute d [64, 64 or 32] = a [64, 16] · b [16, 64 or 32], plus d if `add`. A thread has the same elements of `a` as for
// mma.sync.
template <typename T>
__device__ __forceinline__ void multiply_by_rows(float (&d)[32], const uint32 (&a)[4], uint64 b, bool add);
template <typename T>
__device__ __forceinline__ void multiply_by_rows(float (&d)[16], const uint32 (&a)[4], uint64 b, bool add);

#define BROADSHEET_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BROADSHEET_32 \
    BROADSHEET_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BROADSHEET_ATTENTION(T, TYPE)                                                                               \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_async<T>(float (&d)[32], uint64 a, uint64 b, bool add) {               \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE       \
                     "." TYPE " {" BROADSHEET_32 "}, %32, %33, p, 1, 1, 0, 0;}"                                     \
                     : BROADSHEET_SUMS(d, 0), BROADSHEET_SUMS(d, 8), BROADSHEET_SUMS(d, 16), BROADSHEET_SUMS(d, 24) \
                     : "l"(a), "l"(b), "r"((int)add));                                                              \
    }                                                                                                               \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_by_rows<T>(float (&d)[32], const uint32 (&a)[4], uint64 b, bool add) { \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE       \
                     "." TYPE " {" BROADSHEET_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"                       \
                     : BROADSHEET_SUMS(d, 0), BROADSHEET_SUMS(d, 8), BROADSHEET_SUMS(d, 16), BROADSHEET_SUMS(d, 24) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                          \
    }                                                                                                               \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_by_rows<T>(float (&d)[16], const uint32 (&a)[4], uint64 b, bool add) { \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE       \
                     "." TYPE " {" BROADSHEET_16 "}, {%16, %17, %18, %19}, %20, p, 1, 1, 1;}"                       \
                     : BROADSHEET_SUMS(d, 0), BROADSHEET_SUMS(d, 8)                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                          \
    }
BROADSHEET_ATTENTION(Half, "f16")
BROADSHEET_ATTENTION(BFloat, "bf16")
#undef BROADSHEET_ATTENTION
#undef BROADSHEET_32
#undef BROADSHEET_16
#undef BROADSHEET_SUMS
