"""broadsheet export: a model as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..report.console import say


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, a file, or hf://USER/NAME.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="The file to write, model.onnx.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Export a model to ONNX, and compare its scores with ours on 1,000 texts.

    The graph takes `ids`, uint8 [N, length], which `broadsheet.onnx_inputs` makes of texts, and gives `scores`. Weights
    are fp32.
    """
    from ..ecosystem.onnx import export_onnx
    from ..model.charcnn import load_model

    if target.suffix != ".onnx":
        raise UsageError(f"{target}: export writes ONNX, to a file that ends in .onnx")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} is there already: give another name, or --overwrite")
    loaded = load_model(model)
    difference = export_onnx(loaded, target)
    size = target.stat().st_size
    say(f"{target}: {size:,} bytes; on 1,000 texts, scores differ from ours by at most {difference:.1g}")
    if loaded.scales is not None:
        say("It computes in fp32: the activation scales, for --precision int8, are left out")
