// Rotary embeddings (Su et al., "RoFormer", 2021), applied when a product stores its queries, keys and values.
//
// Each pair of a head's values turns by an angle that depends on the token's position. The host orders the weights of
// queries and keys so that the two values of a pair are neighbouring outputs of one thread, and pads heads to HEAD
// values. Scores are sums over all values, so queries and keys may both have this order. The values of attention keep
// their order.
//
// Test: tests/engine/test_families_gpu.py. Time: python -m benchmarks.peers.modernbert_gpu.
#pragma once
#include "common/types.cuh"

// places: the number of each row's token in its text. turns [places, PAIRS]: the cosine and sine of each pair's angle.
// outputs: how many outputs are turned. These are the queries and keys, which come first.
struct Rotary {
    static constexpr int HEAD = 64, PAIRS = HEAD / 2;
    const int* places;
    const float2* turns;
    int outputs;

    // Return the angles for a row's place, or those of place 0 for a row beyond the last.
    __device__ __forceinline__ const float2* of_row(int row, int rows) const {
        return turns + (int64)(row < rows ? places[row] : 0) * PAIRS;
    }
};

__device__ __forceinline__ void turn(float& low, float& high, float2 by) {
    const float turned = fmaf(low, by.x, -high * by.y);
    high = fmaf(high, by.x, low * by.y);
    low = turned;
}
