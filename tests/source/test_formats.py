"""Files of every format, compressed or not, small and large, whole and damaged; and how they are planned."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from reading import Read, found, read_files, read_split

from broadsheet.pipeline import classify, dry_run
from broadsheet.pipeline.errors import OutputError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.saved_plan import plan_bytes, plan_from
from broadsheet.pipeline.report.job import Progress
from broadsheet.pipeline.source.inputs import NothingBefore, identify, open_input
from broadsheet.pipeline.source.memory.tables import of_table
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.plan.search import NO_FORMAT
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, concat
from broadsheet.pipeline.source.rows.labels import LabelRules
from broadsheet.pipeline.source.rows.limits import LIMITS, Limits

TEXTS = [f'article {i}, "quoted"\nsecond line é' if i % 7 == 0 else f"article {i}" for i in range(300)]
TEXT_AND_ID = Selection(text=("text",), kept_columns=("id",))


def as_csv(texts: list[str], first: int = 0) -> bytes:
    rows = ('{},"{}"\n'.format(first + i, t.replace('"', '""')) for i, t in enumerate(texts))
    return ("id,text\n" + "".join(rows)).encode()


def write(folder: Path, kind: str, texts: list[str]) -> Path:
    path = folder / f"articles.{kind}"
    base = kind.partition(".")[0]
    if base == "parquet":
        ids = pa.array(range(len(texts)), pa.int64())
        pq.write_table(pa.table({"id": ids, "text": pa.array(texts)}), path, row_group_size=70)
        return path
    if base in ("csv", "tsv"):
        data = as_csv(texts)
        data = data if base == "csv" else data.replace(b",", b"\t", 1).replace(b',"', b'\t"')
    elif base == "jsonl":
        data = "".join(json.dumps({"id": str(i), "text": t}) + "\n" for i, t in enumerate(texts)).encode()
    else:
        data = "".join(t.replace("\n", " ") + "\n" for t in texts).encode()
    if kind.endswith(".gz"):
        data = gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])  # two members in one file
    elif kind.endswith(".zst"):
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


def chunks_of(
    inputs: list[Path], selection: Selection, chunk_rows: int, limits: Limits = LIMITS, large: bool = False
) -> tuple[Read, list[tuple[str, Chunk]]]:
    """Read the files, and return the result and their chunks by name. large: treat each file as a large one."""
    result = (read_split if large else read_files)(found(inputs, limits), selection, chunk_rows)
    return result, list(zip(result.names, result.chunks, strict=True))


KINDS = ["csv", "tsv", "jsonl", "txt", "parquet", "csv.gz", "csv.zst", "jsonl.gz", "txt.zst"]


@pytest.mark.parametrize(
    ("kind", "large"), [(kind, large) for kind in KINDS for large in (False, True) if not (large and "." in kind)]
)
# Many chunks, and one chunk for all rows.
@pytest.mark.parametrize("chunk_rows", [64, 1000])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str, chunk_rows: int, large: bool) -> None:
    path = write(tmp_path, kind, TEXTS)
    plain = kind.startswith("txt")
    _, chunks = chunks_of([path], Selection(text=()) if plain else TEXT_AND_ID, chunk_rows, large=large)
    assert [c.rows_read for _, c in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1) or (large and kind == "parquet")
    assert max(c.rows_read for _, c in chunks) <= chunk_rows
    assert [name for name, _ in chunks] == sorted(name for name, _ in chunks)
    texts = [t.decode() for _, c in chunks for t in c.text.to_pylist()]
    assert texts == ([t.replace("\n", " ") for t in TEXTS] if plain else TEXTS)
    assert [r for _, c in chunks for r in c.rows.column("row").to_pylist()] == list(range(300))
    if not plain:
        ids = [i for _, c in chunks for i in c.rows.column("id").to_pylist()]
        assert ids == (list(range(300)) if kind == "parquet" else [str(i) for i in range(300)])


def test_a_large_file_is_cut_by_its_size_and_a_compressed_one_has_one_reader(tmp_path: Path) -> None:
    texts = [f"article {i} of a large file" for i in range(4000)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(random.Random(0).randbytes(100_000)))
    (tmp_path / "b.csv").write_bytes(as_csv(texts))
    pq.write_table(pa.table({"id": range(4000), "text": texts}), tmp_path / "c.parquet", 1000, compression="none")
    (tmp_path / "d.csv").write_bytes(as_csv(texts[:10]))
    given = identify(tmp_path, 70, 1014, whole_hash=False, by_content=False)
    job_input = open_input(given, TEXT_AND_ID, 300)
    assert (job_input.rows, job_input.bytes) == (0, sum(f.stat().st_size for f in tmp_path.iterdir()))
    parts = list(job_input.ranges(NothingBefore()))
    assert sorted(part.number for part in parts) == list(range(len(parts)))
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    cut = {name: [part.bounds for part in parts if part.files[0].path.endswith(name)] for name in sizes}
    assert {name: len(bounds) for name, bounds in cut.items()} == {
        name: 1 if name in ("a.jsonl.gz", "d.csv") else -(-size // (64 << 10)) for name, size in sizes.items()
    }
    for name, bounds in cut.items():
        assert [begin for begin, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        assert bounds[-1][1] == sizes[name]


@pytest.mark.parametrize("kind", ["csv.gz", "csv.zst"])
def test_a_truncated_file_gives_all_that_is_readable(tmp_path: Path, kind: str) -> None:
    texts = [f"{np.random.default_rng(i).integers(1 << 60)} is article {i}" for i in range(4000)]
    path = tmp_path / f"f.{kind}"
    data = as_csv(texts)
    path.write_bytes((gzip.compress(data) if kind == "csv.gz" else zstandard.compress(data))[:-1000])
    if kind == "csv.gz":
        import zlib

        readable = zlib.decompressobj(wbits=31).decompress(path.read_bytes())
    else:
        readable = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    whole = readable.count(b"\n") - 1
    assert 0 < whole < 4000
    result, chunks = chunks_of([path], TEXT_AND_ID, 500)
    assert [t.decode() for _, c in chunks for t in c.text.to_pylist()] == texts[:whole]
    (message,) = result.messages
    assert f"cut off or damaged after {len(readable):,} decompressed bytes" in message
    aside = [b for _, c in chunks for b in c.quarantine.to_pylist()]
    if not readable.endswith(b"\n"):
        assert [b["row"] for b in aside] == [whole]
        assert readable.endswith(aside[0]["head"])


def test_small_files_share_chunks_and_large_ones_are_split(tmp_path: Path) -> None:
    for i in range(100):
        (tmp_path / f"{i:03d}.csv").write_bytes(as_csv([f"file {i} row {r}" for r in range(3)]))
    (tmp_path / "large.csv").write_bytes(as_csv([f"large {r}" for r in range(500)]))
    (tmp_path / "notes.md").write_text("no input of ours")
    (tmp_path / ".hidden.csv").write_bytes(as_csv(["never"]))
    _, chunks = chunks_of([tmp_path], TEXT_AND_ID, 120)
    assert len(chunks) == 7
    texts = [t.decode() for _, c in chunks for t in c.text.to_pylist()]
    assert texts == [f"file {i} row {r}" for i in range(100) for r in range(3)] + [f"large {r}" for r in range(500)]


def test_long_articles_make_smaller_chunks(tmp_path: Path) -> None:
    texts = ["x" * 4000] * 5 + ["y"] * 50 + ["z" * 30_000]
    (tmp_path / "f.csv").write_bytes(as_csv(texts))
    _, chunks = chunks_of([tmp_path / "f.csv"], TEXT_AND_ID, 1000, Limits(chunk_bytes=10_000))
    assert [t.decode() for _, c in chunks for t in c.text.to_pylist()] == texts
    assert all(sum(len(t) for t in c.text.to_pylist()) <= 10_000 or len(c) == 1 for _, c in chunks)


def test_inputs_that_name_nothing_or_nothing_readable_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f.docx").write_text("x")
    for name, message in (("none.csv", "no such file"), ("*.csv", "no such file"), ("f.docx", "known are .csv")):
        with pytest.raises(UsageError, match=message):
            find_files([str(tmp_path / name)], 70, 1014)


def test_a_glob_and_a_url_name_files(tmp_path: Path) -> None:
    import fsspec

    for name in ("b.csv", "a.csv"):
        (tmp_path / name).write_bytes(as_csv([name]))
    assert [Path(f.path).name for f in found([tmp_path / "*.csv"])] == ["a.csv", "b.csv"]
    with fsspec.open("memory://bucket/articles.csv", "wb") as stream:
        stream.write(as_csv(["in a bucket"]))
    result = read_files(found(["memory://bucket/*.csv"]), TEXT_AND_ID, 10)
    assert (result.texts, result.messages) == ([b"in a bucket"], [])


def test_the_first_file_decides_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(as_csv(["first"]))
    (tmp_path / "b.csv").write_bytes(b"text,id,more\nreordered,7,x\n")
    (tmp_path / "c.csv").write_bytes(b"id,body\n8,unread\n")
    (tmp_path / "d.csv").write_bytes(b"")
    (tmp_path / "e.parquet").write_bytes(b"PAR1 but no more")
    result, _ = chunks_of([tmp_path], TEXT_AND_ID, 10)
    assert result.texts == [b"first", b"reordered"]
    (end,) = result.ends
    messages = {Path(path).name: message for path, message in end.problems}
    assert [Path(path).name for path, _ in end.unread] == ["c.csv", "e.parquet"] == [*messages]
    assert "no column 'text'" in messages["c.csv"]
    assert "it has: id, body" in messages["c.csv"]
    assert "not a readable Parquet file" in messages["e.parquet"]
    result, _ = chunks_of([tmp_path / "a.csv", tmp_path / "b.csv"], replace(TEXT_AND_ID, keep_all=True), 10)
    assert [message.partition("; not copied: ")[2] for message in result.messages] == ["'more'"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("at", ["a", "z"])
def test_a_file_for_another_use_is_one_problem_wherever_it_is_sorted(tmp_path: Path, at: str, kind: str) -> None:
    """Its lines do not each become a quarantined row, and the job goes on."""
    path = write(tmp_path, kind, TEXTS)
    other = {"csv": "file,sha\nx,y\n", "tsv": "file\tsha\nx\ty\n", "parquet": '{"file": "x"}\n' * 3}
    suffix = "jsonl" if kind == "parquet" else kind.partition(".")[0]
    (tmp_path / f"{at}_manifest.{suffix}").write_text(other.get(kind, '{"file": "x", "sha": "y"}\n' * 300))
    result, chunks = chunks_of([tmp_path], TEXT_AND_ID, 1000)
    (message,) = result.messages
    assert message.startswith(f"{tmp_path}/{at}_manifest.{suffix}: no column 'text' as in {path}; it has: file")
    assert [t.decode() for _, chunk in chunks for t in chunk.text.to_pylist()] == TEXTS
    assert not any(len(chunk.quarantine) for _, chunk in chunks)
    path.unlink()
    with pytest.raises(UsageError, match=r"_manifest.*: no column 'text' \(.*\); it has: file"):
        chunks_of([tmp_path], TEXT_AND_ID, 1000)


def test_a_text_that_comes_late_is_one(tmp_path: Path) -> None:
    """A file whose first lines have no text is read, if a later line near them has one."""
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 1}\n' * 7000 + '{"id": 1, "text": "late"}\n')
    result, chunks = chunks_of([tmp_path], Selection(), 10_000)
    assert (result.texts, result.messages) == ([b"x", b"late"], [])
    assert sum(len(chunk.quarantine) for _, chunk in chunks) == 7000


def test_a_file_without_a_byte_has_no_rows_however_it_is_stored(tmp_path: Path) -> None:
    for kind in ("csv", "tsv", "jsonl", "txt", "wet"):
        (tmp_path / f"a.{kind}").touch()
        (tmp_path / f"a.{kind}.gz").write_bytes(gzip.compress(b""))
    with ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("b.csv", b"")
    result, chunks = chunks_of([tmp_path], Selection(), 10)
    assert (result.messages, sum(chunk.rows_read for _, chunk in chunks), len(result.plan.files)) == ([], 0, 11)
    (tmp_path / "c.csv").write_bytes(as_csv(TEXTS))
    result, _ = chunks_of([tmp_path], TEXT_AND_ID, 1000)
    assert ([text.decode() for text in result.texts], result.messages) == (TEXTS, [])
    (tmp_path / "d.parquet").touch()
    assert chunks_of([tmp_path], TEXT_AND_ID, 1000)[0].messages == [f"{tmp_path}/d.parquet: the file is empty"]


ROWS = [{"text": "oil rose", "id": i, "more": {"of": [1, {}]}} for i in range(300)]


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("\n".join(json.dumps(row, indent=1) for row in ROWS), "objects of several lines, not an object a line"),
        ("\r\n  {\r\n" + json.dumps(ROWS[0])[1:].replace(",", ",\r\n"), "objects of several lines"),
        ('{"text":\n"x' + "y" * 100_000 + '"}', "objects of several lines"),
        (json.dumps(ROWS, indent=1), "a JSON array, not an object a line"),
        (json.dumps(ROWS), "a JSON array, not an object a line"),
    ],
)
def test_json_that_is_no_object_a_line_is_one_hint(tmp_path: Path, content: str, hint: str) -> None:
    (tmp_path / "b.jsonl").write_text(content, newline="")
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{ "text":\n"y"}\n{\n}\n')  # each of these lines is bad on its own
    result, chunks = chunks_of([tmp_path], Selection(), 1000)
    (message,) = result.messages
    assert f"b.jsonl: it holds {hint}" in message
    assert sum(len(chunk.quarantine) for _, chunk in chunks) == 4
    assert result.texts == [b"x"]


@pytest.mark.parametrize(
    "line", [b'{"text": "caf\xe9"}', b'{"text": "x"', b'{"text": "x"}}', b'{"text": "x"} {"text": "y"}']
)
def test_a_first_line_that_is_bad_costs_that_row_alone(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(line + b'\n{"text": "z"}\n')
    result, chunks = chunks_of([tmp_path], Selection(), 1000)
    assert (result.texts, result.messages) == ([b"z"], [])
    assert [chunk.quarantine.column("row").to_pylist() for _, chunk in chunks] == [[0]]


@pytest.mark.parametrize("inner", [gzip.compress, zstandard.compress])
def test_a_file_that_was_compressed_twice_is_said(tmp_path: Path, inner) -> None:
    (tmp_path / "a.csv").write_bytes(as_csv(TEXTS))
    for name in ("b.csv.gz", "c.csv"):
        (tmp_path / name).write_bytes(gzip.compress(inner(as_csv(TEXTS))))
    result, _ = chunks_of([tmp_path], TEXT_AND_ID, 1000)
    kind = "gzip" if inner is gzip.compress else "zstd"
    assert len(result.texts) == len(TEXTS)
    assert result.messages == [
        f"{tmp_path}/{name}: it holds {kind} within gzip: decompress it once" for name in ("b.csv.gz", "c.csv")
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_two_columns_of_one_name_matter_where_they_are_used(tmp_path: Path, kind: str) -> None:
    path, table = tmp_path / f"a.{kind}", pa.table([["1"], ["x"], ["2"]], ["a", "text", "a"])
    if kind == "csv":
        path.write_text("a,text,a\n1,x,2\n")
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    result, _ = chunks_of([path], Selection(), 10)
    assert (result.texts, result.messages) == ([b"x"], [])
    for selection in (Selection(kept_columns=("a",)), Selection(text=("a",)), Selection(keep_all=True)):
        with pytest.raises(UsageError, match="2 columns are called 'a': rename all but one"):
            chunks_of([path], selection, 10)


def test_what_a_name_does_not_tell_the_content_does(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"row {i}", "x": "y" * 200_000 * (i == 2)}).encode() + b"\n" for i in range(5)]
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(lines[0]))
    (tmp_path / "b.json").write_bytes(b"\n " + lines[1])
    (tmp_path / "part-00000").write_bytes(lines[2])
    (tmp_path / "part-00001.gz").write_bytes(gzip.compress(lines[3]))
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf" + lines[4])
    pq.write_table(pa.table({"text": ["row 5"]}), tmp_path / "part-r-00002")
    (tmp_path / "part-00005").touch()
    others = {"config.json": '{\n "a": 1}', "LICENSE": "x"}
    unknown = {"list.json": '[{"text": "x"}]', "part-00003": "text\nrow 6\n", "part-00004.snappy": "\x00\x01"}
    for name, content in (others | unknown).items():
        (tmp_path / name).write_text(content)
    listed = find_files([str(tmp_path)], 70, 1014)
    skipped = {Path(path).name: why for path, why in listed.left_out}
    assert skipped.keys() == others.keys()
    assert skipped["LICENSE"] == NO_FORMAT
    assert sorted(Path(path).name for path, _ in listed.problems) == sorted(unknown)
    result = read_files(listed.found, Selection(), 10)
    assert (sorted(result.texts), result.messages) == ([b"row %d" % i for i in range(6)], [])
    with pytest.raises(UsageError, match=r"config.json: .* an object a line .*input_format="):
        find_files([str(tmp_path / "config.json")], 70, 1014)
    listed = find_files([str(tmp_path / "part-00003"), str(tmp_path / "part-0000[3]")], 70, 1014, input_format="csv")
    assert read_files(listed.found, Selection(), 10).texts == [b"row 6"]
    listed = find_files([str(tmp_path)], 70, 1014, input_format="text")
    assert (len(listed.found), listed.left_out) == (12, ())


@pytest.mark.parametrize(
    ("name", "data", "header", "texts", "aside"),
    [
        ("a.jsonl", b'not json\n{"text": "x", "id": 1}\n', None, [b"x"], 1),
        ("a.jsonl", b'{"more": "%s"}\n{"id": 2, "text": "y"}\n' % (b"m" * (5 << 20)), None, [b"y"], 1),
        ("a.csv", b"1,a,b\n2,x\n", ("id", "text"), [b"x"], 1),
        ("a.csv", b"1,caf\xe9\n2,x\n", ("id", "text"), [b"x"], 1),
        ("a.csv", b"1,%s\n2,x\n" % (b"z" * 200_000), ("id", "text"), [b"z" * 200_000, b"x"], 0),
    ],
)
def test_a_bad_first_record_costs_itself_alone(tmp_path: Path, name, data, header, texts, aside) -> None:
    (tmp_path / name).write_bytes(data)
    _, chunks = chunks_of([tmp_path / name], Selection(text=("text",), kept_columns=("id",), header=header), 10)
    assert [t for _, c in chunks for t in c.text.to_pylist()] == texts
    assert sum(len(c.quarantine) for _, c in chunks) == aside


def test_a_compressed_file_cut_before_its_first_row_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f.csv.gz").write_bytes(gzip.compress(b"id,text\n")[:-4])
    result, chunks = chunks_of([tmp_path / "f.csv.gz"], TEXT_AND_ID, 10)
    assert sum(c.rows_read for _, c in chunks) == 0
    assert "cut off or damaged" in result.messages[0]


def test_an_output_folder_among_the_inputs_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(as_csv(["x"]))
    for name in ("parts", "_entries"):
        (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / "_manifest.json").write_text("{}")
    (tmp_path / "out" / "parts" / "part-000000-0000000.parquet").write_bytes(b"")
    files = find_files([str(tmp_path)], 70, 1014).found
    assert [Path(f.path).name for f in files] == ["a.csv"]


def test_streams_of_long_articles_make_smaller_chunks(tmp_path: Path) -> None:
    path = tmp_path / "f.csv.gz"
    path.write_bytes(gzip.compress(as_csv(["x" * 4000] * 7)))
    _, chunks = chunks_of([path], TEXT_AND_ID, 1000, Limits(chunk_bytes=10_000))
    assert [len(c) for _, c in chunks] == [2, 2, 2, 1]


def test_chunks_in_one_keep_the_characters_of_whole_texts() -> None:
    chunks = list(of_table(pa.table({"text": ["one", "two", "three"]})).chunks(Selection(), 2))
    counted = [replace(c, n_chars=np.arange(len(c)) + 2000) for c in chunks]
    assert concat(counted).without_text().n_chars.tolist() == [2000, 2001, 2000]
    assert concat(chunks).n_chars is None


def test_a_parquet_file_under_another_name_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "parquet", TEXTS).rename(tmp_path / "articles.csv")
    result, chunks = chunks_of([tmp_path / "articles.csv"], TEXT_AND_ID, 10)
    assert not sum(c.rows_read for _, c in chunks)
    assert "it is a parquet file" in result.messages[0]


def test_a_missing_column_names_the_file_and_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"headline,body\nx,y\n")
    for selection, missing in ((Selection(text=()), "text"), (Selection(text=("body",), kept_columns=("nr",)), "nr")):
        with pytest.raises(UsageError) as caught:
            chunks_of([path], selection, 10)
        for part in (str(path), repr(missing), "headline, body"):
            assert part in str(caught.value)
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "n.parquet")
    with pytest.raises(UsageError, match="holds int64, not strings"):
        chunks_of([tmp_path / "n.parquet"], Selection(text=()), 10)


def test_a_parquet_page_that_is_not_what_was_written_is_no_text(tmp_path: Path) -> None:
    """If the writer stored checksums, they are checked, because a changed byte may still be valid UTF-8."""
    path = tmp_path / "f.parquet"
    table = pa.table({"text": [f"text number {i}" for i in range(50)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"number 17", b"lumber 17"))
    result, _ = chunks_of([path], Selection(text=("text",)), 100)
    assert result.texts == []
    assert "row group 0 cannot be read" in " ".join(result.messages)


def test_parquet_rows_that_are_null_or_not_utf8_are_set_aside(tmp_path: Path) -> None:
    broken = pa.array([b"good", b"caf\xe9", None, b""], pa.binary()).view(pa.string())
    title = pa.array([None, None, None, "title"])
    pq.write_table(pa.table({"text": broken, "title": title}), tmp_path / "f.parquet")
    _, [(_, chunk)] = chunks_of([tmp_path / "f.parquet"], Selection(text=("text",)), 10)
    assert chunk.text.to_pylist() == [b"good", b""]
    assert chunk.quarantine.column("reason").to_pylist() == [
        "column 'text' is not UTF-8: byte 3 of it is 0xe9",
        "the text is null",
    ]
    assert chunk.quarantine.column("head").to_pylist() == [b"caf\xe9", b""]
    _, [(_, both)] = chunks_of([tmp_path / "f.parquet"], Selection(text=("title", "text")), 10)
    assert both.text.to_pylist() == [b"good", b"title"]


def test_text_columns_are_joined_by_a_space_and_stripped(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"1,,only text\n2, title ,  text \n3,,\n")
    selection = Selection(text=("b", "c"), header=("a", "b", "c"), truth="a", classes=("x", "y"), rules=LabelRules(1))
    _, [(_, chunk)] = chunks_of([path], selection, 10)
    assert chunk.text.to_pylist() == [b"only text", b"title    text", b""]
    assert chunk.truth is not None
    assert chunk.truth.tolist() == [0, 1, -1]
    with pytest.raises(UsageError, match="2 columns are named; expected 2 fields, found 3"):
        chunks_of([path], Selection(text=("a",), header=("a", "b")), 10)


def test_a_plan_comes_back_from_json(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_bytes(b"")
    files = found([tmp_path / "0.csv", *(write(tmp_path, kind, TEXTS) for kind in ("parquet", "csv", "csv.gz"))])
    plan = plan_files(files, TEXT_AND_ID, 64)
    assert plan.first is not None
    assert plan.first[0].endswith(".parquet")
    assert plan_from(plan_bytes(plan), files, TEXT_AND_ID, 64, "plan") == plan
    for asked, chunk_rows, what in ((Selection(), 64, "columns"), (TEXT_AND_ID, 65, "chunk size")):
        with pytest.raises(OutputError, match=f"its {what} are not those of the job"):
            plan_from(plan_bytes(plan), files, asked, chunk_rows, "plan")


def write_tables(place: Path) -> None:
    """Write folders in the layouts of Delta, Hudi and Iceberg, each with a file of an earlier version."""
    histories = {
        "delta": ("_delta_log/00000000000000000000.json", "year=2024/a.parquet"),
        "hudi": (".hoodie/20240101000000000.commit", "a.parquet"),
        "iceberg": ("metadata/v1.metadata.json", "data/a.parquet"),
        "plain": ("metadata/about.jsonl", "a.parquet"),
    }
    for folder, (history, data) in histories.items():
        for path in (history, data, data.replace("a.", "b.")):
            (place / folder / path).parent.mkdir(parents=True, exist_ok=True)
            (place / folder / path).write_text('{"text": "of a table"}\n')
        for name in ("a", "b"):
            pq.write_table(pa.table({"text": [f"{folder} {name}"]}), place / folder / data.replace("a.", f"{name}."))


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_that_old_versions_of_a_table_are_read_too_is_said(tmp_path: Path, scheme: str) -> None:
    write_tables(tmp_path)
    top = str(tmp_path)
    if scheme:
        fs, top = fsspec.filesystem("memory"), f"memory:/{tmp_path}"
        fs.put(str(tmp_path), str(tmp_path), recursive=True)
    files = find_files([top], 70, 1014)
    assert len(files.found) == 9  # two of each table, and the lines that belong to no table
    told = sorted(remark.partition(": all of its")[0].rpartition("/")[2] for remark in files.remarks)
    assert told == ["delta is a table of Delta", "hudi is a table of Hudi", "iceberg is a table of Iceberg"]
    assert not files.left_out
    if not scheme:
        assert find_files([f"{top}/delta/*/*.parquet"], 70, 1014).remarks == files.remarks[:1]
        assert not find_files([f"{top}/plain"], 70, 1014).remarks


def test_a_job_over_a_table_says_so_and_is_whole(small_model: Model, tmp_path: Path) -> None:
    write_tables(tmp_path)
    heard: list[str] = []

    class Hearing(Progress):
        def warn(self, message: str) -> None:
            heard.append(message)

    report = classify(tmp_path / "delta", tmp_path / "out", model=small_model, progress=Hearing())
    assert (report.exit_code, report.rows_read) == (0, 2)
    (remark,) = (line for line in report.hints if "is a table of Delta" in line)
    assert [heard[0], heard.count(remark)] == [remark, 2]  # at the beginning, and in the report
    assert any("is a table of Delta" in line for line in dry_run(tmp_path / "delta", model=small_model).warnings)
