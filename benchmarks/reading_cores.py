"""How reading scales with the cores of a machine, without a cluster: so many processes, each with files of its own.

    python -m benchmarks.reading_cores --articles-csv ag_news/test.csv --folder /tmp/cores --output cores.json

Each process reads all rows of one file of its own, once to warm up, then again and again until all have done so for
some seconds; as a worker's reader processes do, it parses in one thread and has the settings of memory of workers. What
16 processes read beside 16 times what one does tells what the cores share: caches, memory, and the hypervisor's page
tables. One large gzip file is decompressed by `rapidgzip` alone, in chunks of several sizes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.corpora_files import Corpus, write_corpus
from benchmarks.record import about, parser, write
from cluster.settings import environment
from pipeline.processes.threads import available_cores
from pipeline.source.chunk import Selection
from pipeline.source.inputs import chunks_here, identify, open_input
from pipeline.source.limits import CHUNK_ROWS, LIMITS
from pipeline.source.open.ahead import PARSING

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
_ROWS, _SECONDS = 12_500, 3.0
_CHUNKS = (1 << 20, 2 << 20, 4 << 20)


def read(file: str, block_bytes: int, ready: Barrier, rates: multiprocessing.Queue[float]) -> None:
    """Read one file over and over; `rates` gets the rows a second."""
    object.__setattr__(LIMITS, "block_bytes", block_bytes)
    PARSING.share = lambda: 1
    given = open_input(identify(file, 70, 1014), Selection(("text",), reads=1014), CHUNK_ROWS["cuda"])
    count = sum(chunk.rows_read for chunk in chunks_here(given))
    ready.wait()
    began, times = time.monotonic(), 0
    while (seconds := time.monotonic() - began) < _SECONDS:
        times += sum(1 for _ in chunks_here(given)) > 0
    rates.put(times * count / seconds)


def together(files: list[Path], processes: int, block_bytes: int) -> float:
    """Rows a second of so many processes."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.Queue()
    running = [
        context.Process(target=read, args=(str(files[i % len(files)]), block_bytes, ready, rates))
        for i in range(processes)
    ]
    for process in running:
        process.start()
    found = sum(rates.get() for _ in running)
    for process in running:
        process.join()
    return float(found)


def decompressed(file: Path, threads: int, chunk_bytes: int) -> float:
    """Bytes a second that `rapidgzip` makes of a file."""
    import rapidgzip

    block, count, began = memoryview(bytearray(1 << 20)), 0, time.perf_counter()
    with rapidgzip.RapidgzipFile(str(file), parallelization=threads, chunk_size=chunk_bytes) as stream:
        while size := stream.readinto(block):
            count += size
    return count / (time.perf_counter() - began)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--articles-csv", type=Path, required=True, help="an AG News CSV: class, title, description")
    command.add_argument("--folder", type=Path, required=True, help="for input: 10 GB")
    command.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    command.add_argument("--block-mib", type=int, nargs="+", default=[8, 2, 1])
    options = command.parse_args()
    as_worker = {**os.environ, **environment()}
    if as_worker != dict(os.environ):  # an allocator takes its settings as a process starts
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.reading_cores", *sys.argv[1:]], as_worker)
    options.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"about": about(options), "rows_per_second": [], "rapidgzip": []}
    for ending in _ENDINGS:
        corpus = Corpus(f"cores{ending}", ending, max(options.processes), _ROWS, long=True)
        files = sorted(write_corpus(options.articles_csv, options.folder, corpus).iterdir())
        for block in options.block_mib[: 1 if ending == ".parquet" else None]:
            for processes in options.processes:
                rate = together(files, processes, block << 20)
                result["rows_per_second"].append([ending, block, processes, rate])
                print(f"{ending}, blocks of {block} MiB, {processes} processes: {rate:,.0f} rows/s", flush=True)
    one = Corpus("cores-one", ".jsonl.gz", max(options.processes), _ROWS, long=True, one=True)
    (file,) = write_corpus(options.articles_csv, options.folder, one).iterdir()
    for chunk in _CHUNKS:
        rate = decompressed(file, available_cores(), chunk)
        result["rapidgzip"].append([chunk, rate])
        print(f"one .gz, chunks of {chunk >> 20} MiB: {rate / 1e6:,.0f} MB/s", flush=True)
    write(result, options.output)


if __name__ == "__main__":
    main()
