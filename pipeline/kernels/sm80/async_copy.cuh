// cp.async copies from device memory to shared memory while the block computes. Compute capability 7.5 has no such
// instruction. There a copy goes through registers, and is complete for its thread at once.
#pragma once
#include "common/types.cuh"

__device__ __forceinline__ uint32 shared_address(const void* pointer) {
    return (uint32)__cvta_generic_to_shared(pointer);
}

#if __CUDA_ARCH__ >= 800
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES)
                 : "memory");
}

// Copy 16 bytes, bypassing the L1 cache. If `valid` is false, write zeros and read nothing.
__device__ __forceinline__ void copy_async16(uint32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Return once all but the last PENDING groups of this thread's copies have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#else
__device__ __forceinline__ void copy_async16(uint32 to, const void* from, bool valid) {
    const uint4 value = valid ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() {}

template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {}
#endif
