"""Training, with PyTorch (the extra `train`): labelled articles in, a `Model` out."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.errors import UsageError
from pipeline.held_out import hold_out
from pipeline.model.alphabet import Alphabet
from pipeline.model.calibration import CALIBRATION_ROWS, calibrated
from pipeline.model.charcnn import Model, layer_table
from pipeline.model.frame import FRAMES, Frame
from pipeline.train.checkpoint import Checkpoint, Epoch
from pipeline.train.data import Labelled, read_labelled
from pipeline.train.loop import Rows, Run, Saving
from pipeline.train.network import CharCNN, predict
from pipeline.train.recipe import WITH_SPACE, Recipe

__all__ = ["Epoch", "Recipe", "Trained", "train"]

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")
CHECKPOINT = ".checkpoint"


@dataclass(frozen=True)
class Trained:
    """The result of `train`.

    Attributes
    ----------
    model : Model
        The averaged weights, rounded to the dtype they are stored in; its card says how they were trained.
    history : tuple of Epoch
        Number, training loss and held-out accuracy of each epoch.

    """

    model: Model
    history: tuple[Epoch, ...]


def train(
    source: Any,
    *,
    text_column: str | Iterable[str],
    label_column: str,
    columns: Iterable[str] | None = None,
    classes: Iterable[str] | None = None,
    alphabet: str = WITH_SPACE,
    length: int = 1014,
    frame: Frame = "text",
    recipe: Recipe | None = None,
    hold_out_share: float = 0.05,
    test: Any = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    dtype: str = "float16",
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    about: dict[str, Any] | None = None,
    on_start: Callable[[Labelled, int], None] = lambda data, held: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train the network on every labelled article of `source`.

    The model gets the activation scales that int8 needs, found on up to 2,048 of the articles it was trained on.

    Parameters
    ----------
    source : str, path, Paths, list of str, pandas, Arrow or Dask object
        Anything that `classify` takes.
    text_column : str or iterable of str
        Column with the text. Several are joined by a space.
    label_column : str
        Column with the label.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    classes : iterable of str, optional
        Class names in the order of the model; labels are then names, or numbers from 1. Default: the labels that occur,
        sorted.
    alphabet : str
        The symbols that the model reads. Default: the published alphabet with a space.
    length : int
        Characters of each article that the model reads, from 64 to 4,096.
    frame : str
        "text": block 1's output is zero after the end of an article's text, so that only the text is computed. "dense":
        it is not, as in the published network.
    recipe : Recipe, optional
        Epochs, learning rate, augmentation and so on. Default: the recipe of the shipped model.
    hold_out_share : float
        Share of each class, up to 0.5, that is kept out of training; the accuracy on it is computed after each epoch.
    test : as `source`, optional
        Labelled articles on which the finished model is evaluated, once.
    seed : int
        Seed of the initial weights, dropout and augmentation; the held-out rows do not depend on it.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        Of the products: "auto" (bf16 on CUDA, fp32 on a CPU), "fp32" or "bf16".
    dtype : str
        In which the weights are stored: "float16" or "float32".
    checkpoint : Path, optional
        File for the state of the run.
    checkpoint_every : int
        Epochs between two writes of `checkpoint`; 0 never writes it.
    resume : bool
        Continue from `checkpoint`; on a CPU the result has the same bits as an undisturbed run.
    about : dict, optional
        JSON values to add to the card of the model.
    on_start : callable
        Called once with the training data, `Labelled`, and the number of held-out rows.
    on_epoch : callable
        Called with each `Epoch` as it ends.

    Returns
    -------
    Trained
        The model, and the history of the run.

    Raises
    ------
    UsageError
        For an option out of range, a missing column, a null or unknown label, fewer than two classes, or a checkpoint
        that is missing or of another run.
    SourceError
        For a file that cannot be read.
    BroadsheetError
        If training diverges.

    Examples
    --------
    >>> trained = train("train.csv", text_column=["title", "body"], label_column="class", recipe=Recipe(epochs=10))
    >>> trained.model.save("news.safetensors")

    """
    recipe = recipe or Recipe()
    if not 0 <= hold_out_share <= 0.5:
        raise UsageError(f"{hold_out_share} of the rows cannot be held out: at most half of them")
    if dtype not in ("float16", "float32"):
        raise UsageError(f"dtype {dtype!r}: choose float16 or float32")
    if frame not in FRAMES:
        raise UsageError(f"frame {frame!r}: choose one of {', '.join(FRAMES)}")
    on, compute = _device(device, precision)
    try:
        symbols = Alphabet(alphabet)
    except ValueError as error:
        raise UsageError(f"the alphabet: {error}") from error
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    data = read_labelled(source, texts, label_column, symbols, length, columns, classes)
    tested = None if test is None else read_labelled(test, texts, label_column, symbols, length, columns, data.classes)
    fit, held = hold_out(data.labels, hold_out_share)
    on_start(data, len(held))
    layers = layer_table(len(symbols), length, len(data.classes))
    job = _job(data, symbols, frame, recipe, hold_out_share, seed, on.type, compute)
    cuda = on.type == "cuda"
    with torch.random.fork_rng(devices=[on] if cuda else []), torch.backends.cudnn.flags(enabled=True, benchmark=cuda):
        torch.manual_seed(seed)
        network = CharCNN(layers, frame, compute, recipe.dropout, recipe.input_dropout).to(on)
        run = Run(network, _rows(data, fit, on), _rows(data, held, on), symbols, recipe, seed)
        if resume:
            if checkpoint is None:
                raise UsageError("resume needs the checkpoint to continue from")
            run.go_on_from(Checkpoint.load(checkpoint, job))
        every = checkpoint_every if checkpoint else 0
        run.finish(on_epoch, Saving(checkpoint or Path(), every, job))
        tensors = {name: p.cpu().numpy().astype(dtype) for name, p in run.average.named_parameters()}
        final = CharCNN(layers, frame).to(on)
        final.load_tensors(tensors)
    card = {
        **(about or {}),
        "data": data.about() | {"held_out_rows": len(held)},
        "frame": frame,
        "recipe": recipe.to_dict(),
        "seed": seed,
        "calibrated on": {"rows": min(len(fit), CALIBRATION_ROWS)},
        "trained_on": f"{_name(on)}, {'bf16' if compute == torch.bfloat16 else 'fp32'}",
        "versions": {
            "broadsheet": version("broadsheet"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    if len(held):
        card["held_out_accuracy"] = _accuracy(final, _rows(data, held, on))
    if tested is not None:
        card["test"] = tested.about() | {"accuracy": _accuracy(final, _rows(tested, np.arange(len(tested)), on))}
    sample = np.random.default_rng(0).permutation(fit)[:CALIBRATION_ROWS]
    model = Model(symbols, data.classes, length, tensors, card, frame=frame)
    return Trained(calibrated(model, data.ids[sample]), run.history)


def _device(device: str, precision: str) -> tuple[torch.device, torch.dtype]:
    if device not in DEVICES:
        raise UsageError(f"device {device!r}: choose one of {', '.join(DEVICES)}")
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise UsageError("PyTorch finds no CUDA device here: use --device cpu")
    on = torch.device("cuda" if cuda and device != "cpu" else "cpu")
    mixed = precision == "bf16" or (precision == "auto" and on.type == "cuda")
    return on, torch.bfloat16 if mixed else torch.float32


def _job(
    data: Labelled,
    symbols: Alphabet,
    frame: Frame,
    recipe: Recipe,
    share: float,
    seed: int,
    device: str,
    compute: torch.dtype,
) -> dict[str, Any]:
    """Everything that must be the same for a checkpoint to be resumed."""
    rows = hashlib.sha256(data.ids.tobytes() + data.labels.tobytes()).hexdigest()
    return {
        "data": rows,
        "classes": list(data.classes),
        "alphabet": symbols.symbols,
        "frame": frame,
        "recipe": recipe.to_dict(),
        "held-out share": share,
        "seed": seed,
        "device": device,
        "precision": str(compute),
    }


def _rows(data: Labelled, rows: np.ndarray[Any, Any], device: torch.device) -> Rows:
    return Rows(torch.from_numpy(data.ids[rows]).to(device), torch.from_numpy(data.labels[rows]).to(device))


def _accuracy(network: CharCNN, rows: Rows) -> float:
    right = predict(network, rows.ids).argmax(1) == rows.labels
    return round(float(right.double().mean()), 6)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
