"""Records of CSV, TSV, JSONL and text: found alike in blocks of any size, parsed as a plain parser does, and never
lost.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from reading import found, read_files, read_split

from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.source.formats.csv import Csv
from broadsheet.pipeline.source.formats.jsonl import Jsonl, parse_one_by_one
from broadsheet.pipeline.source.formats.record_format import NO_QUOTES
from broadsheet.pipeline.source.formats.records import Extent, read_records, split_lines
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, concat, empty_chunk, numbered
from broadsheet.pipeline.source.rows.cutting import Cutting
from broadsheet.pipeline.source.rows.limits import LIMITS, Limits

TWO = Selection(text=("text",), kept_columns=("id",))


def read_all(
    path: Path, selection: Selection, chunk_rows: int, limits: Limits = LIMITS, segment: int = 1 << 20
) -> list[Chunk]:
    return read_split(found([path], limits), selection, chunk_rows, segment).chunks


def plain_parse(
    data: bytes, fields: int, quote: bytes = b'"', escape: bytes = b"", cr_ends: bool = True
) -> tuple[list[list[bytes | None]], list[tuple[int, int]]]:
    """Parse RFC 4180 a byte at a time, with a choice of quote. Return the rows, and (record, offset) of the bad ones.

    A field that is only the escape and an N is null.

    A bad record ends after its first line if it spans lines and has the wrong number of fields, if its quote never
    closes, or if its last byte escapes nothing. An escaped byte is content, and so is what follows a closed quote. If a
    CR alone ends no record, the CRs before an LF or at the very end belong to the line end.
    """

    def line_end(at: int) -> int:
        """Return the length of the line end at this byte, or 0."""
        crs = len(data[at:]) - len(data[at:].lstrip(b"\r"))
        follows = data[at + crs : at + crs + 1]
        if cr_ends:
            return 2 if data[at : at + 2] == b"\r\n" else int(crs > 0 or follows == b"\n")
        return crs + 1 if follows == b"\n" else 0 if follows else crs

    rows: list[list[bytes | None]] = []
    bad: list[tuple[int, int]] = []
    null = escape and escape + b"N"
    record = start = 0
    while start < len(data):
        at, row, value, state, touched = start, [], bytearray(), "start", False
        begin = start
        while True:
            c = data[at : at + 1]
            if c and c == escape:
                value += data[at + 1 : at + 2]
                at, touched = at + 2, True
                state = "plain" if state == "start" else state
                if at > len(data):
                    state, at = "quoted", len(data)
            elif state == "quoted":
                if not c:
                    break
                at += 1
                if c == quote and data[at : at + 1] == quote:
                    value += c
                    at += 1
                elif c == quote:
                    state = "plain"
                else:
                    value += c
            elif state == "start" and c and c == quote:
                state, at, touched = "quoted", at + 1, True
            elif not c or line_end(at):
                row.append(None if null and data[begin:at] == null else bytes(value))
                break
            else:
                at += 1
                touched = True
                state = "start" if c == b"," else "plain"
                if c == b",":
                    row.append(None if null and data[begin : at - 1] == null else bytes(value))
                    value.clear()
                    begin = at
                else:
                    value += c
        after = at + max(line_end(at), 1)
        if touched:
            if state != "quoted" and len(row) == fields:
                rows.append(row)
            else:
                bad.append((record, start))
                at = next((i for i in range(start, at) if line_end(i)), len(data) if state == "quoted" else at)
                after = at + max(line_end(at), 1)
            record += 1
        start = after
    return rows, bad


csv_bytes = st.lists(
    st.sampled_from(
        [b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b"bc", b" ", b'","', b'"\n"', b"x,y\n", b'"x","y"\n']
    )
).map(b"".join)
dialects = st.fixed_dictionaries(
    {"quote": st.sampled_from(['"', "'", ""]), "escape": st.sampled_from(["", "\\"]), "cr_ends": st.booleans()}
)
DEFAULT = {"quote": '"', "escape": "", "cr_ends": True}


def of_dialect(data: bytes, dialect: dict) -> tuple[bytes, list[list[bytes | None]], list[tuple[int, int]]]:
    """Return the data with the quotes of the dialect, and the result of the plain parser."""
    data = data.replace(b'"', dialect["quote"].encode() or b'"')
    quote, escape = dialect["quote"].encode(), dialect["escape"].encode()
    return data, *plain_parse(data, 2, quote, escape, dialect["cr_ends"])


def without_null_texts(quarantine: pa.Table) -> pa.Table:
    """Return the quarantined rows that could not be parsed."""
    return quarantine.filter(pc.not_equal(quarantine["reason"], "the text is null"))


escapes = st.lists(st.sampled_from([b"\\", b"\\N", b",\\N\n"]), max_size=3).map(b"".join)
any_bytes = st.tuples(csv_bytes, csv_bytes, escapes, csv_bytes).map(b"".join)


@settings(max_examples=examples(900), deadline=None)
@given(any_bytes, st.integers(1, 7), dialects)
@example(b'1,2\n"open,2\n3,4\n', 3, DEFAULT)
@example(b'1,2\n"a"b"c,2\n5" disk,x\n', 2, DEFAULT)
@example(b'1,"a\\"b"\n1,a\\\nb\n1\\\n2,x\n3,\\', 2, DEFAULT | {"escape": "\\"})
@example(b'1,a\rb\r\r\n"1",2\r"x\r\n', 2, DEFAULT | {"cr_ends": False})
def test_records_are_found_as_a_plain_parser_finds_them(data: bytes, block: int, dialect: dict) -> None:
    """Blocks of any size give as many records, and the same bad ones at the same offsets."""
    data, rows, bad = of_dialect(data, dialect)
    split = Csv(columns=("a", "b"), **dialect).split
    blocks = list(read_records(io.BytesIO(data), split, 0, limits=Limits(block_bytes=block)))
    starts = [int(o) for b in blocks for o in b.offsets]
    wrong = {int(b.offsets[i]) for b in blocks for i in b.problems}
    assert len(starts) == len(rows) + len(bad)
    assert starts == sorted(starts)
    assert [(starts.index(o), o) for o in sorted(wrong)] == bad


@settings(max_examples=examples(600), deadline=None)
@given(any_bytes, st.integers(1, 60), dialects)
@example(b"1,2\n1,2,3\n1\n4,5\n", 60, DEFAULT)
@example(b'1,2\nx"y,2\nx"y",2,3\n4,5\n', 60, DEFAULT)
@example(b"1,\\N\n\\N,2\n\\N,\\\\N\n\\N", 60, DEFAULT | {"escape": "\\"})
@example(b'1,a\r\\N\n"\n\\N\n",\\N\r\n\\N,x\ry', 60, DEFAULT | {"cr_ends": False, "escape": "\\"})
@example(b'a,\r\rb\n1,2\r"x\r\n\r\r\n"\r",\\\r\n', 60, DEFAULT | {"cr_ends": False, "escape": "\\"})
def test_fields_that_the_parser_counts_are_those_of_a_plain_parser(data: bytes, block: int, dialect: dict) -> None:
    """Where the scan does not count fields, the rows and the bad rows are the same."""
    data, rows, bad = of_dialect(data, dialect)
    form, selection = (
        Csv(columns=("a", "b"), **dialect),
        Selection(("a",), kept_columns=("b",), kept_types=(pa.string(),)),
    )
    chunks, row = [empty_chunk(selection)], 0
    for records in read_records(io.BytesIO(data), form.quick_split, 0, limits=Limits(block_bytes=block)):
        chunks.append(form.parse(records, "f", row, selection))
        row += len(records)
    chunk = concat(chunks)
    assert [*zip(chunk.text.to_pylist(), chunk.rows["b"].to_pylist(), strict=True)] == [
        (a, None if b is None else b.decode()) for a, b in rows if a is not None
    ]
    quarantined = without_null_texts(chunk.quarantine)
    assert len(chunk.quarantine) - len(quarantined) == sum(a is None for a, _ in rows)
    assert [*zip(quarantined["row"].to_pylist(), quarantined["byte_offset"].to_pylist(), strict=True)] == bad


@settings(max_examples=examples(100), deadline=None)
@given(any_bytes, st.integers(4, 60), st.sampled_from([LIMITS.field_bytes, 9]), dialects)
@example(b'1,2\nx,"y\n3,4\n5,6"\n7,8\n', 12, 99, DEFAULT)
@example(b'1,2\n5" disk,x\n1,"y\n"\n3,4\n1,2\n', 14, 99, DEFAULT)
@example(b'1,2\n\xff,4\n5,6\n"7,8\n1,2\n', 8, 99, DEFAULT)
@example(b'""""\r\n","x,y\n""""""","""""\n', 12, 9, DEFAULT)
@example(b'"""""\r\n","x,y\n""""""""","', 12, 9, DEFAULT)
@example(b"1,2\n3,\xff\xfe\n5,\r6\n\xff\xfe\xfe,\r\n", 99, 99, DEFAULT | {"cr_ends": False})
@example(b"1,2\n3,4\\\n5\n6,7\n", 8, 99, DEFAULT | {"escape": "\\"})
def test_blocks_that_are_parsed_unscanned_are_those_of_a_scan(
    data: bytes, block: int, longest: int, dialect: dict
) -> None:
    """Wherever blocks end, and whichever column is read, the rows, the quarantine, the numbers and the sizes are the
    same.
    """
    data = of_dialect(data, dialect)[0]
    form = Csv(columns=("a", "b"), limits=Limits(longest, block), **dialect)
    for selection in (Selection(("a",)), Selection(("b",), kept_columns=("a",), kept_types=(pa.string(),))):
        parsed = [*form.parsed(io.BytesIO(data), 3, Extent(), "f", selection, None)]
        firsts = [7, *(7 + n for n in accumulate(part.chunk.rows_read for part in parsed))]
        blocks = [numbered(part.chunk, first) for part, first in zip(parsed, firsts, strict=False)]
        chunk, row = concat([empty_chunk(selection), *blocks]), 7
        scanned, sizes = [empty_chunk(selection)], [np.empty(0, np.int64)]
        for records in read_records(io.BytesIO(data), form.split, 3, limits=form.limits):
            scanned.append(form.parse(records, "f", row, selection))
            sizes.append(records.ends - records.starts)
            row += len(records)
        expected = concat(scanned)
        # A record that is too long ends where its block ends, and its reason depends on the block too, even in a scan.
        aside, good = ["row", "byte_offset", *(["reason", "head"] if longest > 9 else [])], np.ones(row - 7, bool)
        good[np.array(expected.quarantine["row"].to_pylist(), np.int64) - 7] = longest > 9
        assert (chunk.text, chunk.rows) == (expected.text, expected.rows)
        assert chunk.quarantine.select(aside) == expected.quarantine.select(aside)
        own = np.concatenate([sizes[0], *(part.sizes() for part in parsed)])
        assert [*own[good]] == [*np.concatenate(sizes)[good]]
        assert all(part.sizes().sum() <= part.total_bytes for part in parsed)


values = st.lists(st.sampled_from(["a", "bc", " ", "é", '"', ",", ";", "\t", "|", "\n", "\r\n", "\r"]), max_size=5)


@settings(max_examples=examples(36), deadline=None)
@given(
    st.lists(st.tuples(values.map("".join), values.map("".join)), min_size=1, max_size=4),
    st.sampled_from(",;\t|"),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(
        [
            {"quoting": csv.QUOTE_ALL},
            {"quoting": csv.QUOTE_MINIMAL, "quotechar": "'"},
            {"quoting": csv.QUOTE_ALL, "escapechar": "\\", "doublequote": False},
            {"quoting": csv.QUOTE_NONE, "escapechar": "\\", "quotechar": None},
        ]
    ),
)
@example([("a", "b\r\nc"), ("d", "e\r\n\r\nf")], ",", "\r\n", {"quoting": csv.QUOTE_ALL})
def test_records_cut_at_every_byte_are_those_of_python(rows, delimiter: str, ending: str, dialect: dict) -> None:
    """The rows equal those written, in every dialect, wherever a block for reading or for parsing ends."""
    # Python's writer before 3.13 leaves a CR unquoted, and a CR before the LF that ends the record belongs to the line
    # end.
    assume(ending == "\r\n" or dialect["quoting"] == csv.QUOTE_ALL or not any(b.endswith("\r") for _, b in rows))
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=ending, **dialect).writerows(rows)
    data, expected = text.getvalue().encode(), [list(row) for row in rows]
    quote = '"' if dialect["quoting"] == csv.QUOTE_ALL else dialect["quotechar"] or ""
    ours = {"delimiter": delimiter, "quote": quote, "escape": dialect.get("escapechar", ""), "cr_ends": False}
    selection = Selection(("b",), kept_columns=("a",), kept_types=(pa.string(),))
    for size in range(1, len(data) + 1):
        for limits in (
            Limits(block_bytes=size),
            Limits(parsed_bytes=size),
            Limits(block_bytes=size + 2, parsed_bytes=size),
        ):
            form = Csv(columns=("a", "b"), limits=limits, **ours)
            parsed = form.parsed(io.BytesIO(data), 0, Extent(), "f", selection, None)
            chunk = concat([empty_chunk(selection), *(part.chunk for part in parsed)])
            read = zip(chunk.rows["a"].to_pylist(), chunk.text.to_pylist(), strict=True)
            assert [[a, b.decode()] for a, b in read] == expected, (size, limits)


def test_the_chunk_size_does_not_change_a_text(tmp_path: Path) -> None:
    """The test puts a line end within quotes at every position around the edge of a block."""
    path, rows = tmp_path / "f.csv", LIMITS.parsed_bytes // 15
    for shift in range(25):
        lines = [f'{i},"{"two lines" if i else "x" * shift}\r\n of news"\r\n' for i in range(rows)]
        path.write_bytes(b"id,text\r\n" + "".join(lines).encode())
        texts = [("two lines" if i else "x" * shift).encode() + b"\r\n of news" for i in range(rows)]
        for chunk_rows in (100, rows):
            assert read_files(found([path]), TWO, chunk_rows).texts == texts, (shift, chunk_rows)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6)), st.integers(1, 5), st.integers(1, 30), st.data())
def test_rows_are_cut_the_same_whether_their_sizes_are_known(runs: list[list[int]], rows: int, most: int, data) -> None:
    both = []
    for known in (True, False):
        cutting, cuts, at = Cutting(rows, most), [], 0
        for run in map(np.array, runs):
            sizes, bound = run.astype(np.int64), int(run.sum()) + 3
            is_sized = known or data.draw(st.booleans())
            pieces = cutting.cut(sizes) if is_sized else cutting.cut_unsized(len(run), bound, lambda s=sizes: s)
            cuts += [at + first for first, _, new in pieces if new]
            at += len(run)
        both.append(cuts)
    assert both[0] == both[1]


@settings(max_examples=examples(600), deadline=None)
@given(any_bytes, st.integers(1, 40), st.integers(1, 40), dialects)
def test_long_lines_and_fields_are_found_the_same_in_any_blocks(data: bytes, one: int, other: int, dialect) -> None:
    both, data = [], of_dialect(data, dialect)[0]
    for block in (one, other):
        limits = Limits(field_bytes=12, block_bytes=block)
        split = Csv(columns=("a", "b"), limits=limits, **dialect).split
        blocks = read_records(io.BytesIO(data), split, 0, limits=limits)
        both.append([(int(offset), i in b.problems) for b in blocks for i, offset in enumerate(b.offsets)])
    assert both[0] == both[1]


@settings(max_examples=examples(200), deadline=None)
@given(any_bytes, st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), dialects)
@example(b',"\n""x","y"\n', 1, 1, 1, {"quote": '"', "escape": "", "cr_ends": False})  # 3 fields, or 2 in line 2
def test_chunks_hold_each_row_once_whatever_their_size(
    tmp_path_factory, data: bytes, chunk_rows: int, segment: int, guess: int, dialect: dict
) -> None:
    """The file is read in parts of any size, each of which begins where the one before it ends, however it was guessed.

    The first record decides whether a CR alone ends a record.
    """
    path = tmp_path_factory.mktemp("csv") / "f.csv"
    data, rows, bad = of_dialect(data, dialect)
    assume(not (dialect["cr_ends"] and re.match(rb"\r*\n", data)))  # the header's line would end with an LF
    path.write_bytes(b"id,text" + (b"\r" if dialect["cr_ends"] else b"\n") + data)
    selection = replace(TWO, quote=dialect["quote"] or NO_QUOTES, escape=dialect["escape"] or None)
    try:
        chunks = read_all(path, selection, chunk_rows, Limits(guess_bytes=guess), segment)
    except UsageError:  # each row has one field more than the header, even where two of its lines could be a row
        wide, misread = plain_parse(data, 3, dialect["quote"].encode(), dialect["escape"].encode(), dialect["cr_ends"])
        assert wide
        assert not misread
        return
    assert all(c.rows_read <= chunk_rows for c in chunks)
    whole = concat(chunks)
    assert whole.text.to_pylist() == [text for _, text in rows if text is not None]
    ids = [None if row is None else row.decode() for row, text in rows if text is not None]
    assert whole.rows.column("id").to_pylist() == ids
    unparsed = without_null_texts(whole.quarantine)
    assert len(whole.quarantine) - len(unparsed) == sum(text is None for _, text in rows)
    assert unparsed.column("row").to_pylist() == [row for row, _ in bad]
    assert unparsed.column("byte_offset").to_pylist() == [offset + 8 for _, offset in bad]
    everything = sorted(whole.rows.column("row").to_pylist() + whole.quarantine.column("row").to_pylist())
    assert everything == list(range(len(rows) + len(bad)))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_bad_records_are_set_aside_with_place_and_reason(tmp_path: Path, ending: bytes) -> None:
    lines = [
        b"id,text",
        b"0,good",
        b'1,"two' + ending + b'lines, and a ""quote"""',
        b"2",
        b"3,too,many",
        b"4,caf\xe9",
        b"",
        b'5,5" disk \\n',
        b"6,",
        b'7,"never closed',
        b"\xef\xbb\xbf8,marked",
        b"9,last",
    ]
    path = tmp_path / "f.csv"
    path.write_bytes(b"\xef\xbb\xbf" + ending.join(lines))
    chunk = concat(read_all(path, TWO, 3))
    assert chunk.rows.column("id").to_pylist() == ["0", "1", "5", "6", "\ufeff8", "9"]
    assert chunk.text.to_pylist()[1:4] == [b"two" + ending + b'lines, and a "quote"', b'5" disk \\n', b""]
    aside = {b["row"]: b for b in chunk.quarantine.to_pylist()}
    assert {row: b["reason"] for row, b in aside.items()} == {
        2: "expected 2 fields, found 1",
        3: "expected 2 fields, found 3",
        4: "column 'text' is not UTF-8: byte 3 of it is 0xe9",
        7: "a quoted field is not closed within 16 MiB or before the end",
    }
    raw = path.read_bytes()
    for b in aside.values():
        assert raw[b["byte_offset"] :].startswith(b["head"])
    assert aside[7]["head"] == b'7,"never closed'
    for rows in (1, 2, 3, 100):  # front to back, where blocks are cut into chunks
        again = concat(read_files(found([path]), TWO, rows).chunks)
        assert (again.text, again.rows, again.quarantine) == (chunk.text, chunk.rows, chunk.quarantine)


