"""The kernels that read CSV and plain text, compiled for the CPU. What they accept has the records and values that the
host's reader finds, and the records that they leave to the host alone are read as they would be among the others.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import ALL, examples
from numpy.typing import NDArray
from records_on_cpu import COMPILER, Finding, Read, at, compiled

from broadsheet.pipeline.ingest.host_records import read_alone
from broadsheet.pipeline.source.formats.csv import Csv
from broadsheet.pipeline.source.formats.record_format import RecordFormat, Text
from broadsheet.pipeline.source.formats.records import Records
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is here")

SPAN = 64
COLUMNS = ("id", "x", "text", "x", "label")
SELECTION = Selection(kept_columns=("label", "id", "missing"))


class Dialect(ctypes.Structure):
    _fields_ = (("quote", ctypes.c_int), ("delimiter", ctypes.c_int))


class Fields(ctypes.Structure):
    _fields_ = (("dialect", Dialect), ("count", ctypes.c_int), ("wanted", ctypes.c_void_p))


class Block(NamedTuple):
    """What the kernels find in a block: the first byte and the size of each record, and the values that they read."""

    begins: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    reads: list[Read]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("kernels"))


def csv(delimiter: str = ",", quote: str = '"') -> Csv:
    """Return the format of a file with `COLUMNS`."""
    return Csv(columns=COLUMNS, delimiter=delimiter, quote=quote, cr_ends=False)


def on_cpu(
    library: ctypes.CDLL, form: RecordFormat, data: bytes, selection: Selection, longest: int = 1 << 20
) -> Block | None:
    """Return what the kernels find in a block, or None where it may end within quotes."""
    block = np.frombuffer(data, np.uint8)
    is_csv = isinstance(form, Csv)
    quote, delimiter = -1, -1
    if isinstance(form, Csv):
        quote, delimiter = ord(form.quote) if form.quote else -1, ord(form.delimiter)
    size, spans = ctypes.c_int64(len(block)), -(-len(block) // SPAN)
    dialect, insides = Dialect(quote, delimiter), None
    given = (at(block), size, SPAN, spans, ctypes.byref(dialect))
    if quote >= 0:
        changes, insides, unclear = np.full(spans, 7, np.uint8), np.full(spans + 1, 7, np.uint8), np.zeros(1, np.int32)
        library.changes(*given, at(changes), at(unclear))
        library.insides(at(changes), spans, at(insides))
        if unclear[0] or insides[-1]:
            return None
    counts = np.zeros(spans, np.int32)
    library.line_ends(*given, at(insides), at(counts))
    before = np.cumsum(counts, dtype=np.int32)
    ends = np.zeros(int(before[-1]), np.uint32)
    library.place(*given, at(insides), at(before), at(ends))
    begins, sizes = np.zeros(len(ends), np.uint32), np.zeros(len(ends), np.uint32)
    is_record, skipped = np.zeros(len(ends), np.uint8), np.zeros(1, np.int32)
    most_crs, rule = (0xFFFFFFFF, 1) if is_csv else (1, 0)
    found = (at(begins), at(sizes), at(is_record), at(skipped))
    library.lines(at(block), at(ends), len(ends), ctypes.c_uint32(most_crs), rule, *found)
    assert skipped[0] == len(ends) - is_record.sum()
    begins, sizes = begins[is_record == 1], sizes[is_record == 1]
    columns = form.columns if isinstance(form, Csv) else ("text",)
    wanted = np.array([columns.index(name) if name in columns else -1 for name in selection.columns], np.int32)
    finding = Finding(library, block, begins, sizes, len(wanted), longest)
    finding.find("fields", Fields(dialect, len(columns), wanted.ctypes.data))
    return Block(begins, sizes, finding.read(selection.reads, quote, len(selection.text)))


def on_host(form: RecordFormat, data: bytes, selection: Selection) -> tuple[Records, Chunk]:
    """Return what the host's reader finds."""
    split = form.split(data, False)
    assert split.consumed == len(data), data
    records = Records(data, split.starts, split.ends, split.starts, split.problems)
    return records, form.chunk_of(records, "f", 0, selection, None)


def told(chunk: Chunk, numbers: Sequence[int] | None = None) -> dict[int, object]:
    """Return all that a chunk says about each row, by its number. numbers: row numbers to use instead of the chunk's
    own.
    """
    assert isinstance(chunk.text, pa.Array)
    rows = chunk.rows.drop_columns("row").to_pylist()
    counts = [None] * len(rows) if chunk.n_chars is None else chunk.n_chars.tolist()
    known: dict[int, object] = {}
    for row, text, count, kept in zip(chunk.rows["row"].to_pylist(), chunk.text.to_pylist(), counts, rows, strict=True):
        known[row] = (text, count, kept)
    assert chunk.bad is not None
    for bad, kept in zip(chunk.quarantine.to_pylist(), chunk.bad.to_pylist(), strict=True):
        known[bad.pop("row")] = (bad, kept)
    return known if numbers is None else {numbers[row]: about for row, about in known.items()}


