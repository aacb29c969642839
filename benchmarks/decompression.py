"""Measure how fast each library decompresses, with one thread and with one thread for each core.

    python -m benchmarks.decompression --articles-csv ag_news/train.csv --output benchmarks/results/decompression.json

The text is AG News as JSON Lines, with one article in each line ("short") or with 20 joined articles, 5 KB ("long").
A rate is MB of decompressed content per second, the best of two rounds. For one core, the seconds are processor time;
for all cores, wall-clock time.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import itertools
import json
import lzma
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import isal.isal_zlib
import lz4.frame
import pyarrow as pa
import zlib_ng.zlib_ng
import zstandard

from benchmarks.record import about, parser, seconds_of, write
from broadsheet.pipeline.processes.threads import available_cores
from broadsheet.pipeline.source.open.decompress import PIECE_BYTES, content_of
from broadsheet.pipeline.source.rows.compression import COMPRESSIONS

ARTICLES_JOINED = {"short": 1, "long": 20}
BYTES = {"gzip": 24 << 20, "zstd": 24 << 20, "lz4": 24 << 20, "bz2": 3 << 20, "xz": 3 << 20}
BLOCK, ROUNDS = 4 << 20, 2

Read = Callable[[Path], int]


def texts(articles: Path, joined: int, least_bytes: int) -> bytes:
    """Return JSON Lines of at least `least_bytes` bytes. joined: the number of articles in a line."""
    with articles.open(newline="") as file:
        rows = itertools.cycle([" ".join(row[1:]) for row in csv.reader(file)])
    lines: list[bytes] = []
    size = 0
    while size < least_bytes:
        lines.append(json.dumps({"id": len(lines), "text": " ".join(itertools.islice(rows, joined))}).encode() + b"\n")
        size += len(lines[-1])
    return b"".join(lines)


def packed(compression: str, data: bytes) -> bytes:
    """Compress data, at the usual level of the compression."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "gzip": lambda d: gzip.compress(d, 6),
        "zstd": zstandard.ZstdCompressor(3).compress,
        "lz4": lz4.frame.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
    }
    return pack[compression](data)


def drained(stream: Any) -> int:
    """Read a stream to its end, and return the number of bytes."""
    return sum(iter(lambda: len(stream.read(BLOCK)), 0))


def by_zlib(module: Any) -> Read:
    """Return a function that reads a gzip file with a module that has zlib's interface."""

    def read(path: Path) -> int:
        decoder, count = module.decompressobj(wbits=31), 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(256 << 10):
                count += len(decoder.decompress(block))
        return count

    return read


def by_arrow(name: str) -> Read:
    """Return a function that reads a compressed file with PyArrow."""

    def read(path: Path) -> int:
        with pa.CompressedInputStream(pa.OSFile(str(path)), name) as stream:
            return drained(stream)

    return read


def by_zstandard(path: Path) -> int:
    """Read a zstd file with the package zstandard."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        return drained(stream)


def by_ours(name: str) -> Read:
    """Return a function that reads a compressed file as Broadsheet does."""

    def read(path: Path) -> int:
        with path.open("rb") as file:
            content = content_of(file, COMPRESSIONS[name])
            return sum(iter(lambda: len(content.read1(PIECE_BYTES)), 0))

    return read


LIBRARIES: dict[str, dict[str, Read]] = {
    "gzip": {
        "isal": by_zlib(isal.isal_zlib),
        "zlib-ng": by_zlib(zlib_ng.zlib_ng),
        "zlib": by_zlib(zlib),
        "pyarrow": by_arrow("gzip"),
        "Broadsheet (isal)": by_ours("gzip"),
    },
    "zstd": {
        "zstandard": by_zstandard,
        "pyarrow": by_arrow("zstd"),
        "Broadsheet (backports.zstd)": by_ours("zstd"),
    },
    "lz4": {"pyarrow": by_arrow("lz4"), "Broadsheet (lz4)": by_ours("lz4")},
    "bz2": {"pyarrow": by_arrow("bz2"), "Broadsheet (bz2)": by_ours("bz2")},
    "xz": {"Broadsheet (lzma)": by_ours("xz")},
}
"""The libraries of Python and of packages, and Broadsheet's reader, which also checks the files."""


def of_one_core(read: Read, path: Path, content: int) -> float:
    """Return the MB per second of processor time, which excludes the time of other programs."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        assert read(path) == content
        spent.append(time.process_time() - began)
    return content / min(spent) / 1e6


def rates(read: Read, path: Path, content: int, threads: int) -> float:
    """Return the MB per second of `threads` threads that read the same file at the same time."""

    def all_of_them() -> None:
        with ThreadPoolExecutor(threads) as pool:
            counts = list(pool.map(read, [path] * threads))
        assert counts == [content] * threads

    return threads * content / min(seconds_of(all_of_them, ROUNDS)) / 1e6


def measured(articles: Path) -> dict[str, Any]:
    """Measure each library on each compression and text."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, libraries in LIBRARIES.items():
            for text, joined in ARTICLES_JOINED.items():
                data = texts(articles, joined, BYTES[name])
                path = Path(folder) / f"{text}.{name}"
                path.write_bytes(packed(name, data))
                for library, read in libraries.items():
                    one, all_cores = of_one_core(read, path, len(data)), rates(read, path, len(data), available_cores())
                    rows.append({"compression": name, "text": text, "library": library, "one": one, "all": all_cores})
    return {"libraries": rows}


def main() -> None:
    made = parser(__doc__, articles=True)
    options = made.parse_args()
    write({"about": about(options), **measured(options.articles_csv)}, options.output)


if __name__ == "__main__":
    main()
