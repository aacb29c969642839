"""What every page is made of: tables, and the line that says what figures are from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_NAMES = {"python": "Python", "numpy": "NumPy", "cuda": "CUDA", "nvrtc": "NVRTC", "cupy": "CuPy", "torch": "PyTorch",
          "dask": "Dask"}  # fmt: skip


def table(head: str, rows: Iterable[str]) -> str:
    """`head` and each row are cells with " | " between them."""
    lines = [f"| {row} |".replace("  |", " |") for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head.split("|")), *lines[1:]])


def one_cell(text: str) -> str:
    """Text from elsewhere, such as an error's, without what would end a cell."""
    return " ".join(text.replace("|", "/").split())


def machine(about: dict[str, Any], *names: str) -> str:
    """GPUs, driver, processor, versions of the named packages, commit and date, as far as they were recorded.

    Records of other times have one "gpu", and versions beside the rest.
    """
    found, gpus = about | about.get("versions", {}), [about["gpu"]] if "gpu" in about else about.get("gpus", [])
    said = [f"{gpus.count(name)} x {name}" if gpus.count(name) > 1 else name for name in dict.fromkeys(gpus)]
    said += [f"driver {about['driver']}"] if gpus else []
    said += [about["processor"]] if "processor" in about else []
    said += [f"{about['cores']} core{'s' if about['cores'] > 1 else ''}"] if "cores" in about else []
    said += [f"{_NAMES.get(name, name)} {found[name]}" for name in names if name in found]
    said += [f"commit {about['commit']}"] if about.get("commit") else []
    return ", ".join([*said, about["date"]]) + (f"; {about['note']}" if "note" in about else "")
