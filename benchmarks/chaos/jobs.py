"""The jobs that are disturbed: a small one for each way of reading rows, with its output without a disturbance."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.processes import environment

CHUNKS = 12
"""The number of chunks of each job."""

_CHUNK_ROWS = 20
_ROWS = CHUNKS * _CHUNK_ROWS
_SENTENCE = "the market fell as oil rose and our team won its match in the last minute of a long rainy day"

_LONG_BYTES = 8_000

BLOCKS = "blocks"
"""The job in which a GPU finds the records. In the other jobs the CPU reads them, since the files are small."""

Row = tuple[int, str | None]
"""An id and a text; the text is None for a row that the job puts into quarantine."""


@dataclass(frozen=True)
class Job:
    """A job that has run without a disturbance.

    Attributes
    ----------
    name : str
        The name of the way in which its rows are read.
    folder : Path
        Has the input in `in`, and the undisturbed output in `out`.
    command : tuple of str
        The command to run in a folder with such an input, without the option for the output folder.
    seconds : float
        How long the undisturbed run took.

    """

    name: str
    folder: Path
    command: tuple[str, ...]
    seconds: float

    def copy_input(self, folder: Path) -> None:
        """Copy the input, with the times of its files, which are part of a job's fingerprint."""
        shutil.copytree(self.folder / "in", folder / "in", copy_function=shutil.copy2)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of an output that must be the same however the job went: all except the timings."""
    files = (p for p in folder.rglob("*") if p.is_file() and "_runs" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def run_undisturbed(name: str, folder: Path, options: tuple[str, ...]) -> Job:
    """Write a job's input, and run the job without a disturbance. Raises CalledProcessError if it fails.

    options: options of `broadsheet classify` that all jobs have.
    """
    folder = folder / name
    (folder / "in").mkdir(parents=True)
    write, more = _KINDS[name]
    write(folder / "in", _rows(name))
    arguments = (
        "classify",
        "in",
        "--root",
        ".",
        "--chunk-size",
        str(_CHUNK_ROWS),
        *more,
        *options,
    )  # relative paths, so it runs in any folder
    command = (sys.executable, "-m", "broadsheet", *arguments)
    began = time.perf_counter()
    subprocess.run([*command, "-o", "out"], cwd=folder, env=environment(), check=True, capture_output=True)
    return Job(name, folder, command, time.perf_counter() - began)


def texts_of(name: str, count: int = _ROWS) -> list[str]:
    """Return random texts of 1 to 60 words each."""
    draw = random.Random(name)
    return [" ".join(draw.choices(_SENTENCE.split(), k=draw.randint(1, 60))) for _ in range(count)]


def _rows(name: str) -> list[Row]:
    return [(number, text if number % 17 else None) for number, text in enumerate(texts_of(name))]


def _lines_of_csv(rows: list[Row]) -> str:
    return "id,text\n" + "".join(f"{number}\n" if text is None else f'{number},"{text}"\n' for number, text in rows)


def _write_csv(folder: Path, rows: list[Row]) -> None:
    (folder / "news.csv").write_text(_lines_of_csv(rows))


def _write_jsonl(folder: Path, rows: list[Row]) -> None:
    """Write three files, with chunks that hold the end of one file and the beginning of the next."""
    for part in range(3):
        lines = [json.dumps({"id": number, "text": text}) for number, text in rows[part::3]]
        (folder / f"news-{part}.jsonl").write_text("\n".join(lines) + "\n")


def _write_parquet(folder: Path, rows: list[Row]) -> None:
    columns = {"id": [number for number, _ in rows], "text": [text for _, text in rows]}
    pq.write_table(pa.table(columns), folder / "news.parquet", row_group_size=50)


def _write_gzip(folder: Path, rows: list[Row]) -> None:
    """Write a compressed file with more rows than a chunk holds. The job reads it from front to back."""
    (folder / "news.csv.gz").write_bytes(gzip.compress(_lines_of_csv(rows).encode(), mtime=0))


def _write_blocks(folder: Path, rows: list[Row]) -> None:
    """Write long texts, so that a GPU finds the records: it does so in files of 1 MiB or more, compressed or not."""
    draw = random.Random("blocks")
    lines = []
    for number, text in rows:
        long = None if text is None else f"{text} {draw.randbytes(_LONG_BYTES).hex()}"
        lines.append(json.dumps({"id": number, "text": long}))
    data = "".join(f"{line}\n" for line in lines).encode()
    (folder / "news.jsonl.gz").write_bytes(gzip.compress(data, compresslevel=1, mtime=0))


_KINDS: dict[str, tuple[Callable[[Path, list[Row]], None], tuple[str, ...]]] = {
    "csv": (_write_csv, ("--id-column", "id", "--scores")),
    "jsonl": (_write_jsonl, ("--id-column", "id", "--top-k", "2")),
    "parquet": (_write_parquet, ("--id-column", "id")),
    "csv.gz": (_write_gzip, ()),
    BLOCKS: (_write_blocks, ("--id-column", "id")),
    "attributes": (_write_jsonl, ("--id-column", "id", "--layout", "attributes", "--format", "jsonl")),
}

JOBS = tuple(_KINDS)
