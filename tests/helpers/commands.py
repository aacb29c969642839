"""Starts the programs of this installation the way a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(sys.executable).parent
"""The folder that holds the programs `broadsheet` and `dask`."""


def start(program: str, *arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start a program, "broadsheet" or "dask", whose streams are pipes of text.

    env: variables to add to those of this process. options: other options of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [PROGRAMS / program, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
