"""Loads models by name and from files, folders and repositories, and carries them to other processes."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
import numpy as np

from ..errors import ModelError
from . import encoder_file, encoder_folder, fasttext_file, model_file, params_file, scores
from .charcnn import Model
from .encoder import Encoder
from .fasttext import ALPHABET
from .layers import BIAS, WHOLE
from .model_file import SHIPPED
from .torch_encoder import TorchEncoder

_MAPPED = b"mapped "


def carried(model: Model) -> bytes:
    """Serialize a model for other processes of this machine.

    The bytes are a model file, or the path of a file that the other processes load or map by themselves, if the table
    of the model's n-grams is mapped from a file, or the model has an encoder and comes from a file.
    """
    table, file = None if model.ngrams is None else model.ngrams.table, Path(model.name)
    path = str(table.filename) if isinstance(table, np.memmap) else None
    if model.encoder is not None and file.suffix == ".safetensors" and file.is_file():
        path = str(file.absolute())
    if path and replace(load_model(path), preparation=model.preparation).digest == model.digest:
        return _MAPPED + msgspec.json.encode((path, model.digest, model.preparation))
    return model.to_bytes()


def taken(data: bytes) -> Model:
    """Return the model that `carried` serialized. Raises ModelError if its file has changed since."""
    if not data.startswith(_MAPPED):
        return Model.from_bytes(data)
    path, digest, about = msgspec.json.decode(data.removeprefix(_MAPPED))
    model = load_model(path)
    if about is not None:
        from .preparation import Preparation  # imported late, since PyArrow takes time to load

        model = replace(model, preparation=msgspec.convert(about, Preparation))
    if model.digest != digest:
        raise ModelError(f"{path} was changed while processes were loading it: leave it as it is, and start again")
    return model


def shipped_file(name: str) -> Traversable:
    """Return the file of a shipped model.

    Raises
    ------
    ModelError
        If the package broadsheet-weights, which contains the weights, is not installed.

    """
    try:
        return resources.files("broadsheet_weights").joinpath(SHIPPED[name].file)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"the weights of {name!r} are in the package broadsheet-weights, which is not installed: install it "
            "(from a clone: pip install ./broadsheet_weights), or give --model PATH"
        ) from error


def load_model(source: str | Path | Model = "ag-news") -> Model:
    """Load a model.

    Parameters
    ----------
    source : str, Path or Model
        One of these:

        - the name of a shipped model, "ag-news"
        - a file: safetensors, fastText's ``.bin`` or ``.ftz``, or a ``params.bin``
        - a folder of an encoder with a head, as transformers saves it
        - a repository of the Hugging Face Hub, ``hf://user/name`` or ``hf://user/name@revision``, with a
          ``model.safetensors`` or such an encoder, which is downloaded and cached
        - a `Model`, which is returned unchanged

        The alphabet, classes and frame of a ``params.bin`` are in ``params.bin.json``, the file next to it that
        `broadsheet convert` writes. Without that file, the model has the published alphabet, classes called "0", "1"
        and so on, and the dense frame.

    Returns
    -------
    Model
        The model, checked.

    Raises
    ------
    ModelError
        If there is no such model, or its file is damaged.

    Examples
    --------
    >>> broadsheet.load_model("ag-news").classes
    ('World', 'Sports', 'Business', 'Sci/Tech')

    """
    if isinstance(source, Model):
        return source
    # Load a shipped model.
    if str(source) in SHIPPED:
        shipped = shipped_file(str(source))
        if not shipped.is_file():
            raise ModelError(
                f"the installed broadsheet-weights has no weights for {source!r}: upgrade it, or give --model PATH"
            )
        model = Model.from_bytes(shipped.read_bytes(), str(source))
        if model.digest != SHIPPED[str(source)].digest:
            raise ModelError(f"{shipped}: the file is damaged: install broadsheet-weights again")
        return model
    # Fetch a repository, and read a folder.
    path, name = Path(source), str(source)
    if name.startswith(model_file.HUB):
        path, name = model_file.fetch_from_hub(name, encoder_file.FILES)
    if encoder_file.is_folder(path):
        return _of_encoder(path, name)
    # Read a file: fastText's, safetensors, or a params.bin with its sidecar.
    try:
        if fasttext_file.is_fasttext(path):
            return _of_fasttext(path, name)
        data = model_file.read_model_file(path)
    except (OSError, ValueError) as error:
        known = ", ".join(SHIPPED)
        raise ModelError(f"no model {str(source)!r}: neither a shipped one ({known}) nor a readable file") from error
    if path.suffix != ".bin":
        return Model.from_bytes(data, name)
    sidecar = model_file.read_sidecar(path, data)
    if sidecar is None:
        return params_file.from_params(data, name=str(path))
    return params_file.from_params(data, sidecar.classes, sidecar.alphabet, str(path), sidecar.card, sidecar.frame)


def load_encoder(source: str | os.PathLike[str]) -> Encoder | TorchEncoder:
    """Load the encoder of a folder, a repository or a model file, to compute vectors of texts.

    The folder or repository may have a head. The encoder leaves out its last product, which gives the classes' logits,
    and computes vectors of length one.

    Raises ModelError if there is no encoder, or this machine cannot compute it.
    """
    path, name = Path(source), str(source)
    if name.startswith(model_file.HUB):
        path, name = model_file.fetch_from_hub(name, encoder_file.FILES)
    encoder = encoder_folder.read(path, name)[0].encoder if path.is_dir() else load_model(path).encoder
    if encoder is None:
        raise ModelError(f"{name} has no encoder: name a folder, a repository of the Hub, or a model that has one")
    return encoder.as_vectors()


def _of_encoder(path: Path, name: str) -> Model:
    """Read the model in a folder that transformers saved. Raises ModelError if it has no head."""
    (encoder, classes, bias, kind, levels), of_card = encoder_folder.read(path, name)
    if not classes:
        encoder_file.refuse_setfit(path, name)
        raise ModelError(f"{name} gives vectors and no labels: train a head on them, with --encoder")
    thresholds = (scores.DEFAULT_THRESHOLD,) * len(classes) if kind == "several" else None
    card = {"origin": f"converted from {name}", **of_card}
    of_head = {"thresholds": thresholds, "levels": levels, "encoder": encoder}
    return Model(ALPHABET, classes, WHOLE, {BIAS: bias}, card, name, "text", **of_head)  # type: ignore[arg-type]


def _of_fasttext(path: Path, name: str) -> Model:
    """Read a model file of fastText."""
    classes, branch, card = fasttext_file.read(path, name)
    thresholds = (scores.DEFAULT_THRESHOLD,) * len(classes) if branch.kinds.loss == "one-vs-all" else None
    tensors = {BIAS: np.zeros(len(classes), np.float32)}
    whole = branch.kinds.reads
    return Model(ALPHABET, classes, whole, tensors, card, name, "text", ngrams=branch, thresholds=thresholds)
