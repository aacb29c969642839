"""Random lines of JSON: usual ones, and ones with random changes that readers may get wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from benchmarks.fuzz_records.texts import INVALID_UTF8, drawn_text, with_bytes_changed

Members = list[tuple[bytes, bytes]]
"""The keys and values of an object as they stand in the file, keys with their quotes."""

_KEYS = (
    b'"text"', b'"id"', b'"label"', b'"meta"', b'"meta.source.name"', b'"Text"', b'""', b'"te\\u0078t"',
    b'"i\\u0064"', b'"la\\bel"', b'"text "', b'"t\xc3\xa9xt"', b'"source"', b'"name"', b'"text\\u0000"',
    b'"\\ud83d\\ude00"', b'"\\ud800"', b'"class"', b'"extra"', b'"te\xff"', b"text", b"'text'", b"1", b'"te\\/xt"',
    b'"t\\\\"', b'"text\\"',
)  # fmt: skip

_NUMBERS = (
    b"0", b"-0", b"-0.0", b"01", b"-01", b"1.", b".5", b"+1", b"1e5", b"1E+5", b"1e-400", b"1e400", b"1e", b"1e+",
    b"0x10", b"NaN", b"-NaN", b"Infinity", b"-Infinity", b"Inf", b"-Inf", b"inf", b"nan", b"-", b"--1", b"1_000",
    b"1,5", b"123456789012345678901234567890", b"9" * 63, b"9" * 64, b"9" * 65, b"-" + b"9" * 63, b"0." + b"1" * 61,
    b"0." + b"1" * 62, b"1" + b"0" * 400, b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"1.50", b"1.5e3", b"00", b"-00.1", b"0e0", b"0E-0", b"1e" + b"0" * 62, b"1.0e+05", b"2e5000000",
)  # fmt: skip

_WORDS = (
    b"true", b"false", b"null", b"True", b"tru", b"nul", b"nulll", b"truefalse", b"None", b"undefined", b'true"',
    b"null1",
)  # fmt: skip

_VALUES = (
    b"[]", b"{}", b"[1, 2]", b'["a", "b"]', b'{"a": 1}', b'{"text": "inner"}', b'[[{"text": []}]]', b'{"source": 1}',
    b'{"source": {"name": "n"}}', b'{"source": {"name": null}}', b'{"source": {"name": ["x"]}}', b'{"source": [1]}',
    b'{"source": {"name": "a", "name": "b"}}', b'{"source": {"na\\u006de": "esc"}}', b'{"source": null}', b"[1,]",
    b"[,1]", b'{"a"}', b'{"a":}', b'{"a":1,}', b"[1 2]", b'{"a" 1}', b"{,}",
    b'{"source": {"name": "x"}, "source": {}}', b'{1: 2}', b'{"source": {"name": 1.50}}',
    b'{"source": {"n": "a"}, "body": "b"}', b'{"source.name": "dotted"}', b"[}", b"{]", b'{"body": {"a": 1}}',
    b'{"body": "first", "body": "last"}', b'"string"', b'""', b'" "', b'"\\u0000"', b"'single'", b'"\\ud83d\\ude00"',
    b'"\\ud83d"', b'"\\ude00"', b'"\\ude00\\ud83d"', b'"\\ud83d\\u0041"', b'"\\uD83D\\uDE00"', b'"\\u00e9"',
    b'"\\u12g4"', b'"\\u123"', b'"\\x41"', b'"\\\'"', b'"\\"', b'"\\\\\\"', b'"a\\', b'"\\ud83d\\\\ude00"',
    b'"\\ud83d\\n"', b'"\\ud83d" ', b'"\\U0041"', b'"\\u00E9\\u00c9"', b'"\\uFFFF\\ufffe"', b'"\\u2028\\u3000"',
    b'"\\ud800\\udc00"', b'"\\udbff\\udfff"', b'"\\ud7ff\\ue000"', b'"\\uDBFF"', b'"\\udc00"',
)  # fmt: skip

_INSERTED = (
    b"\\n", b"\\t", b"\\/", b'\\"', b"\\\\", b"\\b\\f\\r", b"\\u0041", b"\\u00e9", b"\\u20ac", b"\\ud834\\udd1e",
    b"\\uD834\\uDD1E", b"\\ud834", b"\\udd1e", b"\\ud834\\ud834\\udd1e", b"\\udd1e\\ud834", b"\\u0000",
    b"\\uD834\\u0041", b"\\u12", b"\\u", b"\\x41", b"\\'", b"\\", b"\\\\\\", b"\\a", b"\\0", b'"', b"\\u+123",
    b"\\u 123", b"\\u-001", b"\\u00 1", b"\\ud834\\u+d1e", b"\x00", b"\x01", b"\x1f", b"\x7f", b"\t", b"\r", b"\x0b",
    b"\xc2\x80", b"\xc2\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xf4\x8f\xbf\xbf", b"\xef\xbf\xbf",
    b"\xf0\x9d\x84\x9e", b"\xe3\x80\x80", *INVALID_UTF8,
)  # fmt: skip

_UNITS = (b"\\ud834", b"\\uD834", b"\\udd1e", b"\\uDD1E", b"\\udd1e", b"\\ud834\\udd1e", b"\\u0041", b"\\n", b"\\\\")
"""Escapes. Many of them are halves of a surrogate pair."""

_SPACES = (
    b" ", b"  ", b"\t", b"\r", b" \t\r ", b"\x0b", b"\x0c", b"\xc2\xa0", b"\xe3\x80\x80", b"\x00", b"\xef\xbb\xbf",
    b"\x1f",
)  # fmt: skip

_WHOLE = (
    b"", b" ", b"\t", b" \t \r", b"\r", b"\r\r", b"[]", b"{}", b"null", b"1", b'"text"', b"[{}]", b"{", b"}", b"{{}}",
    b"\x00", b"\xef\xbb\xbf", b"\x0b", b"\x0c", b"\xc2\xa0", b"{}{}", b'{"text": "a"}{"text": "b"}', b"// comment",
    b"NaN", b"{} ", b'[{"text": "a"}]', b'"', b"\\", b"{:}", b"{,}", b'{"text"}', b'{"text":}', b'{"text": "a"},',
    b"\xff", b" {}\r",
)  # fmt: skip


def _object(chance: random.Random) -> Members:
    """Draw the members of a usual object."""
    is_ascii = chance.random() < 0.5

    def written(value: object) -> bytes:
        return json.dumps(value, ensure_ascii=is_ascii).encode()

    # Draw the nested object, the usual members, and some others.
    source = {"name": drawn_text(chance, 3), "n": chance.randrange(10**6)}
    meta = {"source": source, "tags": [drawn_text(chance, 1) for _ in range(chance.randrange(3))]}
    meta["body"] = drawn_text(chance, chance.choice([0, 2, 9]))
    members = [
        (b'"id"', written(chance.choice([chance.randrange(10**9), f"id-{chance.randrange(10**6)}"]))),
        (b'"text"', written(drawn_text(chance, chance.choice([0, 1, 3, 5, 8, 8, 13, 21, 40, 150])))),
        (b'"label"', written(chance.choice(["a", "b", "b", "c d", "é"]))),
        (b'"meta"', written(meta)),
    ]
    others = [(b'"score"', written(chance.random())), (b'"url"', b'"https:\\/\\/example.org\\/a"'), (b'"ok"', b"true")]
    members += chance.sample(others, chance.choice([0, 0, 0, 1, 2]))
    if chance.random() < 0.2:
        chance.shuffle(members)
    return members


def _place(chance: random.Random, members: Members) -> int:
    """Draw the index of a member, often that of the text."""
    texts = [i for i, (key, _) in enumerate(members) if key == b'"text"']
    return chance.choice(texts) if texts and chance.random() < 0.4 else chance.randrange(len(members))


def _with_value(chance: random.Random, members: Members) -> None:
    """Give a key another value."""
    i = _place(chance, members)
    members[i] = members[i][0], chance.choice(chance.choice([_NUMBERS, _WORDS, _VALUES]))


def _with_key(chance: random.Random, members: Members) -> None:
    """Add a member, or give a value another key. The object may then have a key twice."""
    i = _place(chance, members)
    if chance.random() < 0.3:
        members[i] = chance.choice(_KEYS), members[i][1]
        return
    key = members[_place(chance, members)][0] if chance.random() < 0.6 else chance.choice(_KEYS)
    value = chance.choice(
        [members[i][1], *chance.choices(_VALUES, k=2), chance.choice(_NUMBERS), chance.choice(_WORDS)]
    )
    members.insert(chance.randrange(len(members) + 1), (key, value))


def _without(chance: random.Random, members: Members) -> None:
    """Remove a member."""
    del members[chance.randrange(len(members))]


def _nested(chance: random.Random, members: Members) -> None:
    """Add a value that is nested deep within arrays or objects."""
    i, depth = chance.randrange(len(members)), chance.choice([1, 2, 7, 8, 9, 29, 30, 31, 32, 33, 40, 63, 64, 65])
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"text":', b"}]")])
    key = members[i][0] if chance.random() < 0.3 else b'"deep"'
    members.append((key, opening * depth + chance.choice([b"1", b'"x"', b"[]", b"{}"]) + closing * depth))


def _with_inserted(chance: random.Random, members: Members) -> None:
    """Insert escapes and other bytes into a value."""
    i = _place(chance, members)
    key, value = members[i]
    drawn_from = chance.choice([_INSERTED, _INSERTED, _UNITS])
    for _ in range(chance.choice([1, 1, 1, 2, 3, 5, 40])):
        at = chance.randrange(len(value) + 1)
        value = value[:at] + chance.choice(drawn_from) + value[at:]
    members[i] = key, value


_OF_MEMBERS: list[Callable[[random.Random, Members], None]] = [
    _with_value,
    _with_key,
    _without,
    _nested,
    _with_inserted,
]


def _written(chance: random.Random, members: Members, spaced: float) -> bytes:
    """Write an object on a line. spaced: the probability of an odd space at each place for one."""

    def space(usual: bytes) -> bytes:
        return chance.choice(_SPACES[:5] if chance.random() < 0.9 else _SPACES) if chance.random() < spaced else usual

    pairs = (space(b"") + key + space(b"") + b":" + space(b" ") + value + space(b"") for key, value in members)
    return space(b"") + b"{" + (b"," + space(b" ")).join(pairs) + b"}" + space(b"")


def _cut(chance: random.Random, line: bytes) -> bytes:
    """Remove the beginning, the end, or up to 8 bytes in the middle of a line."""
    at = chance.randrange(len(line) + 1)
    return chance.choice([line[:at], line[at:], line[:at] + line[at + chance.randrange(9) :]])


def _doubled(chance: random.Random, line: bytes) -> bytes:
    """Repeat up to 60 bytes of a line."""
    begin, end = sorted(chance.randrange(len(line) + 1) for _ in range(2))
    return line[:end] + line[begin : min(end, begin + 60)] + line[end:]


def _swapped(chance: random.Random, line: bytes) -> bytes:
    """Replace one or two braces, brackets, commas, colons or quotes by others, or remove them."""
    places = [i for i, byte in enumerate(line) if byte in b'{}[]:,"']
    for i in chance.sample(places, min(len(places), chance.choice([1, 1, 2]))):
        line = line[:i] + chance.choice([b"{", b"}", b"[", b"]", b":", b",", b'"', b""]) + line[i + 1 :]
    return line


def _surrounded(chance: random.Random, line: bytes) -> bytes:
    """Add something before or after the object."""
    other = chance.choice([*_SPACES, b",", b"}", b"]", b"{}", b"x", b'"', b"null", b"#", b"\xff"])
    return other + line if chance.random() < 0.4 else line + other


def _whole(chance: random.Random, _: bytes) -> bytes:
    """Replace the whole line."""
    return chance.choice(_WHOLE)


_OF_LINES = [_cut, _doubled, _swapped, _surrounded, _whole, with_bytes_changed, with_bytes_changed]


def usual_line(chance: random.Random) -> bytes:
    """Draw a usual line of JSON."""
    return _written(chance, _object(chance), chance.choice([0.0, 0.0, 0.0, 0.05]))


def changed_line(chance: random.Random) -> bytes:
    """Draw a changed line. It may still be valid JSON, for example with odd escapes or spaces."""
    members = _object(chance)
    spaced = chance.choice([0.0, 0.0, 0.3])
    if chance.random() < 0.7:
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            if members:
                chance.choice(_OF_MEMBERS)(chance, members)
    line = _written(chance, members, spaced)
    return chance.choice(_OF_LINES)(chance, line) if chance.random() < 0.4 else line
