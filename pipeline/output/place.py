"""Where a job may write: a folder of a file system that every worker sees at the same path."""

from __future__ import annotations

import os

from pipeline.errors import UsageError
from pipeline.source.names import as_url, without_secrets


def refuse_url(output: str | os.PathLike[str]) -> None:
    """Raise UsageError for a URL, of which only a local folder with such a name could be made."""
    if url := as_url(os.fspath(output)):
        raise UsageError(
            f"{without_secrets(url)}: labels are written into a folder, not yet to a URL: give a folder, and copy it "
            "when the job is done"
        )
