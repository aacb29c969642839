"""broadsheet --version: the version, and what a report of a bug needs to name.

It imports no library that it names, so that it answers at once and where one of them cannot be imported.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from threadpoolctl import threadpool_info

_PACKAGES = ("dask", "distributed", "numpy", "pyarrow")
_CUDA = (
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cupy",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
)
_ABOUT_GPUS = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader"]
_OURS = "broadsheet"
_NOT_FOR_USERS = {"test", "dev"}


def facts() -> Iterator[tuple[str, str]]:
    """Name and value of each."""
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    yield "platform", f"{platform.platform()}, {platform.machine()}"
    yield "packages", ", ".join(_installed(_PACKAGES))
    yield "BLAS", _blas()
    yield "CUDA", ", ".join(_installed(_CUDA)) or "not installed (extra cuda12 or cuda13)"
    yield "GPU", _gpus()
    yield "extras", ", ".join(_extras()) or "none"


def _installed(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def _blas() -> str:
    """The library that NumPy's wheel brings: version, and the code that it chose for this processor."""
    numpy = find_spec("numpy")
    for place in (numpy and numpy.submodule_search_locations) or []:
        for file in Path(place).parent.glob("numpy.libs/*openblas*"):
            with suppress(OSError):
                ctypes.CDLL(str(file))
    found = [f"{b['internal_api']} {b.get('version')} {b.get('architecture', '')}".strip() for b in threadpool_info()]
    return ", ".join(found) or "the system's"


def _gpus() -> str:
    if shutil.which(_ABOUT_GPUS[0]) is None:
        return "no NVIDIA driver here"
    try:
        told = subprocess.run(_ABOUT_GPUS, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi fails: {error}"
    return "; ".join(told.stdout.strip().splitlines()) or f"nvidia-smi: {(told.stderr or 'no GPU').strip()}"


def _extras() -> Iterator[str]:
    """Those of which every package is installed."""
    required = [Requirement(line) for line in requires(_OURS) or ()]
    for extra in sorted({*(metadata(_OURS).get_all("Provides-Extra") or ())} - _NOT_FOR_USERS):
        needed = [one for one in required if one.marker and one.marker.evaluate({"extra": extra})]
        if all(_is_there(one) for one in needed if not (one.marker and one.marker.evaluate({"extra": ""}))):
            yield extra


def _is_there(requirement: Requirement) -> bool:
    if requirement.name == _OURS:
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False
