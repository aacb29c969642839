// Makes BERT's tokens of texts in UTF-8. pipeline/model/wordpiece.py is the specification.
//
// Layout. A thread has one part of a text: all of a short text, and about SEGMENT bytes of a long one. Shared memory has
//   the code points of one word of each thread, interleaved so that the threads of a block use different banks. A
//   thread ends when its text has more tokens than the model reads.
// Compute. count_tokens counts the tokens of each part but the last of its text. From these, the host computes where the
//   tokens of each part go, and wordpiece writes them there. A part begins where no word and no special token can
//   continue, so its tokens do not depend on other parts.
// Why. Threads mostly wait for entries of the vocabulary in L2, and only other threads hide this latency. A few thousand
//   long texts are too few threads: in parts, they take a fraction of the time although most tokens are made twice.
//
// Test: tests/kernels/test_wordpiece_on_cpu.py, tests/engine/test_encoder_gpu.py, and python -m benchmarks.fuzz_tokens
// for the specification. Time: python -m benchmarks.peers.encoders_gpu.
#include "common/launch.cuh"
#include "common/types.cuh"

constexpr uint32 POINT = (1u << 21) - 1, ALONE = 1u << 21;  // the bits of a code point; whether it is a word by itself
constexpr int CLASS_SHIFT = 22;  // where the combining class of a mark begins in a mapped code point
constexpr uint32 PAGE = 256, SPACE = 0x20;
constexpr int LENGTH_BITS = 8;  // a sequence of n code points from place p on is stored as -1 - (p << LENGTH_BITS | n)
constexpr int WORD_BEGINS = 0, WORD_CONTINUES = 1;  // the root nodes of the vocabulary

// An edge of the vocabulary, which is a tree: it leads from a node by a code point to the next node. key: the node and
// the code point, or all bits set if the place is empty. token: the token of the path up to here, or -1.
struct __align__(16) Edge {
    uint64 key;
    int next, token;
};

// edges: a hash table with linear search, whose size is a power of two. pages, characters, sequences: what each code
// point becomes. special, special_ends, special_tokens: the bytes of entries that are one token wherever they occur,
// where each ends, and their tokens, longest first. starts: a bit for each byte that begins such an entry.
struct Vocabulary {
    const Edge* edges;
    const uint16* pages;
    const int* characters;
    const int* sequences;
    const uint8* special;
    const int* special_ends;
    const int* special_tokens;
    const uint32* starts;
    int edge_bits, specials, first, last, unknown;
};

// Find the edge that a code point follows from a node. Return false if there is none.
__device__ __forceinline__ bool follow(const Vocabulary& vocabulary, int node, uint32 point, Edge& edge) {
    const uint64 key = (uint64)node << 21 | point;
    const uint32 mask = (1u << vocabulary.edge_bits) - 1;
    uint32 at = (uint32)(key * 0x9e3779b97f4a7c15ull >> (64 - vocabulary.edge_bits));
    while (true) {
        const int4 loaded = __ldg(reinterpret_cast<const int4*>(vocabulary.edges + at));
        const uint64 found = (uint64)(uint32)loaded.y << 32 | (uint32)loaded.x;
        if (found == key) {
            edge = {found, loaded.z, loaded.w};
            return true;
        }
        if (found == ~0ull) return false;
        at = (at + 1) & mask;
    }
}

// Collects the tokens of one text, and the code points of the current word in shared memory, where the words of all
// threads of a block alternate. LONGEST: the most code points in a word that is cut into tokens.
// WRITES: whether tokens are written, or only counted.
template <int THREADS, int LONGEST, bool WRITES>
struct Reader {
    const Vocabulary& vocabulary;
    int* ids;
    int room;  // the number of tokens that fit
    uint32* points;
    int tokens = 0, size = 0;
    bool is_whole = false;  // whether the word is complete

    __device__ __forceinline__ uint32& word(int i) const { return points[i * THREADS]; }

    __device__ __forceinline__ void put(int token) {
        if (WRITES && tokens < room) ids[tokens] = token;
        tokens++;
    }

