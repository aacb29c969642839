"""The command `classify … -o -`, which writes the labels to stdout as soon as it has them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING, Any

import typer

from ..errors import UsageError
from ..report.console import print_rows, say

if TYPE_CHECKING:
    from ..job.pipe import Piped
    from ..source.inputs import Paths
    from ..source.memory.stdin import Stdin

_SET_ASIDE = 3  # the exit code if more rows or files have no labels than the user allows
_OF_JOBS = ("resume", "overwrite", "update", "partition_by", "part_rows", "profile", "trace", "report")


def source_of(inputs: list[str], kind: str | None) -> Paths | Stdin:
    """Return the inputs of a command, or stdin if the input is `-`. Raises UsageError if stdin is closed."""
    from ..source.inputs import Paths
    from ..source.memory.stdin import Stdin

    if "-" not in inputs:
        if kind is not None:
            raise UsageError("--stdin-format goes with the input -, which stands for stdin")
        return Paths(inputs)
    if len(inputs) > 1:
        raise UsageError("- stands for stdin: give it alone, or only files")
    try:
        return Stdin(FileIO(0, closefd=False), kind)
    except OSError as error:
        raise UsageError("stdin is closed: there is nothing to read") from error


def refuse_options(options: dict[str, Any], connection: dict[str, Any], as_json: bool) -> None:
    """Raise UsageError for an option that needs the folder or the cluster of a job."""
    given = {f"--{name.replace('_', '-')}": options.get(name) for name in _OF_JOBS}
    given |= {"--cluster": connection["where"] != "auto", "--protocol": connection["protocol"] != "auto"}
    given |= {"--tls/--no-tls": connection["tls"] is not None, "--nsys": connection["nsys"]}
    given |= {"--workers": connection["workers"], "--scheduler-file": connection["scheduler_file"], "--json": as_json}
    if name := next((name for name, value in given.items() if value), None):
        raise UsageError(f"{name} does not go with -o -: rows go to stdout, from this process alone")


def run(source: Paths | Stdin, model: list[str], options: dict[str, Any], quiet: bool) -> None:
    """Write the labels, and nothing else, to stdout.

    A closed pipe, Ctrl-C or SIGTERM ends the process at once and without a message, like other filters.
    """
    from ..job.pipe import KINDS, pipe
    from ..options import TABLE, Options
    from ..report.summary import doubt_line, encoding_hint, left_out_line, too_many_quarantined, too_many_unread

    # Label the input.
    kind = options.get("format", KINDS[0])
    if kind not in KINDS:
        raise UsageError(f"--format {kind}: to stdout it is {' or '.join(KINDS)}")
    if sys.stdout is None:
        raise UsageError("stdout is closed: there is nowhere to write the labels")
    with _ended_by_signals():
        piped = pipe(source, print_rows, model=model, options=Options(**options), kind=kind)

    # Report what was not read, and what exceeds a limit.
    for message in (*piped.problems, *([left_out_line(piped.left_out)] if piped.left_out else ())):
        say(f"broadsheet: {message}", error=True)
    limits = {name: options.get(name, TABLE[name].default) for name in ("max_quarantined", "max_unread")}
    unread = len({*piped.problems})
    beyond = (
        too_many_quarantined(piped.rows_quarantined, piped.rows_read, limits["max_quarantined"]),
        too_many_unread(unread, max(piped.files, unread), limits["max_unread"]),
    )
    for line in filter(None, beyond):
        say(f"broadsheet: {line}", error=True)

    # Print the summary and remarks.
    if not quiet:
        bad = piped.rows_quarantined
        for remark in (
            _summary(piped),
            doubt_line(piped.doubtful, piped.models.first.name, piped.models.first.meant_for),
            encoding_hint(piped.not_decoded, piped.rows_read, bad, bad),
            *piped.notes,
        ):
            if remark:
                say(f"broadsheet: {remark}", error=True)
    raise typer.Exit(_SET_ASIDE if any(beyond) else 0)


def _summary(piped: Piped) -> str:
    filtered = f" + {piped.rows_filtered:,} filtered" if piped.rows_filtered else ""
    abstained = f" + {piped.unlabelled:,} to which no label applies" if piped.unlabelled else ""
    rate = piped.rows_read / max(piped.seconds, 1e-9)
    line = (
        f"{piped.rows_read:,} rows read = {piped.rows_written - piped.unlabelled:,} labelled{abstained}{filtered} + "
        f"{piped.rows_quarantined:,} without a label; {rate:,.0f} a second"
    )
    if piped.confusion is not None and piped.confusion.rows:
        from ..report.shares import share_text

        line += f"; accuracy {share_text(piped.confusion.correct, piped.confusion.rows)}"
    if piped.learned is not None and piped.learned.learned:
        line += f"; it has learned from {piped.learned.learned:,} of {piped.learned.checked:,} rows with a true class"
    return line


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let signals end the process by their default action, except those that the shell has set to be ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN or number == signal.SIGPIPE:  # Python itself ignores SIGPIPE
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
