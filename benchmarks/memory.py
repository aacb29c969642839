"""Measure the peak memory of each process of a job, on CSV files of growing size, with a stand-in for the network.

    python -m benchmarks.memory --megabytes 400 --megabytes 4096 --output benchmarks/results/memory.json

Articles are about 250 bytes. The stand-in answers at once, so reading and writing run as fast as they ever do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import PRELOAD, STAND_IN, run_job
from benchmarks.record import about, parser, write

_BLOCK = 1 << 20


def write_csv(path: Path, megabytes: int) -> None:
    """Write a CSV file of random words, with about 250 bytes in each row."""
    rng = np.random.default_rng(0)
    words = np.array([bytes(rng.integers(97, 123, n).astype(np.uint8)) for n in rng.integers(2, 10, 5000)])
    rows = [b'"' + b" ".join(rng.choice(words, 40)) + b'"\n' for _ in range(_BLOCK // 250)]
    block = b"".join(rows)
    with path.open("wb") as file:
        file.write(b"text\n")
        for _ in range(megabytes * _BLOCK // len(block)):
            file.write(block)


def measure(megabytes: int, model: str, chunk_size: int | None) -> dict[str, Any]:
    """Run a job on a file of this size, and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        write_csv(path, megabytes)
        rows = ["--chunk-size", chunk_size] if chunk_size else []
        out = Path(folder) / "out"
        report, sampler = run_job(path, "-o", out, "--model", model, *rows, **{PRELOAD: STAND_IN})
        return {
            "input_bytes": path.stat().st_size,
            "rows": report["rows_written"],
            "chunk_rows": report["chunk_rows"],
            "seconds": report["seconds"],
            "timings": report["timings"],
            "peak_bytes": {role: max(values) for role, values in sampler.bytes.items()},
        }


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--megabytes", type=int, action="append", required=True, help="size of a CSV; may be repeated")
    command.add_argument("--chunk-size", type=int, help="rows in a chunk")
    options = command.parse_args()
    runs = [measure(size, options.model, options.chunk_size) for size in options.megabytes]
    write({"about": about(options), "runs": runs}, options.output)


if __name__ == "__main__":
    main()
