"""WET files: every conversion record becomes a row, as fastwarc and warcio read it, wherever blocks, chunks and files
end. Damage costs only the damaged records, and each is reported.
"""

from __future__ import annotations

import gzip
import io
import random
import re
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import fastwarc
import pytest
from conftest import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reading import Read, found, read_files, read_split
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter

from broadsheet.pipeline import classify, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.formats.records import read_records
from broadsheet.pipeline.source.formats.wet import Wet
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.limits import Limits

KEPT = ("url", "date", "language", "id", "digest", "refers_to")
ASKED = Selection(("text",), KEPT)
SMALL = Limits(field_bytes=2000, block_bytes=300, chunk_bytes=1500, guess_bytes=1000)
TEXTS = ["", "\n", "Straße\n", "a\r\n\r\nb\n", "WARC/1.0 in a text\n", "x" * 900, "日本語 text\nof lines\n", "end"]


def wet(texts: list[str], others: int = 0) -> list[bytes]:
    """Return the records of a file: one about the file, and one for each text. others: records of other types in
    between.
    """
    records, out = [], io.BytesIO()

    def take() -> None:
        records.append(out.getvalue())
        out.seek(0)
        out.truncate()

    writer = WARCWriter(out, gzip=False)
    writer.write_record(writer.create_warcinfo_record("a.warc.wet", {"software": "tests"}))
    take()
    for i, text in enumerate(texts):
        about = {"WARC-Refers-To": f"<urn:uuid:{i}>"}
        about |= {"WARC-Identified-Content-Language": "deu,eng"} if i % 3 else {}
        for kind in ["conversion"] + ["metadata"] * (i < others):
            data, url = text.encode(), f"https://example.org/{i}?ü"
            given = {"length": len(data), "warc_content_type": "text/plain", "warc_headers_dict": about}
            writer.write_record(writer.create_warc_record(url, kind, io.BytesIO(data), **given))
            take()
    return records


def expected(data: bytes) -> list[tuple[str | None, ...]]:
    """Return the text, URL, date, language and ID of each conversion, read by warcio."""
    rows = []
    for record in ArchiveIterator(io.BytesIO(data)):
        if record.rec_type == "conversion":
            names = ("Target-URI", "Date", "Identified-Content-Language", "Record-ID", "Block-Digest", "Refers-To")
            headers = (record.rec_headers.get_header(f"WARC-{name}") for name in names)
            rows.append((record.content_stream().read().decode(), *headers))
    return rows


def rows(read: Read) -> list[tuple[str | None, ...]]:
    return [
        (text.decode(), *row)
        for chunk in read.chunks
        for text, *row in zip(chunk.text.to_pylist(), *(chunk.rows[name].to_pylist() for name in KEPT), strict=True)
    ]


def bad(read: Read) -> list[dict]:
    return [row for chunk in read.chunks for row in chunk.quarantine.to_pylist()]


def numbers(read: Read) -> list[int]:
    tables = [table for chunk in read.chunks for table in (chunk.rows, chunk.quarantine)]
    return sorted(row for table in tables for row in table["row"].to_pylist())


def written(folder: Path, records: list[bytes], kind: str, cut: int | None = None) -> Path:
    """Write the records to a file. kind: "" for no compression, else one gzip member for each record or for all
    records.
    """
    members = {"": records, ".gz": map(gzip.compress, records), ".1.gz": [gzip.compress(b"".join(records))]}[kind]
    path = folder / f"a.warc.wet{kind.removeprefix('.1')}"
    path.write_bytes(b"".join(members)[:cut])
    return path


@settings(max_examples=examples(30), deadline=None)
@given(
    texts=st.lists(st.one_of(st.sampled_from(TEXTS), st.text(max_size=400)), max_size=12),
    others=st.integers(0, 4),
    kind=st.sampled_from(["", ".gz", ".1.gz"]),
    chunk_rows=st.integers(1, 9),
    block=st.integers(1, 900),
)
def test_every_conversion_is_a_row_as_warcio_and_fastwarc_read_it(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], others: int, kind: str, chunk_rows: int, block: int
) -> None:
    records = wet(texts, others)
    path = written(tmp_path_factory.getbasetemp(), records, kind)
    files = found([path], Limits(field_bytes=4000, block_bytes=block, chunk_bytes=3000, guess_bytes=1000))
    read = read_files(files, ASKED, chunk_rows)
    if texts:
        assert not read.messages
        if not kind:
            split = read_split(files, ASKED, chunk_rows, segment=700)
            assert (rows(split), numbers(split), bad(split)) == (rows(read), numbers(read), [])
    data = b"".join(records)
    assert rows(read) == expected(data)
    conversions = fastwarc.ArchiveIterator(io.BytesIO(data), record_types=fastwarc.WarcRecordType.conversion)
    assert [text for text, *_ in rows(read)] == [record.reader.read().decode() for record in conversions]
    assert (numbers(read), bad(read)) == ([*range(len(texts))], [])


