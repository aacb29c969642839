"""Prints a job's report and progress to a terminal of 80 columns, or as plain lines to a log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from rich.filesize import decimal
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from .console import PlainConsole, facts_table, lines, print_fact, say
from .facts import ModelFigures
from .job import JobReport, Progress
from .overlap import overlap_line
from .pace import Pace
from .summary import LOOKED_AT, doubt, facts, reasons, unfinished, unread_line
from .tables import new_table, print_breakdown, print_confusion, print_profile
from .tally import Reach

_MOST_CLASSES = 20
_MOST_LINES = 10
_SECONDS_BETWEEN_LINES = 10.0
_LONG_SECONDS = 5.0
"""If the first chunks say that the job takes longer, the dashboard's link is printed, as there is time to look."""


class NoProgress(Progress):
    """Shows no progress, but always reports input that was skipped, and why the exit code is 3."""

    def warn(self, message: str) -> None:
        pass

    def finished(self, report: JobReport) -> None:
        unread = {path for path, _ in report.tally.unread}
        reasons = [message for path, message in report.tally.problems if path in unread]
        more = [f"and {len(reasons) - _MOST_LINES:,} more files"] if len(reasons) > _MOST_LINES else []
        for line in (*report.not_read, *reasons[:_MOST_LINES], *more, *report.beyond_limits):
            say(f"broadsheet: {line}", error=True)


class Bar:
    """Shows progress as a bar on a terminal. Without a terminal it prints a line at intervals.

    Parameters
    ----------
    console : PlainConsole
        The console to print to.
    seconds : float
        The least time between two lines, in seconds.

    """

    def __init__(self, console: PlainConsole, seconds: float) -> None:
        self._console, self._seconds = console, seconds
        self._bar: RichProgress | None = None
        self.spoke()

    def spoke(self) -> None:
        """Note that something else was printed, so that the next line can wait."""
        self._spoke = time.monotonic()

    def start(self, what: str, told: str, total: float | None) -> None:
        """Show the bar with a text on each side, unless it is shown already.

        what: the text before the bar. told: the text after it. total: None if the end is not known yet.
        """
        if self._bar is None and self._console.is_terminal and not self._console.quiet:
            texts = ("{task.description}", "{task.fields[told]}")
            before, after = (TextColumn(text, markup=False) for text in texts)
            self._bar = RichProgress(before, BarColumn(bar_width=None), after, console=self._console, transient=True)
            self._task = self._bar.add_task(what, total=total, told=told)
            self._bar.start()

    def begin(self, what: str) -> None:
        """Name the next step, beside the bar on a terminal, otherwise on a line of its own."""
        if self._bar is not None:
            self._bar.update(self._task, total=None, completed=0, description=what, told="")
        else:
            self._console.print(what, soft_wrap=True)

    def show(self, what: str, share: float, told: str, line: str) -> None:
        """Show a share of the bar, or print the line if it is time for one. share: 0 if it is unknown."""
        if self._bar is not None:
            total = 1.0 if share else None
            self._bar.update(self._task, total=total, completed=share, description=what, told=told)
        elif time.monotonic() - self._spoke >= self._seconds:
            self.spoke()
            self._console.print(line, soft_wrap=True)

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class TerminalProgress(Progress):
    """A live bar with the finished articles, articles per second and time left; plain lines without a terminal.

    The bar measures bytes until the number of articles is known.
    """

    def __init__(self, console: PlainConsole) -> None:
        self._console, self._bar = console, Bar(console, _SECONDS_BETWEEN_LINES)
        self._job_began, self._dashboard = 0.0, ""
        self._pace: Pace | None = None

    def phase(self, what: str) -> None:
        self._bar.start(what, "", None)
        self._bar.begin(what)

    def start(self, rows: int, dashboard: str) -> None:
        self._job_began, self._dashboard = time.monotonic(), dashboard
        self._bar.spoke()
        self._bar.start("articles", "0", None)

    def advance(self, report: JobReport) -> None:
        reach = report.run.reach
        self._pace = self._pace or Pace(reach)
        left = self._pace.seconds_left
        self._show_link(time.monotonic() - self._job_began + (left or 0.0))
        pace = f"{self._pace.rows_per_second:,.0f}/s"
        pace += "" if left is None else f", {timedelta(seconds=round(left))} left"
        finished = _done(reach)
        self._bar.show("articles", reach.share, f"{finished} {pace}", f"{finished} articles done, {pace}")

    wait = advance

    def _show_link(self, seconds: float) -> None:
        """Print the dashboard's link once, if the job is long. seconds: about how long the job takes."""
        if self._dashboard and seconds > _LONG_SECONDS:
            self._console.print(f"dashboard: {self._dashboard}", style="dim", soft_wrap=True)
            self._dashboard = ""

    def warn(self, message: str) -> None:
        if self._job_began:
            self._show_link(time.monotonic() - self._job_began)
        self._console.print(lines(f"warning: {message}", "yellow"), soft_wrap=True)

    def stop(self) -> None:
        self._bar.stop()

    def finished(self, report: JobReport) -> None:
        """Do nothing, because the report says it."""


