// Scores the n-grams of texts. `scores` in pipeline/model/ngrams.py is the specification.
//
// Layout. A warp has one article and a slab of classes. It first writes the symbols of the characters that it reads to
//   shared memory, between two white spaces. Then a lane hashes a word, or the n-grams that begin at a position, and
//   finds their buckets. Words are queued, so that 32 lanes hash 32 words, and a pair needs the hash of the word in the
//   lane before. A hash table in shared memory counts how often each bucket occurs, and a bucket's row is added when
//   its count becomes 1, 2, 4, 8 and so on. LANES lanes read a row, eight columns a lane, so a warp reads 32 / LANES
//   rows at once. The column before the classes of a slab holds the squares.
// Why. The table of counts must fit in shared memory beside those of other warps. If an article has more buckets than
//   the table has room for, the warp reads the article again for each part of all buckets. It guesses the number of
//   parts, and doubles it if a part does not fit. Sums are integers, so they depend neither on the parts nor on which
//   lane adds a row. Rows are read at random: each read takes a sector of 32 bytes of L2, where a table of some MB
//   stays between batches.
//
// Test: tests/engine/test_ngrams_gpu.py. Time: broadsheet profile, python -m benchmarks.network.
#include "common/reduce.cuh"
#include "common/types.cuh"
#include "common/utf8.cuh"

constexpr int COLUMNS = 8;  // the columns of a row that a lane reads, in 16 bytes
constexpr int QUEUED = 48;  // at most: 31 words that wait, and those that begin within 32 positions
constexpr int COUNTED = 1024;  // the places in the table of counts
constexpr uint16 SPACE = 0x20;
constexpr uint32 BEYOND = 0xd800;
constexpr uint32 MULTIPLIER = 0x9e3779b1, OF_CHARACTERS = 0x3c6ef372, OF_WORDS = 0xbb67ae85;

__device__ __forceinline__ uint32 hash_step(uint32 state, uint32 symbol) {
    state = (state ^ symbol) * MULTIPLIER;
    return state ^ state >> 15;
}

__device__ __forceinline__ uint32 hash_end(uint32 state) {
    state = (state ^ state >> 16) * 0x85ebca6b;
    state = (state ^ state >> 13) * 0xc2b2ae35;
    return state ^ state >> 16;
}

// symbols uint16 [65536]: maps to lower case, and all white space to one symbol. letters: a bit for each symbol that a
// word may contain.
struct Script {
    const uint16* symbols;
    const uint32* letters;

    __device__ __forceinline__ bool is_letter(uint32 symbol) const {
        return letters[symbol / 32] >> symbol % 32 & 1;
    }

    __device__ __forceinline__ uint16 symbol(const Article& article, int64 at) const {
        const uint8 byte = article.bytes[at];
        if (byte < 0x80) return symbols[byte];
        const int length = sequence_length(article, at);
        if (length == 1) return BEYOND | byte;
        const uint32 point = code_point(article, at, length);
        return point < 0x10000 ? symbols[point] : BEYOND | (point & 0x7ff);
    }
};

// Counts how often each bucket of one part of all buckets has been seen. A place holds count << key_bits | bucket, or
// 0.
template <typename Entry>
struct Counts {
    Entry* place;
    int key_bits, parts_log2, part;
    int taken;  // the number of used places, the same in every lane

    // Every lane of the warp calls both functions. Count this lane's bucket, if there is one. Return how often it has
    // been seen, or 0 if it belongs to another part.
    __device__ __forceinline__ int add(uint32 bucket, bool is_there) {
        const Entry once = Entry(1) << key_bits;
        is_there = is_there && (bucket & ((1 << parts_log2) - 1)) == part;
        int seen = 0;
        for (uint32 at = bucket >> parts_log2; is_there && seen == 0; at++) {
            Entry* const here = place + at % COUNTED;
            Entry found = *(volatile Entry*)here;
            if (found == 0) found = atomicCAS(here, Entry(0), once | bucket);
            if (found == 0) seen = 1;
            else if ((found & (once - 1)) == bucket) seen = (int)(atomicAdd(here, once) >> key_bits) + 1;
        }
        __syncwarp();
        taken += __popc(__ballot_sync(ALL_LANES, seen == 1));
        return seen;
    }

    __device__ __forceinline__ void clear() {
        __syncwarp();
        for (int i = threadIdx.x % WARP; i < COUNTED; i += WARP) place[i] = 0;
        __syncwarp();
        taken = 0;
    }

    // Return whether another 32 buckets might not find a place.
    __device__ __forceinline__ bool is_full() const { return taken > COUNTED - WARP; }
};

// Sums rows of a table [buckets][LANES][COLUMNS]. Every lane of a warp calls each function.
template <int LANES>
struct Sums {
    const int4* table;
    int32 sum[COLUMNS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sum[i] = 0;
    }

