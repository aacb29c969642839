"""The command `broadsheet` with its subcommands, and what it prints and returns after an error or Ctrl-C."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from collections.abc import Collection, Iterable
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from types import FrameType
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import BroadsheetError, counted, printable
from ..report.console import say

_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""The error that Click raises for a wrong command line. Some versions of Typer have a copy of the class."""

_INTERRUPTED = 130
"""The exit code that Typer returns, without a message, after it caught a KeyboardInterrupt."""


class _Command(TyperCommand):
    """A command whose help shows no value for a switch. `--help-all` also shows the options that `--help` hides."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        hidden = [one for one in self.params if getattr(one, "hidden", False)]
        for one in hidden if "--help-all" in args else ():
            one.hidden = False  # type: ignore[attr-defined]
        more = f"--help-all shows {counted(len(hidden), 'more option')}."
        self.epilog = more if hidden and "--help-all" not in args else None
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_words(super().get_params(ctx))


class _Group(TyperGroup):
    """The command `broadsheet` itself, whose help shows no value for a switch either."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_words(super().get_params(ctx))


def _without_words(parameters: Iterable[Any]) -> list[Any]:
    listed = list(parameters)
    for one in listed:
        if getattr(one, "is_flag", False):
            one.metavar = ""  # by default the help shows <bool>
    return listed


_COMMANDS = {
    "classify": ("Label", "classify.command"),
    "inspect": ("Label", "inspect.inspect"),
    "select": ("Label", "select.command"),
    "train": ("Train", "train.command"),
    "next": ("Train", "next_rows.command"),
    "review": ("Train", "review.command"),
    "evaluate": ("Train", "evaluate.command"),
    "explain": ("Train", "explain.command"),
    "calibrate": ("Train", "models.calibrate"),
    "convert": ("Train", "models.convert"),
    "recipes": ("Train", "models.recipes"),
    "push": ("Train", "models.push"),
    "serve": ("Operate", "serve.command"),
    "submit": ("Operate", "classify.submit"),
    "verify": ("Operate", "inspect.verify"),
    "merge": ("Operate", "select.merge"),
    "doctor": ("Operate", "machine.doctor"),
    "profile": ("Operate", "machine.profile"),
}
"""By name, the panel of the help, and the function as MODULE.FUNCTION in this folder, imported only when needed."""
_RENAMED = {
    "": {"export": ["convert"], "quantise": ["calibrate", "--int8"]},
    "classify": {"--truth-column": ["--label-column"]},
    "submit": {"--truth-column": ["--label-column"]},
    "select": {"--column": ["--keep"], "--input": ["--keep-all"]},
}
"""Commands (under "") and options (by command) of earlier versions, each with its name of today."""


def _as_now(arguments: list[str]) -> list[str]:
    """Replace names of earlier versions in the arguments by those of today, and print a line on stderr for each."""

    def now(command: str, given: str) -> list[str]:
        name, equals, value = given.partition("=")
        if (called := _RENAMED.get(command, {}).get(name)) is None:
            return [given]
        say(f"broadsheet: {name} is called {' '.join(called)} now", error=True)
        return [*called[:-1], f"{called[-1]}{equals}{value}"]

    command = now("", arguments[0]) if arguments else []
    return [*command, *(one for given in arguments[1:] for one in now(arguments[0], given))]


def _options(
    context: typer.Context,
    wants_version: bool = typer.Option(False, "--version", help="Print the version and what a bug report needs."),
) -> None:
    if wants_version:
        from .machine import facts

        say(f"broadsheet {version('broadsheet')}")
        for name, value in facts():
            say(f"{name:>10}  {value}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.get_help()  # with Rich, this prints the help
        raise typer.Exit(2)


def application(names: Collection[str] = tuple(_COMMANDS)) -> typer.Typer:
    """Return the command with these subcommands. Fewer make it start faster: Typer inspects the parameters of each."""
    made = typer.Typer(
        name="broadsheet",
        cls=_Group,
        help="Give each text of a very large collection a label, a score or a number. For the options of a command, "
        "run broadsheet COMMAND --help.",
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # Markdown, unlike Rich's own markup, leaves brackets as they are
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_options)
    for name in [name for name in _COMMANDS if name in names]:
        panel, place = _COMMANDS[name]
        module, _, function = place.partition(".")
        settings: dict[str, Any] = {"help_option_names": ["-h", "--help", "--help-all"]}
        settings |= {"allow_extra_args": True, "ignore_unknown_options": True} if name == "submit" else {}
        command = made.command(name, cls=_Command, context_settings=settings, rich_help_panel=panel)
        command(getattr(import_module(f".{module}", __package__), function))
    return made


def _needed(arguments: list[str]) -> Collection[str]:
    """Return the commands that these arguments need. The module of each has to be imported."""
    if arguments == ["--version"]:
        return ()
    is_known = {*arguments[:1]} & {*_COMMANDS}
    return {arguments[0], "classify"} if is_known else _COMMANDS  # `submit` has classify's options


def run() -> None:
    """Run the command. An error that the user can mend is one message on stderr, and sets the exit code of its kind."""
    # Set up signals, streams and warnings.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not be able to show every character
    warnings.showwarning = _show_warning  # type: ignore[assignment]

    # Run the command, and turn each kind of error into a message and an exit code.
    try:
        sys.argv[1:] = _as_now(sys.argv[1:])
        code = application(_needed(sys.argv[1:]))(standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except SystemExit as ended:
        # After a closed pipe, return the exit code of other filters, which SIGPIPE ends; Rich and Typer return 1.
        sys.exit(128 + signal.SIGPIPE if isinstance(ended.__context__, BrokenPipeError) else ended.code)
    except _UsageError as error:
        _UsageError(printable(error.format_message()), error.ctx).show()
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
