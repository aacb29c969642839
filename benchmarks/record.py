"""What all benchmarks share: options, the description of the machine, timing, and the JSON file of results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from broadsheet.pipeline.processes.threads import available_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_PACKAGES = (
    "numpy", "pyarrow", "dask", "distributed", "dask-cuda", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton", "isal",
    "duckdb", "scipy", "scikit-learn", "transformers", "tokenizers", "sentence-transformers", "setfit",
    "fasttext-community", "zlib-ng", "zstandard", "backports.zstd", "lz4",
    "nvidia-cudnn-cu13",
)  # fmt: skip


def parser(doc: str | None, output: Path | None = None, articles: bool = False) -> argparse.ArgumentParser:
    """Return an argument parser with the options that every benchmark has.

    Parameters
    ----------
    doc : str, optional
        The description.
    output : Path, optional
        The default of `--output`.
    articles : bool
        Whether the benchmark needs the articles of AG News, so that `--articles-csv` is required.

    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="ag-news", help="a shipped model's name, or a model file")
    made.add_argument("--output", type=Path, default=output, help="JSON file; without one the result is printed")
    made.add_argument("--commit", default="", help="commit of the measured code; by default, git says it")
    if articles:
        made.add_argument("--articles-csv", type=Path, required=True, help="an AG News CSV: class, title, description")
    made.add_argument("--note", default="", help="a remark about the machine, for the record")
    return made


def about(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Describe where figures come from: the machine, its driver, versions of packages, the commit and the date (UTC).

    more: further values for the description.
    """
    smi = partial(_answer, "nvidia-smi", "--format=csv,noheader")  # it makes no CUDA context
    gpus = smi("--query-gpu=name").splitlines()
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": match.group(1) if match else platform.processor(),
        "cores": available_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
        **({"driver": smi("--query-gpu=driver_version", "--id=0")} if gpus else {}),
        "versions": _versions(),
        "commit": options.commit or _answer("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "date": datetime.now(UTC).date().isoformat(),
        **({"note": options.note} if options.note else {}),
        **more,
    }


def write(result: dict[str, Any], path: Path | None) -> None:
    """Write a result as JSON to a file, which is replaced only once it is complete, or to stdout without a path."""
    if path is None:
        print(text_of(result))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(text_of(result) + "\n")
    os.replace(beside, path)


def text_of(result: dict[str, Any]) -> str:
    """Return a result as JSON with one line for each element of each field.

    The text is short, and a diff shows which elements changed.
    """
    text = re.sub(r",\n {3,}", ", ", json.dumps(result, indent=1, default=float))
    return re.sub(r"\n {3,}|\n  (?=[]}])", "", text)


def seconds_of(work: Callable[[], object], repeats: int) -> list[float]:
    """Call `work` `repeats` times, and return the wall-clock seconds of each call. It does not warm up."""
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        timings.append(time.perf_counter() - began)
    return timings


def _answer(*command: str) -> str:
    """Return what a command prints, or "" if it fails or is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name.replace("cupy-cuda13x", "cupy").replace("cupy-cuda12x", "cupy")] = version(name)
    return versions
