"""How fast the text of files is read: by the product, by PyArrow and by DuckDB, on the same cores in the same run.

    python -m benchmarks.readers --output benchmarks/results/readers.json

Short texts are AG News articles, where BROADSHEET_DATA names a folder that has them, else random words; long ones are
20 of them joined, by spaces, since DuckDB reads no quoted line ends on several threads. Each file holds a number and a
text for each row, and the text is read: all of it by PyArrow and DuckDB, which keep it; the product checks and counts
all of it, and keeps what a model of 1,014 characters reads. Files are listed, and their columns found, before the clock
starts. The readers take turns, after a turn that does not count; the medians are recorded, with how much processor time
each took. All have the settings of memory that workers have: buffers are kept, and not given back to the system.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from benchmarks.articles import ag_news_texts
from benchmarks.record import about, parser, seconds_of, write
from cluster.settings import environment
from pipeline.processes.threads import available_cores
from pipeline.source.chunk import Selection
from pipeline.source.inputs import chunks_here, identify, open_input
from pipeline.source.limits import CHUNK_ROWS

_SYMBOLS, _READS = 70, 1014
_JOINED, _FILES = 20, 4
_FORMATS = {"jsonl": "jsonl", "jsonl.gz": "jsonl", "jsonl.zst": "jsonl", "csv": "csv", "parquet": "parquet"}
"""Suffixes, and what the other readers call the format."""


def texts(rows: int, joined: int) -> list[str]:
    """`rows` texts, each of `joined` articles."""
    rng = np.random.default_rng(joined)
    data = os.environ.get("BROADSHEET_DATA")
    if data and (file := Path(data) / "ag_news" / "train.csv").exists():
        articles = ag_news_texts(file)
    else:
        words = ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 10, 5000)]
        articles = [" ".join(words[i] for i in rng.integers(0, len(words), 37)) for _ in range(20_000)]
    chosen = rng.integers(0, len(articles), (rows, joined))
    return [" ".join(articles[i] for i in row) for row in chosen]


def write_files(folder: Path, given: Sequence[str]) -> None:
    """A folder for each format, with the texts in several files."""
    step = -(-len(given) // _FILES)
    for number, first in enumerate(range(0, len(given), step)):
        part = given[first : first + step]
        table = pa.table({"id": range(first, first + len(part)), "text": part})
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist())
        for suffix in _FORMATS:
            (folder / suffix).mkdir(parents=True, exist_ok=True)
            path = folder / suffix / f"{number:02d}.{suffix}"
            if suffix == "parquet":
                pq.write_table(table, path, compression="zstd", row_group_size=CHUNK_ROWS["cuda"])
            elif suffix == "csv":
                pa_csv.write_csv(table, path)
            else:
                with pa.output_stream(path, compression="detect") as stream:
                    stream.write(lines)


def ours(folder: Path) -> Callable[[], int]:
    given = identify(str(folder), _SYMBOLS, _READS)
    planned = open_input(given, Selection(("text",), reads=_READS), CHUNK_ROWS["cuda"])
    return lambda: sum(chunk.rows_read for chunk in chunks_here(planned))


def by_pyarrow(folder: Path) -> Callable[[], int]:
    """Each file by all threads, one after another: a dataset of JSON files may never end, on few cores."""
    files = sorted(folder.iterdir())
    return lambda: sum(len(_table_by_pyarrow(file, _FORMATS[folder.name])) for file in files)


def _table_by_pyarrow(file: Path, kind: str) -> pa.Table:
    if kind == "parquet":
        return pq.read_table(file, columns=["text"])
    if kind == "csv":
        some = pa_csv.ConvertOptions(include_columns=["text"])
        return pa_csv.read_csv(file, parse_options=pa_csv.ParseOptions(newlines_in_values=True), convert_options=some)
    schema = pa.schema([("text", pa.string())])
    only = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with pa.input_stream(file, compression="detect") as stream:
        return pa_json.read_json(stream, parse_options=only)


def by_duckdb(folder: Path) -> Callable[[], int]:
    suffix = folder.name
    source = {
        "jsonl": "read_json('{}', format='newline_delimited', columns={{text: 'VARCHAR'}})",
        "csv": "read_csv('{}')",
        "parquet": "read_parquet('{}')",
    }[_FORMATS[suffix]].format(folder / f"*.{suffix}")
    relation = duckdb.sql(f"SELECT text FROM {source}")
    return lambda: len(relation.to_arrow_table())


READERS: dict[str, Callable[[Path], Callable[[], int]]] = {
    "broadsheet": ours,
    "pyarrow": by_pyarrow,
    "duckdb": by_duckdb,
}


def measure(folder: Path, rows: int, raw: int, repeats: int) -> dict[str, Any]:
    """Rows a second of each reader, and bytes of text."""
    found: dict[str, list[float]] = {name: [] for name in READERS}
    processor: dict[str, list[float]] = {name: [] for name in READERS}
    for turn in range(repeats + 1):
        for name, reader in READERS.items():
            read = reader(folder)
            counted: list[int] = []
            busy = time.process_time()
            (seconds,) = seconds_of(lambda read=read, counted=counted: counted.append(read()), 1)  # type: ignore[misc]
            busy = time.process_time() - busy
            if counted != [rows]:
                raise RuntimeError(f"{name} read {counted} rows of {folder.name}, not {rows}")
            if turn:
                found[name].append(seconds)
                processor[name].append(busy)
    return {
        "rows": rows,
        "text_bytes": raw,
        "stored_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "processor_seconds": {name: statistics.median(busy) for name, busy in processor.items()},
        "seconds": found,
        "rows_per_second": {name: rows / statistics.median(seconds) for name, seconds in found.items()},
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--short", type=int, default=2_000_000, help="rows of short texts")
    arguments.add_argument("--long", type=int, default=200_000, help="rows of long texts")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    as_worker = {**os.environ, **environment()}
    if as_worker != dict(os.environ):  # an allocator takes its settings as a process starts
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.readers", *sys.argv[1:]], as_worker)
    cores = available_cores()
    pa.set_cpu_count(cores)
    duckdb.sql(f"SET threads = {cores}")
    result: dict[str, Any] = {"about": about(options, duckdb=duckdb.__version__), "repeats": options.repeats}
    for kind, rows, joined in (("short", options.short, 1), ("long", options.long, _JOINED)):
        with tempfile.TemporaryDirectory(prefix="readers-") as folder:
            given = texts(rows, joined)
            write_files(Path(folder), given)
            raw = sum(len(text.encode()) for text in given)
            result[kind] = {suffix: measure(Path(folder) / suffix, rows, raw, options.repeats) for suffix in _FORMATS}
    write(result, options.output)


if __name__ == "__main__":
    main()
