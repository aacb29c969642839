"""broadsheet convert: the parent program's params.bin to a model file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import OutputError, UsageError
from pipeline.report.console import say


def command(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A params.bin, or a .safetensors model.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="The file to write, of the other kind.")],
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Class names for a params.bin.  [default: 0, 1, …]")
    ] = None,
    alphabet: Annotated[
        str | None, typer.Option(metavar="SYMBOLS", help="Alphabet for a params.bin.  [default: the published one]")
    ] = None,
) -> None:
    """Convert a params.bin (tensors as flat little-endian fp32) to a safetensors model, or a model to a params.bin."""
    from pipeline.model.alphabet import PUBLISHED
    from pipeline.model.charcnn import from_params, load_model, read_model_file, to_params

    kinds = source.suffix, target.suffix
    try:
        if kinds == (".bin", ".safetensors"):
            names = None if classes is None else classes.split(",")
            model = from_params(read_model_file(source), names, alphabet or PUBLISHED, str(source))
            data = model.to_bytes()
        elif kinds == (".safetensors", ".bin"):
            if classes is not None or alphabet is not None:
                raise UsageError("--classes and --alphabet are for a params.bin, which has none of its own")
            data = to_params(load_model(source))
        else:
            raise UsageError(f"cannot convert {source} to {target}: one must be a .bin, the other a .safetensors")
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from error
    try:
        target.write_bytes(data)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}") from error
    say(f"{target}: {len(data):,} bytes")
