"""broadsheet calibrate: a model in, the same model with scores that are as high as they should be out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import OutputError, UsageError
from ..report.console import say

_DATA = "Labelled articles that the model was not trained on: files, folders, globs or URLs."
_HELD_OUT = "DATA is what it was trained on with --hold-out SHARE: use only the rows that were held out."


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, a file, or hf://USER/NAME.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="The model file to write.")],
    label_column: Annotated[str, typer.Option(metavar="NAME", help="True class, by name or number from 1.")],
    text_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column with the text; several are joined by a space.  [default: text]"),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,C", help="Column names of a headerless CSV.")] = None,
    held_out: Annotated[float | None, typer.Option(metavar="SHARE", help=_HELD_OUT)] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: the GPU, if there is one.")] = "auto",
    precision: Annotated[str, typer.Option(metavar="auto|fp32|fp16|bf16|int8")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model file.")] = False,
) -> None:
    """Make a model's scores right as often as they say: find the temperature by which its logits are divided.

    No label changes. `train` does this itself, on the rows that it holds out. (The scales for `--precision int8` are
    another thing: `broadsheet quantise`.)
    """
    from ..measures.temperature import calibrate
    from ..model.scores import CARD
    from ..source.inputs import Paths

    if output.exists() and not overwrite:
        raise UsageError(f"{output} is there already: give another name, or --overwrite")
    found = calibrate(
        model,
        Paths(data),
        text_column=text_column or (),
        label_column=label_column,
        columns=None if columns is None else columns.split(","),
        held_out=held_out,
        device=device,
        precision=precision,
    )
    try:
        found.save(output)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}") from error
    about = found.card[CARD]
    say(f"{output}: temperature {found.temperature:.3f}, fitted on {about['rows']:,} rows")
    for name in ("calibration error", "log loss"):
        say(f"{name:>20}  {about[f'{name} before']:.4f} before, {about[f'{name} after']:.4f} after")
