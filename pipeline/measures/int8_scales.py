"""A model's activation scales, from a sample of text, so that it can compute in int8."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..model.alphabet import encode, of_ids
from ..model.charcnn import Model, load_model
from ..model.quantised import SCALE_ROWS, with_scales
from ..source.chunk import Selection
from ..source.delimiter import delimiter_named
from ..source.find.files import Files
from ..source.inputs import identify
from ..source.open.encoding import encoding_named
from ..source.plan.sample import sample_input


def quantise(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    columns: Iterable[str] | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> Model:
    """Find the activation scales by which a model computes in int8.

    About 2,048 rows are read, from up to 20 places at even distances, and the model is run on them in fp32 on the CPU.
    The greatest value that the input of each convolution takes becomes the greatest 8-bit number. The weights stay as
    they are.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Text like that which the model will read: files or tables, as `classify` takes them. Labels are not used.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    encoding : str
        Character encoding of CSV, TSV, JSONL and text files.
    delimiter : str, optional
        The character between the fields of a CSV file. Default: a comma, a tab in TSV files.

    Returns
    -------
    Model
        The same model with scales, and a note in its card of what they were found on.

    Raises
    ------
    UsageError
        For a column that does not exist, an input without text or that can be read only once, or a model that overflows
        on a text.
    ModelError
        For a model that cannot be loaded.
    SourceError
        For files of which none can be read.

    Examples
    --------
    >>> model = broadsheet.quantise("ag-news", "news.csv", text_column=["title", "body"])
    >>> model.scales is None
    False
    >>> model.save("news_int8.safetensors")

    """
    loaded = load_model(model)
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    header = None if columns is None else tuple(columns)
    separator = None if delimiter is None else delimiter_named(delimiter)
    selection = Selection(texts, header=header, encoding=encoding_named(encoding), delimiter=separator)
    found = identify(source, len(loaded.alphabet), loaded.length, whole_hash=False, by_content=False)
    sample = sample_input(found, selection, SCALE_ROWS, None)
    ids = []
    for chunk in sample.chunks:
        if chunk.ids is None:
            ids.append(encode(chunk.data, chunk.offsets, loaded.alphabet, loaded.length).ids)
        else:
            ids.append(of_ids(chunk.ids, loaded.alphabet).ids)
    rows = sum(map(len, ids))
    if not rows:
        raise UsageError("there is no row with text to calibrate on" + "".join(f": {p}" for p in sample.problems[:1]))
    about: dict[str, Any] = {"rows": rows}
    if isinstance(found, Files):
        about["files"] = [os.path.basename(file.path) for file in found.found]
    return replace(with_scales(loaded, np.concatenate(ids)), card={**loaded.card, "calibrated on": about})