def test_an_unclosed_quote_costs_one_line_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    line = b'%d,"' + b"x" * 1000 + b'"\n'
    rows = LIMITS.field_bytes // 1000 + 500
    # Unquoted rows follow, so nothing closes the quote within the limit.
    body = [
        b"id,text\n",
        *(line % i for i in range(5)),
        b'5,"open\n',
        *(b"%d,%s\n" % (i, b"y" * 1000) for i in range(6, rows)),
    ]
    path.write_bytes(b"".join(body))
    chunks = read_all(path, TWO, 4096)
    aside = [b for c in chunks for b in c.quarantine.to_pylist()]
    assert [(b["row"], b["head"]) for b in aside] == [(5, b'5,"open')]
    assert sum(len(c) for c in chunks) == rows - 1
    assert concat(chunks).rows.column("row").to_pylist() == [i for i in range(rows) if i != 5]


def test_a_line_over_the_limit_is_one_bad_row(tmp_path: Path) -> None:
    for name, before, after in (
        ("f.txt", b"", b"x\n"),
        ("f.jsonl", b"", b'{"text": "x"}\n'),
        ("f.csv", b"text\n", b"x\n"),
    ):
        path = tmp_path / name
        path.write_bytes(before + after + b"y" * (LIMITS.field_bytes + 5000) + b"\n" + after)
        chunk = concat(read_all(path, Selection(text=()), 10))
        assert chunk.text.to_pylist() == [b"x", b"x"], name
        (bad,) = chunk.quarantine.to_pylist()
        assert (bad["row"], bad["byte_offset"], bad["head"]) == (1, len(before + after), b"y" * 256)
        assert "longer than 16 MiB" in bad["reason"]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"\r", b"bc"])).map(b"".join), st.integers(1, 5))
