"""The kernels that read JSON, compiled for the CPU: for all that they accept, the host reads the same values."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import examples
from records_on_cpu import COMPILER, Finding, Read, at, compiled

from broadsheet.pipeline.kernels.json_keys import JsonKeys, json_keys
from broadsheet.pipeline.source.formats.jsonl import _parse_line
from broadsheet.pipeline.source.rows.chunk import Selection

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is here")


class Keys(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("names", "first", "edges", "columns", "below")),
        ("texts", ctypes.c_uint32),
        ("needed", ctypes.c_uint32),
        ("is_every_key", ctypes.c_uint8),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("kernels"))


def on_cpu(library: ctypes.CDLL, lines: Sequence[bytes], selection: Selection, longest: int = 1 << 20) -> list[Read]:
    columns = selection.columns
    keys = json_keys(columns, selection.text, [*selection.needed], selection.keep_all)
    assert isinstance(keys, JsonKeys)
    block = np.frombuffer(b"\n".join(lines) + b"\n", np.uint8)
    sizes = np.array([*map(len, lines)], np.uint32)
    begins = np.cumsum(np.append(0, sizes.astype(np.int64) + 1))[:-1].astype(np.uint32)
    arrays = (keys.names, keys.first, keys.edges, keys.columns, keys.below)
    tables = [np.append(table, np.zeros(1, table.dtype)) for table in arrays]
    given = Keys(*(table.ctypes.data for table in tables), keys.texts, keys.needed, keys.is_every_key)
    finding = Finding(library, block, begins, sizes, len(columns), longest)
    finding.find("objects", given)
    return finding.read(selection.reads)


def on_host(line: bytes, selection: Selection) -> dict[str, str | None] | None:
    """Return the values of a line, or None where the host refuses it or has a remark about it."""
    try:
        row, not_copied = _parse_line(line, selection)
    except ValueError:
        return None
    text = row[selection.text[0]]
    return None if not_copied or text is None else row


def check(library: ctypes.CDLL, lines: Sequence[bytes], selection: Selection) -> int:
    """Assert that the kernels read what the host reads. Return how many lines they have read."""
    accepted = 0
    for line, read in zip(lines, on_cpu(library, lines, selection), strict=True):
        if read.values is None:
            continue
        accepted += 1
        row = on_host(line, selection)
        assert row is not None, line
        text = row[selection.text[0]]
        assert text is not None
        expected = {**row, selection.text[0]: text[: selection.reads or None]}
        assert dict(zip(selection.columns, read.values, strict=True)) == expected, line
        assert read.characters == len(text), line
    return accepted


NAMES = ("text", "id", "a", "b", "label", "x", "a.b", "é")
PIECES = ("a", "é", "€", "𝄞", "\n", "\t", '"', "\\", "/", " ", "word ", "\x00", "\x7f", "\u2028")
ODD = ('"\\ud83d"', "NaN", "01", '"\\x"', '"', "\\", "-", "1e", '"\x01"', "Infinity", "9" * 80, '"te\\u0078t"')
BYTES = (0x22, 0x5C, 0x7B, 0x7D, 0x80, 0xFF, 0x2C, 0x3A, 0x20, 0x1F, 0x75, 0xC3, 0xED, 0xA0, 0xE2, 0x30)


def drawn_value(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if kind < 0.5:
        text = "".join(chance.choice(PIECES) for _ in range(chance.choice([0, 3, 20, 31, 32, 33, 64, 100])))
        return json.dumps(text, ensure_ascii=chance.random() < 0.5)
    if kind < 0.6:
        return chance.choice(["null", "true", "false"])
    if kind < 0.8:
        return chance.choice(["0", "-0", "12", "1.50", "1e5", "-3.25E-2", "123456789012345678901234567890"])
    if kind < 0.95 and depth < 4:
        if chance.random() < 0.5:
            return f"[{', '.join(drawn_value(chance, depth + 1) for _ in range(chance.randrange(3)))}]"
        return drawn_object(chance, chance.randrange(3), depth + 1)
    return chance.choice(ODD)


def drawn_object(chance: random.Random, members: int, depth: int = 0) -> str:
    def space() -> str:
        return chance.choice(["", "", "", " ", "  ", "\t", "\r"])

    pairs = (
        f"{space()}{json.dumps(chance.choice(NAMES))}{space()}:{space()}{drawn_value(chance, depth)}{space()}"
        for _ in range(members)
    )
    return f"{{{','.join(pairs)}}}"


def drawn_line(chance: random.Random) -> bytes:
    """Return a realistic line, sometimes with a few bytes changed."""
    pairs = [f'"text":{chance.choice(["", " "])}{json.dumps("".join(chance.choices(PIECES[:12], k=40)))}']
    pairs += [f'"label": {json.dumps(chance.choice(["Sports", "é", "a b", None, 3]))}']
    for name in ("id", "a", "x", "text"):
        if chance.random() < 0.4:
            value = drawn_object(chance, 2) if name == "a" and chance.random() < 0.7 else drawn_value(chance)
            pairs.append(f"{json.dumps(name)}:{value}")
    chance.shuffle(pairs)
    line = f"{{{', '.join(pairs)}}}" if chance.random() < 0.9 else drawn_object(chance, chance.randrange(6))
    data = bytearray(line.encode("utf-8", "surrogatepass"))
    for _ in range(chance.randrange(1, 4) if chance.random() < 0.3 else 0):
        place = chance.randrange(len(data))
        change = chance.random()
        if change < 0.4:
            data[place] = chance.choice(BYTES)
        elif change < 0.7 and len(data) > 1:
            del data[place]
        else:
            data.insert(place, chance.choice(BYTES))
    return bytes(data).replace(b"\n", b" ")


@pytest.mark.parametrize("keep_all", [False, True])
# Whole texts, and first characters, fewer and more than a warp has threads.
@pytest.mark.parametrize("reads", [0, 5, 33])
def test_what_the_kernels_read_the_host_reads_too(library: ctypes.CDLL, keep_all: bool, reads: int) -> None:
    chance = random.Random(f"{keep_all} {reads}")
    kept = ("id", "a.b", "x") if keep_all else ("id", "a.b")
    selection = Selection(kept_columns=kept, truth="label", keep_all=keep_all, reads=reads)
    lines = [drawn_line(chance) for _ in range(examples(4000))]
    assert check(library, lines, selection) > len(lines) / 5


def test_lines_that_people_write_are_not_left_to_the_host(library: ctypes.CDLL) -> None:
    rows = [
        {"text": 'A "quoted" tab\t, é and 𝄞' * repeats, "id": 7, "more": {"text": "inner", "list": [1, {"id": 2}]}}
        for repeats in range(40)
    ]
    lines = [json.dumps(row, ensure_ascii=i % 2 == 0).encode() for i, row in enumerate(rows)]
    lines += [b' { "id" : -1.50e3 , "text" : "" }\r', b'{"text": "first", "text": "last", "id": true}']
    lines += [b'{"id": null, "text": "\\/ \\b\\f\\n\\r\\t"}', b'{"text": "' + b"\\\\" * 50 + b'"}']
    assert check(library, lines, Selection(kept_columns=("id",))) == len(lines)
    nested = [b'{"text": "a", "m": {"u": {"v": "deep"}}}', b'{"m": {"u": 1}, "text": "b"}', b'{"text": "c", "m": [1]}']
    nested += [b'{"text": "d", "m": {"u": {"v": 1}}, "m": {"u": {}}}', b'{"text": "e", "m": {"u": {"v": null}}}']
    assert check(library, nested, Selection(kept_columns=("m.u.v",))) == len(nested)


def nested(chance: random.Random, keys: Sequence[str], depth: int = 0) -> str:
    """Return an object with distinct keys, as other programs write it, with any white space and any escapes."""

    def space() -> str:
        return chance.choice(["", "", " ", "\t"])

    def value() -> str:
        if depth < 3 and chance.random() < 0.3:
            return nested(chance, keys, depth + 1)
        if depth < 3 and chance.random() < 0.2:
            return f"[{space()}{','.join(value() + space() for _ in range(chance.randrange(4)))}]"
        text = "".join(chance.choices(PIECES, k=chance.choice([0, 3, 31, 32, 60])))
        return chance.choice([json.dumps(text, ensure_ascii=chance.random() < 0.5), "null", "true", "-0", "1.50e+3"])

    own = chance.sample(keys, chance.randrange(len(keys)))
    pairs = (f"{space()}{json.dumps(key, ensure_ascii=False)}{space()}:{space()}{value()}{space()}" for key in own)
    return f"{{{','.join(pairs)}{space()}}}"


def test_objects_and_arrays_are_written_as_the_host_writes_them(library: ctypes.CDLL) -> None:
    chance = random.Random(5)
    escapes = r"\" \\ \/ \b \f \n \r \t \u0022 \u005C \u002f \u0001 \u001F \u000a \u007f \u00e9 \u20AC \ud834\udd1e"
    values = [f'["{escapes * repeats}"]' for repeats in range(1, 9)] + ["{}", "[]", "[ ]", '[{"a": 1},{"a":2}]']
    values += [nested(chance, ("a", "b", "id", "a.b", "é", "k" * 40)) for _ in range(3000)]
    values += [f"[{','.join(map(str, range(1000)))}]", "[" * 30 + "]" * 30]
    lines = [f'{{"text": "a", "m": {value}, "id": 1}}'.encode() for value in values]
    assert check(library, lines, Selection(kept_columns=("m", "id"))) == len(lines)


@pytest.mark.parametrize(
    ("value", "is_read"),
    [
        ('{"a": 1, "a": 2}', False),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', False),
        ('[[], {"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}]', True),
        ('{"a": {"b": 1}, "b": 2}', True),
        ('{"a": {"b": 1}, "a": 2}', False),
        (r'{"\u0061": 1}', False),
        (json.dumps({str(i): i for i in range(128)}), True),
        (json.dumps({str(i): i for i in range(129)}), False),
        (json.dumps({str(i): i for i in range(128)})[:-1] + ', "5": 1}', False),
    ],
)
def test_a_key_that_occurs_twice_in_an_object_is_left_to_the_host(
    library: ctypes.CDLL, value: str, is_read: bool
) -> None:
    """The kernel reads the line if another value of the column follows and replaces it."""
    selection = Selection(kept_columns=("m",))
    assert check(library, [f'{{"text": "a", "m": {value}}}'.encode()], selection) == is_read
    assert check(library, [f'{{"text": "a", "m": {{"a": 1}}, "m": {value}}}'.encode()], selection) == is_read
    assert check(library, [f'{{"text": "a", "x": {value}, "m": {{"a": 1, "b": [2]}}}}'.encode()], selection) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a"} x', b'{"text": "a",}', b'{"text" "a"}', b'{"text": "a" "b"}', b'{"text": tru}', b'["text"]',
        b"", b'{"text": "a"}}',
        b'{"text": "a\x01"}', b'{"text": "\xff"}', b'{"text": "\xed\xa0\x80"}', b'{"text": "\\u12g4"}', b'{"text": 1}',
        b'{"text": null}', b'{"x": "a"}', b'{"text": "a", "id": [NaN]}', b'{"text": "a", "\\u0069d": 1}',
        b'{"text": "a", "x": "\\ud800"}', b'{"text": "a", "x": "\\udc00\\ud800"}', b"{" * 40 + b"}" * 40,
        b'{"text": "a", "x": 01}', b'{"text": "a", "x": .5}', b'{"text": "a", "x": NaN}', b'{"text": "a", "x": 1 2}',
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_host(library: ctypes.CDLL, line: bytes) -> None:
    beside = b'{"text": "before and after", "id": 1}'
    reads = on_cpu(library, [beside, line, beside], Selection(kept_columns=("id",)))
    assert [read.values for read in reads] == [["before and after", "1"], None, ["before and after", "1"]]


def test_a_line_that_is_too_long_is_left_to_the_host(library: ctypes.CDLL) -> None:
    lines = [b'{"text": "12345"}', b'{"text": "123456"}']
    assert [read.values for read in on_cpu(library, lines, Selection(), len(lines[0]))] == [["12345"], None]


def test_white_space_is_what_arrow_takes_for_it(library: ctypes.CDLL) -> None:
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    texts = pa.array([" " + point for point in points] + ["", " \n\u3000 ", " a", "\u3000"], pa.large_string())
    _, offsets, data = texts.buffers()
    offsets, data = np.frombuffer(offsets, np.int64), np.frombuffer(data, np.uint8)
    out = np.full(len(texts), 7, np.uint8)
    library.blank(at(data), at(offsets), len(texts), at(out))
    expected = pc.or_(pc.utf8_is_space(texts), pc.equal(texts, "")).to_numpy(zero_copy_only=False)
    expected[-1] = False  # as on the host, only texts that begin with an ASCII space or control are examined
    assert (out.view(np.bool_) == expected).all()
