// The places of the rows of a batch in memory.
//
// Articles follow each other without gaps, and blocks 1 to 6 share one layout. An article has a unit for every row of
// block 2's pooled output that its text reaches, and CLOSING_UNITS more units, which the taps of a convolution read
// below the last row. A unit is one row of a layer's output. It is also one row of the layer's input, or before a pool
// one window of rows. Beyond the reach of the text the output of a layer is a constant of the model. Closing units get
// this constant, since their products would read rows of the next article.
//
// common/packing.cu computes the layout, and pipeline/kernels/memory_plan.py counts its units.
// Test: tests/engine/test_text_frame.py.
#pragma once
#include "common/types.cuh"

constexpr int CLOSING_UNITS = 2;

// The units of each article. first [articles + 1]: the first unit of each article, and at the end the number of units.
struct Packing {
    const int* first;

    __device__ __forceinline__ int units(int article) const { return first[article + 1] - first[article]; }
    __device__ __forceinline__ int reach(int article) const { return units(article) - CLOSING_UNITS; }
};

// The units of a batch as a product sees them. closing: 1 for each unit that gets `constant`, or null if there are
// none.
template <typename T>
struct Units {
    int count;
    const uint8* closing;
    const T* constant;

    __device__ __forceinline__ bool exist(int unit) const { return unit < count; }
    __device__ __forceinline__ bool is_closing(int unit) const { return closing && exist(unit) && closing[unit]; }
};
