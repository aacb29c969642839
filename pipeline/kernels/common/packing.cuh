// Where the rows of a batch lie. Articles follow each other without gaps, and block 1 to block 6 keep one layout: an
// article has a unit for every row of block 2's pooled output that its text reaches, and CLOSING more, which the taps of
// a convolution read below the last of them. A unit is one row of a layer's output, and one of its input, or before a
// pool a window of them. What a layer gives beyond the text's reach is a constant of the model; closing units take it,
// since their products would reach into the next article.
#pragma once
#include "common/types.cuh"

constexpr int CLOSING = 2;

// The units of each article. first [articles + 1]: an article's first unit, and last of all the number of units.
struct Packing {
    const int* first;

    __device__ __forceinline__ int units(int article) const { return first[article + 1] - first[article]; }
    __device__ __forceinline__ int reach(int article) const { return units(article) - CLOSING; }
};

// The units of a batch as a product sees them. closing: of each unit, 1 where it takes `constant`; null where none does.
template <typename T>
struct Units {
    int count;
    const uint8* closing;
    const T* constant;

    __device__ __forceinline__ bool exist(int unit) const { return unit < count; }
    __device__ __forceinline__ bool is_closing(int unit) const { return closing && exist(unit) && closing[unit]; }
};
