// In place of pipeline/kernels/records/warp.cuh: the lanes of a warp one after the other.
#pragma once

#include <algorithm>

#include "common/types.cuh"

using std::min;

constexpr int LANES = 32;
constexpr uint32 EVERY_LANE = ~0u;

static thread_local struct { int x; } blockIdx, blockDim, threadIdx;

inline thread_local int number_of_warp;
inline int warp_number() { return number_of_warp; }

template <typename Test>
uint32 lanes_where(Test test) {
    uint32 bits = 0;
    for (int k = 0; k < LANES; k++) bits |= (uint32)(bool)test(k) << k;
    return bits;
}

template <typename Work>
void each_lane(Work work) {
    for (int k = 0; k < LANES; k++) work(k);
}

struct LaneBytes {
    uint8 bytes[LANES];
    uint8 operator[](int k) const { return bytes[k]; }
    uint8 of(int k) const { return bytes[k]; }
};

inline LaneBytes load_bytes(const uint8* from, int64 count) {
    LaneBytes loaded;
    for (int k = 0; k < LANES; k++) loaded.bytes[k] = k < count ? from[k] : ' ';
    return loaded;
}

struct LaneNumbers {
    uint64 numbers[LANES] = {};
    uint64 operator[](int k) const { return numbers[k]; }
    uint64 of(int k) const { return numbers[k]; }
    void set(int k, uint64 number) { numbers[k] = number; }
};

inline void add_to(int* count, int more) { *count += more; }

inline int count_bits(uint32 bits) { return __builtin_popcount(bits); }
inline int first_bit(uint32 bits) { return __builtin_ffs(bits) - 1; }
inline int last_bit(uint32 bits) { return LANES - 1 - __builtin_clz(bits); }
