"""Decompresses a gzip or bz2 file to stdout by `rapidgzip`, with many threads. Started by `rapidgzip_reader.py`.

How many bytes of the file as it is stored that took is kept in a second, small file: eight bytes, little-endian.

It imports next to nothing of ours, so that it starts at once. It ends by itself with its reader (EPIPE), and where it
would hold more memory than it may.

Exit code: 0 where all of the file was decompressed; anything else says that one core must read on.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import rapidgzip

from ...processes.child import parent_of

_BLOCK = 1 << 20
_CHUNK = 1 << 20
"""Compressed bytes that a thread decompresses at once: memory for four times as much is new each time, page by page."""
_LOOK_SECONDS = 0.01
_TOO_MUCH = 3


def main(path: str, compression: str, threads: int, most_bytes: int, position: int) -> None:
    threading.Thread(target=_watch, args=(most_bytes,), daemon=True).start()
    opened = rapidgzip.IndexedBzip2File if compression == "bz2" else rapidgzip.RapidgzipFile
    block = memoryview(bytearray(_BLOCK))  # one for all: `read` would copy each twice more, all in this thread
    more = {} if compression == "bz2" else {"chunk_size": _CHUNK}
    with opened(path, parallelization=threads, **more) as file:
        while count := file.readinto(block):
            left = block[:count]
            while left:
                left = left[os.write(1, left) :]
            os.pwrite(position, (file.tell_compressed() // 8).to_bytes(8, "little"), 0)
        whole = file.tell_compressed() == 8 * os.stat(path).st_size
    os._exit(0 if whole else 1)


def _watch(most_bytes: int) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", "rb", buffering=0) as about:
        while True:
            about.seek(0)
            if int(about.read().split()[1]) * page > most_bytes:
                os._exit(_TOO_MUCH)
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    try:
        parent_of(sys.argv[1])
        main(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    except BaseException:  # damage, which one core finds again; rapidgzip itself ends a process in other ways
        os._exit(1)
