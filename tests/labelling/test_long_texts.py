"""Texts are cut to what the model reads: each text's beginning, its characters, and the rows set aside, as plain Python
finds them.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reading import found, read_files, read_split

from pipeline.source.chunk import Chunk, Selection, concat
from pipeline.source.formats.jsonl import Jsonl
from pipeline.source.formats.records import read_records

READS = 40
TEXT = Selection(reads=READS)

letters = st.text(st.sampled_from('aé中😀\n\t "\\{}[],:/u0\u2028\x7f'), max_size=60)
pieces = st.one_of(st.text(max_size=20), letters, st.sampled_from(["plain words ", "naïve ", "😀", "\\", '"', "中文"]))
texts = st.lists(st.one_of(pieces, st.tuples(pieces, st.integers(1, 300)).map(lambda p: p[0] * p[1])), max_size=6).map(
    "".join
)
escapes = st.sampled_from(
    [
        r"\n",
        r"\b\f\r\t",
        r"\\",
        r"\"",
        r"\/",
        r"\u0041",
        r"\ud83d\ude00",
        r"\ud83d",
        r"\ude00",
        r"\u00zz",
        r"\x",
        "\x01",
        "\\",
        '"',
    ]
)
raw_strings = st.lists(
    st.one_of(escapes, st.sampled_from(["a", "é", "b" * 300, "😀" * 100, r"\n" * 200, r"\ud83d\ude00" * 90])),
    max_size=12,
).map("".join)


def as_python(lines: list[bytes]) -> tuple[list[tuple[str, int]], int]:
    """What `json` makes of the texts of lines: beginning and characters of each; and how many lines it refuses."""
    found, refused = [], 0
    for line in lines:
        try:
            value = json.loads(line.decode())
            text = value["text"]
            text.encode()
            found.append((text[:READS], len(text)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            refused += 1
    return found, refused


def read_lines(lines: list[bytes], selection: Selection) -> Chunk:
    form = Jsonl()
    blocks = read_records(io.BytesIO(b"\n".join(lines)), form.split, 0)
    chunks, row = [], 0
    for records in blocks:
        chunks.append(form.parse(records, "f.jsonl", row, selection))
        row += len(records)
    return concat(chunks)


def found_in(chunk: Chunk) -> list[tuple[str, int]]:
    assert chunk.n_chars is not None
    return [(t.decode(), n) for t, n in zip(chunk.text.to_pylist(), chunk.n_chars.tolist(), strict=True)]


@settings(deadline=None, max_examples=examples(120))
@given(
    st.lists(texts, min_size=1, max_size=5), st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])
)
@example(["0" + "\U00010000" * 40], False, (",", ":"))
@example(
    ["0" * k + character * 400 for character in "é€😀" for k in range(READS)], False, (",", ":")
)  # cut in each byte
@example(["x" * 1000 + '"' + "\\" * 7 + "😀"], True, (",", ":"))
def test_texts_in_json_lines_are_cut_as_python_cuts_them(given: list[str], ascii_only: bool, marks) -> None:
    lines = [
        json.dumps({"id": i, "text": text, "more": text[::-1]}, ensure_ascii=ascii_only, separators=marks).encode()
        for i, text in enumerate(given)
    ]
    chunk = read_lines(lines, TEXT)
    assert found_in(chunk) == [(text[:READS], len(text)) for text in given]
    kept = read_lines(lines, Selection(reads=READS, kept=("text", "more")))
    assert kept.rows.column("text").to_pylist() == given
    assert kept.rows.column("more").to_pylist() == [text[::-1] for text in given]
    assert found_in(kept) == found_in(chunk)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(raw_strings, min_size=1, max_size=4), st.sampled_from(range(7)))
@example([r"\ud83d\ude00" * 200], 0)
@example(["b" * 44 + r"\ud83d\ude00" + "b" * 900], 0)
@example(["b" * 45 + r"\n" + "b" * 900], 0)
@example(["b" * 300 + '"', "b" * 300 + '"'], 0)
def test_hostile_strings_are_accepted_and_refused_as_by_json(strings: list[str], shape: int) -> None:
    shapes = (
        '{"text": "%s"}',
        '{"text":"%s", "text": "short"}',
        '{"meta": {"text": "%s"}, "text": "short"}',
        '{"text": "short", "meta": {"text": "%s"}}',
        '{"id": "text", "%s": 1, "text": "short"}',
        '{"text": "a", "te\\u0078t": "%s"}',
        '{"list": [{"text": "%s"}], "a}": "{", "text": "%%s"}',
    )
    lines = [(shapes[shape] % string).replace("%s", string).encode("utf-8") for string in strings]
    lines += [b'{"text": "' + b"good " * 100 + b'"}']
    lines = [line for line in lines if b"\n" not in line]
    chunk = read_lines(lines, TEXT)
    expected, refused = as_python(lines)
    assert found_in(chunk) == expected
    assert len(chunk.quarantine) == refused


def test_a_long_text_that_is_not_utf8_is_set_aside_alone() -> None:
    long = b"x" * 3000
    lines = [b'{"text": "%s"}' % text for text in (long, long + b"\xff", long + b"\xed\xa0\x80", "é".encode() * 2000)]
    chunk = read_lines(lines, TEXT)
    assert found_in(chunk) == [("x" * READS, 3000), ("é" * READS, 2000)]
    assert chunk.quarantine.column("row").to_pylist() == [1, 2]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.one_of(texts, st.just(b"x" * 2000 + b"\xff")), min_size=1, max_size=20), st.integers(1, 7))
def test_all_formats_cut_texts_alike(tmp_path_factory: pytest.TempPathFactory, given: list[str | bytes], rows) -> None:
    folder = tmp_path_factory.mktemp("reads")
    raw = [text if isinstance(text, bytes) else text.encode() for text in given]
    good = [text for text in given if isinstance(text, str)]
    array = pa.array(raw, pa.binary()).view(pa.string())
    table = pa.table({"text": array, "id": range(len(raw))})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    pq.write_table(table, folder / "b.parquet", use_dictionary=False)
    with pa.ipc.new_file(folder / "c.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    (folder / "d.jsonl").write_bytes(b"\n".join(_json_line(text) for text in raw))
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["text"], *([t.decode(errors="surrogateescape")] for t in raw)])
    (folder / "e.csv").write_bytes(out.getvalue().encode(errors="surrogateescape"))
    for path, read in itertools.product(sorted(folder.iterdir()), (read_files, read_split)):
        chunk = concat(read(found([path]), TEXT, rows).chunks)
        assert found_in(chunk) == [(text[:READS], len(text)) for text in good], path.name
        bad = [i for i, text in enumerate(given) if isinstance(text, bytes)]
        assert chunk.quarantine.column("row").to_pylist() == bad, path.name


def _json_line(text: bytes) -> bytes:
    line = json.dumps({"text": text.decode(errors="surrogateescape")}, ensure_ascii=False)
    return line.encode(errors="surrogateescape")


def test_long_rows_make_chunks_of_what_is_kept(tmp_path: Path) -> None:
    """70 MB of lines, of which the model reads 1,014 characters each, are one chunk; whole texts are several."""
    path = tmp_path / "long.jsonl"
    with open(path, "wb") as file:
        for _ in range(700):
            file.write(b'{"text": "%s"}\n' % (b"word " * 20_000))
    read, whole = (read_files(found([path]), Selection(reads=reads), 131_072).chunks for reads in (1014, 0))
    assert ([len(chunk) for chunk in read], len(whole)) == ([700], 2)
