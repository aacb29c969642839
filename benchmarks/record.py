"""How a figure is taken and kept: what every benchmark can be asked, what a figure is from, and the file it goes to."""

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
    """A command line with the options of every benchmark. `output` is the default file; `articles` asks for AG News."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="ag-news", help="a shipped model's name, or a model file")
    made.add_argument("--output", type=Path, default=output, help="JSON file; without one the result is printed")
    made.add_argument("--commit", default="", help="of the measured code; without one, what git says")
    if articles:
        made.add_argument("--articles-csv", type=Path, required=True, help="an AG News CSV: class, title, description")
    made.add_argument("--note", default="", help="what else is to be said of the machine")
    return made


def about(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Where a figure comes from: the machine, its driver, versions, commit and date (UTC)."""
    smi = partial(_answer, "nvidia-smi", "--format=csv,noheader")  # makes no CUDA context
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
    """Write a result as JSON: to a file, which is there whole or not at all, or to stdout where there is no path."""
    if path is None:
        print(text_of(result))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(text_of(result) + "\n")
    os.replace(beside, path)


def text_of(result: dict[str, Any]) -> str:
    """JSON with a line for each element of each field: it is short, and a diff shows the elements that changed."""
    text = re.sub(r",\n {3,}", ", ", json.dumps(result, indent=1, default=float))
    return re.sub(r"\n {3,}|\n  (?=[]}])", "", text)


def seconds_of(work: Callable[[], object], repeats: int) -> list[float]:
    """Host seconds of each of `repeats` calls; nothing is warmed up here."""
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        timings.append(time.perf_counter() - began)
    return timings


def _answer(*command: str) -> str:
    """What a command prints, or nothing where it fails or is not there."""
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
