"""How fast the text of files is read: by the product, by PyArrow and by DuckDB, on the same cores in the same run.

    python -m benchmarks.readers --articles-csv ag_news/train.csv --output benchmarks/results/readers.json

Short texts are AG News articles with some of their words drawn anew, long ones are 20 of them joined, by spaces, since
DuckDB reads no quoted line ends on several threads. Each file holds a number and a
text for each row, and the text is read: all of it by PyArrow and DuckDB, which keep it; the product checks and counts
all of it, and keeps what a model of 1,014 characters reads. Files are listed, and their columns found, before the clock
starts. The readers take turns, after a turn that does not count; the medians are recorded, with how much processor time
each took. All have the settings of memory that workers have: buffers are kept, and not given back to the system.
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
"""The format's name in the other readers, by its suffix."""


def ours(folder: Path, suffix: str) -> Callable[[], int]:
    given = identify(str(folder), _SYMBOLS, _READS)
    planned = open_input(given, Selection(("text",), reads=_READS), CHUNK_ROWS["cuda"])
    return lambda: sum(chunk.rows_read for chunk in chunks_here(planned))


def by_pyarrow(folder: Path, suffix: str) -> Callable[[], int]:
    """Reads each file by all threads, one after another: on few cores, a dataset of JSON files may never end."""
    files = sorted(folder.iterdir())
    return lambda: sum(len(table_by_pyarrow(file)) for file in files)


def by_duckdb(folder: Path, suffix: str) -> Callable[[], int]:
    source = {
        "jsonl": "read_json('{}', format='newline_delimited', columns={{text: 'VARCHAR'}})",
        "csv": "read_csv('{}')",
        "parquet": "read_parquet('{}')",
    }[_FORMATS[suffix]].format(folder / f"*.{suffix}")
    relation = duckdb.sql(f"SELECT text FROM {source}")
    return lambda: len(relation.to_arrow_table())


READERS = {"broadsheet": ours, "pyarrow": by_pyarrow, "duckdb": by_duckdb}


def measure(folder: Path, suffix: str, rows: int, text_bytes: int, repeats: int) -> dict[str, Any]:
    """Rows a second of each reader, and what it reads.

    Parameters
    ----------
    folder : Path
        Where the files are.
    suffix : str
        The ending of their names.
    rows : int
        Rows of all files.
    text_bytes : int
        Bytes of their text.
    repeats : int
        Rounds that are measured, after a first one.

    """
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
    arguments = parser(__doc__, articles=True)
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
