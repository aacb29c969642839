// Which texts hold nothing but white space. A thread has a text, and most end at their first byte.
#include "common/utf8.cuh"

// What Python and Arrow take for white space: Unicode's categories Zs, Zl and Zp, and separators among the controls.
__device__ bool is_white_space(uint32 point) {
    return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20) || point == 0x85 || point == 0xa0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
           point == 0x202f || point == 0x205f || point == 0x3000;
}

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
        is_blank = is_white_space(length == 1 ? article.bytes[at] : code_point(article, at, length));
        at += length;
    }
    blank[text] = is_blank;
}
