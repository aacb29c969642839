// Which texts hold nothing but white space. A thread has a text, and most end at their first byte.
#include "records/white_space.cuh"

// data: UTF-8. offsets [texts + 1]: where each text begins, and where the last ends. blank [texts]: 1 where a text
// holds nothing but white space. A text counts as one with words if its first byte is above that of a space, as on the
// host (`are_blank` in pipeline/source/chunk.py): so nearly every text takes one look.
__global__ void find_blank(const uint8* data, const int64* offsets, int texts, uint8* blank) {
    const int text = blockIdx.x * blockDim.x + threadIdx.x;
    if (text >= texts) return;
    const Article article{data + offsets[text], offsets[text + 1] - offsets[text]};
    bool is_blank = !article.size || article.bytes[0] <= ' ';
    for (int64 at = 0; is_blank && at < article.size;) {
        const int length = sequence_length(article, at);
        is_blank = is_space_at(article, at, length);
        at += length;
    }
    blank[text] = is_blank;
}