def test_lines_are_found_the_same_in_any_blocks(data: bytes, block: int) -> None:
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    if not data.split(b"\n")[-1]:
        expected.pop()
    blocks = list(read_records(io.BytesIO(data), split_lines, 0, limits=Limits(block_bytes=block)))
    lines = [b.data[s:e] for b in blocks for s, e in zip(b.starts, b.ends, strict=True)]
    assert lines == expected
    offsets = np.cumsum([0, *(len(line) + 1 for line in data.split(b"\n"))])[: len(expected)]
    assert [int(o) for b in blocks for o in b.offsets] == offsets.tolist()


def test_jsonl_rows_are_read_or_set_aside(tmp_path: Path) -> None:
    lines = [
        json.dumps({"id": 1, "text": "plain"}).encode(),
        json.dumps({"id": "two", "text": "escaped \u00e9 \n"}).encode(),
        b"",
        b'{"id": 3, "text": null}',
        b'{"id": 4}',
        b"not json",
        b'{"id": 5, "text": 5}',
        b'{"id": 6, "text": "x"}{"id": 7, "text": "y"}',
        b"[1]",
        b'{"id": {"a": [1]}, "text": "nested id", "more": [1, 2]}',
        b'{"id": 9, "text": "caf\xe9"}',
        b'{"id": 10, "text": "half \\ud83d"}',
        b'{"id": null, "text": ""}',
    ]
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\n".join(lines))
    chunk = concat(read_all(path, TWO, 4))
    assert chunk.rows.column("row").to_pylist() == [0, 1, 8, 11]
    assert chunk.rows.column("id").to_pylist() == ["1", "two", '{"a": [1]}', None]
    assert chunk.text.to_pylist()[1] == "escaped \u00e9 \n".encode()
    reasons = dict(zip(*(chunk.quarantine.column(c).to_pylist() for c in ("row", "reason")), strict=True))
    assert reasons[2] == "the text is null"
    assert reasons[3] == "no key 'text'"
    assert reasons[4].startswith("not JSON")
    assert reasons[5] == "the text 'text' is a number, not a string"
    assert "Extra data" in reasons[6]
    assert reasons[7] == "not a JSON object but an array"
    assert "not UTF-8" in reasons[9]
    assert "surrogate" in reasons[10]
    assert len(reasons) + len(chunk) == 12


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
json_rows = st.fixed_dictionaries(
    {}, optional={"text": st.text(max_size=8) | json_values, "id": st.integers(0, 99) | json_values, "x": json_values}
)
json_lines = st.builds(
    lambda row, ascii_only: (
        json.dumps(row, ensure_ascii=ascii_only).encode(errors="surrogatepass").replace(b": 7", b": -0")
    ),
    st.fixed_dictionaries({"text": st.text(max_size=8), "id": st.integers(0, 99)}, optional={"x": json_values})
    | json_rows,
    st.booleans(),
)
spoilt = st.tuples(
    st.integers(0, 60),
    st.sampled_from([b"", b"}", b"{", b"\n", b"\xff", b"Inf", b"-NaN", b",", b'"', b" ", b"\r", b"\\"]),
)


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(json_lines, min_size=1, max_size=5), st.lists(spoilt, max_size=2), st.sampled_from([b"\n", b"\r\n"]))
@example([b'{"text":"a","id":1}', b'{"text":"b","x":' + b"[" * 5000 + b"]" * 5000 + b',"id":2}'], [], b"\n")
@example([b'{"text":"a","id":1,"x":' + b"1" * 5000 + b"}"], [], b"\n")
@example([b'{"text":"a","id":1}', b'{"text":"\\": -0,","id":-0}', b'{"text":"a","id": -0 ,"x":[-0]}'], [], b"\n")
@example([b'{"text":"a","id":1}{"text":"b","id":', b"2}"], [], b"\n")
@example([b'{"text":"a","id":1,"id":2}', b'{"text":"\\udc00","id":2}', b'{"text":"a","x":Inf,"id":1}'], [], b"\n")
def test_json_lines_at_once_are_json_lines_one_by_one(lines: list[bytes], spoils, ending: bytes) -> None:
    """The rows and the quarantine of a block are those of each line alone, whatever the lines are."""
    data = ending.join([*lines, b""])
    for at, what in spoils:
        data = data[: at % (len(data) + 1)] + what + data[at % (len(data) + 1) + 1 :]
    selection = Selection(text=("text",), kept_columns=("id",), kept_types=(pa.string(),))
    for block in read_records(io.BytesIO(data), Jsonl().split, 0):
        at_once = Jsonl().parse(block, "f", 0, selection)
        alone = parse_one_by_one(block, "f", 0, selection)
        assert at_once.text.equals(alone.text)
        assert at_once.rows.equals(alone.rows)
        assert at_once.quarantine.equals(alone.quarantine)


