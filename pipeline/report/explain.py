"""The files that a job explains itself with: its timeline, and its page."""

from __future__ import annotations

import os

from pipeline.errors import OutputError
from pipeline.report.job import JobReport
from pipeline.report.perfetto import save_trace

File = str | os.PathLike[str] | None


def explain(report: JobReport, trace: File, page: File) -> None:
    """Write what is asked for. Raises OutputError where a file cannot be written."""
    try:
        if trace is not None:
            save_trace(report.timeline, os.fspath(trace))
        if page is not None:
            from pipeline.report.page import save_page  # Matplotlib takes a while to load

            save_page(report, os.fspath(page))
    except OSError as error:
        raise OutputError(f"{error.filename} cannot be written: {error.strerror}") from error
