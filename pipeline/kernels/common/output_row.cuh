// Where the rows of a product go. An article is `units` units of the input, a row each or before a pool a window, and
// `rows_out` rows of the output. The units at its end that reach into the next article have no row.
#pragma once
#include "common/types.cuh"

struct OutputRow {
    int article, row;

    // Number: int64, or int where the number of all units is known to fit, whose division is cheaper.
    template <typename Number>
    __device__ __forceinline__ OutputRow(Number unit, int units)
        : article((int)(unit / units)), row((int)(unit % units)) {}

    // After an addition to `row` that may have passed the article's end.
    __device__ __forceinline__ void carry(int units) {
        while (row >= units) row -= units, article++;
    }
    __device__ __forceinline__ bool exists(int articles, int rows_out) const {
        return article < articles && row < rows_out;
    }
    // Its number among all rows of the output.
    __device__ __forceinline__ int64 number(int rows_out) const { return (int64)article * rows_out + row; }
};