def test_a_zero_byte_after_many_long_rows_is_a_part_of_its_field(tmp_path: Path) -> None:
    before = "1,a field of several words that are long on average\n" * 30_000
    path = tmp_path / "a.csv"
    path.write_text(f'id,text\n{before}2\0,"measured \0"\n3,in \0 grams\n')
    chunk = concat(read_all(path, TWO, 1000))
    assert len(chunk) == 30_002
    assert chunk.text.to_pylist()[-2:] == [b"measured \0", b"in \0 grams"]
    assert chunk.rows["id"].to_pylist()[-3:] == ["1", "2\0", "3"]


def test_a_null_of_mysql_is_null(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"id\ttext\n\\N\ta\n2\t\\N\n3\tN\n4\t\\\\N\n5\tx\\N\n")
    selection = replace(TWO, delimiter="\t", quote=NO_QUOTES)
    chunk = concat(read_all(tmp_path / "f.csv", replace(selection, escape="\\"), 9))
    assert chunk.text.to_pylist() == [b"a", b"N", b"\\N", b"xN"]
    assert chunk.rows["id"].to_pylist() == [None, "3", "4", "5"]
    assert chunk.quarantine.select(["row", "reason"]).to_pylist() == [{"row": 1, "reason": "the text is null"}]
    plain = concat(read_all(tmp_path / "f.csv", selection, 9))
    assert plain.text.to_pylist() == [b"a", b"\\N", b"N", b"\\\\N", b"x\\N"]