    // A bucket counts once for each binary digit of the number of its n-grams. So add its row once more when it has been
    // `seen` 2^i times, and its squares (i + 1)^2 - i^2 = 2 i + 1 times.
    __device__ __forceinline__ void add(uint32 bucket, int seen) {
        const int times = seen > 0 && (seen & (seen - 1)) == 0 ? 63 - 2 * __clz(seen) : 0;
        const int lane = threadIdx.x % WARP, own = lane % LANES;
#pragma unroll 4
        for (int turn = 0; turn < LANES; turn++) {
            const int from = lane - own + turn;
            const uint32 row = LANES == 1 ? bucket : __shfl_sync(ALL_LANES, bucket, from);
            const int squares = LANES == 1 ? times : __shfl_sync(ALL_LANES, times, from);
            if (squares == 0) continue;
            const int4 values = __ldcg(table + (int64)row * LANES + own);
            const int32 pairs[] = {values.x, values.y, values.z, values.w};
            sum[0] += (short)pairs[0] * (own == 0 ? squares : 1);
            sum[1] += pairs[0] >> 16;
#pragma unroll
            for (int i = 1; i < COLUMNS / 2; i++) {
                sum[2 * i] += (short)pairs[i];
                sum[2 * i + 1] += pairs[i] >> 16;
            }
        }
    }

    // Compute total += sum * scale / sqrt(squares). Each operation is rounded by itself. scale: for this lane's
    // columns.
    __device__ __forceinline__ void weigh(const float (&scale)[COLUMNS], float (&total)[COLUMNS]) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
#pragma unroll
            for (int distance = LANES; distance < WARP; distance *= 2)
                sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], distance);
        const int32 squares = __shfl_sync(ALL_LANES, sum[0], 0);
        if (squares <= 0) return;
        const float norm = __fsqrt_rn((float)squares);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            total[i] = __fadd_rn(total[i], __fdiv_rn(__fmul_rn((float)sum[i], scale[i]), norm));
    }
};

// An article in shared memory: the symbols of `count` characters between two white spaces. The first is at text[1].
struct Read {
    const uint16* text;
    uint16* queue;
    int count;
    Script script;
};

// Add the rows of words, and of pairs of words if ORDER is 2. Return whether the counts had room.
template <int ORDER, typename Entry, int LANES>
__device__ __forceinline__ bool add_words(const Read& read, int shift, Counts<Entry>& counts, Sums<LANES>& sums) {
    const int lane = threadIdx.x % WARP;
    int queued = 0;
    bool is_first = true;
    uint32 before = 0;
    for (int base = 1; base <= read.count; base += WARP) {
        const int at = base + lane;
        const bool begins = at <= read.count && read.script.is_letter(read.text[at]) &&
                            !read.script.is_letter(read.text[at - 1]);
        const uint32 beginning = __ballot_sync(ALL_LANES, begins);
        if (begins) read.queue[queued + __popc(beginning & ((1u << lane) - 1))] = at;
        queued += __popc(beginning);
        const bool is_last = base + WARP > read.count;
        __syncwarp();
        while (queued >= WARP || (is_last && queued > 0)) {
            const int taken = min(queued, WARP);
            uint32 hash = OF_WORDS;
            if (lane < taken)
                for (int i = read.queue[lane]; read.script.is_letter(read.text[i]); i++)
                    hash = hash_step(hash, read.text[i]);
            __syncwarp();
            if (counts.is_full()) return false;
            const uint32 bucket = hash_end(hash) >> shift;
            sums.add(bucket, counts.add(bucket, lane < taken));
            if (ORDER > 1) {
                if (counts.is_full()) return false;
                const uint32 neighbour = __shfl_up_sync(ALL_LANES, hash, 1);
                const uint32 pair = hash_step((lane ? neighbour : before) * MULTIPLIER, hash);
                const uint32 bucket_of_pair = hash_end(pair) >> shift;
                sums.add(bucket_of_pair, counts.add(bucket_of_pair, lane < taken && !(is_first && lane == 0)));
                before = __shfl_sync(ALL_LANES, hash, taken - 1);
                is_first = false;
            }
            queued -= taken;
            const uint16 moved = lane < queued ? read.queue[WARP + lane] : 0;
            __syncwarp();
            if (lane < queued) read.queue[lane] = moved;
            __syncwarp();
        }
    }
    return true;
}

