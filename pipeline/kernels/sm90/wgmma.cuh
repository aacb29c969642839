// wgmma: the tensor cores of Hopper, four warps at a time, operands read straight from shared memory.
#pragma once
#include "common/types.cuh"

// The descriptor of an operand whose rows are 64 elements (128 bytes) under TMA's 128-byte swizzle, 1,024 bytes from one group of
// eight rows to the next. `address`: of its first row, at any multiple of 128 bytes of a tile aligned to 1,024, since the
// swizzle is a function of the address; further along K, at 32 bytes for each 16 elements.
__device__ __forceinline__ uint64 descriptor(uint32 address) {
    constexpr uint64 swizzle_128 = 1ull << 62, eight_rows = (uint64)(1024 >> 4) << 32, unused = 1ull << 16;
    return (uint64)((address & 0x3ffff) >> 4) | unused | eight_rows | swizzle_128;
}

// Orders accesses to registers before the products that follow (wgmma.fence).
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Returns once all but the last PENDING groups are complete.
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements to shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32 address, uint32 m0, uint32 m1, uint32 m2, uint32 m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}

// d [64, 128] = a [64, 16] · b [128, 16]ᵀ, plus d if `add`. Thread t of the warpgroup holds rows t / 32 * 16 + t % 32 / 4
// (d[4j], d[4j + 1]) and that plus 8 (d[4j + 2], d[4j + 3]), at columns 8j + t % 4 * 2 and one further.
template <typename T>
__device__ __forceinline__ void multiply_async(float (&d)[64], uint64 a, uint64 b, bool add);

// Its instances, which differ in the name of the type alone.
#define BROADSHEET_MULTIPLY_ASYNC(T, NAME)                                                                            \
    template <>                                                                                                       \
    __device__ __forceinline__ void multiply_async<T>(float (&d)[64], uint64 a, uint64 b, bool add) {                 \
        asm volatile(                                                                                                 \
            "{.reg .pred p; setp.ne.b32 p, %66, 0;"                                                                   \
            "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {"                                         \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                  \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                        \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                        \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                          \
            "}, %64, %65, p, 1, 1, 0, 0;}"                                                                            \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),         \
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),   \
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
              "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
              "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
              "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
              "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])  \
            : "l"(a), "l"(b), "r"((int)add));                                                                         \
    }
BROADSHEET_MULTIPLY_ASYNC(Half, "f16")
BROADSHEET_MULTIPLY_ASYNC(BFloat, "bf16")
#undef BROADSHEET_MULTIPLY_ASYNC
