"""Private folders, which no other user of a host can read, write or create first; and a dashboard's secret token."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import dask

from ..pipeline.errors import UsageError, cause

SCRATCH = "temporary-directory"
"""The key of Dask's configuration for the folder in which each process creates its own."""

HAS_BOKEH = find_spec("bokeh") is not None
"""Whether there can be a dashboard, which needs the extra "dashboard"."""

TOKEN = "broadsheet.dashboard-token"
"""The key of Dask's configuration for the token of a scheduler's dashboard, read when it starts."""

LINK = "distributed.dashboard.link"
"""The key of Dask's configuration for the form of the dashboard's link."""


def new_token() -> str:
    """Return a token for the link of a dashboard.

    It begins with a letter, so that Dask does not read it as a number.
    """
    return f"t{secrets.token_hex(16)}"


def make_private(folder: Path) -> None:
    """Create a folder of mode 0700, unless it exists. Raises UsageError if the folder belongs to another user."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat().st_uid
        if folder.is_symlink() or owner != os.geteuid():
            raise UsageError(f"{folder} is a link or belongs to another user (number {owner}): choose another folder")
        folder.chmod(0o700)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {cause(error)}. Name another folder, or set TMPDIR") from error


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder for a cluster's temporary files, below Dask's `temporary-directory` or $TMPDIR.

    The folder is removed at the end.

    Raises UsageError if the folder cannot be created.
    """
    where = dask.config.get(SCRATCH, None)
    try:
        if where is not None:
            Path(where).mkdir(parents=True, exist_ok=True)
        # Processes that are killed late may still be writing while the folder is removed.
        made = TemporaryDirectory(prefix="broadsheet-", dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"no folder for temporary files can be made: {error}. Set TMPDIR to one") from error
    with made as folder:
        yield Path(folder)
