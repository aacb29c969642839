"""Compare how fast the product, PyArrow and DuckDB read the texts of files, on the same cores in the same run.

    python -m benchmarks.readers --articles-csv ag_news/train.csv --output benchmarks/results/readers.json

Short texts are AG News articles in which some words are replaced. Long texts are 20 of them, joined by spaces, since
DuckDB reads no quoted line ends on several threads. Each file has a number and a text in each row. PyArrow and DuckDB
read the whole texts and keep them in memory. The product checks and counts the whole texts, and keeps what a model of
1,014 characters reads.

Listing the files and finding their columns does not count. The readers take turns; the first turn does not count. The
record has the medians of the others, and the processor time of each reader. All readers have the memory settings of
workers, with which an allocator keeps free buffers and does not return them to the system.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.corpora_files import Corpus, table_by_pyarrow, write_corpus
from benchmarks.record import about, parser, write
from broadsheet.cluster.settings import environment
from broadsheet.pipeline.processes.threads import available_cores
from broadsheet.pipeline.source.inputs import chunks_here, identify, open_input
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.limits import CHUNK_ROWS

_SYMBOLS, _READS = 70, 1014
_FILES = 4
_FORMATS = {"jsonl": "jsonl", "jsonl.gz": "jsonl", "jsonl.zst": "jsonl", "csv": "csv", "parquet": "parquet"}
"""The name of the format in DuckDB, by the suffix."""


def ours(folder: Path, suffix: str) -> Callable[[], int]:
    """Return a function that reads the files as a job does."""
    given = identify(str(folder), _SYMBOLS, _READS)
    planned = open_input(given, Selection(("text",), reads=_READS), CHUNK_ROWS["cuda"])
    return lambda: sum(chunk.rows_read for chunk in chunks_here(planned))


def by_pyarrow(folder: Path, suffix: str) -> Callable[[], int]:
    """Return a function that reads the files with PyArrow, one after another, each on all threads.

    On few cores, reading a dataset of JSON files may never end.
    """
    files = sorted(folder.iterdir())
    return lambda: sum(len(table_by_pyarrow(file)) for file in files)


def by_duckdb(folder: Path, suffix: str) -> Callable[[], int]:
    """Return a function that reads the files with DuckDB."""
    source = {
        "jsonl": "read_json('{}', format='newline_delimited', columns={{text: 'VARCHAR'}})",
        "csv": "read_csv('{}')",
        "parquet": "read_parquet('{}')",
    }[_FORMATS[suffix]].format(folder / f"*.{suffix}")
    relation = duckdb.sql(f"SELECT text FROM {source}")
    return lambda: len(relation.to_arrow_table())


READERS = {"broadsheet": ours, "pyarrow": by_pyarrow, "duckdb": by_duckdb}


def measure(folder: Path, suffix: str, rows: int, text_bytes: int, repeats: int) -> dict[str, Any]:
    """Measure the rows per second of each reader.

    Parameters
    ----------
    folder : Path
        The folder of the files.
    suffix : str
        The ending of their names.
    rows : int
        The number of rows in all files.
    text_bytes : int
        The bytes of all texts.
    repeats : int
        The number of measured rounds, after a first one.

    """
    # Read in turns, and check the numbers of rows.
    seconds: dict[str, list[float]] = {name: [] for name in READERS}
    processor: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(repeats + 1):
        for name, reader in READERS.items():
            read = reader(folder, suffix)
            began, busy = time.perf_counter(), time.process_time()
            counted = read()
            seconds[name].append(time.perf_counter() - began)
            processor[name].append(time.process_time() - busy)
            if counted != rows:
                raise RuntimeError(f"{name} read {counted} rows of {folder.name}, not {rows}")
    return {
        "rows": rows,
        "text_bytes": text_bytes,
        "stored_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "processor_seconds": {name: statistics.median(busy[1:]) for name, busy in processor.items()},
        "seconds": {name: timings[1:] for name, timings in seconds.items()},
        "rows_per_second": {name: rows / statistics.median(timings[1:]) for name, timings in seconds.items()},
    }


def main() -> None:
    """Write files in each format, with short and with long texts, and measure the readers on them."""
    arguments = parser(__doc__, articles=True)
    arguments.add_argument("--short", type=int, default=2_000_000, help="rows of short texts")
    arguments.add_argument("--long", type=int, default=200_000, help="rows of long texts")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    # Start again with the environment of a worker, and give all readers the same cores.
    as_worker = {**os.environ, **environment()}
    if as_worker != dict(os.environ):  # an allocator reads its settings when a process starts
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.readers", *sys.argv[1:]], as_worker)
    cores = available_cores()
    pa.set_cpu_count(cores)
    duckdb.sql(f"SET threads = {cores}")
    # Write the files, and measure.
    result: dict[str, Any] = {"about": about(options, duckdb=duckdb.__version__), "repeats": options.repeats}
    for kind, rows in (("short", options.short // _FILES), ("long", options.long // _FILES)):
        with tempfile.TemporaryDirectory(prefix="readers-") as scratch:
            corpora = {
                suffix: write_corpus(
                    options.articles_csv,
                    Path(scratch),
                    Corpus(suffix.replace(".", "-"), f".{suffix}", _FILES, rows, long=kind == "long"),
                )
                for suffix in _FORMATS
            }
            text = pq.read_table(corpora["parquet"], columns=["text"])["text"]
            sizes = _FILES * rows, pc.sum(pc.binary_length(text)).as_py(), options.repeats
            result[kind] = {suffix: measure(folder, suffix, *sizes) for suffix, folder in corpora.items()}
    write(result, options.output)


if __name__ == "__main__":
    main()
