"""Files in other encodings and with other delimiters: they give the same rows, or a hint if you named no encoding."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere, examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.pipeline import UsageError, classify, dry_run, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.inputs import chunks_here, open_input
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, concat, empty_chunk
from broadsheet.pipeline.source.rows.compression import encoding_named
from broadsheet.pipeline.source.rows.limits import LIMITS, Limits

ENCODINGS = ["latin-1", "cp1252", "utf-16", "utf-16-be", "utf-32", "gb18030", "shift_jis", "iso2022_jp", "utf-8-sig"]
LETTERS = {"shift_jis": "日本ア", "iso2022_jp": "日本ア", "gb18030": "中文é😀", "latin-1": "éß", "cp1252": "é€"}

fields = st.lists(st.sampled_from(["a", "bc", '"', ",", ";", "|", "\t", "\n", "\r\n", " ", "#"]), max_size=6)


def read(path: Path, selection: Selection, chunk_rows: int = 1000, limits: Limits = LIMITS) -> Chunk:
    listed = find_files([str(path)], 70, 1014)
    files = tuple(replace(file, format=replace(file.format, limits=limits)) for file in listed.found)
    job_input = open_input(replace(listed, found=files), selection, chunk_rows)
    return concat([empty_chunk(job_input.selection), *chunks_here(job_input)])


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from(ENCODINGS), st.sampled_from([",", ";", "|", "\t"]), st.integers(1, 50))
def test_a_csv_has_the_rows_that_pythons_csv_module_finds(
    tmp_path_factory, data: st.DataObject, encoding: str, delimiter: str, block: int
) -> None:
    """Blocks and chunks have any size, so that a character or a line end may be cut in two."""
    letter = st.sampled_from(LETTERS.get(encoding, "é中😀"))
    field = st.builds(lambda parts, more: "".join([*parts, *more]), fields, st.lists(letter, max_size=3))
    rows = data.draw(st.lists(st.tuples(field, field), max_size=8))
    text = io.StringIO(newline="")
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator=ending)
    writer.writerows([("id", "text"), *rows])
    path = tmp_path_factory.mktemp("csv") / "f.csv"
    content = text.getvalue().encode(encoding)
    zipped = data.draw(st.booleans())
    path = path.with_name("f.csv.gz") if zipped else path
    path.write_bytes(gzip.compress(content) if zipped else content)
    expected = list(csv.reader(io.StringIO(content.decode(encoding), newline=""), delimiter=delimiter))[1:]
    selection = Selection(kept_columns=("id",), encoding=encoding_named(encoding), delimiter=delimiter)
    chunk = read(path, selection, data.draw(st.integers(1, 9)), Limits(block_bytes=200 + block))
    assert [t.decode() for t in chunk.text.to_pylist()] == [row[1] for row in expected]
    assert chunk.rows.column("id").to_pylist() == [row[0] for row in expected]
    assert chunk.rows.column("row").to_pylist() == list(range(len(expected)))


BAD = {
    "cp1252": ("é€", b"\x81", "is not cp1252: after 5 characters comes 0x81"),
    "shift_jis": ("日本", b"\x81", "is not shift_jis: after 5 characters comes 0x81"),
    "utf-16-le": ("é😀", b"\x00\xdc", "is not utf-16-le: after 5 characters comes 0x00"),
    "gb18030": ("中文", b"\xff", "is not gb18030: after 5 characters comes 0xff"),
}


@pytest.mark.parametrize("encoding", BAD)
@pytest.mark.parametrize("name", ["f.csv", "f.jsonl", "f.txt.gz"])
def test_bytes_that_are_not_of_the_encoding_cost_their_row_alone(tmp_path: Path, encoding: str, name: str) -> None:
    letters, bad, reason = BAD[encoding]
    texts = [f"row {i} {letters}" for i in range(50)]
    lines = [json.dumps({"text": t}, ensure_ascii=False) if "jsonl" in name else t for t in texts]
    encoded = [f"{line}\n".encode(encoding) for line in lines]
    mark, whole = "row 7".encode(encoding), encoded[7]
    encoded[7] = whole[: whole.index(mark) + len(mark)] + bad + whole[whole.index(mark) + len(mark) :]
    content = "text\n".encode(encoding) * ("csv" in name) + b"".join(encoded)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    chunk = read(tmp_path / name, Selection(text=(), encoding=encoding), 20)
    assert [t.decode() for t in chunk.text.to_pylist()] == texts[:7] + texts[8:]
    (bad_row,) = chunk.quarantine.to_pylist()
    row, why, head = bad_row["row"], bad_row["reason"], bad_row["head"]
    assert row == 7
    if "jsonl" in name:
        assert f"the line is not {encoding}: after " in why
    else:
        assert why == f"column 'text' {reason}"
    assert b"row 7" + bad in head


def test_a_job_in_another_encoding_resumes_and_is_verified(client: Client, small_model: Model, tmp_path: Path) -> None:
    texts = [f"größer {i}; “kleiner”\nund {i}" for i in range(90)]
    data = "\r\n".join(["id;text", *(f'{i};"{t}"' for i, t in enumerate(texts))])
    (tmp_path / "small.csv").write_bytes(data.encode("utf-16"))
    job = {
        "model": small_model,
        "client": client,
        "encoding": "UTF16",
        "delimiter": ";",
        "keep": "text",
        "chunk_size": 40,
    }
    report = classify(tmp_path / "small.csv", tmp_path / "out", **job)
    assert report.to_arrow()["text"].to_pylist() == texts
    for entry in (tmp_path / "out" / "_entries").glob("part-*0000001-*"):
        entry.unlink()
    (tmp_path / "out" / "_SUCCESS").unlink()
    again = classify(tmp_path / "small.csv", tmp_path / "out", resume=True, **job)
    assert again.run.chunks_before == 2
    assert again.to_arrow().equals(report.to_arrow())
    assert verify(tmp_path / "out", input=True).rows_written == len(texts)
    with pytest.raises(UsageError, match=r"add encoding='utf-16'"):
        classify(tmp_path / "small.csv", tmp_path / "out", resume=True, **{**job, "encoding": "utf-8"})


def test_a_job_whose_rows_cannot_be_read_does_not_end_well(
    broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path
) -> None:
    """The exit code is 3 above half the rows, or above your limit. Each reason appears once, with its number
    of rows.
    """
    lines = ["text", *(f"{'café' if row % 4 else 'tea'} number {row}" for row in range(40))]
    (tmp_path / "in.csv").write_text("\n".join(lines), "cp1252")
    arguments = ("classify", tmp_path / "in.csv", "--model", small_model_file)
    code, told = broadsheet_here(*arguments, "-o", tmp_path / "out")
    assert code == 3
    assert told.count("is not UTF-8: byte 3 of it is 0xe9 (and 29 more)") == 1
    assert "row 1: column 'text' is not UTF-8" in told
    assert "30 of 40 rows are in quarantine, more than --max-quarantined 50%: exit code 3" in told
    for limit, expected in (("30", 0), ("75%", 0), ("29", 3), ("74.9%", 3), ("0", 3)):
        code, told = broadsheet_here(*arguments, "-o", "-", "--max-quarantined", limit)
        assert code == expected
        assert (f"more than --max-quarantined {limit}: exit code 3" in told) == bool(expected)
    code, told = broadsheet_here(*arguments, "-o", "-", "--max-quarantined", "101%")
    assert code == 2
    assert "max_quarantined is '101%', it must be a number of rows, or a share such as 10%" in told


def test_what_was_not_said_of_a_file_is_suggested(client: Client, small_model: Model, tmp_path: Path) -> None:
    job = {"model": small_model, "client": client}
    cases = {
        "f.csv": ("id;text\n1;x\n", "it has one column, 'id;text': it looks separated by ';': delimiter=';'"),
        "g.csv": ("a, b|text\n", r"it looks separated by '\|': delimiter='\|'"),
        "h.csv": ("id\ttext\n1\tx\n", 'it looks separated by tab: delimiter="tab"'),
        "i.tsv": ("id,title\n", "looks separated by ',': delimiter=','"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=message):
            classify(tmp_path / name, **job)
    for name, content in (("n.csv", "news; all\n" + "x\n" * 9), ("o.tsv", "oil, gas, and more\nrose, and fell\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=r"it has: (news; all|oil, gas, and more); if its first line is no header"):
            classify(tmp_path / name, **job)
    (tmp_path / "j.jsonl").write_text('[{"text": "x"},\n{"text": "y"}]\n')
    ((_, message),) = classify(tmp_path / "j.jsonl", **job).tally.problems
    assert "it holds a JSON array, not an object a line: convert it" in message
    with pytest.raises(UsageError, match="expected 2 fields, found 1; it looks separated by ';': delimiter=';'"):
        classify(tmp_path / "f.csv", columns=["id", "text"], **job)
    assert classify(tmp_path / "h.csv", delimiter="tab", **job).rows_written == 1
    for encoding in ("utf-16", "utf-32"):
        (tmp_path / "u.csv").write_text("text\nx\n", encoding)
        with pytest.raises(UsageError, match=f'it looks like {encoding.upper()}: encoding="{encoding}"'):
            classify(tmp_path / "u.csv", **job)
    (tmp_path / "u.csv").write_text("text\nsome words\n", "utf-16-be")
    with pytest.raises(UsageError, match=r"encoding=.utf-16-be"):
        classify(tmp_path / "u.csv", **job)
    (tmp_path / "zeros").mkdir()
    (tmp_path / "zeros" / "a.jsonl").write_bytes(bytes(1 << 20))  # valid in no encoding
    (tmp_path / "zeros" / "b.jsonl").write_text('{"text": "x"}\n')
    report = classify(tmp_path / "zeros", **job)
    assert (report.rows_written, report.rows_quarantined) == (1, 1)
    (tmp_path / "l.txt").write_bytes(b"caf\xe9\n" * 2 + b"plain\n" * 10)
    report = classify(tmp_path / "l.txt", max_quarantined="20%", **job)
    hint = "2 of 12 rows are not UTF-8: if the files are in another encoding, name it, e.g. --encoding latin-1"
    assert report.hints == [hint]
    assert not classify(tmp_path / "l.txt", encoding="latin1", **job).hints
    (tmp_path / "l.txt").write_bytes(b"caf\xe9\n" + b"plain\n" * 9)
    assert not classify(tmp_path / "l.txt", **job).hints
    table = pa.table({"text": [b"caf\xe9", b"x", b"y"]})
    pq.write_table(table, tmp_path / "l.parquet")  # a table has no encoding to name
    for source in (tmp_path / "l.parquet", table):
        report = classify(source, **job)
        assert (report.rows_quarantined, report.hints) == (1, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "klingon"}, "encoding 'klingon' is not known"),
        ({"encoding": "rot13"}, "is not known"),
        ({"encoding": "punycode"}, "is not known"),
        ({"delimiter": ";;"}, "give one ASCII character"),
        ({"delimiter": '"'}, "not a quote"),
        ({"delimiter": "é"}, "give one ASCII character"),
        ({"delimiter": ";"}, "a.txt: delimiter= is for CSV"),
        ({"quote": "''"}, 'give one ASCII character, e.g. "\'", or none; not a line end'),
        ({"quote": "'", "escape": '"'}, "give one ASCII character, e.g. a backslash; not a quote"),
        ({"escape": "\n"}, "give one ASCII character"),
        ({"quote": "none"}, "a.txt: quote= is for CSV"),
        ({"escape": "/"}, "a.txt: escape= is for CSV"),
    ],
)
def test_an_encoding_or_dialect_that_cannot_work_is_refused(
    client: Client, small_model: Model, tmp_path: Path, options, message: str
) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(UsageError, match=message):
        classify(tmp_path / "a.txt", model=small_model, client=client, **options)


@pytest.mark.parametrize("dialect", [{"quote": ","}, {"escape": "'", "quote": "'"}, {"delimiter": "/", "escape": "/"}])
def test_one_character_is_not_two_things(client: Client, small_model: Model, tmp_path: Path, dialect) -> None:
    (tmp_path / "a.csv").write_text("text\nx\n")
    with pytest.raises(UsageError, match=r"csv files: .*: these must be different characters"):
        classify(tmp_path / "a.csv", model=small_model, client=client, **dialect)


@pytest.mark.slow
def test_a_file_whose_quotes_are_something_else_is_noted(client: Client, small_model: Model, tmp_path: Path) -> None:
    """The hint names the option that reads the file right, however the files are read. A sound file gets no hint."""
    job = {"model": small_model, "client": client, "chunk_size": 50}
    lines, slashes = "a.tsv: more lines than rows", "c.csv: many quotes follow a backslash"
    texts = [f'"stocks {i}' if i % 9 == 5 else f"stocks {i}" for i in range(4000)]
    (tmp_path / "a.tsv").write_text("\n".join(["id\ttext", *(f"{i}\t{text}" for i, text in enumerate(texts))]))
    report = classify(tmp_path / "a.tsv", **job)
    assert report.rows_read < 4000
    assert [hint.rpartition("/")[2] for hint in report.hints if lines in hint] == [
        f"{lines}: quoted fields hold line ends. If the quotes are part of the text, --quote none"
    ]
    assert any(lines in warning for warning in dry_run(tmp_path / "a.tsv", model=small_model).warnings)
    report = classify(tmp_path / "a.tsv", tmp_path / "a", quote="none", keep="text", **job)
    assert (report.to_arrow()["text"].to_pylist(), report.hints) == (texts, [])
    said = [f'"{i}, he said, no" {i}' if i % 50 == 1 else f"a\\b {i}" for i in range(2000)]
    rows = ('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in said)
    (tmp_path / "c.csv").write_text("\n".join(["text", *rows]))
    (hint,) = classify(tmp_path / "c.csv", **job).hints
    assert slashes in hint
    assert hint.endswith("""If \\" stands for ", --escape '\\'""")
    report = classify(tmp_path / "c.csv", tmp_path / "c", escape="\\", keep="text", **job)
    assert (report.to_arrow()["text"].to_pylist(), report.hints) == (said, [])
    for out in ("a", "c"):
        assert verify(tmp_path / out, input=True).rows_written == report.rows_read + 2000 * (out == "a")
    with pytest.raises(UsageError, match=r"add escape='.{2}'"):
        classify(tmp_path / "c.csv", tmp_path / "c", resume=True, **job)
    honest = ['"C:\\"', '"{""a"": ""\\""x\\""""}"', '"two\n\nlines"', *["x\n"] * 40]
    (tmp_path / "b.csv").write_text("\n".join(["text", *honest]))
    assert not classify(tmp_path / "b.csv", **job).hints


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
def test_a_cr_within_a_line_ends_no_text(client: Client, small_model: Model, tmp_path: Path, end: str) -> None:
    """Each of several large files is read by its own line ends. Where CRs end the lines, they still do."""
    rows = [(f"{i}\rx" * (end[-1] == "\n"), f"oil\r\rrose {i}" if end[-1] == "\n" else f"oil {i}") for i in range(1000)]
    for name, ending in (("a.csv", end), ("b.csv", "\n")):
        (tmp_path / name).write_text(ending.join(["id,text", *(f"{a},{b}" for a, b in rows)]), newline="")
    job = {"model": small_model, "client": client, "keep": ["id", "text"]}
    for chunk_size in (20, 300):
        report = classify(tmp_path, chunk_size=chunk_size, **job)
        table = report.to_arrow()
        assert [*zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)] == 2 * rows
        assert report.exit_code == 0
