"""Scripts without the guard `if __name__ == "__main__":`, which each worker process runs again from the top.

A process that Python starts afresh imports the script that started it. Without the guard it would come to the same
call, and start workers itself. It ends there silently, and leaves a mark, a file: where the script's own process finds
it, it ends with a message of one line.
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
"""The environment variable with the path of the mark, in processes that are started while workers start."""


class UnguardedScript(UsageError, SystemExit):
    """A script without the guard. Uncaught, it ends the script with its message only, as `sys.exit(message)` does."""

    def __init__(self) -> None:
        message = (
            f'{sys.argv[0]}: put what starts workers under `if __name__ == "__main__":`, since each worker process '
            "imports the script (or leave out workers=)"
        )
        super().__init__(message)
        self.code = message


def end_in_a_worker() -> None:
    """End this process where it is a worker's that is only importing the script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself finds out
        if _MARK in os.environ:
            Path(os.environ[_MARK]).touch()
        os._exit(UnguardedScript.exit_code)  # sys.exit could be caught by the script, which would go on


@contextmanager
def noticed(folder: Path) -> Iterator[None]:
    """Raise UnguardedScript in place of any other error, where a worker that started in the block left the mark."""
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
