// Finds keys that occur twice in an object within a value. The host keeps the last one, so it reads such a record.
// Test: tests/kernels/test_json_on_cpu.py.
#pragma once

#include "records/json_strings.cuh"

// The keys of all objects within a value, as hashes. Two keys with the same hash count as equal, so a record may be
// left to the host unnecessarily.
struct SeenKeys {
    static constexpr int ROUNDS = 4;  // so that a value may have 128 keys

    LaneNumbers objects;         // lane d: where the object that is open at depth d + 1 begins
    LaneNumbers hashes[ROUNDS];  // lane k of round r: the hash of key 32 r + k
    int count = 0;

    __device__ __forceinline__ void open(int depth, int64 at) { objects.set(depth - 1, at); }

    // Note a key of the object that is open at `depth`. Return false if the object may already have this key, or if
    // there are too many keys.
    __device__ __forceinline__ bool add(const uint8* key, int64 size, int depth) {
        // FNV-1a with 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
        uint64 hash = 0xcbf29ce484222325ull ^ objects.of(depth - 1);
        for (int64 i = 0; i < size; i++) hash = (hash ^ key[i]) * 0x100000001b3ull;
        bool is_new = count < ROUNDS * LANES;
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            LaneNumbers& seen = hashes[round];
            if (lanes_where([&](int k) { return seen[k] == hash; })) is_new = false;
            if (count / LANES == round) seen.set(count % LANES, hash);
        }
        count++;
        return is_new;
    }
};

// Return whether each key in an object or array occurs once in its object, and has no escape. value: valid JSON.
__device__ inline bool has_distinct_keys(const Article& value) {
    SeenKeys seen;
    EscapeFinder finder;
    uint32 is_in_string = 0;  // whether the last byte was in a string: all bits or none
    uint32 objects = 0;       // bit d: whether an object, and not an array, is open at depth d + 1
    int depth = 0;
    bool is_key_next = false, is_open = false;  // whether the next string is a key; whether a string is open
    int64 string_begin = 0, last_escape = -1;
    for (int64 at = 0; at < value.size; at += LANES) {
        const LaneBytes bytes = load_bytes(value.bytes + at, value.size - at);
        const Escapes escapes = finder.next(value, at, bytes);
        const uint32 quotes = bytes_where(bytes, [](uint8 c) { return c == '"'; }) & ~escapes.escaped;
        const uint32 in_string = parity_so_far(quotes) ^ is_in_string;
        is_in_string = (int32)in_string >> (LANES - 1);
        uint32 tokens = quotes | (bytes_where(bytes, is_structural) & ~in_string);
        for (; tokens; tokens &= tokens - 1) {
            const int k = first_bit(tokens);
            if (escapes.begins & bits_below(k)) last_escape = at + last_bit(escapes.begins & bits_below(k));
            switch (bytes.of(k)) {
                case '"':
                    is_open = !is_open;
                    if (is_open) string_begin = at + k + 1;
                    else if (is_key_next) {
                        if (last_escape >= string_begin) return false;
                        if (!seen.add(value.bytes + string_begin, at + k - string_begin, depth)) return false;
                    }
                    break;
                case '{':
                    objects |= 1u << depth;
                    seen.open(++depth, at + k);
                    is_key_next = true;
                    break;
                case '[':
                    objects &= ~(1u << depth);
                    depth++;
                    is_key_next = false;
                    break;
                case ':': is_key_next = false; break;
                case ',': is_key_next = objects >> (depth - 1) & 1; break;
                default: depth--;
            }
        }
        if (escapes.begins) last_escape = at + last_bit(escapes.begins);
    }
    return true;
}
