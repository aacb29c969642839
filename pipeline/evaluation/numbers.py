"""Measures how near the numbers that a model gives texts are to the true numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..labelling.learned import looked_up
from ..measures.overlap import Overlap
from ..model.cascade import ASKS
from ..model.charcnn import Model
from ..model.learned import LookedUp
from ..model.several import load_one
from ..options import READ, ReadKeywords
from ..source.rows.label_columns import numbers_in
from .chain import Finding, Found
from .rows import RowProgress, chosen_input, joined_as, label_column_of, scored_rows, text_columns

Numbers = NDArray[np.floating]


class NumberFigures(NamedTuple):
    """How near given numbers are to true numbers.

    Attributes
    ----------
    rows : int
        The number of rows.
    spearman : float
        Spearman's rank correlation; nan if all given or all true numbers are the same.
    mean_absolute_error : float
        The mean distance between a given and a true number.
    root_mean_square_error : float
        The root of the mean square of this distance.

    """

    rows: int
    spearman: float
    mean_absolute_error: float
    root_mean_square_error: float

    @classmethod
    def of(cls, given: Numbers, true: Numbers) -> NumberFigures:
        """Return the figures of N rows. given, true: the given and the true numbers, [N]."""
        off = given - true
        one, other = _ranks(given), _ranks(true)
        both = float(one.std() * other.std()) if len(off) else 0.0
        spearman = float(((one - one.mean()) * (other - other.mean())).mean()) / both if both else np.nan
        errors = (float(np.abs(off).mean()), float(np.sqrt(np.square(off).mean()))) if len(off) else (np.nan, np.nan)
        return cls(len(off), spearman, *errors)

    def about(self) -> dict[str, Any]:
        """Return the figures as JSON values. A figure that is not defined is None."""
        return {name: None if value != value else round(value, 6) for name, value in self._asdict().items()}

    def __str__(self) -> str:
        spearman = "–" if self.spearman != self.spearman else f"{self.spearman:.3f}"
        error = f"mean error {self.mean_absolute_error:.4g}, root mean square {self.root_mean_square_error:.4g}"
        return f"Spearman {spearman}, {error}"


def _ranks(values: Numbers) -> NDArray[np.float64]:
    """Return the ranks of values, from 1. Equal values have the mean of their ranks."""
    _, of_value, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[of_value])


@dataclass(frozen=True)
class NumberEvaluation:
    """The result of `evaluate_numbers`.

    Attributes
    ----------
    model : str
        The name of the model.
    backend : str
        The device, precision and kernels that computed the numbers.
    figures : NumberFigures
        The figures of the rows with a true number.
    nearest : float
        The share of these rows whose given number is nearest to the same level as the true number.
    without : int
        The number of rows without a true number.
    quarantined : int
        The number of rows that could not be read.
    found : dict of str to Found
        See `Evaluation`.
    recalls : tuple of tuple of float
        See `Evaluation`.
    overlap : Overlap, optional
        How many of the rows the model has learned from; None if its file does not say.
    others : NumberFigures, optional
        The figures of the rows that the model is known not to have learned from; None if there are no such rows.

    """

    model: str
    backend: str
    figures: NumberFigures
    nearest: float
    without: int
    quarantined: int
    found: dict[str, Found] = field(default_factory=dict)
    recalls: tuple[tuple[float, float], ...] = ()
    overlap: Overlap | None = None
    others: NumberFigures | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON values.

        Returns
        -------
        dict
            Plain values. A figure that is not defined is None.

        """
        nearest = None if self.nearest != self.nearest else self.nearest
        found = {
            name: {k: None if v != v else v for k, v in figures._asdict().items()}
            for name, figures in self.found.items()
        }
        learned = self.overlap and self.overlap.to_dict(self.others.about() if self.others else {})
        of_rows = {"figures": self.figures.about(), "nearest": nearest, "found": found, "learned_rows": learned}
        return {name: value for name, value in asdict(self).items() if name not in ("overlap", "others")} | of_rows


