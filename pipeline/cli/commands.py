"""The command `broadsheet` and its subcommands; how errors and Ctrl-C end it."""

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

from ..errors import BroadsheetError, printable
from ..report.console import say

_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Click's error for a wrong command line; some versions of Typer have a copy of it."""

_INTERRUPTED = 130
"""Typer's exit code where it has caught an interrupt, without a word."""


class _Command(TyperCommand):
    """A command in whose help a switch has no word for a value, and --help-all shows what --help does not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        hidden = [one for one in self.params if getattr(one, "hidden", False)]
        for one in hidden if "--help-all" in args else ():
            one.hidden = False  # type: ignore[attr-defined]
        self.epilog = f"--help-all shows {len(hidden)} options more." if hidden and "--help-all" not in args else None
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_words(super().get_params(ctx))


class _Group(TyperGroup):
    """The same of the command without a subcommand."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_words(super().get_params(ctx))


def _without_words(parameters: Iterable[Any]) -> list[Any]:
    listed = list(parameters)
    for one in listed:
        if getattr(one, "is_flag", False):
            one.metavar = ""  # it would be <bool>
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
"""By name the panel of the help, and the function in a module of this folder, which is imported where it is needed."""
_RENAMED = {
    "": {"export": ["convert"], "quantise": ["calibrate", "--int8"]},
    "classify": {"--truth-column": ["--label-column"]},
    "submit": {"--truth-column": ["--label-column"]},
    "select": {"--column": ["--keep"], "--input": ["--keep-all"]},
}
"""Commands, and options by command, of earlier versions, and what they are now."""


def _as_now(arguments: list[str]) -> list[str]:
    """The arguments with the names of today for those of earlier versions, with a line on stderr for each."""

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
    asked: bool = typer.Option(False, "--version", help="Print version and facts for a bug report."),
) -> None:
    if asked:
        from .machine import facts

        say(f"broadsheet {version('broadsheet')}")
        for name, value in facts():
            say(f"{name:>10}  {value}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.get_help()  # with Rich it prints
        raise typer.Exit(2)


def application(names: Collection[str] = tuple(_COMMANDS)) -> typer.Typer:
    """The command with these subcommands: Typer looks at the parameters of all that it has."""
    made = typer.Typer(
        name="broadsheet",
        cls=_Group,
        help="Give each text of a very large collection a label, a score or a number.",
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # brackets in a help text are text
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_options)
    for name in [name for name in _COMMANDS if name in names]:
        panel, place = _COMMANDS[name]
        module, _, function = place.partition(".")
        how: dict[str, Any] = {"help_option_names": ["-h", "--help", "--help-all"]}
        how |= {"allow_extra_args": True, "ignore_unknown_options": True} if name == "submit" else {}
        command = made.command(name, cls=_Command, context_settings=how, rich_help_panel=panel)
        command(getattr(import_module(f".{module}", __package__), function))
    return made


def _needed(arguments: list[str]) -> Collection[str]:
    """The commands that these arguments need; each is a module to be imported."""
    if arguments == ["--version"]:
        return ()
    is_known = {*arguments[:1]} & {*_COMMANDS}
    return {arguments[0], "classify"} if is_known else _COMMANDS  # `submit` has classify's options


def run() -> None:
    """Run the command; errors a user can mend are one message on stderr, and the exit code says of what kind."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know fewer letters than UTF-8
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        sys.argv[1:] = _as_now(sys.argv[1:])
        code = application(_needed(sys.argv[1:]))(standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except SystemExit as ended:
        # A pipe that is closed ends other filters by its signal; Rich and Typer would have 1.
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
