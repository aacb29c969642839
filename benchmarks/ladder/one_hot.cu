// One-hot input: `one_hot` makes it from ids, for a dense block 1. `columns_to_ids` converts input that comes one-hot
// from the host to ids.
#include "common/types.cuh"

// ids [articles, pitch], the first `length` of each article are read; output [articles, length, CHANNELS]. Channel c of
// a position is 1 if its id is c, and 0 otherwise. Ids from `symbols` on are no symbols, and their positions have zeros
// in all channels. Channels from `symbols` on only pad to CHANNELS. vectors: the number of pieces of eight channels.
template <typename T, int CHANNELS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    one_hot(const uint8* ids, int pitch, int length, int symbols, int64 vectors, T* output) {
    static_assert(CHANNELS % 8 == 0, "a thread writes eight channels");
    const int64 i = (int64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= vectors) return;
    const int first = (int)(i % (CHANNELS / 8)) * 8;
    const int64 position = i / (CHANNELS / 8);
    const int id = ids[position / length * pitch + position % length];
    float value[8];
#pragma unroll
    for (int c = 0; c < 8; c++) value[c] = id < symbols && id == first + c ? 1.f : 0.f;
    store8(output + i * 8, value);
}

// columns fp32 [articles, symbols, length], one-hot or zero; ids [articles, pitch]. A zero column, of padding or of a
// character outside the alphabet, becomes padding: block 1's table has zeros for both.
// Grid: (pitch / THREADS, articles).
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    columns_to_ids(const float* columns, int symbols, int length, int pitch, uint8* ids) {
    const int position = blockIdx.x * THREADS + threadIdx.x;
    if (position >= pitch) return;
    int id = symbols + 1;
    if (position < length) {
        const float* column = columns + (int64)blockIdx.y * symbols * length + position;
        for (int s = 0; s < symbols; s++)
            if (column[(int64)s * length] != 0) id = s;
    }
    ids[(int64)blockIdx.y * pitch + position] = (uint8)id;
}
