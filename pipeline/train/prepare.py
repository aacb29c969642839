"""The first stage of `train`: labelled articles, encoded, and which of them are held out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..measures.rows import hold_out, rarest
from ..model.alphabet import Alphabet
from .data import Labelled, read_labelled
from .soft import SoftLabels, hold_out_labelled


@dataclass(frozen=True)
class Prepared:
    """What is trained on.

    data: every labelled article. tested: those of `test`, if there are any. fit, held: row numbers of `data` to train
    on and to hold out, int64. targets: what is learned of each article, where that is not its label alone.
    """

    data: Labelled
    tested: Labelled | None
    fit: NDArray[np.int64]
    held: NDArray[np.int64]
    symbols: Alphabet
    targets: NDArray[Any] | None = None


def prepare(
    source: Any,
    test: Any,
    text_columns: tuple[str, ...],
    label_column: str | None,
    alphabet: str,
    length: int,
    hold_out_share: float,
    columns: Iterable[str] | None,
    classes: Iterable[str] | None,
    soft: SoftLabels | None = None,
    multi_label: bool = False,
    separator: str | None = None,
) -> Prepared:
    """Read `source`, and `test` where it is not None, and hold rows out. Arguments and errors are those of `train`."""
    if not 0 <= hold_out_share <= 0.5:
        raise UsageError(f"{hold_out_share} of the rows cannot be held out: at most half of them")
    try:
        symbols = Alphabet(alphabet)
    except ValueError as error:
        raise UsageError(f"the alphabet: {error}") from error
    names = None if classes is None else tuple(classes)
    targets, several = None, (multi_label, separator)
    if soft is not None:
        taught = soft.read(source, text_columns, label_column, symbols, length, columns, names)
        data = taught.data
        fit, held = hold_out_labelled(data.labels, taught.labelled, hold_out_share)
        targets = taught.targets(soft.share, held)
    elif label_column is not None:
        data = read_labelled(source, text_columns, label_column, symbols, length, columns, names, *several)
        fit, held = hold_out(rarest(data.labels) if multi_label else data.labels, hold_out_share)
    else:
        raise UsageError("there is nothing to learn: name a column with labels, or where soft labels come from")
    tested = None
    if test is not None:
        if label_column is None:
            raise UsageError("the rows to test on need labels: name their column")
        tested = read_labelled(test, text_columns, label_column, symbols, length, columns, data.classes, *several)
    return Prepared(data, tested, fit, held, symbols, targets)
