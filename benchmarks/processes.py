"""Jobs in processes of their own, and resident memory by role, sampled while a job runs: whether it stays flat."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from benchmarks.record import ROOT

PRELOAD = "DASK_DISTRIBUTED__WORKER__PRELOAD"
STAND_IN = str(ROOT / "benchmarks" / "stand_in.py")
"""The preload of the workers of a job without a network."""

_POINTS = 120
_BETWEEN = 0.65  # of a job: from the middle of its early samples to that of its late ones


class Sampler:
    """Within its `with` block: every `interval` seconds, the resident bytes of the largest process of each role."""

    def __init__(self, roles: Callable[[], dict[str, Iterable[psutil.Process]]], interval: float = 0.25) -> None:
        self._roles = roles
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.seconds: list[float] = []
        self.bytes: dict[str, list[int]] = {}

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        began = time.perf_counter()
        while not self._over.wait(self._interval):
            self.seconds.append(time.perf_counter() - began)
            for role, members in self._roles().items():
                largest = max((_resident(member) for member in members), default=0)
                self.bytes.setdefault(role, []).append(largest)

    def to_dict(self, chunks: int) -> dict[str, Any]:
        """By role: peak, growth from about 30 % of the job to 95 %, the same for each chunk, and the curve."""
        step = max(1, len(self.seconds) // _POINTS)
        about: dict[str, Any] = {"seconds": [round(s, 2) for s in self.seconds[::step]]}
        for role, values in self.bytes.items():
            count = len(values)
            early = statistics.median(values[count // 4 : max(count // 4 + 1, count * 7 // 20)])
            late = statistics.median(values[-max(1, count // 10) :])
            about[role] = {
                "peak_bytes": max(values),
                "growth_bytes": late - early,
                "growth_bytes_a_chunk": (late - early) / max(1.0, _BETWEEN * chunks),
                "bytes": values[::step],
            }
        return about


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def family(pid: int, name: str) -> Callable[[], dict[str, Iterable[psutil.Process]]]:
    """The roles for `Sampler`: the process with that number, which is called `name`, and all below it as workers."""
    parent = psutil.Process(pid)

    def roles() -> dict[str, Iterable[psutil.Process]]:
        try:
            return {name: [parent], "worker": parent.children(recursive=True)}
        except psutil.NoSuchProcess:
            return {name: [parent]}

    return roles


def environment(**more: str) -> dict[str, str]:
    """The environment for processes that import this checkout, wherever they run."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_job(*arguments: object, client: str = "client", **variables: str) -> tuple[dict[str, Any], Sampler]:
    """`broadsheet classify` as a user calls it: its report, and the memory of `client` and of its workers.

    Raises RuntimeError where it fails.
    """
    command = [sys.executable, "-m", "broadsheet", "classify", *map(str, arguments), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(**variables))
    with Sampler(family(process.pid, client)) as sampler:
        answer, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return json.loads(answer), sampler
