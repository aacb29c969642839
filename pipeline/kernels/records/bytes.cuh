// Describes 32 bytes of a record by bit masks, where bit k stands for byte k. The masks are those of simdjson (Langdale
// and Lemire, "Parsing Gigabytes of JSON per Second", 2019), for 32 bytes in place of 64: one byte for each lane of a
// warp.
//
// Test: tests/kernels/test_json_on_cpu.py and test_csv_on_cpu.py, which need no GPU.
#pragma once

#include "common/utf8.cuh"
#include "records/warp.cuh"

// Return the mask of the bytes for which `test(byte)` is true.
template <typename Test>
__device__ __forceinline__ uint32 bytes_where(const LaneBytes& bytes, Test test) {
    return lanes_where([&](int k) { return test(bytes[k]); });
}

// Return the bits below bit k, for k from 0 to 32.
__device__ __forceinline__ uint32 bits_below(int k) { return k >= LANES ? ~0u : (1u << k) - 1; }

// Set bit k if the number of set bits up to and including bit k is odd.
__device__ __forceinline__ uint32 parity_so_far(uint32 bits) {
    for (int shift = 1; shift < LANES; shift *= 2) bits ^= bits << shift;
    return bits;
}

// Return the bytes that follow a backslash which is not itself escaped. is_escaped: whether byte 0 is such a byte. The
// function sets it for the byte after these 32.
__device__ __forceinline__ uint32 escaped_by(uint32 backslashes, bool& is_escaped) {
    constexpr uint32 EVEN = 0x55555555u;
    if (!backslashes) {
        const uint32 first = is_escaped;
        is_escaped = false;
        return first;
    }
    backslashes &= ~(uint32)is_escaped;
    const uint32 follows = backslashes << 1 | (uint32)is_escaped;
    // A run that begins at an odd place carries into the bit after it, which then has the other parity.
    const uint32 odd_starts = backslashes & ~EVEN & ~follows;
    const uint32 sum = odd_starts + backslashes;
    is_escaped = sum < backslashes;
    return (EVEN ^ sum << 1) & follows;
}

// Return whether these bytes, from place `at` of a record on, are parts of valid UTF-8.
__device__ __forceinline__ bool is_utf8(const Article& record, int64 at, const LaneBytes& bytes) {
    if (!lanes_where([&](int k) { return bytes[k] >= 0x80; })) return true;
    return !lanes_where([&](int k) {
        if (bytes[k] < 0x80) return false;
        const bool continues = (bytes[k] & 0xc0) == 0x80;
        return continues ? begins_character(record, at + k) : sequence_length(record, at + k) == 1;
    });
}