# Every spelling that Excel accepts: with quotes, a byte order mark, and each line end.
@pytest.mark.parametrize("line", ["sep=;\r\n", "SEP=;\n", '"sep=;"\r\n', "\ufeffsep=;\n", "sep=;\r"])
def test_a_line_for_excel_names_the_delimiter(tmp_path: Path, line: str) -> None:
    end = line[line.index(";") :].strip(';"')
    (tmp_path / "f.csv").write_bytes((line + "id;text\n1;Stocks, fell\n2;Goal!\n".replace("\n", end)).encode())
    for selection in (TWO, replace(TWO, delimiter=";"), replace(TWO, header=("id", "text"))):
        expected = ["id", "1", "2"] if selection.header else ["1", "2"]
        for read_as in (read_files, read_split):
            result = read_as(found([tmp_path]), selection, 9)
            assert not result.messages
            assert concat(result.chunks).rows["id"].to_pylist() == expected
            assert result.texts[-2:] == [b"Stocks, fell", b"Goal!"]


def test_a_delimiter_of_the_user_counts_more_than_the_line_for_excel(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"sep=;\nid,text\n1,a;b\n")
    assert read_files(found([tmp_path]), replace(TWO, delimiter=","), 9).texts == [b"a;b"]


def test_a_file_in_which_no_first_line_can_be_read_is_one_problem(tmp_path: Path) -> None:
    """The files beside it are read, whichever comes first."""
    bad = [b'"', b'"text\nan article\n', b'id,"text\n1,one\n', b'"' * 5, b'"a,' * 51]
    for number, content in enumerate(bad):
        (tmp_path / f"{number}.csv").write_bytes(content)
        (tmp_path / f"{number}.tsv").write_bytes(content.replace(b",", b"\t"))
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,one\n")
    (tmp_path / "0.jsonl").write_bytes(b'{"text": "two"}')
    for files in (found([tmp_path]), found([tmp_path])[::-1]):
        result = read_files(files, Selection(), 9)
        assert sorted(result.texts) == [b"one", b"two"]
        assert len(result.messages) == 2 * len(bad)
        for message in result.messages:
            assert "its first line cannot be read: a quoted field is not closed" in message
            assert message.endswith("--quote none")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(list('",;\t\n\r\\a\ufeff\0')), max_size=12).map("".join), dialects)