def check(library: ctypes.CDLL, form: RecordFormat, data: bytes, selection: Selection) -> tuple[int, int] | None:
    """Assert that the kernels find what the host finds. Return how many records they read, and how many they leave to
    the host, or None where they leave it the whole block.
    """
    found = on_cpu(library, form, data, selection)
    if found is None:
        return None
    odd = [i for i, read in enumerate(found.reads) if read.values is None]
    alone = None
    if odd:
        given = (found.begins[odd], found.sizes[odd])
        alone = read_alone(form, "f", selection, np.frombuffer(data, np.uint8), 0, *given)
        if alone is None:
            return None
    records, chunk = on_host(form, data, selection)
    assert found.begins.tolist() == records.starts.tolist(), data
    assert found.sizes.tolist() == records.sizes.tolist(), data
    expected = told(chunk)
    if alone is not None:
        left = told(alone, odd)
        assert left == {i: expected.pop(i) for i in odd}, data
    for i, about in expected.items():
        values, characters = found.reads[i]
        assert values is not None
        text, *others = values
        assert text is not None
        kept = dict(zip(selection.columns[len(selection.text) :], others, strict=True))
        rows = {"file": "f", **{name: kept[name] for name in selection.kept_columns}}
        assert about == (text.encode(), characters if selection.reads else None, rows), data
        assert characters >= len(text)
    return len(expected), len(odd)


PIECES = (
    "a",
    "é",
    "€",
    "𝄞",
    " ",
    "word ",
    "",
    "\\",
    "\x00",
    "'",
    "|",
    ";",
    "\t",
    "\r",
    "\x7f",
    "\ufeff",
    "N",
    "\\N",
    "\u3000",
)
BYTES = (0x22, 0x27, 0x2C, 0x3B, 0x09, 0x7C, 0x20, 0x0A, 0x0D, 0x80, 0xFF, 0xC3, 0xE2, 0xED, 0xA0, 0x00, 0x5C)
DIALECTS = [(",", '"'), ("\t", '"'), (";", "'"), ("|", ""), (" ", '"'), ("a", "b"), (",", " ")]


def drawn_field(chance: random.Random, form: Csv) -> str:
    text = "".join(chance.choice(PIECES) for _ in range(chance.choice([0, 1, 1, 3, 9, 31, 32, 33, 70])))
    if form.quote and chance.random() < 0.5:
        text += chance.choice(["", "", form.quote, form.delimiter, "\n", "\r\n", "\r", f"\n{form.quote}\n"])
        return form.quote + text.replace(form.quote, 2 * form.quote) + form.quote
    for character in (form.delimiter, form.quote or "\r", "\r", "\n"):
        text = text.replace(character, "")
    return text + (chance.choice(["\r", ""]) + "z" if chance.random() < 0.05 else "")


def drawn_block(chance: random.Random, form: Csv, is_good: bool = False) -> bytes:
    """Return realistic records. Unless they have to be good, some are too short, or have a few bytes changed."""
    lines = []
    for _ in range(chance.choice([1, 2, 5, 20])):
        fields = len(COLUMNS) if is_good or chance.random() < 0.97 else chance.randrange(1, 8)
        record = form.delimiter.join(drawn_field(chance, form) for _ in range(fields))
        end = chance.choice(["\n", "\n", "\n", "\r\n", "\r\r\n", "\n\n", "\n\r\n"])
        lines.append(record + (end.replace("\r\r", "\r") if is_good else end))
    data = bytearray("".join(lines).encode())
    if is_good:
        return bytes(data)
    for _ in range(chance.randrange(1, 4) if chance.random() < 0.4 else 0):
        place = chance.randrange(len(data))
        change = chance.random()
        if change < 0.4:
            data[place] = chance.choice(BYTES)
        elif change < 0.7 and len(data) > 1:
            del data[place]
        else:
            data.insert(place, chance.choice(BYTES))
    return bytes(data) + (b"" if data.endswith(b"\n") else b"\n")


