// Finds characters in the bytes of an article. `characters` in pipeline/model/alphabet.py is the specification.
#pragma once

#include "common/types.cuh"

constexpr int LONGEST_SEQUENCE = 4;

struct Article {
    const uint8* bytes;
    int64 size;
};

// Return the length of the well-formed sequence (Unicode 15, table 3-7) that begins at `at`, or 1 if none begins there.
__device__ int sequence_length(const Article& article, int64 at) {
    const uint8 lead = article.bytes[at];
    if (lead < 0xc2 || lead > 0xf4) return 1;
    const int length = 2 + (lead >= 0xe0) + (lead >= 0xf0);
    if (at + length > article.size) return 1;
    // The second byte's range excludes overlong forms, surrogates and code points beyond U+10FFFF.
    const uint8 least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const uint8 most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    const uint8 second = article.bytes[at + 1];
    if (second < least || second > most) return 1;
    for (int i = 2; i < length; i++)
        if ((article.bytes[at + i] & 0xc0) != 0x80) return 1;
    return length;
}

__device__ bool begins_character(const Article& article, int64 at) {
    if ((article.bytes[at] & 0xc0) != 0x80) return true;
    for (int back = 1; back < LONGEST_SEQUENCE && back <= at; back++)
        if (sequence_length(article, at - back) > back) return false;
    return true;
}

// Return the code point of the well-formed sequence of `length` bytes, two or more, that begins at `at`.
__device__ uint32 code_point(const Article& article, int64 at, int length) {
    uint32 point = article.bytes[at] & (0x7f >> length);
    for (int i = 1; i < length; i++) point = point << 6 | (article.bytes[at + i] & 0x3f);
    return point;
}
