"""Measure how long commands take on 100 rows. Most of the time is their start.

    python -m benchmarks.start --output benchmarks/results/start.json

Each command is a process of its own, and the commands take turns. Compile the bytecode first (`python -m compileall`).
For comparison, `load` is `broadsheet.load` with one call. Processor seconds are those of the command and of processes
that it has waited for, so those of a cluster's workers do not count.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import environment
from benchmarks.record import about, parser, write
from broadsheet.cluster.protocol import count_gpus

_ROWS = 100
_LOAD = "import broadsheet; broadsheet.load({!r})('the market fell as oil rose')"


def ways(folder: Path, model: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the commands by name, each with variables of its environment."""
    job = [sys.executable, "-m", "broadsheet", "classify", "in.txt", "-o", "out", "--overwrite", "--quiet"]
    job += ["--model", model]
    cluster = "cuda" if count_gpus() else "local"
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "job": (job, {}),
        "job, --cluster": ([*job, "--cluster", cluster], {}),
        "load": ([sys.executable, "-c", _LOAD.format(model)], {}),
    }
    if count_gpus():
        commands["job, --device cpu"] = ([*job, "--device", "cpu"], {})
        nothing = dict.fromkeys(("BROADSHEET_CACHE_DIR", "CUPY_CACHE_DIR"), str(folder / "kernels"))
        commands["job, no kernels compiled"] = (job, nothing)
    return commands


def main() -> None:
    """Run the commands in turns, and write the medians."""
    command = parser(__doc__)
    command.add_argument("--rounds", type=int, default=5)
    options = command.parse_args()
    seconds: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    phases: dict[str, list[dict[str, float]]] = {}
    # Run the commands in turns.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.txt").write_text("".join(f"the market fell as oil rose {row}\n" for row in range(_ROWS)))
        for _ in range(1 + options.rounds):  # the first round fills caches
            for way, (arguments, variables) in ways(folder, options.model).items():
                shutil.rmtree(folder / "kernels", ignore_errors=True)
                began, before = time.perf_counter(), os.times()
                completed = subprocess.run(
                    arguments, cwd=folder, env=environment(**variables), capture_output=True, text=True
                )
                if completed.returncode:
                    sys.exit(f"{way}: {completed.stderr}")
                seconds.setdefault(way, []).append(time.perf_counter() - began)
                after = os.times()
                spent = after.children_user - before.children_user + after.children_system - before.children_system
                busy.setdefault(way, []).append(spent)
                for report in (folder / "out" / "_runs").glob("2*.json") if way != "load" else ():
                    phases.setdefault(way, []).append(json.loads(report.read_text())["timings"])
    # Describe the rounds after the first.
    runs: list[dict[str, Any]] = []
    for way, timings in seconds.items():
        reports = phases.get(way, [])[1:]
        medians = {
            name: round(statistics.median(one[name] for one in reports), 3) for name in (reports[0] if reports else ())
        }
        figures = {"seconds": statistics.median(timings[1:]), "processor_seconds": min(busy[way][1:])}
        figures |= {"beside": figures["seconds"] - sum(medians.values())}  # starting Python, imports, and the exit
        runs.append({"way": way, **{name: round(value, 3) for name, value in figures.items()}, "timings": medians})
    write({"about": about(options), "rows": _ROWS, "rounds": options.rounds, "runs": runs}, options.output)


if __name__ == "__main__":
    main()
