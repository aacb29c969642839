// The operations that the 32 lanes of a warp do together. All other code in this folder is plain C++, which every lane
// runs with the same values. So tests/kernels/test_json_on_cpu.py compiles it for the CPU, with another version of this
// file.
#pragma once

#include "common/types.cuh"

constexpr int LANES = 32;
constexpr uint32 EVERY_LANE = ~0u;

// Return the number of this warp in the grid.
__device__ __forceinline__ int warp_number() { return (blockIdx.x * blockDim.x + threadIdx.x) / LANES; }

// Return a mask whose bit k is set if `test(k)` is true in lane k.
template <typename Test>
__device__ __forceinline__ uint32 lanes_where(Test test) {
    return __ballot_sync(EVERY_LANE, test(threadIdx.x % LANES));
}

// Have each lane k call `work(k)`.
template <typename Work>
__device__ __forceinline__ void each_lane(Work work) {
    work(threadIdx.x % LANES);
}

// A byte in each lane.
struct LaneBytes {
    uint8 own;

    // Return the byte of lane k. Only lane k may call this.
    __device__ __forceinline__ uint8 operator[](int) const { return own; }
    // Return the byte of lane k to every lane.
    __device__ __forceinline__ uint8 of(int k) const { return __shfl_sync(EVERY_LANE, own, k); }
};

// Load the bytes `from[0]` to `from[31]`, with spaces in place of `from[count]` and all after it.
__device__ __forceinline__ LaneBytes load_bytes(const uint8* from, int64 count) {
    const int k = threadIdx.x % LANES;
    return {k < count ? from[k] : (uint8)' '};
}

// A number in each lane, 0 at first.
struct LaneNumbers {
    uint64 own = 0;

    // Return the number of lane k. Only lane k may call this.
    __device__ __forceinline__ uint64 operator[](int) const { return own; }
    // Return the number of lane k to every lane.
    __device__ __forceinline__ uint64 of(int k) const { return __shfl_sync(EVERY_LANE, own, k); }
    __device__ __forceinline__ void set(int k, uint64 number) {
        if (threadIdx.x % LANES == k) own = number;
    }
};

__device__ __forceinline__ void add_to(int* count, int more) { atomicAdd(count, more); }

__device__ __forceinline__ int count_bits(uint32 bits) { return __popc(bits); }
__device__ __forceinline__ int first_bit(uint32 bits) { return __ffs(bits) - 1; }
__device__ __forceinline__ int last_bit(uint32 bits) { return LANES - 1 - __clz(bits); }
