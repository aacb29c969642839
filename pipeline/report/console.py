"""Prints everything that the commands print: text whose control characters are escaped, or JSON.

Names and messages may hold anything, such as escape sequences that a terminal would obey, or text that Rich takes for
markup. So there is one console, which knows no markup and makes each string `printable`, and `styled` replaces Rich's
`Text`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import OutputError, cause, printable, printable_lines

_NAME_WIDTH, _WIDEST_NAME = 8, 24


@contextmanager
def _printing() -> Iterator[None]:
    """Raise OutputError if printing fails, for example on a full disk, and BrokenPipeError for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {cause(error)}. Send it elsewhere") from error


class PlainConsole(Console):
    """Rich's console without markup: a string is plain text, in the cells and headers of tables too."""

    def __init__(self, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)

    def print(self, *parts: Any, **options: Any) -> None:
        """Print as Rich's console does. Raises OutputError."""
        with _printing():
            super().print(*parts, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a string `printable`. Rich calls this method for every string that it gets."""
        return super().render_str(printable(text), **options)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return one line from several parts, each a string or a pair of a string and its style."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((printable(text), style) for text, style in pairs))


def lines(text: str, style: str = "") -> Text:
    """Return a message, which may have several lines, as text of Rich."""
    return Text(printable_lines(text), style)


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table with a line for each fact, its name and its value. A long value is wrapped within its column."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="bold", min_width=_NAME_WIDTH, max_width=_WIDEST_NAME, overflow="fold")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, value)
    return grid


def print_fact(name: str, value: str, console: PlainConsole) -> None:
    """Print a fact, such as a path, on one line however long it is, so that it can be copied."""
    console.print(styled((f"{name:>{_NAME_WIDTH}}  ", "bold"), value), soft_wrap=True)


def say(message: str, error: bool = False) -> None:
    """Print a message, which may have several lines, to stdout or stderr. Raises OutputError."""
    with _printing():
        print(printable_lines(message), file=sys.stderr if error else sys.stdout, flush=True)


def print_file(text: str) -> None:
    """Print the text of a file as it is, or made `printable` on a terminal. Raises OutputError."""
    shown = "\n".join(map(printable, text.split("\n"))) if sys.stdout and sys.stdout.isatty() else text
    with _printing():
        print(shown, end="", flush=True)


def print_rows(data: bytes) -> None:
    """Print rows at once as they are, or made `printable` on a terminal. Raises OutputError."""
    if sys.stdout.isatty():
        print_file(data.decode())
        return
    with _printing():
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def print_json(value: Any, indent: int | None = None) -> None:
    """Print JSON in ASCII. Every other character is escaped, so it is safe on a terminal and never fails."""
    print_file(f"{json.dumps(value, indent=indent)}\n")
