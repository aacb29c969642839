"""Bytes that each kernel moves through a GPU's memory by its hardware counters, with NVIDIA Nsight Compute.

`ncu` cannot attach to a running process, so a second one classifies one batch under it. GPU clocks are not changed.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ...engine.open import open_engine
from ...errors import BroadsheetError
from ...model.charcnn import Model, load_model
from .sample import sample

_METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_OURS = (
    "regex:^(encode|norm_statistics|first_units|closing_units|(split_)?lookup_norm_pool|(split_)?conv1d|"
    "norm_relu_pool|head)"
)
_UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_SECONDS = 300


def counted_bytes(model: Model, precision: str, kernels: str, batch: int) -> list[int] | None:
    """Bytes read and written by every kernel in the order they run, at last those of a batch; None where `ncu` is not
    installed.

    Raises BroadsheetError with its message where it cannot read the counters (often only administrators may).
    """
    if shutil.which("ncu") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        model.save(file)
        child = [
            sys.executable,
            "-m",
            "broadsheet.pipeline.telemetry.profiling.ncu",
            str(file),
            precision,
            kernels,
            str(batch),
        ]
        options = ["--csv", "--page", "raw", "--metrics", ",".join(_METRICS), "--clock-control", "none"]
        run = subprocess.run(
            ["ncu", *options, "--kernel-name-base", "function", "--kernel-name", _OURS, *child],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    found = read_report(run.stdout.splitlines())
    if not found:
        words = [line for line in (run.stdout + run.stderr).splitlines() if "ERR" in line or "rror" in line]
        raise BroadsheetError(f"ncu counted nothing: {' '.join(words[:2]) or 'it printed no kernel'}")
    return found


def read_report(lines: Iterable[str]) -> list[int]:
    """The bytes of each kernel in ncu's CSV: output of the program, a header, a row of units, a row a kernel."""
    rows = list(csv.reader(line for line in lines if line.startswith('"')))
    if len(rows) < 3:
        return []
    columns = [rows[0].index(metric) for metric in _METRICS]
    factors = [_UNITS[rows[1][column]] for column in columns]
    return [
        round(sum(float(re.sub(",", "", row[c])) * factor for c, factor in zip(columns, factors, strict=True)))
        for row in rows[2:]
    ]


def _classify_once(file: str, precision: str, kernels: str, batch: int) -> None:
    loaded = load_model(file)
    engine = open_engine(loaded, "cuda", precision, kernels=kernels)
    engine.classify(sample(loaded, batch))
    engine.close()


if __name__ == "__main__":
    _classify_once(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
