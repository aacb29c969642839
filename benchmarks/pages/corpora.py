"""The section of docs/scaling.md on real corpora: whole jobs by kind of input, beside engine and reader alone."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.markdown import machine, table

_HEAD = (
    "input | GPUs | files, stored GB | articles/s | GPU busy | of the engine's "
    "| reader alone | cores a GPU | most memory, GB"
)


_ABOUT = """## Real corpora

By `python -m benchmarks.corpora`: AG News articles with 15 % of their words drawn anew; a "long" text is 20 of them
joined, 5 KB. Of more than 16 large files the others are hard links to the first 16. A call of `classify` on a cluster
that has done a job before, from files in the page cache to Parquet; articles/s and the share of time in which the GPU
was busy are those of the time from the first chunk's reading to the last one's end. "Reader alone" is the same job with
a stand-in for the network, so it is what reading and writing can do; "cores a GPU" is how many of the cores, at that
rate, keep one GPU busy. A host of 16 GPUs needs 16 times as many, and one scheduler for the chunks of them all. (The
reader alone was measured with Python's own 5 ms between turns of threads, a GPU's worker has 0.5: of long .gz and .zst
it read less than the whole job.)
"""

_ONE = """
### One GPU with 16 cores

`corpora_1.json`.
"""

_ONE_OF_TWO = """
### One GPU of a host of two

`corpora_1_of_2.json`: with 16 of the host's 32 cores, and nothing on the others. Its readers were faster, by up to a
third, and the GPU waits for them less.
"""

_TWO = """
### Two GPUs with 32 cores

`corpora_2.json`. Each job is of half as many rows a GPU as in the tables above, so that its beginning and end, where
not all cores read, are a larger share of it.
"""


def section(one: dict[str, Any] | None, one_of_two: dict[str, Any] | None, two: dict[str, Any] | None) -> str:
    """What each corpus gave, on each machine."""
    parts = zip((_ONE, _ONE_OF_TWO, _TWO), (one, one_of_two, two), strict=True)
    return "\n".join([_ABOUT, *(f"{head}\n{_machine(found)}" for head, found in parts if found)])


def _machine(part: dict[str, Any]) -> str:
    engine = {kind: found["articles_per_second"] for kind, found in part.get("engine", {}).items()}
    rows = [_row(run, engine, part["about"]["cores"]) for run in part["runs"]]
    alone = ", ".join(f"{rate:,.0f} articles/s for {kind} texts" for kind, rate in engine.items())
    return f"""{machine(part["about"], "python", "pyarrow", "dask", "distributed", "dask-cuda")}. The engine alone, from
host memory: {alone}.

{table(_HEAD, rows)}
"""


def _row(run: dict[str, Any], engine: dict[str, float], cores: int) -> str:
    job, reader = run.get("job"), run["reader"]
    rate = engine.get("short" if run["name"].startswith(("short", "small")) else "long")
    cells = [run["name"], str(run["workers"]), f"{run['files']:,}, {run['stored_bytes'] / 1e9:.2f}"]
    if job is None:
        cells += ["", "", ""]
    else:
        share = job["rows_per_second"] / (run["workers"] * rate) if rate else 0.0
        cells += [f"{job['rows_per_second']:,.0f}", f"{job['busy']:.0%}", f"{share:.0%}"]
    most = max(found["peak_bytes"][role] for found in (job, reader) if found for role in found["peak_bytes"])
    feeding = f"{cores * rate / reader['rows_per_second']:.0f}" if rate else ""
    return " | ".join([*cells, f"{reader['rows_per_second']:,.0f}", feeding, f"{most / 1e9:.2f}"])
