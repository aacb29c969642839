"""broadsheet quantise: a model in, the same model with the scales that int8 needs out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import OutputError, UsageError
from ..report.console import say

_DATA = "Text like that to be labelled: files, folders, globs or URLs, read as `classify` reads them."


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, a file, or hf://USER/NAME.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="The model file to write.")],
    text_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column with the text; several are joined by a space.  [default: text]"),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,C", help="Column names of a headerless CSV.")] = None,
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="Of CSV, TSV, JSONL and text files: latin-1, cp1252, utf-16, …")
    ] = "utf-8",
    delimiter: Annotated[
        str | None, typer.Option(metavar="C", help="Between the fields of a CSV.  [default: ,]", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model file.")] = False,
) -> None:
    """Prepare a model for `--precision int8`: find the scales of its 8-bit activations on a sample of text.

    About 2,048 rows are read, and labels are not needed. The weights stay as they are, so that the model computes in
    every other precision as before.
    """
    from ..measures.fitting import quantise
    from ..source.inputs import Paths

    if output.exists() and not overwrite:
        raise UsageError(f"{output} is there already: give another name, or --overwrite")
    found = quantise(
        model,
        Paths(data),
        text_column=text_column or (),
        columns=None if columns is None else columns.split(","),
        encoding=encoding,
        delimiter=delimiter,
    )
    try:
        found.save(output)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}") from error
    say(f"{output}: calibrated on {found.card['calibrated on']['rows']:,} rows, for --precision int8")
