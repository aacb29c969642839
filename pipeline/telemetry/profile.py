"""Holds the figures of a profile: the times of each kernel, the ceilings of the device, and bytes that `ncu` counts.

NVIDIA's `ncu` cannot attach to a running process, so another process classifies one batch under it. GPU clocks are not
changed.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import BroadsheetError

_METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_SECONDS = 300


@dataclass(frozen=True)
class KernelProfile:
    """A kernel's measurements for a batch.

    Attributes
    ----------
    name : str
        The kernel's name.
    category : str
        Element-wise, reduction or product.
    seconds : float
        The median time if the kernel runs alone, with its input in memory.
    stream_seconds : float
        The median time within the whole network.
    flop : int
        The number of operations. A multiply and an add count as two.
    least_bytes : int
        The bytes of every input, weight and output, moved once.
    modelled_bytes : int
        The bytes that the design of the kernel moves, without regard to caches.
    counted_bytes : int, optional
        The bytes that hardware counters report as moved, if they could be read.
    occupancy : float, optional
        The resident warps divided by the maximum of an SM.
    registers : int, optional
        The registers of a thread.
    shared_bytes : int, optional
        The shared memory of a block, in bytes.
    waves : float, optional
        The number of blocks divided by the number of blocks that fit the device at once.
    tail_waste : float, optional
        The share of the capacity of all waves that the last one leaves idle.
    tile_waste : float, optional
        The share of computed rows and columns that is discarded.

    """

    name: str
    category: str
    seconds: float
    stream_seconds: float
    flop: int
    least_bytes: int
    modelled_bytes: int
    counted_bytes: int | None = None
    occupancy: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    waves: float | None = None
    tail_waste: float | None = None
    tile_waste: float | None = None


@dataclass(frozen=True)
class Ceilings:
    """The rates that the device reached in this run.

    Attributes
    ----------
    flop_per_second : float
        The rate of a large matrix product in the engine's precision.
    bytes_per_second : float
        The rate of a large copy, with its reads and writes.
    how : str
        A description of the two measurements.

    """

    flop_per_second: float
    bytes_per_second: float
    how: str


@dataclass(frozen=True)
class Profile:
    """The measurements of a model.

    Attributes
    ----------
    backend : str
        A description of the device, the precision and the kernels.
    device : str
        "cpu", or "cuda:" and the number of the GPU.
    batch : int
        The number of articles in the batch.
    seconds : float
        The median time to classify the batch, from text to labels.
    kernels : tuple of KernelProfile
        The kernels, in the order in which they run.
    ceilings : Ceilings
        The rates that the device reached.

    """

    backend: str
    device: str
    batch: int
    seconds: float
    kernels: tuple[KernelProfile, ...]
    ceilings: Ceilings

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kernels": [asdict(kernel) for kernel in self.kernels]}


def counted_bytes(command: Sequence[str], environment: Mapping[str, str], kernels: str) -> list[int] | None:
    """Return the bytes that every kernel of a command reads and writes, in the order in which the kernels run.

    Return None if `ncu` is not installed. kernels: the names of the kernels, as an argument of `ncu`. Raises
    BroadsheetError with the message of `ncu` if it cannot read the counters, which often only administrators may, and
    subprocess.TimeoutExpired.
    """
    if shutil.which("ncu") is None:
        return None
    options = ["--csv", "--page", "raw", "--metrics", ",".join(_METRICS), "--clock-control", "none"]
    ncu = ["ncu", *options, "--kernel-name-base", "function", "--kernel-name", kernels, *command]
    run = subprocess.run(ncu, capture_output=True, text=True, env=environment, timeout=_SECONDS, check=False)
    bytes_of_kernels = read_report(run.stdout.splitlines())
    if not bytes_of_kernels:
        words = [line for line in (run.stdout + run.stderr).splitlines() if "ERR" in line or "rror" in line]
        raise BroadsheetError(f"ncu counted nothing: {' '.join(words[:2]) or 'it printed no kernel'}")
    return bytes_of_kernels


def read_report(lines: Iterable[str]) -> list[int]:
    """Return the bytes of each kernel from the CSV of `ncu`.

    The CSV has the output of the program, a header, a row of units, and a row for each kernel.
    """
    rows = list(csv.reader(line for line in lines if line.startswith('"')))
    if len(rows) < 3:
        return []
    columns = [rows[0].index(metric) for metric in _METRICS]
    factors = [_UNITS[rows[1][column]] for column in columns]
    return [
        round(sum(float(re.sub(",", "", row[c])) * factor for c, factor in zip(columns, factors, strict=True)))
        for row in rows[2:]
    ]
