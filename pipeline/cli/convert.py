"""broadsheet convert: the parent program's params.bin to a model file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OutputError, UsageError
from ..report.console import say

if TYPE_CHECKING:
    from ..model.charcnn import Model


def command(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A params.bin, or a .safetensors model.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="The file to write, of the other kind.")],
    classes: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Class names for a params.bin.  [default: of params.bin.json, or 0, 1, …]"),
    ] = None,
    alphabet: Annotated[
        str | None,
        typer.Option(metavar="SYMBOLS", help="Alphabet for a params.bin.  [default: of params.bin.json, or published]"),
    ] = None,
) -> None:
    """Convert a params.bin (tensors as flat little-endian fp32) to a safetensors model, or a model to a params.bin.

    A params.bin has no place for class names, alphabet, frame and card: they are kept in a file next to it,
    params.bin.json.
    """
    from ..model import model_file
    from ..model.charcnn import load_model, to_params

    kinds = source.suffix, target.suffix
    try:
        if kinds == (".bin", ".safetensors"):
            files = {target: _model_of(source, classes, alphabet).to_bytes()}
        elif kinds == (".safetensors", ".bin"):
            if classes is not None or alphabet is not None:
                raise UsageError("--classes and --alphabet are for a params.bin; a .safetensors model has its own")
            model = load_model(source)
            if model.is_multi_label:
                raise UsageError(f"{source} gives a text several labels, which a params.bin cannot say")
            data = to_params(model)
            sidecar = model_file.sidecar_json(
                model.alphabet.symbols, list(model.classes), model.frame, dict(model.card), data
            )
            files = {target: data, model_file.sidecar_path(target): sidecar}
        else:
            raise UsageError(f"cannot convert {source} to {target}: one must be a .bin, the other a .safetensors")
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from error
    for path, content in files.items():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
        say(f"{path}: {len(content):,} bytes")
    if kinds[1] == ".bin" and model.scales is not None:
        say("Its activation scales, for --precision int8, are left out: broadsheet quantise finds them again")
    if kinds[1] == ".bin" and model.temperature != 1:
        say("Its temperature is left out, so scores differ and labels do not: broadsheet calibrate finds it again")
    if kinds[1] == ".bin" and model.ngrams is not None:
        say("Its n-grams are left out: the network alone gives other scores, and labels fewer texts right")
    if kinds[1] == ".bin" and model.frame == "text":
        say(
            f"The model has the text frame, which only {model_file.sidecar_path(target).name} records: keep the two "
            f"together. Without it, and by any other program, {target.name} is read with the dense frame, and "
            "labels differ"
        )


def _model_of(params: Path, classes: str | None, alphabet: str | None) -> Model:
    """The model of a parameter file; what the options say goes before what its sidecar says."""
    from ..model import model_file
    from ..model.alphabet import PUBLISHED
    from ..model.charcnn import from_params, read_model_file

    data = read_model_file(params)
    sidecar = model_file.read_sidecar(params, data)
    names, symbols, card = (sidecar.classes, sidecar.alphabet, sidecar.card) if sidecar else (None, PUBLISHED, None)
    names = names if classes is None else classes.split(",")
    return from_params(data, names, alphabet or symbols, str(params), card, sidecar.frame if sidecar else "dense")
