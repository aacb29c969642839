// Rotary embeddings, where a product of queries, keys and values stores its outputs: Su et al., "RoFormer" (2021).
//
// A pair of a head's values turns by an angle that depends on the token's place. The host orders the weights of queries
// and keys so that the two values of a pair are neighbouring outputs, which one thread has, and fills heads up to HEAD
// values. Scores are sums over all values, so both may have this order; the values of attention keep theirs.
#pragma once
#include "common/types.cuh"

// places: of each row its token's number in its text. turns [places, PAIRS]: cosine and sine of each pair's angle. outputs:
// how many are turned, those of queries and keys, which come first.
struct Rotary {
    static constexpr int HEAD = 64, PAIRS = HEAD / 2;
    const int* places;
    const float2* turns;
    int outputs;

    // Of a row, the angles of its place; of one beyond the last row, those of place 0.
    __device__ __forceinline__ const float2* of_row(int row, int rows) const {
        return turns + (int64)(row < rows ? places[row] : 0) * PAIRS;
    }
};

__device__ __forceinline__ void turn(float& low, float& high, float2 by) {
    const float turned = fmaf(low, by.x, -high * by.y);
    high = fmaf(high, by.x, low * by.y);
    low = turned;
}