    // Add a mapped code point to the word. Combining marks are put in order.
    __device__ __forceinline__ void add(uint32 point) {
        if (size && (is_whole || point == SPACE || point & ALONE)) {
            if (size > LONGEST) put(vocabulary.unknown);
            else cut();
            size = 0;
        }
        if (point == SPACE) return;
        if (size < LONGEST) {
            int at = size;
            const uint32 of_class = point >> CLASS_SHIFT;
            if (of_class)
                for (; at && word(at - 1) >> CLASS_SHIFT > of_class; at--) word(at) = word(at - 1);
            word(at) = point;
        }
        size++;
        is_whole = point & ALONE;
    }

    __device__ __forceinline__ void cut() {
        const int before = tokens;
        for (int at = 0; at < size;) {
            int node = at ? WORD_CONTINUES : WORD_BEGINS, best = -1, end = at;
            Edge edge;
            for (int i = at; i < size && follow(vocabulary, node, word(i) & POINT, edge); i++) {
                node = edge.next;
                if (edge.token >= 0) best = edge.token, end = i + 1;
            }
            if (best < 0) {
                tokens = before;
                put(vocabulary.unknown);
                return;
            }
            put(best);
            at = end;
        }
    }
};

struct Article {
    const uint8* bytes;
    int64 size;
};

// Return the special token that begins at `at`, or -1. Set `bytes` to its length.
__device__ __forceinline__ int special_at(const Vocabulary& vocabulary, const Article& text, int64 at, int& bytes) {
    const uint8 lead = text.bytes[at];
    if (!(vocabulary.starts[lead / 32] >> lead % 32 & 1)) return -1;
    for (int i = 0, begin = 0; i < vocabulary.specials; begin = vocabulary.special_ends[i++]) {
        bytes = vocabulary.special_ends[i] - begin;
        int same = 0;
        while (same < bytes && at + same < text.size && text.bytes[at + same] == vocabulary.special[begin + same]) same++;
        if (same == bytes) return vocabulary.special_tokens[i];
    }
    return -1;
}

// Return the code point that begins at `at` in valid UTF-8. Set `bytes` to its length.
__device__ __forceinline__ uint32 character(const Article& text, int64 at, int& bytes) {
    const uint8 lead = text.bytes[at];
    bytes = (int)min((int64)(1 + (lead >= 0xc0) + (lead >= 0xe0) + (lead >= 0xf0)), text.size - at);
    uint32 point = bytes == 1 ? lead : lead & (0x7f >> bytes);
    for (int i = 1; i < bytes; i++) point = point << 6 | (text.bytes[at + i] & 0x3f);
    return min(point, 0x10ffffu);  // so that the table also has an entry for bytes that are not UTF-8
}

// Return what a code point becomes: a mapped code point, or a negative number that stands for a sequence of them.
__device__ __forceinline__ int mapped(const Vocabulary& vocabulary, uint32 point) {
    return __ldg(vocabulary.characters + vocabulary.pages[point / PAGE] * PAGE + point % PAGE);
}

// Return whether a part may begin before a character: no word continues there, and no special token has the character.
// The host splits texts only if all special tokens are in ASCII, without white space.
__device__ __forceinline__ bool may_begin(uint32 point, int becomes) {
    return point < 0x80 ? becomes == SPACE : becomes >= 0 && (becomes & ALONE);
}

constexpr int SEGMENT = 128;
constexpr int BLOCKS_OF_AN_SM = 8;  // at least: for more blocks, the compiler would spill registers

// The parts of texts. texts [parts]: the text of each part. firsts [texts + 1]: the first part of each text. Part i of a
// text begins at the first possible place from i * SEGMENT bytes on, and is empty if there is none in its segment. It
// ends where the next part begins, and the last one with the text.
struct Parts {
    const int* texts;
    const int* firsts;
    int count;
};

