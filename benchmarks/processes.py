"""Runs jobs in processes of their own, and samples the resident memory of their processes by role."""

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
"""The preload of workers that use a stand-in in place of the model's network."""

_POINTS = 120
_BETWEEN = 0.65  # share of a job between the middle of its early and of its late samples


class Sampler:
    """Samples the resident bytes of the largest process of each role, every `interval` seconds within its `with` block.

    Attributes
    ----------
    seconds : list of float
        The time of each sample.
    bytes : dict of str to list of int
        The samples of each role.

    """

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
        """Return for each role the peak, the growth from 30 % to 95 % of the job, also per chunk, and the curve."""
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
    """Return the roles for `Sampler`: the process `pid` under `name`, and all of its descendants as workers."""
    parent = psutil.Process(pid)

    def roles() -> dict[str, Iterable[psutil.Process]]:
        try:
            return {name: [parent], "worker": parent.children(recursive=True)}
        except psutil.NoSuchProcess:
            return {name: [parent]}

    return roles


def environment(**more: str) -> dict[str, str]:
    """Return the environment for processes that import this checkout in any folder. more: further variables."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_job(*arguments: object, client: str = "client", **variables: str) -> tuple[dict[str, Any], Sampler]:
    """Run `broadsheet classify` as a user does. Returns its report, and the memory of the client and the workers.

    Raises RuntimeError if it fails.
    """
    command = [sys.executable, "-m", "broadsheet", "classify", *map(str, arguments), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(**variables))
    with Sampler(family(process.pid, client)) as sampler:
        answer, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return json.loads(answer), sampler
