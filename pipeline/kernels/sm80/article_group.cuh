// The input of block 1 for GROUP articles, in two buffers of shared memory: the next group arrives while one is
// computed. Used by sm80/lookup_norm_pool.cu and sm80/split_lookup_norm_pool.cu.
#pragma once
#include "common/packing.cuh"
#include "sm80/async_copy.cuh"

constexpr int GROUP = 32;

// WORDS: the number of words of ids that a slab of pooled positions reads, with four ids in each.
template <int WORDS>
struct ArticleGroup {
    float2 statistics[2][GROUP];
    int text_end[2][GROUP];
    int first_unit[2][GROUP + 1];
    uint32 words[2][GROUP][WORDS];

    // Start to copy the articles from `begin` to `last`, at most GROUP. first_word: where the slab begins in the ids.
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

    // Return id t of a thread that reads from id `position` on. It loads words, since loading a byte takes as long.
    __device__ __forceinline__ int id(int buffer, int article, int position, int t) const {
        const uint32* text = words[buffer][article] + position / 4;
        const uint32 word = __funnelshift_r(text[t / 4], text[t / 4 + 1], position % 4 * 8);
        return word >> t % 4 * 8 & 0xff;
    }
};
