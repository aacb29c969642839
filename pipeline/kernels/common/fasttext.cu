// Computes the mean rows of texts for fastText's classifiers. pipeline/model/fasttext.py is the specification.
//
// Layout. A warp has one text and a slab of columns. It finds where tokens begin and queues them, so that each lane
//   hashes one of 32 tokens and looks it up in the dictionary. This is an open-addressing hash table, whose words are
//   compared byte by byte. The lane whose byte begins a subword hashes it; for a subword that begins with "<", this is
//   the lane of the white space before the token. The lane of the last word of a word n-gram hashes it, from the hashes
//   of earlier words in shared memory. After each step every lane has a row or none, and LANES lanes read each row
//   together, COLUMNS columns a lane.
// Why. Tokens and subwords differ in length, and the queue keeps all 32 lanes busy. Rows are integers and sums have 64
//   bits, so sums are exact: they depend neither on the order nor on which lane adds a row.
//
// Test: tests/engine/test_fasttext_gpu.py. Time: python -m benchmarks.fasttext.
#include "common/reduce.cuh"
#include "common/types.cuh"
#include "common/utf8.cuh"

constexpr int QUEUED = 48;  // at most: 31 tokens that wait, and those that begin within 32 positions
constexpr int MOST_ORDER = 32;  // the words of the longest n-gram
constexpr int NONE = -1;
constexpr uint32 FIRST = 2166136261u, PRIME = 16777619u;  // of FNV-1a
constexpr uint64 OF_WORDS = 116049371u;  // fastText's factor between the words of an n-gram
constexpr int END_SIZE = 4, LABEL_SIZE = 9;  // the bytes of "</s>" and of "__label__"

__device__ __forceinline__ bool is_space(uint8 byte) { return byte == ' ' || (byte >= 9 && byte <= 13) || byte == 0; }

__device__ __forceinline__ bool is_continuation(uint8 byte) { return (byte & 0xc0) == 0x80; }

// Hash a byte with FNV-1a, but as a signed number.
__device__ __forceinline__ uint32 hash_byte(uint32 hash, uint8 byte) { return (hash ^ (uint32)(signed char)byte) * PRIME; }

__device__ __forceinline__ bool begins_with(const uint8* bytes, const char* what, int size) {
    for (int i = 0; i < size; i++)
        if (bytes[i] != (uint8)what[i]) return false;
    return true;
}

// The dictionary: first words, then labels. slots: the hash of an entry and its number plus 1, or 0 if the slot is
// empty. mask: the number of slots minus one. ends [entries]: where the bytes of each entry end. known: the number of
// words. end: the number of "</s>", or -1.
struct Dictionary {
    const uint2* slots;
    uint32 mask;
    const uint8* bytes;
    const int64* ends;
    int known, end;

    __device__ __forceinline__ int find(const uint8* token, int size, uint32 hash) const {
        for (uint32 at = hash & mask;; at = (at + 1) & mask) {
            const uint2 slot = slots[at];
            if (slot.y == 0) return NONE;
            if (slot.x == hash && is_entry(slot.y - 1, token, size)) return slot.y - 1;
        }
    }

    __device__ __forceinline__ bool is_entry(int number, const uint8* token, int size) const {
        const int64 first = number ? ends[number - 1] : 0;
        if (ends[number] - first != size) return false;
        for (int i = 0; i < size; i++)
            if (bytes[first + i] != token[i]) return false;
        return true;
    }
};

// Maps the number of a bucket to its row. pruned: int32 [count], or null if every bucket has a row.
struct Buckets {
    uint32 count;
    const int* pruned;
    int known;

    __device__ __forceinline__ int64 row(uint32 bucket) const {
        if (!pruned) return (int64)known + bucket;
        const int found = pruned[bucket];
        return found < 0 ? NONE : (int64)known + found;
    }
};

// The part of a row that a lane reads at once.
template <typename Entry, int COLUMNS>
struct alignas(COLUMNS * sizeof(Entry) < 16 ? COLUMNS * sizeof(Entry) : 16) Part {
    Entry value[COLUMNS];
};

// Sums rows of a table [rows][LANES]. Every lane of a warp calls each function.
template <int LANES, int COLUMNS, typename Entry>
struct Sums {
    const Part<Entry, COLUMNS>* table;
    int64 rows;  // the number of rows that this lane has added
    int64 sum[COLUMNS];

