// BERT's tokens of texts in UTF-8, each by a thread: pipeline/model/wordpiece.py is the specification.
//
// Texts differ in length, so that the threads of a warp part; there are so many texts that this does not matter: what a
// thread waits for, mostly entries of the vocabulary in L2, others hide. A thread ends when its text has more tokens than
// the model reads.
#include "common/launch.cuh"
#include "common/types.cuh"

constexpr uint32 POINT = (1u << 21) - 1, ALONE = 1u << 21;
constexpr int CLASS_SHIFT = 22;  // of a mark, in what a code point becomes
constexpr uint32 PAGE = 256, SPACE = 0x20;
constexpr int LENGTH_BITS = 8;
constexpr int WORD_BEGINS = 0, WORD_CONTINUES = 1;  // nodes of the vocabulary

// From a node of the vocabulary, a tree, by a code point to the next. key: node and code point; all bits where the place
// is empty. token: of what is read until there, or -1.
struct __align__(16) Edge {
    uint64 key;
    int next, token;
};

// edges: a hash table, with linear search; its size is a power of two. marked: the marks' combining class is above
// CLASS_SHIFT. special: of entries that are one token wherever they stand, the bytes, where each ends, and their tokens,
// longest first; starts: a bit for each byte that begins one.
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

// The node and the token that a code point leads to; false where none.
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

// The tokens of one text, and the code points of the word that is being read, in shared memory, where those of a block's
// threads alternate. LONGEST: of a word that is cut.
template <int THREADS, int LONGEST>
struct Reader {
    const Vocabulary& vocabulary;
    int* ids;
    int room;  // for tokens of words
    uint32* points;
    int tokens = 0, size = 0;
    bool is_whole = false;  // whether nothing can be added to the word

    __device__ __forceinline__ uint32& word(int i) const { return points[i * THREADS]; }

    __device__ __forceinline__ void put(int token) {
        if (tokens < room) ids[tokens] = token;
        tokens++;
    }

    // What a code point becomes; marks are put in order.
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

// The special token that begins at `at`, or -1; `bytes` of it.
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

// The code point that begins at `at` in valid UTF-8, and its bytes.
__device__ __forceinline__ uint32 character(const Article& text, int64 at, int& bytes) {
    const uint8 lead = text.bytes[at];
    bytes = (int)min((int64)(1 + (lead >= 0xc0) + (lead >= 0xe0) + (lead >= 0xf0)), text.size - at);
    uint32 point = bytes == 1 ? lead : lead & (0x7f >> bytes);
    for (int i = 1; i < bytes; i++) point = point << 6 | (text.bytes[at + i] & 0x3f);
    return min(point, 0x10ffffu);  // of bytes that are not UTF-8, too, the table has an entry
}

// data: UTF-8, whose first byte is at offsets[0]. rooms [texts + 1]: where each text's tokens go in `ids`, with the two
// that frame them; most: of a text. counts [texts]: how many it has; is_cut [texts]: 1 where the text has more.
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
        int bytes = 1, token = -1, becomes = SPACE;  // as what follows the text, and special tokens, which end a word
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
