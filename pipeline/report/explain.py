"""The files that explain a job: its timeline, and its page."""

from __future__ import annotations

import os

from ..errors import OutputError
from .job import JobReport
from .perfetto import save_trace

File = str | os.PathLike[str] | None


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