def _done(reach: Reach) -> str:
    """Return how many articles are finished, and of how many or how much: "1,200 of 7,600", "1,200 (12% of 3 GB)"."""
    if reach.rows_known:
        return f"{reach.computed:,} of {reach.rows_known:,}"
    share = f" ({reach.share:.0%} of {decimal(reach.bytes_known)})" if reach.bytes_known else ""
    return f"{reach.computed:,}{share}"


def print_report(report: JobReport, console: PlainConsole) -> None:
    """Print the totals and labels, and then accuracy, quarantined rows, breakdown, profile and problems, if any.

    If the chunks took only a moment, the breakdown is shown only if kernels were profiled. Otherwise its verdict is
    shown, if the whole job took some seconds.
    """
    # Totals and the files that were written.
    console.print(facts_table(facts(report.job, report.tally, report.run)))
    for name, path in (("output", report.job.output), ("page", report.run.page), ("problems", report.run.problems)):
        if path:
            print_fact(name, path, console)
    # Labels and accuracy of each model.
    for model in report.models:
        if len(report.models) > 1:
            console.print(lines(model.name, "bold"), soft_wrap=True)
        console.print(_label_table(model, report.rows_written))
        if line := overlap_line(model.overlap):
            console.print(lines(line, "yellow"), soft_wrap=True)
        if model.confusion is not None:
            print_confusion(model.confusion, console)
    if report.job.answers is not None:
        _print_validation(report, report.job.answers, console)
    # Quarantined rows, and where the time went.
    if report.rows_quarantined:
        _print_quarantine(report, console)
    if report.breakdown.is_telling or report.run.profile is not None:
        print_breakdown(report.breakdown, console)
    elif report.breakdown.is_worth_a_line:
        console.print(report.breakdown.verdict, style="bold")
    if report.run.profile is not None:
        print_profile(report.run.profile, console)
    # Input that was not read, and advice.
    print_list("skipped", [f"{path}: {reason}" for path, reason in report.tally.left_out], console)
    if report.tally.unread:
        console.print(lines(unread_line(report.tally.unread), "yellow"), soft_wrap=True)
    print_list("files", [message for _, message in report.tally.problems], console)
    print_list("chunks set aside", [f"{name}: {reason}" for name, reason in report.run.set_aside], console)
    growth = report.job.growth.lines if report.job.growth else []
    for remark in (*growth, unfinished(report.job, report.run), doubt(report.job, report.tally), *report.hints):
        if remark:
            console.print(lines(remark, "yellow"), soft_wrap=True)


def _label_table(model: ModelFigures, written: int) -> Table:
    table = new_table("label", "rows", "share")
    shown = model.labels.most_common(_MOST_CLASSES)
    for name, rows in shown:
        table.add_row(name, f"{rows:,}", f"{rows / max(written, 1):.1%}")
    if len(model.labels) > len(shown):
        table.add_row(f"{len(model.labels) - len(shown)} more")
    if model.unlabelled:
        table.add_row("(none)", f"{model.unlabelled:,}", f"{model.unlabelled / max(written, 1):.1%}")
    return table


def _print_validation(report: JobReport, answers: str, console: PlainConsole) -> None:
    labelled = report.rows_written + report.rows_filtered
    if report.wrong_answers:
        verb = "differs" if report.wrong_answers == 1 else "differ"
        verdict = f"{report.wrong_answers:,} of {labelled:,} labels {verb} from {answers}"
    else:
        verdict = f"all {labelled:,} labels are those of {answers}"
    console.print(f"validation: {verdict}", style="red" if report.wrong_answers else "green", soft_wrap=True)


def _print_quarantine(report: JobReport, console: PlainConsole) -> None:
    """Print a line for each reason, with its first row."""
    looked_at = report.results.first_quarantined(LOOKED_AT)
    by_reason = reasons(looked_at)
    for one in by_reason[:_MOST_LINES]:
        where = f"{one.first['file']} row {one.first['row']}"
        console.print(f"quarantined  {where}: {one.first['reason']}{one.others}", style="yellow", soft_wrap=True)
    if len(by_reason) > _MOST_LINES or report.rows_quarantined > len(looked_at):
        console.print(f"quarantined  … {report.rows_quarantined:,} rows in all", style="yellow")


def print_list(name: str, messages: Iterable[str], console: PlainConsole) -> None:
    messages = list(messages)
    for message in messages[:_MOST_LINES]:
        console.print(lines(f"{name}  {message}", "yellow"), soft_wrap=True)
    if len(messages) > _MOST_LINES:
        console.print(f"{name}  … and {len(messages) - _MOST_LINES} more", style="yellow")
