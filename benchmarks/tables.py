"""Write docs/performance.md from the recorded results: python benchmarks/tables.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

PAGE = """# Performance

Every figure comes from a file under `benchmarks/results/`; `python benchmarks/tables.py` makes this page from them.

## The CPU backend beside PyTorch

{cpu_about}. Articles a second, fp32, medians of {repeats} warm runs that take turns; PyTorch {torch} eager, its input
one-hot and ready, its batch the best of 8, 32 and 128. Articles as long as AG News's.
`python benchmarks/cpu.py --output benchmarks/results/cpu.json`

| threads | Broadsheet | PyTorch | ratio |
|---|---|---|---|
{cpu_rows}

Block 1 as a look-up spares a third of the multiplications; the other convolutions are shifted products on one BLAS
thread an article, so cores are kept busy by articles, not by slices of a small product.

## Memory over large files

Peak resident memory, with a stand-in for the network that answers at once, so that reading and writing run as fast as
they ever do; {memory_about}, chunks of {chunk_rows} rows.
`python benchmarks/memory.py --megabytes 400 --megabytes 4096 --output benchmarks/results/memory.json`

| CSV | rows | client | largest worker | plan | rows a second |
|---|---|---|---|---|---|
{memory_rows}

The client grows by what it keeps of each chunk: its place in the file and its timings. The worker grew too,
by 67 MB over 32,000 chunks; what keeps that was not looked into.
"""


def load(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return value


def main() -> None:
    cpu, memory = load("cpu.json"), load("memory.json")
    about = cpu["about"]
    cpu_rows = [
        f"| {run['threads']} | {run['articles_per_second']['broadsheet']:.0f} "
        f"| {run['articles_per_second']['pytorch']:.0f} | {run['ratio']:.2f} |"
        for run in cpu["runs"]
    ]
    memory_rows = [
        f"| {run['input_bytes'] / 1e9:.1f} GB | {run['rows']:,} | {run['peak_bytes']['client'] / 1e6:.0f} MB "
        f"| {run['peak_bytes']['worker'] / 1e6:.0f} MB | {run['timings']['plan']:.1f} s "
        f"| {run['rows'] / run['timings']['classify']:,.0f} |"
        for run in memory["runs"]
    ]
    page = PAGE.format(
        cpu_about=f"{about['processor']}, {about['cores']} cores, Python {about['python']}, NumPy {about['numpy']}",
        repeats=cpu["runs"][0]["repeats"],
        torch=about["torch"],
        cpu_rows="\n".join(cpu_rows),
        memory_about=f"{memory['about']['cores']} cores",
        chunk_rows=memory["runs"][0]["chunk_rows"],
        memory_rows="\n".join(memory_rows),
    )
    (ROOT / "docs" / "performance.md").write_text(page)


if __name__ == "__main__":
    main()
