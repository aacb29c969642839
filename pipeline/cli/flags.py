"""The flags of commands: those that the table of a job's options declares, and others that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ..options import FILE, HEADER, NAMES, TABLE
from ..options.table import Table
from ..options.training import MODEL, SOURCE

_Command = TypeVar("_Command", bound=Callable[..., Any])


def flag(name: str, table: Table = TABLE) -> Any:
    """Return the flag of an option. Its value is None, or False for a switch, if the user does not give it."""
    option = table[name]
    return typer.Option(
        f"--{option.flag or name.replace('_', '-')}",
        metavar=option.metavar or "|".join(option.choices),
        min=option.least,
        help=option.line,
        show_default=False,
        rich_help_panel=option.panel,
        hidden=option.seldom,
    )


def _kind(kind: Any) -> Any:
    """Return the type of a flag. A header's columns are one word; flags for columns and sources may be repeated."""
    if kind in (NAMES, SOURCE):
        return list[str] | None
    if kind in (HEADER, MODEL, str | int, str | int | None):
        return str | None
    if kind == FILE:
        return Path | None
    return kind if kind is bool else kind | None


def with_options(table: Table) -> Callable[[_Command], _Command]:
    """Return a decorator that replaces `**flags` of a command by a flag for each option of a table, in panel order."""

    def place(parameter: inspect.Parameter) -> int:
        panel = parameter.annotation.__metadata__[0].rich_help_panel
        return table.panels.index(panel) if isinstance(panel, str) else -1

    def show(command: _Command) -> _Command:
        signature = inspect.signature(command, eval_str=True)
        flags = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, option in table.items():
            default = False if option.default is False else None
            kind = Annotated[_kind(table.types[name]), flag(name, table)]  # type: ignore[valid-type]
            if option.panel:
                flags.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        flags = sorted((one.replace(kind=one.KEYWORD_ONLY) for one in flags), key=place)
        command.__signature__ = signature.replace(parameters=flags)  # type: ignore[attr-defined]
        return command

    return show


def keywords(flags: dict[str, Any], table: Table = TABLE) -> dict[str, Any]:
    """Return the options that the user gave, as Python's keywords."""
    given = {name: value for name, value in flags.items() if not (value is None or value is False or value == [])}
    return {name: value.split(",") if table.types[name] == HEADER else value for name, value in given.items()}


def in_panel(panel: str, metavar: str, said: str, *names: str, **about: Any) -> Any:
    """Return a flag for something that is no option in a table. said: the text in the help; about: more for Typer."""
    return typer.Option(*names, metavar=metavar, help=said, rich_help_panel=panel, **about)


_MODEL, _FILE = "A shipped model's name, a file, or hf://USER/NAME.", "The model file to write."
OneModel = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help=_FILE, show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]

Texts = Annotated[list[str] | None, flag("text_column")]
_ROOT = "Folder to which paths of input files are relative, if the job had a --root.  [default: the current folder]"
Root = Annotated[Path | None, in_panel("Input", "FOLDER", _ROOT)]
Endpoint = Annotated[str | None, flag("endpoint")]
Device = Annotated[str, flag("device")]
Precision = Annotated[str, flag("precision")]
Kernels = Annotated[str, flag("kernels")]

PROTOCOL = "Protocol between workers and scheduler."
_WHERE = "Where to compute: local, cuda (the GPUs of this machine), slurm, or the address of a Dask scheduler."
Where = Annotated[str | None, in_panel("Cluster", "WHERE", _WHERE, "--cluster")]
SchedulerFile = Annotated[Path | None, in_panel("Cluster", "FILE", "File of a running Dask scheduler.", hidden=True)]
Protocol = Annotated[str, in_panel("Cluster", "auto|tcp|ucx", PROTOCOL, hidden=True)]
_TLS = (
    "Encrypt the cluster's traffic, and let in only processes of this job (default, except with ucx). Without TLS, "
    "any user of these hosts can run code as you."
)
Tls = Annotated[bool | None, in_panel("Cluster", "", _TLS, "--tls/--no-tls", hidden=True)]