def test_whatever_a_file_begins_with_it_is_read_or_named(data: str, dialect: dict) -> None:
    quote, escape = dialect["quote"] or NO_QUOTES, dialect["escape"] or None
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.csv").write_bytes(data.encode())
        (Path(folder) / "b.csv").write_bytes(b"id,text\n1,one\n")
        result = read_files(found([folder]), Selection(quote=quote, escape=escape), 9)
    assert result.texts[-1] == b"one"


R_FILE = b'"text","class"\n"1","Stocks\nfell","a"\n"2","Goal!","b"\n'
ENDS_WITH_DELIMITERS = b"id,text\n1,Stocks fell,\n2,Goal!,\n"


@pytest.mark.parametrize(("content", "remedy"), [(R_FILE, "col.names = NA"), (ENDS_WITH_DELIMITERS, "to the header")])
def test_a_header_with_one_name_fewer_than_fields_is_refused_by_name(
    tmp_path: Path, content: bytes, remedy: str
) -> None:
    (tmp_path / "f.csv").write_bytes(content)
    with pytest.raises(UsageError, match=f"its header has 2 names, .*'text'.*, and each row has 3 fields.*{remedy}"):
        read_files(found([tmp_path]), Selection(), 9)
    # One row has as many fields as the header, so only the others are bad.
    (tmp_path / "f.csv").write_bytes(content + b"x,x\n")
    assert b"x" in read_files(found([tmp_path]), Selection(), 9).texts