    // row: the row of this lane, or a number below zero if it has none.
    __device__ __forceinline__ void add(int64 row) {
        rows += row >= 0;
        if (!__any_sync(ALL_LANES, row >= 0)) return;
        const int lane = threadIdx.x % WARP, own = lane % LANES;
#pragma unroll 4
        for (int turn = 0; turn < LANES; turn++) {
            const int64 from = LANES == 1 ? row : __shfl_sync(ALL_LANES, row, lane - own + turn);
            if (from < 0) continue;
            const Part<Entry, COLUMNS> part = table[from * LANES + own];
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) sum[i] += part.value[i];
        }
    }
};

// One text as a warp reads it. Bytes before and after it count as blank.
struct Text {
    const uint8* bytes;
    int size;

    __device__ __forceinline__ bool is_blank(int at) const { return at < 0 || at >= size || is_space(bytes[at]); }
    __device__ __forceinline__ bool begins(int at) const { return !is_blank(at) && is_blank(at - 1); }
};

// Add the rows of the subwords of tokens that begin at `from` + 1 or later, and end before `to`. left_out: a bit for
// each token, in their order, that has no subwords.
template <typename OfRows>
__device__ __forceinline__ void add_subwords(const Text& text, int from, int to, uint32 left_out, int lowest,
                                             int highest, const Buckets& buckets, OfRows& sums) {
    const int lane = threadIdx.x % WARP;
    int before = 0;  // tokens that begin before this window
    for (int base = from; base < to; base += WARP) {
        const int at = base + lane;
        const bool inside = at < to, blank = text.is_blank(at);
        const uint32 beginning = __ballot_sync(ALL_LANES, inside && text.begins(at));
        const int number = before + __popc(beginning & ((2u << lane) - 1)) - !blank;
        before += __popc(beginning);
        const bool opens = blank && at + 1 < to && !text.is_blank(at + 1);  // the place of "<"
        bool goes_on = inside && number >= 0 && number < WARP && !(left_out >> number & 1) &&
                       (opens || (!blank && !is_continuation(text.bytes[at])));
        uint32 hash = FIRST;
        int next = at;
        for (int n = 1; n <= highest; n++) {
            if (!__any_sync(ALL_LANES, goes_on)) break;
            bool is_there = goes_on && n >= lowest;
            if (goes_on) {
                const bool closes = next > at && text.is_blank(next);  // the place of ">"
                hash = hash_byte(hash, closes ? '>' : next == at && opens ? '<' : text.bytes[next]);
                next++;
                if (!closes)
                    for (; !text.is_blank(next) && is_continuation(text.bytes[next]); next++)
                        hash = hash_byte(hash, text.bytes[next]);
                if (n == 1 && opens) is_there = false;
                goes_on = !closes;
            }
            if (n >= lowest) sums.add(is_there ? buckets.row(hash % buckets.count) : NONE);
        }
    }
}

// Add the rows of n-grams of words, each by the lane of its last word. hashes [MOST_ORDER - 1 + WARP]: the last `kept`
// hashes before MOST_ORDER - 1 belong to earlier words. has_word: whether this lane has a word. Return the new `kept`.
template <typename OfRows>
__device__ __forceinline__ int add_orders(int* hashes, int kept, bool has_word, uint32 hash, int words,
                                          const Buckets& buckets, OfRows& sums) {
    constexpr int BEGIN = MOST_ORDER - 1;
    const int lane = threadIdx.x % WARP;
    const uint32 there = __ballot_sync(ALL_LANES, has_word);
    const int count = __popc(there);
    if (has_word) hashes[BEGIN + __popc(there & ((1u << lane) - 1))] = (int)hash;
    __syncwarp();
    uint64 state = 0, power = 1;
    for (int order = 1; order <= words; order++) {
        const bool whole = lane < count && lane + kept >= order - 1;
        if (whole) state += (uint64)(int64)hashes[BEGIN + lane - (order - 1)] * power;
        power *= OF_WORDS;
        if (order > 1) sums.add(whole ? buckets.row((uint32)(state % buckets.count)) : NONE);
    }
    const int keep = min(words - 1, kept + count);
    const int moved = lane < keep ? hashes[BEGIN + count - keep + lane] : 0;
    __syncwarp();
    if (lane < keep) hashes[BEGIN - keep + lane] = moved;
    __syncwarp();
    return keep;
}