# Whole texts; first characters, fewer and more than a warp has threads; a text of several columns.
@pytest.mark.parametrize(
    ("reads", "text"), [(0, ("text",)), (5, ("text",)), (33, ("text", "id")), (0, ("label", "id", "text"))]
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
def test_what_the_kernels_read_the_host_reads_too(
    library: ctypes.CDLL, dialect: tuple[str, str], reads: int, text: tuple[str, ...]
) -> None:
    chance, form = random.Random(f"{dialect} {reads} {text}"), csv(*dialect)
    selection = Selection(
        text, kept_columns=tuple(name for name in SELECTION.kept_columns if name not in text), reads=reads
    )
    blocks = [check(library, form, drawn_block(chance, form), selection) for _ in range(examples(300))]
    read = [block for block in blocks if block is not None]
    assert len(read) > len(blocks) / 3
    assert sum(accepted for accepted, _ in read) > len(blocks)


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
def test_rows_that_people_write_are_not_left_to_the_host(library: ctypes.CDLL, dialect: tuple[str, str]) -> None:
    chance, form = random.Random(f"{dialect}"), csv(*dialect)
    blocks = [check(library, form, drawn_block(chance, form, is_good=True), SELECTION) for _ in range(100)]
    assert all(block is not None and not block[1] for block in blocks)


@pytest.mark.parametrize("record", [b'a,b,5" of "rain,c,d', b'a,b, "x",c,d', b'a,b,x",c,"d"', b'"",b"","""",c,"d""e"'])
def test_a_quote_in_the_middle_of_a_field_is_a_character(library: ctypes.CDLL, record: bytes) -> None:
    for form in (csv(), csv(quote="")):
        for length in range(0, 60, 3):  # puts the record at any position in a span
            beside = b"1,2,before and after" + length * b'"' + b",3,4\n"
            assert check(library, form, beside + record + b"\n" + beside, SELECTION) == (3, 0)


@pytest.mark.parametrize(
    "record", [b'a,b,"x\n",c', b'a,b,"x,c,d', b"a,b,x" + b'"' * 200 + b",c,d", b'a,b,"' + b'""' * 200 + b'",c,d']
)
def test_where_it_is_not_clear_what_a_record_is_the_host_reads_all(library: ctypes.CDLL, record: bytes) -> None:
    """A quote is left open, or a run of quotes is longer than a span."""
    beside = b"1,2,before and after,3,4\n"
    assert check(library, csv(), beside + record + b"\n" + beside, SELECTION) is None


@pytest.mark.parametrize(
    "record",
    [
        b"a,b,c,d", b"a,b,c,d,e,f", b"a,b,\xff,d,e", b'"a","b\n","\xed\xa0\x80",d,e', b" ",
        b'a,b,"x"y,c,d', b'a,b,"x" ,c,d', b'a,b,"x"\r,c,d', b'"a",b,c,d,"e"f', b'a,b,"x"y"z",c,d',
    ],
)  # fmt: skip
def test_a_record_that_is_rare_or_bad_is_left_to_the_host_alone(library: ctypes.CDLL, record: bytes) -> None:
    beside = b"1,2,before and after,3,4\n"
    assert check(library, csv(), beside + record + b"\r\n" + beside, SELECTION) == (2, 1)


def test_a_record_that_is_too_long_is_left_to_the_host(library: ctypes.CDLL) -> None:
    found = on_cpu(library, csv(), b"1,2,345,6,7\n1,2,3456,7,8\n", SELECTION, 11)
    assert found is not None
    assert [read.values and read.values[0] for read in found.reads] == ["345", None]


@pytest.mark.parametrize("reads", [0, 7])
def test_lines_of_plain_text_are_texts_blank_ones_too(library: ctypes.CDLL, reads: int) -> None:
    chance = random.Random(reads)
    selection = Selection(kept_columns=("id",), reads=reads)
    lines = ["", " ", "\r", 'a "quoted", text', "é" * 40, "\ufeff", "𝄞\x00", "x" * 100]
    data = "".join(chance.choice(lines) + chance.choice(["\n", "\r\n"]) for _ in range(500)).encode()
    assert check(library, Text(), data, selection) == (500, 0)
    assert check(library, Text(), data + b"\xff\r\r\n" + data, selection) == (1000, 1)


def test_joined_texts_have_no_white_space_at_either_end(library: ctypes.CDLL) -> None:
    every = range(0x110000) if ALL else range(0x3100)  # all white space is below U+3100
    points = [chr(point) for point in every if not 0xD800 <= point < 0xE000]
    one, other = (pa.array([form.format(point) for point in points], pa.large_string()) for form in ("{0}a", "b{0}"))
    texts = pa.concat_arrays([one, other])
    _, offsets, data = texts.buffers()
    out = np.zeros(len(data) + len(points), np.uint8)
    kinds, begins, sizes = (np.zeros(len(points), kind) for kind in (np.uint8, np.uint32, np.uint32))
    given = (at(np.frombuffer(data, np.uint8)), at(np.frombuffer(offsets, np.int64)), len(points), 2)
    library.join(*given, at(out), at(kinds), at(begins), at(sizes))
    library.trim(at(out), len(begins), at(begins), at(sizes))
    joined, whole = out.tobytes(), pa.array([f"{point}a b{point}" for point in points], pa.large_string())
    found = [joined[i : i + n].decode() for i, n in zip(begins.tolist(), sizes.tolist(), strict=True)]
    assert found == pc.utf8_trim_whitespace(whole).to_pylist()
