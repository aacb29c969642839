"""- and -o -: labels in a pipe, line by line, as another program sees them."""

from __future__ import annotations

import gzip
import io
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from threading import Thread

import pandas as pd
import pytest
from conftest import CommandHere
from distributed import Client

from broadsheet.pipeline import Options, Paths, SourceError, UsageError, classify, verify
from broadsheet.pipeline.job.pipe import pipe
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.memory.stdin import Stdin

TEXTS = ["Stocks fell on Monday", "", "Zürich; a, b", "x" * 5000, 'a "quote"', "the end"]
CSV = "id,text\n" + "".join(f'{i},"{t.replace(chr(34), chr(34) * 2)}"\n' for i, t in enumerate(TEXTS))
DATA = {
    "text": "\n".join(TEXTS).encode() + b"\ncaf\xe9\nno end",
    "csv": CSV.encode() + b'too,many,fields\n7,"two\nlines"\n8,caf\xe9\n',
    "wet": b"".join(
        b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: %d\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
        % (i, len(text), text)
        for i, text in enumerate([t.encode() for t in TEXTS] + [b"caf\xe9"])
    ),
    "jsonl": b"".join(json.dumps({"id": str(i), "text": t}).encode() + b"\n" for i, t in enumerate(TEXTS)) + b"{\n[]",
}


def stdin_of(data: bytes, kind: str | None, piece: int = 1 << 20) -> Stdin:
    """Return a stdin whose data arrives through a real pipe, in pieces."""
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(OSError), open(writing, "wb", buffering=0) as stream:
            for at in range(0, len(data), piece):
                while at and ioctl(reading, FIONREAD, bytes(4)) != bytes(4):  # the previous piece has not been read yet
                    time.sleep(0.0001)
                stream.write(data[at : at + piece])

    Thread(target=write, daemon=True).start()
    return Stdin(open(reading, "rb", buffering=0), kind)


def rows_of(source: Stdin | Paths, model: Model, **options: object) -> list[dict]:
    out = io.BytesIO()
    pipe(source, out.write, model=model, options=Options(**options))
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("kind", DATA)
def test_what_is_piped_in_has_the_rows_and_bits_of_a_file(
    client: Client, small_model: Model, tmp_path: Path, kind: str
) -> None:
    """The pieces may have any size. Every row is in its place, and a bad row has the reason."""
    path = tmp_path / f"in.{'txt' if kind == 'text' else kind}"
    path.write_bytes(DATA[kind])
    keep = {"keep": "text" if kind == "text" else "id"}
    expected = classify(path, model=small_model, client=client, **keep).to_pandas()
    assert expected["label"].isna().sum() > 0
    for source in (stdin_of(DATA[kind], kind, 7), stdin_of(DATA[kind], kind), Paths([str(path)])):
        found = pd.DataFrame(rows_of(source, small_model, **keep))
        assert set(found.pop("file")) == {"stdin" if isinstance(source, Stdin) else str(path)}
        assert found["score"].astype("float32").equals(expected["score"])
        same = ["row", keep["keep"], "label", "n_chars", "unknown_chars", "reason"]
        pd.testing.assert_frame_equal(found[same], expected[same], check_dtype=False)


@pytest.mark.parametrize("kind", [None, *DATA])
def test_a_pipe_that_brings_nothing_has_no_rows(small_model: Model, kind: str | None) -> None:
    for nothing in (b"", b"\xef\xbb\xbf"):
        assert rows_of(stdin_of(nothing, kind), small_model) == []
    if kind in ("csv", "jsonl"):
        assert rows_of(stdin_of(b"", kind), small_model, keep="id") == []
        late = rows_of(stdin_of(b"\n\n" + DATA[kind], kind, 2), small_model, keep="id")
        assert late == rows_of(stdin_of(DATA[kind], kind), small_model, keep="id")


def test_options_in_a_pipe(small_model: Model) -> None:
    every = rows_of(stdin_of(DATA["jsonl"], "jsonl"), small_model, scores=True, top_k=2, id_column="id")
    assert len(every) == 8
    assert every[0]["top_labels"][0] == every[0]["label"]
    assert every[0]["score"] == every[0][f"score_{every[0]['label']}"]
    label = every[0]["label"]
    chosen = rows_of(stdin_of(DATA["jsonl"], "jsonl"), small_model, where=f'label == "{label}"')
    assert [row["row"] for row in chosen] == [r["row"] for r in every if r["label"] in (label, None)]  # no row is lost
    endless = stdin_of(b"a line\n" * 5 + b"x" * 100, None)
    assert [row["row"] for row in rows_of(endless, small_model, limit=3)] == [0, 1, 2]
    out = io.BytesIO()
    found = pipe(stdin_of(DATA["csv"], "csv", 50), out.write, model=small_model, options=Options(), kind="csv")
    frame = pd.read_csv(io.BytesIO(out.getvalue()))
    assert frame["row"].tolist() == list(range(9))  # one header
    assert (found.rows_read, found.rows_written, found.rows_quarantined) == (9, 7, 2)
    out = io.BytesIO()
    with pytest.raises(SourceError, match=r"stdin: row 6: column 'text' is not UTF-8.*strict=True stops here"):
        pipe(stdin_of(DATA["text"], None), out.write, model=small_model, options=Options(strict=True))
    assert len(out.getvalue().splitlines()) == 6