def test_cut_off_at_any_byte_what_is_whole_is_a_row_and_what_is_not_is_told() -> None:
    records = wet(["one\n", "two, longer\n", "three\n"], others=2)
    data, ends = b"".join(records), [*accumulate(map(len, records))]
    whole = [text for text, *_ in expected(data)]
    for cut in range(1, len(data)):
        texts, told = [], []
        for block in read_records(io.BytesIO(data[:cut]), Wet().split, 0, limits=SMALL):
            for i, (start, end) in enumerate(zip(block.starts, block.ends, strict=True)):
                if i in block.problems:
                    told.append(int(block.offsets[i]))
                else:
                    texts.append(block.data[start:end].partition(b"\r\n\r\n")[2].decode())
        # A record is complete without the blank lines that follow it.
        complete = [end - len("\r\n\r\n") <= cut for end in ends]
        count = sum(done and b"Type: conversion" in record for done, record in zip(complete, records, strict=True))
        place = [0, *ends][sum(complete)]  # where the first incomplete record begins
        assert (texts, told) == (whole[:count], [place] * (cut > place))


@settings(max_examples=examples(15), deadline=None)
@given(by_record=st.booleans(), cut=st.floats(0, 1))
def test_a_compressed_file_that_is_cut_off_is_read_up_to_there_and_told(
    tmp_path_factory: pytest.TempPathFactory, by_record: bool, cut: float
) -> None:
    records = wet(["one\n", "two, longer\n", "three\n"])
    whole, folder, kind = expected(b"".join(records)), tmp_path_factory.getbasetemp(), ".gz" if by_record else ".1.gz"
    at = 1 + round(cut * (written(folder, records, kind).stat().st_size - 2))
    read = read_files(found([written(folder, records, kind, at)], SMALL), ASKED, 2)
    ends = [*accumulate(len(gzip.compress(record)) for record in records)]
    assert rows(read) == whole[: len(rows(read))]
    assert read.messages or (by_record and at in ends)
    assert not by_record or len(rows(read)) >= sum(end <= at for end in ends[1:])


