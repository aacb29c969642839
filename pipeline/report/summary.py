"""A job in a few lines: for the terminal, `print(report)` and a notebook."""

from __future__ import annotations

import textwrap
from collections import Counter
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import in_python, visible
from .tally import balance

if TYPE_CHECKING:
    from .job import JobReport

_WIDTH, _INDENT = 80, 10
_MOST_CLASSES = 10


def facts(report: JobReport) -> list[tuple[str, str]]:
    """Name and value of each fact, without the output folder."""
    tally, run = report.tally, report.run
    found = [("rows", f"{tally.rows_read:,} {balance(tally)}")]
    if run.chunks_before:
        chunks = tally.chunks - (tally.earlier.chunks if tally.earlier else 0)
        found.append(("resumed", f"{run.chunks_before:,} of {chunks:,} chunks were there before"))
    if report.job.growth is not None:
        found.append(("update", str(report.job.growth)))
    pace = f"; {report.articles_per_second:,.0f} articles a second once started" if run.rows else ""
    found.append(("time", f"{run.seconds:,.1f} s{pace}"))
    found.append(("model", report.job.model + (f", for {report.job.meant_for}" if report.job.meant_for else "")))
    found.append(("on", report.backend.partition(" (")[0]))  # the versions are in the records and on the page
    if report.job.no_gpu:
        found.append(("no GPU", report.job.no_gpu))
    if tally.unlabelled and tally.rows_filtered:
        found.append(("no label", f"{tally.unlabelled:,} of the rows written"))
    if tally.rows_written:
        text = f"{tally.chars / tally.rows_written:,.0f} characters on average"
        text += f", {tally.unknown_chars / max(tally.chars, 1):.2%} outside the alphabet"
        found.append(("text", text + (f", {tally.truncated:,} rows cut" if tally.truncated else "")))
        if " int8," in report.backend:
            each = tally.saturated / tally.rows_written
            found.append(("int8", f"{tally.saturated:,} saturated activations, {each:,.2f} a row"))
    return found


def doubt(report: JobReport) -> str | None:
    """One line about the rows that the model could hardly judge; None where there are none."""
    return doubt_line(report.tally.doubtful, report.job.model, report.job.meant_for)


def doubt_line(doubtful: Counter[str], model: str, meant_for: str | None) -> str | None:
    """The same, of rows by reason."""
    rows = sum(doubtful.values())
    if not rows:
        return None
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in doubtful.most_common())
    labels = "their labels mean" if rows > 1 else "its label means"
    line = f"{rows:,} {'rows are' if rows > 1 else 'row is'} hardly judged: {reasons}; {labels} little."
    return line + (f" {model} is for {meant_for}." if meant_for else "")


def unfinished(report: JobReport) -> str | None:
    """What is left to do; None for a job that is done."""
    if report.run.set_aside:
        return "The job is not finished: --resume tries those chunks again, unless their input has changed."
    if report.run.stopped:
        return "The job was stopped early: --resume does the chunks that are left."
    return None


def as_text(report: JobReport) -> str:
    """Lines of up to 80 columns; a path stays on one."""
    lines = []
    for name, value in _all_facts(report):
        begin = f"{name:>{_INDENT - 2}}  "
        lines += textwrap.wrap(visible(value), _WIDTH, initial_indent=begin, subsequent_indent=" " * _INDENT)
    for name, path in (("output", report.job.output), ("page", report.run.page)):
        if path:
            lines.append(f"{name:>{_INDENT - 2}}  {visible(path)}")
    for message in _remarks(report):
        lines += textwrap.wrap(visible(in_python(message)), _WIDTH)
    return "\n".join(lines)


def as_html(report: JobReport) -> str:
    """A small table, with a link to the page if one was written."""
    rows = [(escape(visible(name)), escape(visible(value))) for name, value in _all_facts(report)]
    if report.job.output:
        rows.append(("output", f"<code>{escape(visible(report.job.output))}</code>"))
    if report.run.page:
        page = Path(report.run.page)
        # A relative link, since a notebook's own page may not link to files by their absolute path.
        link = page.as_uri() if page.is_absolute() else quote(page.as_posix().encode("utf-8", "surrogateescape"))
        rows.append(("page", f'<a href="{escape(link)}" target="_blank">{escape(visible(report.run.page))}</a>'))
    head, cell = "text-align:right;vertical-align:top", "text-align:left;overflow-wrap:anywhere"
    body = "".join(f'<tr><th style="{head}">{name}</th><td style="{cell}">{value}</td></tr>\n' for name, value in rows)
    notes = "".join(f"<p>{escape(visible(in_python(message)))}</p>\n" for message in _remarks(report))
    return f"<table>\n{body}</table>\n{notes}"


def _all_facts(report: JobReport) -> list[tuple[str, str]]:
    found = facts(report)
    several = len(report.models) > 1
    for model in report.models:
        shown = model.labels.most_common(_MOST_CLASSES)
        labels = ", ".join(f"{name} {rows:,}" for name, rows in shown)
        more = len(model.labels) - len(shown)
        begin = f"{model.name}: " if several and labels else ""
        found.append(("labels", begin + labels + (f", and {more} more classes" if more else "")))
    for model in report.models:
        confusion = model.confusion
        if confusion is not None and confusion.rows:
            right = f"{confusion.correct:,} of {confusion.rows:,} right"
            begin = f"{model.name}: " if several else ""
            error = f"(standard error {confusion.standard_error:.2%})"
            found.append(("accuracy", f"{begin}{confusion.accuracy:.2%} {error}: {right}"))
    return [(name, value) for name, value in found if value]


def _remarks(report: JobReport) -> list[str]:
    growth = report.job.growth.lines if report.job.growth else []
    return [message for message in (*growth, doubt(report), unfinished(report)) if message]
