// cp.async: copies from device memory to shared memory that overlap with arithmetic (compute capability 8.0 and up).
#pragma once
#include "common/types.cuh"

__device__ __forceinline__ uint32 shared_address(const void* pointer) {
    return (uint32)__cvta_generic_to_shared(pointer);
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES)
                 : "memory");
}

// Copies 16 bytes past the L1 cache; writes zeros and reads nothing where `valid` is false.
__device__ __forceinline__ void copy_async16(uint32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns once all but the last PENDING groups of this thread's copies have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
