"""Handles scripts without the guard `if __name__ == "__main__":`, which each worker process runs again from the top.

A process that Python starts afresh imports the script that started it. Without the guard it would reach the same call,
and start workers itself. So it ends silently at the call, and leaves a file as a mark. If the script's own process
finds the mark, it ends with a message of one line.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..pipeline.errors import UsageError

_MARK = "BROADSHEET_UNGUARDED"
"""The environment variable with the path of the mark, for processes that start while workers start."""


class UnguardedScript(UsageError, SystemExit):
    """The error of a script without the guard. Uncaught, it ends the script with only its message, like `sys.exit`."""

    def __init__(self) -> None:
        message = (
            f'{sys.argv[0]}: put what starts workers under `if __name__ == "__main__":`, since each worker process '
            "imports the script (or leave out workers=)"
        )
        super().__init__(message)
        self.code = message


def end_in_a_worker() -> None:
    """End this process if it belongs to a worker and is only importing the script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # multiprocessing uses the same check
        if _MARK in os.environ:
            Path(os.environ[_MARK]).touch()
        os._exit(UnguardedScript.exit_code)  # the script could catch sys.exit and continue


@contextmanager
def noticed(folder: Path) -> Iterator[None]:
    """Raise UnguardedScript instead of any other error if a worker that started in the block left the mark."""
    mark = folder / "unguarded"
    os.environ[_MARK] = str(mark)
    try:
        yield
    except BaseException:
        if mark.exists():
            raise UnguardedScript from None
        raise
    finally:
        del os.environ[_MARK]
