// The branch of n-grams: the twin of `scores` in pipeline/model/ngrams.py, which is the specification.
//
// A warp takes an article and a slab of classes. It first writes the symbols of the characters that are read to shared
// memory, between two white spaces. Then a lane hashes a word or the n-grams that begin at a position, and finds their
// buckets. Words are queued, so that 32 lanes hash 32 of them, and a pair needs the hash of the word in the lane before.
// A row of the table is read by LANES lanes, eight columns each, so 32 / LANES rows at once; the column before the
// classes of a slab holds the squares. Sums are integers, so they do not depend on which lane adds what.
//
// Rows are read at random: each takes a sector of 32 bytes of L2, where a table of some MB stays from batch to batch.
#include "common/reduce.cuh"
#include "common/types.cuh"
#include "common/utf8.cuh"

constexpr int COLUMNS = 8;  // of a row, in 16 bytes
constexpr int QUEUED = 48;  // words at most: 31 that wait, and those that begin within 32 positions
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

// symbols uint16 [65536]: lower case, and one white space. letters: a bit for each symbol that a word may hold.
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

// Sums of rows of a table [buckets][LANES][COLUMNS]. Every lane of a warp calls each function.
template <int LANES>
struct Sums {
    const int4* table;
    int shift;
    int32 sum[COLUMNS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sum[i] = 0;
    }

    // Adds the rows of the n-grams with these hashes, of lanes where there is one.
    __device__ __forceinline__ void add(uint32 hash, bool is_there) {
        const uint32 bucket = hash_end(hash) >> shift;
        const int lane = threadIdx.x % WARP, own = lane % LANES;
#pragma unroll 4
        for (int turn = 0; turn < LANES; turn++) {
            const int from = lane - own + turn;
            const uint32 row = LANES == 1 ? bucket : __shfl_sync(ALL_LANES, bucket, from);
            const bool taken = LANES == 1 ? is_there : __shfl_sync(ALL_LANES, is_there, from);
            if (!taken) continue;
            const int4 values = __ldcg(table + (int64)row * LANES + own);
            const int32 pairs[] = {values.x, values.y, values.z, values.w};
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++) {
                sum[2 * i] += (short)pairs[i];
                sum[2 * i + 1] += pairs[i] >> 16;
            }
        }
    }

    // total += sum * scale / sqrt(squares), each operation rounded by itself. scale: of this lane's columns.
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

// data, offsets: as for `encode`. reads: characters. ORDER words, LOWEST to HIGHEST characters an n-gram; 0 for none.
// table int16 [slabs][buckets][LANES * COLUMNS], bucket = hash >> shift; scale fp32 [2][slabs][LANES * COLUMNS].
// scores fp32 [articles, classes]. A block has WARPS articles and one slab, blockIdx.y. Dynamic shared memory: SHARED.
template <int WARPS, int LANES, int ORDER, int LOWEST, int HIGHEST, int SHARED>
__global__ void __launch_bounds__(WARPS* WARP, 4)  // without the 4, NVRTC 13.0 spills for 40 registers on sm_80
    ngrams(const uint8* data, const int64* offsets, int articles, int reads, const uint16* symbols,
           const uint32* letters, const int4* table, int shift, const float* scales, int classes, float* scores) {
    constexpr int WIDTH = LANES * COLUMNS;
    extern __shared__ uint16 shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slab = blockIdx.y;
    const int number = blockIdx.x * WARPS + warp;
    if (number >= articles) return;
    uint16* const queue = shared + warp * (SHARED / WARPS / 2);
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
    __syncwarp();

    const int64 buckets = 1ll << (32 - shift);
    Sums<LANES> sums = {table + slab * buckets * LANES, shift};
    float total[COLUMNS] = {}, scale[COLUMNS];

    if (ORDER > 0) {
        sums.clear();
        int queued = 0;
        bool is_first = true;
        uint32 before = 0;
        for (int base = 1; base <= count; base += WARP) {
            const int at = base + lane;
            const bool begins = at <= count && script.is_letter(text[at]) && !script.is_letter(text[at - 1]);
            const uint32 beginning = __ballot_sync(ALL_LANES, begins);
            if (begins) queue[queued + __popc(beginning & ((1u << lane) - 1))] = at;
            queued += __popc(beginning);
            const bool is_last = base + WARP > count;
            __syncwarp();
            while (queued >= WARP || (is_last && queued > 0)) {
                const int taken = min(queued, WARP);
                uint32 hash = OF_WORDS;
                if (lane < taken)
                    for (int i = queue[lane]; script.is_letter(text[i]); i++) hash = hash_step(hash, text[i]);
                __syncwarp();
                sums.add(hash, lane < taken);
                if (ORDER > 1) {
                    const uint32 neighbour = __shfl_up_sync(ALL_LANES, hash, 1);
                    const uint32 first = lane ? neighbour : before;
                    sums.add(hash_step(first * MULTIPLIER, hash), lane < taken && !(is_first && lane == 0));
                    before = __shfl_sync(ALL_LANES, hash, taken - 1);
                    is_first = false;
                }
                queued -= taken;
                const uint16 moved = lane < queued ? queue[WARP + lane] : 0;
                __syncwarp();
                if (lane < queued) queue[lane] = moved;
                __syncwarp();
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) scale[i] = scales[slab * WIDTH + lane % LANES * COLUMNS + i];
        sums.weigh(scale, total);
    }
    if (HIGHEST > 0) {
        sums.clear();
        for (int base = 0; base <= count + 1; base += WARP) {
            const int at = base + lane;
            uint32 hash = OF_CHARACTERS;
            bool is_whole = true, is_first_space = false, is_space = false;
#pragma unroll
            for (int n = 1; n <= HIGHEST; n++) {
                const int last = at + n - 1;
                if (n > 2) is_whole = is_whole && !is_space;  // the last symbol of the n-gram before is within this one
                const uint16 symbol = last <= count + 1 ? text[last] : SPACE;
                is_space = symbol == SPACE;
                if (n == 1) is_first_space = is_space;
                hash = hash_step(hash, symbol);
                if (n >= LOWEST)
                    sums.add(hash, is_whole && last <= count + 1 && (n > 2 || !(is_first_space && is_space)));
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) scale[i] = scales[(gridDim.y + slab) * WIDTH + lane % LANES * COLUMNS + i];
        sums.weigh(scale, total);
    }
    if (lane >= LANES) return;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const int column = lane * COLUMNS + i, label = slab * (WIDTH - 1) + column - 1;
        if (column > 0 && label < classes) scores[(int64)number * classes + label] = total[i];
    }
}
