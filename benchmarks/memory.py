"""Peak memory of every process of a job, over CSV files of growing size, with a stand-in for the network.

    python benchmarks/memory.py --megabytes 400 --megabytes 4096 --output benchmarks/results/memory.json

Articles are about 250 bytes. The stand-in answers at once, so reading and writing run as fast as they ever do.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer

STAND_IN = Path(__file__).with_name("stand_in.py")
_BLOCK = 1 << 20


def write_csv(path: Path, megabytes: int) -> None:
    """Random words, quoted, about 250 bytes a row."""
    rng = np.random.default_rng(0)
    words = np.array([bytes(rng.integers(97, 123, n).astype(np.uint8)) for n in rng.integers(2, 10, 5000)])
    rows = [b'"' + b" ".join(rng.choice(words, 40)) + b'"\n' for _ in range(_BLOCK // 250)]
    block = b"".join(rows)
    with path.open("wb") as file:
        file.write(b"text\n")
        for _ in range(megabytes * _BLOCK // len(block)):
            file.write(block)


def peaks_of(process: subprocess.Popen[str]) -> dict[str, int]:
    """The largest resident memory in bytes of the client and of any worker, until the job ends."""
    peaks = {"client": 0, "worker": 0}
    client = psutil.Process(process.pid)
    while process.poll() is None:
        for role, members in (("client", [client]), ("worker", client.children(recursive=True))):
            for member in members:
                try:
                    peaks[role] = max(peaks[role], member.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
        time.sleep(0.1)
    return peaks


def measure(megabytes: int, model: str, chunk_size: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        write_csv(path, megabytes)
        command = [sys.executable, "-m", "pipeline", "classify", str(path), "-o", f"{folder}/out", "--model", model]
        command += ["--json", *(["--chunk-size", str(chunk_size)] if chunk_size else [])]
        env = {**os.environ, "DASK_DISTRIBUTED__WORKER__PRELOAD": str(STAND_IN)}
        with open(f"{folder}/stdout", "w+") as output:
            process = subprocess.Popen(command, env=env, stdout=output, text=True)
            peaks = peaks_of(process)
            output.seek(0)
            report = json.loads(output.read())
        if process.returncode:
            raise SystemExit(f"the job failed with exit code {process.returncode}")
        return {
            "input_bytes": path.stat().st_size,
            "rows": report["rows_written"],
            "chunk_rows": report["chunk_rows"],
            "seconds": report["seconds"],
            "timings": report["timings"],
            "peak_bytes": peaks,
        }


def main(
    megabytes: Annotated[list[int], typer.Option(help="Sizes of the CSV.")],
    model: Annotated[str, typer.Option(help="Any model file: only its frame is used.")] = "ag-news",
    chunk_size: Annotated[int | None, typer.Option(help="Rows in a chunk.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
) -> None:
    """Measure each size in turn and print the result as JSON."""
    runs = [measure(size, model, chunk_size) for size in megabytes]
    about = {"python": platform.python_version(), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
    text = json.dumps({"about": about, "runs": runs}, indent=1)
    print(text)
    if output:
        output.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