// data, offsets: see `encode`. slots to end: see Dictionary. words: the number of words in the longest n-gram. lowest,
// highest: the number of characters in subwords. buckets, pruned: see Buckets. table Entry [slabs][rows][LANES *
// COLUMNS]; scales fp32 [slabs][LANES * COLUMNS]. means fp32 [texts, columns]: the output. A block has WARPS texts and
// one slab, blockIdx.y.
template <int WARPS, int LANES, int COLUMNS, typename Entry>
__global__ void __launch_bounds__(WARPS* WARP, 3)
    fasttext(const uint8* data, const int64* offsets, const int* texts, const uint2* slots, uint32 mask, const uint8* word_bytes,
             const int64* word_ends, int known, int end, int words, int lowest, int highest, uint32 bucket_count,
             const int* pruned, const Part<Entry, COLUMNS>* table, int64 rows, const float* scales, int columns,
             float* means) {
    __shared__ int queues[WARPS][QUEUED];
    __shared__ int hashes_of[WARPS][MOST_ORDER - 1 + WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slab = blockIdx.y;
    const int number = blockIdx.x * WARPS + warp;
    if (number >= *texts) return;
    int* const queue = queues[warp];
    const Text text = {data + (offsets[number] - offsets[0]), (int)(offsets[number + 1] - offsets[number])};
    const Dictionary dictionary = {slots, mask, word_bytes, word_ends, known, end};
    const Buckets buckets = {bucket_count, pruned, known};
    Sums<LANES, COLUMNS, Entry> sums = {table + slab * rows * LANES};
    int queued = 0, kept = 0;
    bool is_over = false;
    for (int base = 0; base <= text.size && !is_over; base += WARP) {
        const int at = base + lane;
        const bool begins = text.begins(at) || at == text.size;  // "</s>" is at the end of the text
        const uint32 beginning = __ballot_sync(ALL_LANES, begins);
        if (begins) queue[queued + __popc(beginning & ((1u << lane) - 1))] = at;
        queued += __popc(beginning);
        const bool is_last = base + WARP > text.size;
        __syncwarp();
        while (!is_over && (queued >= WARP || (is_last && queued > 0))) {
            int taken = min(queued, WARP);
            const int first = lane < taken ? queue[lane] : text.size;
            int last = first;
            uint32 hash = FIRST;
            int entry = NONE;
            bool ends_text = false;
            if (lane < taken && first == text.size) {
                for (int i = 0; i < END_SIZE; i++) hash = hash_byte(hash, "</s>"[i]);
                entry = dictionary.end;
                ends_text = true;
            } else if (lane < taken) {
                for (; !text.is_blank(last); last++) hash = hash_byte(hash, text.bytes[last]);
                entry = dictionary.find(text.bytes + first, last - first, hash);
                ends_text = last - first == END_SIZE && begins_with(text.bytes + first, "</s>", END_SIZE);
            }
            const uint32 ending = __ballot_sync(ALL_LANES, ends_text);
            if (ending) taken = __ffs(ending), is_over = true;
            const bool is_label = entry >= known || (entry == NONE && last - first >= LABEL_SIZE &&
                                                     begins_with(text.bytes + first, "__label__", LABEL_SIZE));
            const bool has_word = lane < taken && !is_label;
            sums.add(has_word ? entry : NONE);
            if (highest > 0) {
                const uint32 left_out = ~__ballot_sync(ALL_LANES, has_word && !ends_text);
                const int from = __shfl_sync(ALL_LANES, first, 0) - 1, to = __shfl_sync(ALL_LANES, last, taken - 1);
                add_subwords(text, from, to, left_out, lowest, highest, buckets, sums);
            }
            if (words > 1) kept = add_orders(hashes_of[warp], kept, has_word, hash, words, buckets, sums);
            const int waiting = queued - taken;
            const int moved = lane < waiting ? queue[taken + lane] : 0;
            __syncwarp();
            if (lane < waiting) queue[lane] = moved;
            __syncwarp();
            queued = waiting;
        }
    }

    const int64 added = warp_sum(sums.rows);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
#pragma unroll
        for (int distance = LANES; distance < WARP; distance *= 2)
            sums.sum[i] += __shfl_xor_sync(ALL_LANES, sums.sum[i], distance);
        const int place = lane * COLUMNS + i, column = slab * LANES * COLUMNS + place;
        if (lane < LANES && column < columns)
            means[(int64)number * columns + column] =
                __fdiv_rn(__fmul_rn((float)sums.sum[i], scales[slab * LANES * COLUMNS + place]), (float)max(added, 1ll));
    }
}
