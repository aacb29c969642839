// The transposition of many matrices: from channels-last to channels-first and back.
//
// A block transposes a tile of SIDE x SIDE in shared memory, so that it reads and writes whole pieces of rows. The
// tile's additional column puts the elements of a column into different banks.
#include "common/types.cuh"

// input [matrices, rows, columns]; output [matrices, columns, rows]. Grid: (columns / SIDE, rows / SIDE, matrices).
template <typename T, int SIDE, int ROWS>
__global__ void __launch_bounds__(SIDE* ROWS) transpose(const T* input, T* output, int rows, int columns) {
    __shared__ T tile[SIDE][SIDE + 1];
    const int lane = threadIdx.x % SIDE, line = threadIdx.x / SIDE;
    const int first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    const int64 matrix = (int64)blockIdx.z * rows * columns;
#pragma unroll
    for (int i = line; i < SIDE; i += ROWS)
        if (first_row + i < rows && first_column + lane < columns)
            tile[i][lane] = input[matrix + (int64)(first_row + i) * columns + first_column + lane];
    __syncthreads();
#pragma unroll
    for (int i = line; i < SIDE; i += ROWS)
        if (first_column + i < columns && first_row + lane < rows)
            output[matrix + (int64)(first_column + i) * rows + first_row + lane] = tile[lane][i];
}
