// Finds the values of the wanted keys in one JSON object.
//
// `read_object` returns true only if the host would read the same values. It returns false for a record that is not
// JSON, and for JSON that is rare: an escape in a key, a number of many digits. The host reads these records. Its
// reader, `_parse_line` in pipeline/source/formats/jsonl.py, is the specification, and it alone decides what is an
// error.
#pragma once

#include "records/values.cuh"

constexpr int MOST_DEPTH = 32, MOST_PATH = 8, MOST_DIGITS = 64;
constexpr int OFF_PATH = 255;   // the number in place of a node if no wanted key is there
constexpr int NO_COLUMN = -1;   // the column of a node that only leads to others
constexpr int REFUSED = -2;     // the column of a key that the device leaves to the host

// The wanted keys as a tree. Node 0 is the object of the record. An edge is a key of an object, and leads to the node
// of its value. The edges of node n are edges[first[n]] to edges[first[n + 1] - 1].
struct Edge {
    int begin, size;  // the key, in `names`
    int node;
};
struct Keys {
    const uint8* names;
    const int* first;
    const Edge* edges;
    const int* columns;    // [nodes]: the column of the value at a node, or NO_COLUMN, or REFUSED
    const uint32* below;   // [nodes]: the columns of a node and of all nodes that it leads to
    uint32 texts, needed;  // the columns that must be strings, and those that must be present
    uint8 is_every_key;    // whether a key of the record's object that is not in the tree must be null
};