@READ.takes(ReadKeywords)
def evaluate_numbers(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    progress: RowProgress | None = None,
    **options: Unpack[ReadKeywords],
) -> NumberEvaluation:
    """Give every article of `source` its number in this process, and compare the numbers with the true ones.

    Parameters
    ----------
    model : str, Path or Model
        A model file, or a loaded `Model`, that was trained with a target column.
    source : str, path, Paths, or other object
        Anything that `classify` takes.
    text_column : str or iterable of str
        The column with the text, see `evaluate`.
    label_column : str, optional
        The column with the true numbers, or with the names of levels if the model was trained with these. Default: the
        one that the model learned from.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".
    progress : callable, optional
        Called with the name of the step ("labelling"), the number of finished rows, and the number of all rows or None.
    **options
        Options for reading files.

    Returns
    -------
    NumberEvaluation
        The rank correlation and the errors.

    Raises
    ------
    UsageError
        If the model gives labels, a column, device or precision is not available, or a column holds a value that is not
        a number.
    ModelError
        If the model cannot be loaded.
    SourceError
        If a file cannot be read.

    Examples
    --------
    >>> result = evaluate_numbers("quality.safetensors", "test.parquet", text_column="body", label_column="quality")
    >>> f"{result.figures.spearman:.2f}"
    '0.81'

    """
    # Check the model, and find the columns to read.
    loaded = load_one(model)
    levels = loaded.levels
    if levels is None:
        raise UsageError(f"{loaded.name} gives a text labels, and no number: evaluate() is for such models")
    if options.get("map_labels") is not None:
        raise UsageError(f"{loaded.name} gives a text a number: --map-labels is for models that give labels")
    options = joined_as(loaded, text_column, options)
    text_column, label_column = text_columns(loaded, text_column, options), label_column_of(loaded, label_column)
    names = () if _are_numbers(loaded.classes) else loaded.classes
    wanted: dict[str, Any] = {"kept_columns": (label_column,), "reads": loaded.reads}
    if names:
        wanted["labels"] = (label_column,)
    rows, selection = chosen_input(source, text_column, options, loaded.alphabet, loaded.length, **wanted)

    # Score the rows, and collect the given and the true numbers.
    given, true, quarantined = [np.empty(0)], [np.empty(0)], 0
    looked: list[LookedUp] = []
    ways, finding = {"uncertain": loaded}, Finding(loaded)
    if loaded.cascade is not None:
        ways |= {name: loaded.asking(name) for name in ASKS}
    computing: Any = {"device": device, "precision": precision, "kernels": kernels, "progress": progress}
    with scored_rows([*ways.values()], rows, selection, **computing) as (backend, chunks):
        for scored in chunks:
            quarantined += len(scored.chunk.quarantine)
            finding.add(dict(zip(ways, scored.predictions, strict=True)))
            given.append(scored.predictions[0].scores[:, 0].astype(np.float64))
            true.append(numbers_in(scored.chunk.rows, label_column, names, selection.rules))
            if (learned := looked_up(loaded, scored.chunk)) is not None:
                looked.append(learned.of(np.isfinite(true[-1])))

    # Compute the figures over the rows with a true number.
    ours, theirs = np.concatenate(given), np.concatenate(true)
    known = np.isfinite(theirs)
    ours, theirs = ours[known], theirs[known]
    overlap, others = None, None
    if looked:
        found_rows = LookedUp(*map(np.concatenate, zip(*looked, strict=True)))
        overlap, other = Overlap.of(found_rows), found_rows.is_other
        others = NumberFigures.of(ours[other], theirs[other]) if other.any() else None
    nearest = [levels.nearest(scored, len(loaded.classes)) for scored in (ours, theirs)]
    share = float((nearest[0] == nearest[1]).mean()) if len(ours) else np.nan
    figures = NumberFigures.of(ours, theirs)
    found = finding.figures(), finding.recalls()
    without = int((~known).sum())
    return NumberEvaluation(loaded.name, str(backend), figures, share, without, quarantined, *found, overlap, others)


def _are_numbers(classes: Iterable[str]) -> bool:
    """Return whether there are classes, and the names of all are numbers."""
    try:
        return bool([float(name) for name in classes])
    except ValueError:
        return False
