"""The files that explain a job: its timeline, and its page."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from ..errors import OutputError, UsageError
from .job import JobReport
from .perfetto import save_trace

File = str | os.PathLike[str] | None


def refuse_unwritable(trace: File, report: File) -> None:
    """Raise UsageError, before the job runs, where a file could not be written or drawn."""
    for name, path in (("trace", trace), ("report", report)):
        if path is not None and (not Path(path).absolute().parent.is_dir() or Path(path).is_dir()):
            raise UsageError(f"--{name} {os.fspath(path)}: give a file in a folder that exists")
    if report is not None and find_spec("matplotlib") is None:
        raise UsageError("--report needs Matplotlib: pip install 'broadsheet[report]'")


def explain(report: JobReport, trace: File, page: File) -> None:
    """Write the requested files. Raises OutputError where one cannot be written."""
    try:
        if trace is not None:
            save_trace(report.run.timeline, os.fspath(trace))
        if page is not None:
            from .page import save_page  # Matplotlib takes a while to load

            save_page(report, os.fspath(page))
            report.run.page = os.fspath(page)
    except OSError as error:
        raise OutputError(f"{error.filename} cannot be written: {error.strerror}") from error