def test_what_stdin_plainly_does_not_hold_is_refused(small_model: Model) -> None:
    for data, options, message in (
        (DATA["jsonl"], {}, "looks like JSONL: say --stdin-format jsonl"),
        (b"id;text\n1;x\n", {}, "looks like CSV: say --stdin-format csv .*';'"),
        (b"id,text\n", {}, "looks like CSV: say --stdin-format csv "),
        (b'id,Review body\n1,"x, y"\n2,"a\nb"\n3,', {}, "looks like CSV: say --stdin-format csv "),
        (b"id\ttitle\n1\tx\n", {}, "looks like TSV: say --stdin-format tsv"),
        (b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", {}, "looks like WET: say --stdin-format wet"),
        (gzip.compress(b"a line\n"), {}, "stdin holds gzip"),
        (b"title\nx\n", {"text_column": "title"}, "no column 'title': say --stdin-format csv"),
    ):
        with pytest.raises(UsageError, match=message):
            rows_of(stdin_of(data, None), small_model, **options)
    for lines in (b"Hello, world\nHello, again\n", b"yes,no\nA sentence.\n", b"7,8\n9,10\n", b"a,a\nb,b\n", b'"\n'):
        assert len(rows_of(stdin_of(lines, None), small_model)) == len(lines.splitlines())
    with pytest.raises(UsageError, match="stdin: no column 'body'"):
        rows_of(stdin_of(DATA["csv"], "csv"), small_model, text_column="body")


def test_a_job_over_stdin(client: Client, small_model: Model, tmp_path: Path) -> None:
    options = {"model": small_model, "client": client, "chunk_size": 4}
    report = classify(stdin_of(DATA["csv"], "csv", 11), tmp_path / "out", **options)
    assert (report.rows_read, report.rows_quarantined, verify(tmp_path / "out").chunks) == (9, 2, 3)
    with pytest.raises(UsageError, match="stdin cannot be read a second time"):
        classify(stdin_of(DATA["csv"], "csv"), tmp_path / "out", resume=True, **options)


@pytest.mark.slow
def test_each_line_has_its_label_before_the_next_one_comes(small_model_file: Path) -> None:
    """Stdout has nothing else. A closed pipe and SIGTERM end the command silently."""
    command = [sys.executable, "-m", "broadsheet", "classify", "-", "-o", "-", "--model", str(small_model_file)]
    ends = []
    for ending in ("a closed pipe", "a signal"):
        process = subprocess.Popen(command, bufsize=0, stdin=-1, stdout=-1, stderr=-1)
        for number in range(3):
            process.stdin.write(b"Stocks fell\n")
            assert select.select([process.stdout], [], [], 240)[0]
            assert json.loads(process.stdout.readline())["row"] == number
        if ending == "a closed pipe":
            process.stdout.close()
            process.stdin.write(b"Stocks fell\n")
        else:
            process.terminate()
        ends.append((process.wait(240), process.stderr.read()))
    assert ends == [(-signal.SIGPIPE, b""), (-signal.SIGTERM, b"")]


@pytest.mark.slow
def test_stdout_that_is_closed_or_full_is_told_without_a_traceback(small_model_file: Path, tmp_path: Path) -> None:
    """A job finishes all the same, and none of its files ever gets the file number of stdout."""
    (tmp_path / "in.csv").write_bytes(DATA["csv"])
    broadsheet = (sys.executable, "-m", "broadsheet")
    for *command, end, code, message in (
        ("inspect", small_model_file, ">&-", 0, ""),
        ("inspect", small_model_file, "| true", 141, ""),
        ("inspect", small_model_file, ">/dev/full", 1, "stdout cannot be written: No space left on device"),
        ("classify", "in.csv", "--model", small_model_file, "-o", "-", ">&-", 2, "stdout is closed"),
        ("classify", "in.csv", "--model", small_model_file, "-o", "out", ">&-", 0, ""),
    ):
        line = f"set -o pipefail; {shlex.join(map(str, (*broadsheet, *command)))} {end}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (code, True, False), done
    assert verify(tmp_path / "out").rows_quarantined == 2


def test_the_command_keeps_stdout_for_labels(
    broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_bytes(DATA["csv"])
    arguments = ("classify", tmp_path / "in.csv", "--model", small_model_file, "--max-quarantined", "100%")
    code, told = broadsheet_here(*arguments, "-o", "-")
    assert code == 0
    rows, remarks = told.splitlines()[:9], told.splitlines()[9:]
    assert [json.loads(row)["row"] for row in rows] == list(range(9))
    assert remarks[0].startswith("broadsheet: 9 rows read = 7 labelled + 2 without a label")
    assert all(remark.startswith("broadsheet: ") for remark in remarks)
    assert len(broadsheet_here(*arguments, "-o", "-", "--quiet")[1].splitlines()) == 9
    (tmp_path / "notes.json").write_text("{}")
    code, told = broadsheet_here("classify", tmp_path, *arguments[2:], "-o", "-", "--quiet")
    assert (code, len(told.splitlines())) == (0, 10)
    assert f"1 file was skipped: {tmp_path / 'notes.json'} (it is a JSON object" in told
    for wrong, message in (
        (("-o", "-", "--resume"), "--resume does not go with -o -"),
        (("-o", "-", "--workers", 2), "--workers does not go with -o -"),
        (("-o", "-", "--format", "parquet"), "to stdout it is jsonl or csv"),
        (("-o", "-", "--stdin-format", "csv"), "goes with the input -"),
        (("-", "-o", "-"), "stands for stdin: give it alone"),
        ((), "give a folder or a file for the labels"),
    ):
        code, told = broadsheet_here(*arguments, *wrong)
        assert (code, message in told) == (2, True), told
