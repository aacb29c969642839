// What block 1 reads of GROUP articles, in shared memory twice: the next group arrives while one computes.
#pragma once
#include "common/packing.cuh"
#include "sm80/async_copy.cuh"

constexpr int GROUP = 32;

// WORDS: of ids that a slab of pooled positions reads, four ids each.
template <int WORDS>
struct ArticleGroup {
    float2 statistics[2][GROUP];
    int text_end[2][GROUP];
    int first_unit[2][GROUP + 1];
    uint32 words[2][GROUP][WORDS];

    // Starts the copies of articles begin to last, GROUP at most. first_word: of the slab in each article's ids.
    template <int THREADS>
    __device__ __forceinline__ void fetch(int buffer, int begin, int last, const uint8* all_ids, int pitch, int first_word,
                                          const float2* all_statistics, const int* all_ends, const int* all_units) {
#pragma unroll 1
        for (int i = threadIdx.x; i < GROUP * WORDS; i += THREADS) {
            const int article = begin + i / WORDS, word = first_word + i % WORDS;
            if (article < last && word * 4 < pitch)
                copy_async<4>(&words[buffer][0][i], all_ids + (int64)article * pitch + word * 4);
        }
        if (threadIdx.x < GROUP && begin + threadIdx.x < last) {
            copy_async<8>(&statistics[buffer][threadIdx.x], all_statistics + begin + threadIdx.x);
            copy_async<4>(&text_end[buffer][threadIdx.x], all_ends + begin + threadIdx.x);
        }
        if (threadIdx.x <= GROUP && begin + threadIdx.x <= last)
            copy_async<4>(&first_unit[buffer][threadIdx.x], all_units + begin + threadIdx.x);
        commit_copies();
    }

    // Id t of a thread that reads from the position-th id on: words, since a byte would take as long to load.
    __device__ __forceinline__ int id(int buffer, int article, int position, int t) const {
        const uint32* text = words[buffer][article] + position / 4;
        const uint32 word = __funnelshift_r(text[t / 4], text[t / 4 + 1], position % 4 * 8);
        return word >> t % 4 * 8 & 0xff;
    }
};