def test_lines_and_quotes_are_counted_the_same_in_any_pieces() -> None:
    """Counts the lines that are not blank, the blank lines at the start of each cell, and the quotes after a
    backslash.
    """
    for seed in range(100):
        chance = random.Random(seed)
        data = "".join(chance.choices('\\"",a\n\n\r', k=chance.randrange(300))).encode()
        cell, most = chance.randrange(1, 120), chance.choice([None, chance.randrange(300)])
        counting = Csv(limits=Limits(block_bytes=cell)).counting(most)
        assert counting is not None
        cuts = sorted(chance.choices(range(len(data) + 1), k=5))
        for begin, end in pairwise([0, *cuts, len(data)]):
            counting.count(np.frombuffer(data, np.uint8)[begin:end])
        counted = data[:most]
        cells = [counted[at : at + cell] for at in range(0, len(counted), cell)]
        lines = sum(c.count(b"\n") - len(re.findall(rb"\n(?=[\r\n])", c)) for c in cells)
        quotes = len(re.findall(rb'\\"(?=[^",\r\n])', counted))
        for rows in {0, int(lines / 1.1), int(lines / 1.1) + 1, 100 * quotes - 1, 100 * quotes} - {-1}:
            said = " ".join(counting.notes(rows))
            assert ("more lines" in said, "many quotes" in said) == (lines > 1.1 * rows, quotes > 0.01 * rows)