// Read a part of a text. number: the number of the part in its text. limit: where the part ends at the earliest, or -1
// to read to the end of the text.
template <typename Reader>
__device__ __forceinline__ void read(Reader& reader, const Article& article, int number, int64 limit) {
    const Vocabulary& vocabulary = reader.vocabulary;
    int64 at = (int64)number * SEGMENT;
    int bytes;
    // Find the beginning.
    if (number > 0) {
        const int64 end = limit < 0 ? article.size : min(limit, article.size);
        while (at < end) {
            const bool continues = (article.bytes[at] & 0xc0) == 0x80;
            const uint32 point = character(article, at, bytes);
            if (!continues && may_begin(point, mapped(vocabulary, point))) break;
            at++;
        }
        if (limit >= 0 && at == end) return;
    }
    // Make tokens. The end of a part and special tokens end a word like a space.
    for (; at <= article.size && reader.tokens <= reader.room; at += bytes) {
        int token = -1, becomes = SPACE;
        bool is_end = at == article.size;
        bytes = 1;
        if (!is_end && (token = special_at(vocabulary, article, at, bytes)) < 0) {
            const uint32 point = character(article, at, bytes);
            becomes = mapped(vocabulary, point);
            is_end = limit >= 0 && at >= limit && may_begin(point, becomes);
            if (is_end) becomes = SPACE;
        }
        const int sequence = -1 - becomes, points = becomes < 0 ? sequence & ((1 << LENGTH_BITS) - 1) : 1;
        for (int i = 0; i < points; i++)
            reader.add(becomes < 0 ? vocabulary.sequences[(sequence >> LENGTH_BITS) + i] : becomes);
        if (is_end) return;
        if (token >= 0) reader.put(token);
    }
}

// data: UTF-8, whose first byte is at offsets[0]. most: the most tokens of a text, including the two that frame them.
// counts [parts]: the number of tokens of each part but the last of a text, which has 0. A part that has more tokens than
// a text may have is not read to its end.
template <int LONGEST, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, BLOCKS_OF_AN_SM)
    count_tokens(const uint8* data, const int64* offsets, Parts parts, Vocabulary vocabulary, int most, int* counts) {
    constexpr int THREADS = Launch::THREADS;
    static_assert(Launch::SHARED_BYTES == THREADS * LONGEST * 4, "a word of each thread");
    extern __shared__ uint32 words[];
    const int part = blockIdx.x * THREADS + threadIdx.x;
    if (part >= parts.count) return;
    const int text = parts.texts[part], number = part - parts.firsts[text];
    const Article article{data + (offsets[text] - offsets[0]), offsets[text + 1] - offsets[text]};
    Reader<THREADS, LONGEST, false> reader{vocabulary, nullptr, most, words + threadIdx.x};
    if (part + 1 < parts.firsts[text + 1]) read(reader, article, number, (int64)(number + 1) * SEGMENT);
    counts[part] = reader.tokens;
}

// data, offsets, most: as in count_tokens. before [parts]: the number of tokens in all parts before. rooms [texts]: where
// each text's tokens go in `ids`, including the two tokens that frame them. of_a_byte: the most tokens that a byte can
// become. counts [texts]: the number of tokens of each text. is_cut [texts]: set to 1 if the text has more tokens than
// fit, and must be 0 before.
template <int LONGEST, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS, BLOCKS_OF_AN_SM)
    wordpiece(const uint8* data, const int64* offsets, Parts parts, const int64* before, Vocabulary vocabulary, int most,
              int of_a_byte, const int64* rooms, int* ids, int* counts, uint8* is_cut) {
    constexpr int THREADS = Launch::THREADS;
    static_assert(Launch::SHARED_BYTES == THREADS * LONGEST * 4, "a word of each thread");
    extern __shared__ uint32 words[];
    const int part = blockIdx.x * THREADS + threadIdx.x;
    if (part >= parts.count) return;
    const int text = parts.texts[part], first = parts.firsts[text], number = part - first;
    const bool is_last = part + 1 == parts.firsts[text + 1];
    const Article article{data + (offsets[text] - offsets[0]), offsets[text + 1] - offsets[text]};
    const int room = (int)min((int64)most - 2, article.size * of_a_byte);
    const int offset = (int)min(before[part] - before[first], (int64)room + 1);
    int own_room = room - offset;
    if (!is_last) {
        const int64 tokens = before[part + 1] - before[part];
        if (tokens > own_room) is_cut[text] = 1;
        // A word that turns out to be unknown takes back its tokens, which must not be written over the next part's.
        else own_room = (int)tokens;
    }
    int* own = ids + rooms[text];
    Reader<THREADS, LONGEST, true> reader{vocabulary, own + 1 + offset, own_room, words + threadIdx.x};
    read(reader, article, number, is_last ? -1 : (int64)(number + 1) * SEGMENT);
    if (!is_last) return;
    if (reader.tokens > own_room) is_cut[text] = 1;
    const int count = min(offset + reader.tokens, room);
    own[0] = vocabulary.first;
    own[count + 1] = vocabulary.last;
    counts[text] = count + 2;
}
