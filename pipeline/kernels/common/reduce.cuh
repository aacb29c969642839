// Sums over a warp and over a block. Their order depends only on thread numbers, so the bits are the same every time.
#pragma once

constexpr int WARP = 32;
constexpr unsigned int ALL_LANES = 0xffffffffu;

// Return the sum over a warp to every lane. In each step of this butterfly, lanes i and i ^ distance add the same
// numbers.
template <typename Number>
__device__ __forceinline__ Number warp_sum(Number value) {
#pragma unroll
    for (int distance = WARP / 2; distance; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

// Return the sum over a block of WARPS warps to every thread. `scratch` holds WARPS numbers in shared memory.
template <int WARPS>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
    value = warp_sum(value);
    __syncthreads();  // all threads have read the previous sum
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) total += scratch[warp];
    return total;
}