__device__ __forceinline__ bool is_space(uint8 c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
__device__ __forceinline__ bool is_structural(uint8 c) {
    return c == '{' || c == '}' || c == '[' || c == ']' || c == ':' || c == ',';
}
__device__ __forceinline__ bool is_digit(uint8 c) { return c >= '0' && c <= '9'; }

// Return the value of a hexadecimal digit, or -1.
__device__ __forceinline__ int hex_digit(uint8 c) {
    if (is_digit(c)) return c - '0';
    const uint8 lower = c | 0x20;
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Return the 16 bits of the escape \uXXXX that begins at `at`, or -1.
__device__ __forceinline__ int code_unit(const Article& text, int64 at) {
    if (at + 6 > text.size || text.bytes[at] != '\\' || text.bytes[at + 1] != 'u') return -1;
    int unit = 0;
    for (int i = 2; i < 6; i++) {
        const int digit = hex_digit(text.bytes[at + i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}
__device__ __forceinline__ bool is_high_surrogate(int unit) { return unit >= 0xd800 && unit < 0xdc00; }
__device__ __forceinline__ bool is_low_surrogate(int unit) { return unit >= 0xdc00 && unit < 0xe000; }

// Return whether a valid escape begins at `at`. A high surrogate is valid if a low surrogate follows.
__device__ __forceinline__ bool is_escape(const Article& text, int64 at) {
    if (at + 1 >= text.size) return false;
    switch (text.bytes[at + 1]) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': return true;
        case 'u': break;
        default: return false;
    }
    const int unit = code_unit(text, at);
    return unit >= 0 && (!is_high_surrogate(unit) || is_low_surrogate(code_unit(text, at + 6)));
}

// Test some escapes. Bit k of `escapes` stands for an escape at `at` + k, and stays set if `test(text, at + k)` is
// true.
template <typename Test>
__device__ __forceinline__ uint32 escapes_where(const Article& text, int64 at, uint32 escapes, Test test) {
    return lanes_where([&](int k) { return escapes >> k & 1 && test(text, at + k); });
}

// Return the place after the number, true, false or null that begins at `at`, and set its kind. Return -1 for anything
// else, and for a number with MOST_DIGITS characters or more.
__device__ inline int64 end_of_scalar(const Article& text, int64 at, Kind& kind) {
    auto byte = [&](int64 place) -> uint8 { return place < text.size ? text.bytes[place] : ' '; };
    int64 end = at;
    const uint8 first = byte(at);
    if (first == 't' || first == 'f' || first == 'n') {
        const char* word = first == 't' ? "true" : first == 'f' ? "false" : "null";
        for (; *word; word++, end++)
            if (byte(end) != *word) return -1;
        kind = first == 'n' ? NONE : PLAIN;
    } else {
        kind = PLAIN;
        end += byte(end) == '-';
        if (!is_digit(byte(end))) return -1;
        if (byte(end) == '0') end++;
        else while (is_digit(byte(end)) && end - at < MOST_DIGITS) end++;
        if (byte(end) == '.') {
            if (!is_digit(byte(++end))) return -1;
            while (is_digit(byte(end)) && end - at < MOST_DIGITS) end++;
        }
        if ((byte(end) | 0x20) == 'e') {
            end++;
            end += byte(end) == '+' || byte(end) == '-';
            if (!is_digit(byte(end))) return -1;
            while (is_digit(byte(end)) && end - at < MOST_DIGITS) end++;
        }
        if (end - at >= MOST_DIGITS) return -1;
    }
    const uint8 after = byte(end);
    return is_space(after) || is_structural(after) || after == '"' ? end : -1;
}

// The tokens that may come next in an object or array.
enum Expected : uint8 { OBJECT, VALUE, VALUE_OR_END, KEY, KEY_OR_END, COLON, COMMA_OR_END, NOTHING };

// Reads one object, token by token. Every lane has the same state.
struct ObjectReader {
    const Keys& keys;
    const Values& values;
    const Article text;
    const int record;
    const uint32 offset;  // where the text begins in the block

    Expected expected = OBJECT;
    int depth = 0;
    uint32 objects = 0;  // bit d: whether an object, and not an array, is open at depth d + 1
    uint64 path = 0;     // byte d: the node of the object or array that is open at depth d + 1, or OFF_PATH
    int node = 0;        // the node of the value that comes next, or OFF_PATH
    uint32 found = 0, strings = 0;
    int64 string_begin = 0, last_escape = -1;
    bool in_string = false;

    int nested_column = NO_COLUMN, nested_depth = 0;  // the wanted object or array that is open, and the depth around it

    // Return the node of the object or array that is open.
    __device__ __forceinline__ int open_node() const {
        return depth > MOST_PATH ? OFF_PATH : (int)(path >> 8 * (depth - 1) & 0xff);
    }

    __device__ __forceinline__ bool is_in_object() const { return objects >> (depth - 1) & 1; }

    // Find the node of the key that ends at `end`. If a key occurs again, its last value counts.
    __device__ __forceinline__ bool read_key(int64 end) {
        const int from = open_node();
        node = OFF_PATH;
        expected = COLON;
        if (from == OFF_PATH) return true;
        if (last_escape >= string_begin) return false;
        const int size = (int)(end - string_begin);
        for (int e = keys.first[from]; e < keys.first[from + 1]; e++) {
            const Edge edge = keys.edges[e];
            if (edge.size != size) continue;
            int same = 0;
            while (same < size && keys.names[edge.begin + same] == text.bytes[string_begin + same]) same++;
            if (same == size) node = edge.node;
        }
        if (node == OFF_PATH) return true;
        found &= ~keys.below[node];
        strings &= ~keys.below[node];
        return keys.columns[node] != REFUSED;
    }

    // Return the column of the value that comes next, or NO_COLUMN.
    __device__ __forceinline__ int wanted_column() const { return node == OFF_PATH ? NO_COLUMN : keys.columns[node]; }

    // Return whether the host has to count the key of the value that comes next. Call this only if it has no column.
    __device__ __forceinline__ bool is_of_unknown_key() const { return keys.is_every_key && depth == 1; }

    // Note a string, number or literal from `begin` to `end`.
    __device__ __forceinline__ bool read_value(Kind kind, int64 begin, int64 end) {
        expected = COMMA_OR_END;
        const int column = wanted_column();
        if (column == NO_COLUMN) return kind == NONE || !is_of_unknown_key();
        note_begin(column, kind, begin);
        note_end(column, end);
        return true;
    }

    __device__ __forceinline__ void note_begin(int column, Kind kind, int64 begin) {
        found |= 1u << column;
        strings |= (kind == STRING ? 1u : 0u) << column;
        each_lane([&](int k) {
            if (k != column) return;  // so that one lane writes a column, and its last value stays
            const int64 at = (int64)column * values.records + record;
            values.kinds[at] = kind;
            values.begins[at] = offset + (uint32)begin;
        });
    }

    __device__ __forceinline__ void note_end(int column, int64 end) const {
        each_lane([&](int k) {
            if (k != column) return;
            const int64 at = (int64)column * values.records + record;
            values.sizes[at] = offset + (uint32)end - values.begins[at];
        });
    }

    // Note that the record has none of these columns.
    __device__ __forceinline__ void note_missing(uint32 columns) const {
        each_lane([&](int k) {
            if (k < values.columns && columns >> k & 1) values.kinds[(int64)k * values.records + record] = MISSING;
        });
    }

    __device__ __forceinline__ bool expects_value() const { return expected == VALUE || expected == VALUE_OR_END; }

    __device__ __forceinline__ bool open(bool is_object, int64 at) {
        if (depth == 0 ? expected != OBJECT || !is_object : !expects_value()) return false;
        const int column = wanted_column();
        if (depth == MOST_DEPTH || (column == NO_COLUMN && is_of_unknown_key())) return false;
        if (column != NO_COLUMN) {
            nested_column = column;
            nested_depth = depth;
            note_begin(column, NESTED, at);
        }
        const int own = is_object && column == NO_COLUMN ? node : OFF_PATH;
        objects = (objects & ~(1u << depth)) | (is_object ? 1u : 0u) << depth;
        if (depth < MOST_PATH) path = (path & ~(0xffull << 8 * depth)) | (uint64)own << 8 * depth;
        depth++;
        node = OFF_PATH;
        expected = is_object ? KEY_OR_END : VALUE_OR_END;
        return true;
    }

    __device__ __forceinline__ bool close(bool is_object, int64 at) {
        if (!depth || is_in_object() != is_object) return false;
        if (expected != COMMA_OR_END && expected != (is_object ? KEY_OR_END : VALUE_OR_END)) return false;
        depth--;
        node = OFF_PATH;
        expected = depth ? COMMA_OR_END : NOTHING;
        if (nested_column != NO_COLUMN && depth == nested_depth) {
            note_end(nested_column, at + 1);
            nested_column = NO_COLUMN;
        }
        return true;
    }

    __device__ __forceinline__ bool quote(int64 at) {
        in_string = !in_string;
        if (in_string) {
            string_begin = at + 1;
            return expected == KEY || expected == KEY_OR_END || (depth && expects_value());
        }
        return expected == KEY || expected == KEY_OR_END ? read_key(at) : read_value(STRING, string_begin, at);
    }

    __device__ __forceinline__ bool scalar(int64 at) {
        Kind kind;
        const int64 end = end_of_scalar(text, at, kind);
        return end >= 0 && depth && expects_value() && read_value(kind, at, end);
    }

    // Take the token that begins with `byte` at `at`.
    __device__ __forceinline__ bool token(uint8 byte, int64 at) {
        switch (byte) {
            case '"': return quote(at);
            case '{': return open(true, at);
            case '[': return open(false, at);
            case '}': return close(true, at);
            case ']': return close(false, at);
            case ':':
                if (expected != COLON) return false;
                expected = VALUE;
                return true;
            case ',':
                if (expected != COMMA_OR_END) return false;
                expected = is_in_object() ? KEY : VALUE;
                return true;
            default: return scalar(at);
        }
    }
};

// Read the object of a record. Return false if the host must read it. text: the record, which begins at byte `offset`
// of its block.
__device__ inline bool read_object(const Keys& keys, const Values& values, const Article& text, int record,
                                   uint32 offset) {
    ObjectReader reader{keys, values, text, record, offset};
    bool is_escaped = false;  // whether the next byte is escaped
    uint32 is_in_string = 0;  // all bits if the last byte was in a string, else 0
    uint32 in_scalar = 0;     // 1 if the last byte was in a scalar, else 0
    int unpaired = 0;         // the number of low surrogates minus that of high surrogates
    LaneBytes next = load_bytes(text.bytes, text.size);
    for (int64 at = 0; at < text.size; at += LANES) {
        const LaneBytes bytes = next;
        if (at + LANES < text.size) next = load_bytes(text.bytes + at + LANES, text.size - at - LANES);
        const uint32 backslashes = bytes_where(bytes, [](uint8 c) { return c == '\\'; });
        const uint32 escaped = escaped_by(backslashes, is_escaped);
        const uint32 quotes = bytes_where(bytes, [](uint8 c) { return c == '"'; }) & ~escaped;
        const uint32 in_string = parity_so_far(quotes) ^ is_in_string;  // from the quote that opens to the byte before the other
        is_in_string = (int32)in_string >> (LANES - 1);

        if (bytes_where(bytes, [](uint8 c) { return c < ' '; }) & in_string) return false;
        if (!is_utf8(text, at, bytes)) return false;
        const uint32 escapes = backslashes & ~escaped & in_string;
        if (escapes) {
            if (escapes_where(text, at, escapes, [](const Article& in, int64 from) { return !is_escape(in, from); }))
                return false;
            unpaired += count_bits(escapes_where(text, at, escapes, [](const Article& in, int64 from) {
                return is_low_surrogate(code_unit(in, from));
            }));
            unpaired -= count_bits(escapes_where(text, at, escapes, [](const Article& in, int64 from) {
                return is_high_surrogate(code_unit(in, from));
            }));
        }

        const uint32 outside = ~in_string & ~quotes;
        const uint32 structural = bytes_where(bytes, is_structural) & outside;
        const uint32 scalars = bytes_where(bytes, [](uint8 c) { return !is_space(c); }) & outside & ~structural;
        uint32 tokens = quotes | structural | (scalars & ~(scalars << 1 | in_scalar));
        in_scalar = scalars >> (LANES - 1);
        for (; tokens; tokens &= tokens - 1) {
            const int k = first_bit(tokens);
            if (escapes & bits_below(k)) reader.last_escape = at + last_bit(escapes & bits_below(k));
            if (!reader.token(bytes.of(k), at + k)) return false;
        }
        if (escapes) reader.last_escape = at + last_bit(escapes);
    }
    if (reader.expected != NOTHING || reader.in_string || unpaired) return false;
    reader.note_missing(~reader.found);
    return !(keys.texts & ~reader.strings) && !(keys.needed & ~reader.found);
}
