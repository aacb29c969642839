// Makes BERT's tokens of texts in UTF-8. pipeline/model/wordpiece.py is the specification.
//
// Layout. A thread has one text. Shared memory has the code points of one word of each thread, interleaved so that the
//   threads of a block use different banks. A thread ends when its text has more tokens than the model reads.
// Why. Texts differ in length, so the threads of a warp diverge. There are so many texts that this does not matter:
//   threads mostly wait for entries of the vocabulary in L2, and other threads hide this latency.
//
// Test: tests/kernels/test_wordpiece_on_cpu.py, tests/engine/test_encoder_gpu.py, and python -m benchmarks.fuzz_tokens
// for the specification. Time: python -m benchmarks.peers.encoders_gpu.
#include "common/launch.cuh"
#include "common/types.cuh"

constexpr uint32 POINT = (1u << 21) - 1, ALONE = 1u << 21;
constexpr int CLASS_SHIFT = 22;  // where the combining class of a mark begins in a mapped code point
constexpr uint32 PAGE = 256, SPACE = 0x20;
constexpr int LENGTH_BITS = 8;
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
template <int THREADS, int LONGEST>
struct Reader {
    const Vocabulary& vocabulary;
    int* ids;
    int room;  // the number of tokens of words that fit
    uint32* points;
    int tokens = 0, size = 0;
    bool is_whole = false;  // whether the word is complete

    __device__ __forceinline__ uint32& word(int i) const { return points[i * THREADS]; }

    __device__ __forceinline__ void put(int token) {
        if (tokens < room) ids[tokens] = token;
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

// data: UTF-8, whose first byte is at offsets[0]. rooms [texts + 1]: where each text's tokens go in `ids`, including
// the two tokens that frame them. most: the most tokens of a text, including these two. counts [texts]: the number of
// tokens of each text. is_cut [texts]: 1 if the text has more tokens than fit.
template <int LONGEST, typename Launch>
__global__ void __launch_bounds__(Launch::THREADS)
    wordpiece(const uint8* data, const int64* offsets, int texts, Vocabulary vocabulary, int most, const int64* rooms,
              int* ids, int* counts, uint8* is_cut) {
    constexpr int THREADS = Launch::THREADS;
    static_assert(Launch::SHARED_BYTES == THREADS * LONGEST * 4, "a word of each thread");
    extern __shared__ uint32 words[];
    const int text = blockIdx.x * THREADS + threadIdx.x;
    if (text >= texts) return;
    const Article article{data + (offsets[text] - offsets[0]), offsets[text + 1] - offsets[text]};
    int* own = ids + rooms[text];
    Reader<THREADS, LONGEST> reader{vocabulary, own + 1, most - 2, words + threadIdx.x};
    for (int64 at = 0; at <= article.size && reader.tokens <= reader.room;) {
        int bytes = 1, token = -1, becomes = SPACE;  // the end of the text and special tokens end a word like a space
        if (at < article.size && (token = special_at(vocabulary, article, at, bytes)) < 0) {
            const uint32 point = character(article, at, bytes);
            becomes = __ldg(vocabulary.characters + vocabulary.pages[point / PAGE] * PAGE + point % PAGE);
        }
        at += bytes;
        const int sequence = -1 - becomes, points = becomes < 0 ? sequence & ((1 << LENGTH_BITS) - 1) : 1;
        for (int i = 0; i < points; i++)
            reader.add(becomes < 0 ? vocabulary.sequences[(sequence >> LENGTH_BITS) + i] : becomes);
        if (token >= 0) reader.put(token);
    }
    const int count = min(reader.tokens, reader.room);
    own[0] = vocabulary.first;
    own[count + 1] = vocabulary.last;
    counts[text] = count + 2;
    is_cut[text] = reader.tokens > reader.room;
}