// Add the rows of n-grams of characters. Return whether the counts had room.
template <int LOWEST, int HIGHEST, typename Entry, int LANES>
__device__ __forceinline__ bool add_characters(const Read& read, int shift, Counts<Entry>& counts, Sums<LANES>& sums) {
    const int end = read.count + 1;
    for (int base = 0; base <= end; base += WARP) {
        const int at = base + threadIdx.x % WARP;
        uint32 hash = OF_CHARACTERS;
        bool is_whole = true, begins_with_space = false, is_space = false;
#pragma unroll
        for (int n = 1; n <= HIGHEST; n++) {
            const int last = at + n - 1;
            if (n > 2) is_whole = is_whole && !is_space;  // the last symbol of the shorter n-gram is inside this one
            const uint16 symbol = last <= end ? read.text[last] : SPACE;
            is_space = symbol == SPACE;
            if (n == 1) begins_with_space = is_space;
            hash = hash_step(hash, symbol);
            if (n < LOWEST) continue;
            if (counts.is_full()) return false;
            const uint32 bucket = hash_end(hash) >> shift;
            const bool is_there = is_whole && last <= end && (n > 2 || !(begins_with_space && is_space));
            sums.add(bucket, counts.add(bucket, is_there));
        }
    }
    return true;
}

// data, offsets: see `encode`. reads: the number of characters that are read. An n-gram has up to ORDER words, or
// LOWEST to HIGHEST characters; 0 means that there are none. table int16 [slabs][buckets][LANES * COLUMNS], where
// bucket = hash >> shift; scale fp32 [2][slabs][LANES * COLUMNS]. scores fp32 [articles, classes]: the output. Entry:
// the integer that holds a count and a bucket. A block has WARPS articles and one slab, blockIdx.y. Dynamic shared
// memory: SHARED.
template <int WARPS, int LANES, int ORDER, int LOWEST, int HIGHEST, typename Entry, int SHARED>
__global__ void __launch_bounds__(WARPS* WARP, LANES == 1 ? 4 : 2)  // blocks per SM: with more lanes, 4 would spill
    ngrams(const uint8* data, const int64* offsets, const int* articles, int reads, const uint16* symbols,
           const uint32* letters, const int4* table, int shift, const float* scales, int classes, float* scores) {
    constexpr int WIDTH = LANES * COLUMNS;
    extern __shared__ uint64 shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slab = blockIdx.y;
    const int number = blockIdx.x * WARPS + warp;
    if (number >= *articles) return;
    Entry* const places = reinterpret_cast<Entry*>(shared + warp * (SHARED / WARPS / sizeof(uint64)));
    uint16* const queue = reinterpret_cast<uint16*>(places + COUNTED);
    uint16* const text = queue + QUEUED;
    const Article article = {data + (offsets[number] - offsets[0]), offsets[number + 1] - offsets[number]};
    const Script script = {symbols, letters};

    int count = 0;
    for (int64 step = 0; step < article.size && count < reads; step += WARP) {
        const int64 at = step + lane;
        bool begins = at < article.size;
        if (__any_sync(ALL_LANES, begins && article.bytes[at] & 0x80)) begins = begins && begins_character(article, at);
        const uint32 beginning = __ballot_sync(ALL_LANES, begins);
        const int position = count + __popc(beginning & ((1u << lane) - 1));
        if (begins && position < reads) text[1 + position] = script.symbol(article, at);
        count += __popc(beginning);
    }
    count = min(count, reads);
    if (lane == 0) text[0] = text[1 + count] = SPACE;

    const int64 buckets = 1ll << (32 - shift);
    const Read read = {text, queue, count, script};
    Counts<Entry> counts = {places, 32 - shift};
    Sums<LANES> sums = {table + slab * buckets * LANES};
    float total[COLUMNS] = {}, scale[COLUMNS];
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0 ? ORDER == 0 : HIGHEST == 0) continue;
        // The guess: there is a word for every four characters, and two thirds of the possible n-grams are distinct.
        const int most = kind == 0 ? ORDER * count / 4 : (HIGHEST - LOWEST + 1) * count;
        int parts_log2 = 0;
        while ((COUNTED << parts_log2) * 3 < most * 2) parts_log2++;
        for (bool fits = false; !fits; parts_log2++) {
            counts.parts_log2 = parts_log2;
            sums.clear();
            fits = true;
            for (int part = 0; part < 1 << parts_log2 && fits; part++) {
                counts.part = part;
                counts.clear();
                fits = kind == 0 ? add_words<ORDER>(read, shift, counts, sums)
                                 : add_characters<LOWEST, HIGHEST>(read, shift, counts, sums);
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            scale[i] = scales[(kind * gridDim.y + slab) * WIDTH + lane % LANES * COLUMNS + i];
        sums.weigh(scale, total);
    }
    if (lane >= LANES) return;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const int column = lane * COLUMNS + i, label = slab * (WIDTH - 1) + column - 1;
        if (column > 0 && label < classes) scores[(int64)number * classes + label] = total[i];
    }
}
