"""The command `broadsheet`: a file a command."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from io import TextIOWrapper
from types import FrameType
from typing import cast

import typer

from ..errors import BroadsheetError, visible
from ..report.console import say
from . import (
    calibrate,
    classify,
    convert,
    doctor,
    evaluate,
    export,
    inspect,
    profile,
    push,
    quantise,
    serve,
    submit,
    train,
    verify,
)

_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Click's error for a wrong command line; some versions of Typer have a copy of it."""

_INTERRUPTED = 130
"""Typer's exit code where it has caught an interrupt, without a word."""

app = typer.Typer(
    name="broadsheet",
    help="Label very large collections of short texts with a character-level CNN.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # brackets in a help text are text
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("classify")(classify.command)
app.command("submit", context_settings=submit.CONTEXT)(submit.command)
app.command("doctor")(doctor.command)
app.command("verify")(verify.command)
app.command("train")(train.command)
app.command("calibrate")(calibrate.command)
app.command("quantise")(quantise.command)
app.command("evaluate")(evaluate.command)
app.command("inspect")(inspect.command)
app.command("profile")(profile.command)
app.command("convert")(convert.command)
app.command("export")(export.command)
app.command("push")(push.command)
app.command("serve")(serve.command)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print version and facts for a bug report."),
) -> None:
    if version:
        from .. import __version__
        from .version import facts

        say(f"broadsheet {__version__}")
        for name, value in facts():
            say(f"{name:>10}  {value}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.get_help()  # with Rich it prints
        raise typer.Exit(2)


def main() -> None:
    """Run the command; errors a user can mend are one message on stderr, and the exit code says of what kind."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know fewer letters than UTF-8
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except _UsageError as error:
        _UsageError(visible(error.format_message()), error.ctx).show()
        sys.exit(error.exit_code)
    except BroadsheetError as error:
        say(f"broadsheet: {error.message}", error=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("broadsheet: interrupted", error=True)
        sys.exit(1)
    except Exception:
        say(f"broadsheet: please report this\n{traceback.format_exc()}", error=True)
        sys.exit(1)


def _show_warning(message: Warning | str, *_where: object) -> None:
    say(f"broadsheet: warning: {message}", error=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
