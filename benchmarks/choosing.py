"""Compare `broadsheet select` with DuckDB: both choose the same rows of a job's labels, in turns.

    python -m benchmarks.choosing --rows 10000000 --output benchmarks/results/choosing.json

The labels come from n-grams alone. Both write the file and row numbers of the rows that they choose into one Parquet
file. The record has the medians of wall-clock seconds and of processor seconds of each whole command. The first round,
which compiles bytecode, does not count. The benchmark needs `pip install duckdb`. Put `taskset -c 0,1` before the
command to give both the same two cores.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.processes import environment
from benchmarks.record import about, parser, write

_WORDS = ("market", "oil", "fell", "rose", "team", "match", "won", "chip", "software", "court", "vote", "army", "bank")
_CHOICES = {
    "score >= 0.9": (["--score", ">= 0.9"], "SELECT file, row FROM labels WHERE score >= 0.9::FLOAT"),
    "top 10%": (
        ["--top", "10%"],
        "SELECT file, row FROM labels ORDER BY score DESC, row LIMIT (SELECT ceil(count(*) / 10)::BIGINT FROM labels)",
    ),
    "top 10%, by quantile": (
        ["--top", "10%"],
        "WITH cut AS (SELECT quantile_disc(score, 0.9) AS least FROM labels), "
        "above AS (SELECT count(*) AS n FROM labels, cut WHERE score > least), "
        "ties AS (SELECT file, row FROM labels, cut WHERE score = least ORDER BY row "
        "LIMIT (SELECT ceil((SELECT count(*) FROM labels) / 10)::BIGINT - n FROM above)) "
        "SELECT file, row FROM labels, cut WHERE score > least UNION ALL SELECT file, row FROM ties",
    ),
    "top 10% of each label": (
        ["--top", "10%", "--per", "label"],
        "SELECT file, row FROM labels QUALIFY row_number() OVER (PARTITION BY label ORDER BY score DESC, row) "
        "<= ceil(count(*) OVER (PARTITION BY label) / 10)",
    ),
}
_FEW = 100
"""With so few rows, nearly all of the time is that of starting the command."""

_DUCKDB = """
import duckdb, sys
duckdb.sql("SET enable_progress_bar = false")
duckdb.sql(f"CREATE VIEW labels AS SELECT * FROM read_parquet('{sys.argv[1]}/parts/*.parquet')")
duckdb.sql(f"COPY ({sys.argv[2]}) TO '{sys.argv[3]}' (FORMAT parquet)")
"""


def main() -> None:
    """Label the rows, and measure each choice by both."""
    command = parser(__doc__)
    command.add_argument("--rows", type=int, default=10_000_000)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--folder", type=Path, help="folder that keeps the labels for another run, or has them")
    options = command.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder, choose = options.folder or Path(name), random.Random(0).choices
        folder.mkdir(parents=True, exist_ok=True)
        # Label random texts, unless the folder has labels.
        block = "".join(f"{' '.join(choose(_WORDS, k=6))} {row}\n" for row in range(100_000))
        ours = [sys.executable, "-m", "broadsheet"]
        if not (folder / "labels" / "_SUCCESS").exists():
            with open(folder / "in.txt", "w") as file:
                for _ in range(-(-options.rows // 100_000)):
                    file.write(block)
            job = ["classify", "in.txt", "--network", "none", "--chunk-size", "131072", "--quiet", "--overwrite", "-o"]
            for labels, rows in (("few", _FEW), ("labels", options.rows)):
                limited = [*job, labels, "--limit", str(rows)]
                subprocess.run([*ours, *limited], cwd=folder, env=environment(), check=True)
        # Measure each choice, in turns.
        first = next(iter(_CHOICES))
        for choice, labels, (flags, query) in (
            (f"{first}, of {_FEW} rows", "few", _CHOICES[first]),
            *((choice, "labels", both) for choice, both in _CHOICES.items()),
        ):
            write_ours = ["select", labels, "-o", "broadsheet.parquet", "--overwrite", "--column", "file", "--column"]
            ways = {
                "broadsheet": [*ours, *write_ours, "row", "--quiet", *flags],
                "duckdb": [sys.executable, "-c", _DUCKDB, labels, query, "duckdb.parquet"],
            }
            seconds, cpu = ({way: [] for way in ways} for _ in range(2))  # type: dict[str, list[float]]
            for _ in range(1 + options.rounds):
                for way, arguments in ways.items():
                    began, before = time.perf_counter(), os.times()
                    subprocess.run(arguments, cwd=folder, env=environment(PYTHONDONTWRITEBYTECODE=""), check=True)
                    after = os.times()
                    seconds[way].append(time.perf_counter() - began)
                    cpu[way].append(sum(after[2:4]) - sum(before[2:4]))
            # Check that both choose the same rows, and record the medians.
            rows_of_way = [pq.read_table(folder / f"{way}.parquet").column("row").to_numpy() for way in ways]
            if not np.array_equal(np.sort(rows_of_way[0]), np.sort(rows_of_way[1])):
                raise SystemExit(f"{choice}: the rows chosen are not the same")
            of_each = {way: [round(statistics.median(spent[way][1:]), 2) for spent in (seconds, cpu)] for way in ways}
            runs.append({"choice": choice, "chosen": len(rows_of_way[0]), **of_each})
    write({"about": about(options), "rows": options.rows, "rounds": options.rounds, "runs": runs}, options.output)


if __name__ == "__main__":
    main()
