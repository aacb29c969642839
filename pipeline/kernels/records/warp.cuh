// What the 32 lanes of a warp find out together. All other code of this folder is plain C++, and every lane computes
// the same. So tests/kernels/test_json_on_cpu.py compiles it for the CPU, with another version of this file.
#pragma once

#include "common/types.cuh"

constexpr int LANES = 32;
constexpr uint32 EVERY_LANE = ~0u;

// The number of this warp in the grid.
__device__ __forceinline__ int warp_number() { return (blockIdx.x * blockDim.x + threadIdx.x) / LANES; }

// Bit k is set where `test(k)` is true in lane k.
template <typename Test>
__device__ __forceinline__ uint32 lanes_where(Test test) {
    return __ballot_sync(EVERY_LANE, test(threadIdx.x % LANES));
}

// Lane k calls `work(k)`.
template <typename Work>
__device__ __forceinline__ void each_lane(Work work) {
    work(threadIdx.x % LANES);
}

// A byte of each lane.
struct LaneBytes {
    uint8 own;

    // Of lane k, for the lane itself.
    __device__ __forceinline__ uint8 operator[](int) const { return own; }
    // Of lane k, for every lane.
    __device__ __forceinline__ uint8 of(int k) const { return __shfl_sync(EVERY_LANE, own, k); }
};

// The bytes `from[0]` to `from[31]`; spaces from `from[count]` on.
__device__ __forceinline__ LaneBytes load_bytes(const uint8* from, int64 count) {
    const int k = threadIdx.x % LANES;
    return {k < count ? from[k] : (uint8)' '};
}

// A number of each lane, 0 at first.
struct LaneNumbers {
    uint64 own = 0;

    // Of lane k, for the lane itself.
    __device__ __forceinline__ uint64 operator[](int) const { return own; }
    // Of lane k, for every lane.
    __device__ __forceinline__ uint64 of(int k) const { return __shfl_sync(EVERY_LANE, own, k); }
    __device__ __forceinline__ void set(int k, uint64 number) {
        if (threadIdx.x % LANES == k) own = number;
    }
};

__device__ __forceinline__ void add_to(int* count, int more) { atomicAdd(count, more); }

__device__ __forceinline__ int count_bits(uint32 bits) { return __popc(bits); }
__device__ __forceinline__ int first_bit(uint32 bits) { return __ffs(bits) - 1; }
__device__ __forceinline__ int last_bit(uint32 bits) { return LANES - 1 - __clz(bits); }
