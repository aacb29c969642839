"""The command `broadsheet`: a file a command."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer

from pipeline.cli import classify, convert, doctor, evaluate, inspect, profile, submit, train, verify
from pipeline.errors import BroadsheetError

_INTERRUPTED = 130
"""Typer's exit code where it has caught an interrupt, without a word."""

app = typer.Typer(
    name="broadsheet",
    help="Label very large collections of short texts with a character-level CNN.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # brackets in a help text are text
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("classify")(classify.command)
app.command("submit", context_settings=submit.CONTEXT)(submit.command)
app.command("doctor")(doctor.command)
app.command("verify")(verify.command)
app.command("train")(train.command)
app.command("evaluate")(evaluate.command)
app.command("inspect")(inspect.command)
app.command("profile")(profile.command)
app.command("convert")(convert.command)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from pipeline import __version__

        typer.echo(f"broadsheet {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command; errors a user can mend are one message on stderr, and the exit code says of what kind."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except BroadsheetError as error:
        print(f"broadsheet: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say_interrupted()
    except SystemExit as end:
        if end.code != _INTERRUPTED:
            raise
        _say_interrupted()


def _say_interrupted() -> None:
    print("broadsheet: interrupted", file=sys.stderr)
    sys.exit(1)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