@settings(max_examples=examples(40), deadline=None)
@given(
    which=st.integers(0, 8),
    damage=st.sampled_from(["flip", "cut", "drop", "garbage", "zeros", "length"]),
    seed=st.integers(0, 1 << 30),
)
def test_damage_costs_the_record_in_which_it_is(
    tmp_path_factory: pytest.TempPathFactory, which: int, damage: str, seed: int
) -> None:
    chance = random.Random(seed)
    texts = [f"{i} " + chance.randbytes(chance.randrange(1, 200)).hex() + "\n" for i in range(9)]
    records = wet(texts)
    parts = list(records)
    part, at = parts[which], chance.randrange(len(parts[which]))
    if damage == "length":
        length = chance.choice([0, 3, 500, 10**17])
        wrong = re.sub(rb"(?<=Content-Length: )\d+", b"%d" % length, records[which])
        after = b"".join([wrong[wrong.index(b"\r\n\r\n") + 4 :], *records[which + 1 :]])[length:]
        # Leave out a record that then ends where another one does, because nothing shows the damage.
        assume(not re.match(rb"\r\n\r\n|[\r\n]*WARC/|[\r\n]+\Z", after))
        parts[which] = wrong
    elif damage == "flip":
        parts[which] = part[:at] + bytes([part[at] ^ 1 << chance.randrange(8)]) + part[at + 1 :]
    elif damage == "cut":
        parts[which] = part[: at or 1]
    elif damage == "drop":
        parts[which] = part[1 + at // 2 :]
    else:
        parts.insert(which + 1, bytes(3000) if damage == "zeros" else b"garbage")
    path = tmp_path_factory.getbasetemp() / "damaged.warc.wet"
    path.write_bytes(b"".join(parts))
    told = []
    for limits in (SMALL, replace(SMALL, block_bytes=1 << 20)):
        read = read_files(found([path], limits), ASKED, 3)
        got = {text for text, *_ in rows(read)}
        others = {text for i, text in enumerate(texts, 1) if i not in (which, which + 1)}
        assert got >= others, "a record away from the damage is lost"
        assert numbers(read) == [*range(len(numbers(read)))]
        assert len(rows(read)) + len(bad(read)) >= len(texts) or read.messages, "a record is lost without a word"
        told.append([(row["row"], row["byte_offset"]) for row in bad(read)])
    assert told[0] == told[1], "blocks decide what is damaged"


def test_a_row_of_the_quarantine_says_where_it_is_and_which_page(tmp_path: Path) -> None:
    records = wet(["good\n", "too long" * 400, "caf\n", "good too\n"])
    records[3] = records[3].replace(b"caf", b"\xe9af")
    read = read_files(found([written(tmp_path, records, "")], SMALL), ASKED, 10)
    assert [text for text, *_ in rows(read)] == ["good\n", "good too\n"]
    first, *_, last = bad(read)
    assert (first["row"], first["byte_offset"]) == (1, sum(map(len, records[:2])))
    assert first["reason"] == "the record is longer than 0 MiB"
    assert b"https://example.org/1" in first["head"]
    assert "column 'text' is not UTF-8" in last["reason"]


def test_a_job_over_a_crawl_is_labelled_resumed_and_verified(small_model: Model, tmp_path: Path) -> None:
    """Each record has a gzip member, and one of them is damaged: the pages before it are labelled, and the file is a
    problem.
    """
    folder, texts = tmp_path / "crawl", [f"page {i}\nof text\n" for i in range(60)]
    folder.mkdir()
    records = wet(texts)
    members = [gzip.compress(record) for record in records]
    members[20] = members[20][:-30] + b"\xff" * 10 + members[20][-20:]
    (folder / "CC-MAIN-1.warc.wet.gz").write_bytes(b"".join(members))
    job = {"model": small_model, "keep": ["url", "language"], "chunk_size": 16, "scores": True}
    report = classify(folder, tmp_path / "out", **job)
    assert (report.rows_written, report.exit_code) == (19, 3)
    assert "cut off or damaged after" in report.tally.problems[0][1]
    for part in (tmp_path / "out" / "parts").iterdir():
        part.unlink()
        break
    assert classify(folder, tmp_path / "out", resume=True, **job).to_arrow().equals(report.to_arrow())
    verify(tmp_path / "out", input=True)
    expected = classify(texts[:19], model=small_model, scores=True).to_arrow()
    columns = [name for name in expected.column_names if name.startswith(("label", "score"))]
    assert report.to_arrow().select(columns).equals(expected.select(columns))
    assert report.to_arrow()["url"].to_pylist()[0] == "https://example.org/0?ü"


def test_what_holds_pages_and_no_text_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=True)
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>Hello</p>"
    writer.write_record(writer.create_warc_record("https://example.org", "response", io.BytesIO(page), len(page)))
    (tmp_path / "a.warc.gz").write_bytes(out.getvalue())
    (tmp_path / "b.txt").write_bytes(b"".join(wet(["x"])))
    (tmp_path / "c.wet").write_text("<html>404: no such file</html>\n")
    files = [found([tmp_path / name]) for name in ("a.warc.gz", "b.txt", "c.wet")]
    pages, text, error = (read_files(file, Selection(), 9) for file in files)
    assert "its records are of the types response: pages as a server sent them" in pages.messages[0]
    assert "it is a wet file by its first bytes; rename it (.wet)" in text.messages[0]
    assert "no WARC record begins here" in bad(error)[0]["reason"]


def test_headers_that_go_on_in_the_next_line_are_those_of_one_line(tmp_path: Path) -> None:
    """A URI between < and >, as Wget writes it, is read without them, as by warcio."""
    plain = b"".join(wet(TEXTS, others=2))
    folded = re.sub(rb"\r\n((?:WARC|Content)-[\w-]+):[ ]*(?=[^\r\n]*\r\n)", rb"\r\n\1:\r\n\t ", plain)
    bracketed = re.sub(rb"(WARC-Target-URI: )([^\r\n]*)", rb"\1<\2>", plain)
    assert len({plain, folded, bracketed}) == 3
    for data in (plain, folded, bracketed):
        (tmp_path / "f.wet").write_bytes(data)
        for limits in (Limits(), SMALL):
            read = read_files(found([tmp_path], limits), ASKED, 100)
            assert rows(read) == expected(plain)
            assert not bad(read)
            assert not read.messages
    assert expected(bracketed) == expected(plain)
    long = plain.replace(b"example.org/1", b"example.org/\r\n \t1")
    (tmp_path / "f.wet").write_bytes(long)
    assert [row[1] for row in rows(read_files(found([tmp_path]), ASKED, 100))][1].startswith("https://example.org/ 1?")
