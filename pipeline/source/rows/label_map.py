"""Reads a file that says which class each label stands for."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from ...errors import UsageError, counted, first_of

_COLUMNS = ("label", "class")


def read_label_map(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a CSV file with the columns ``label`` and ``class``.

    Parameters
    ----------
    path : str or path
        The file, in UTF-8. A row says that a label, in this spelling, stands for a class. Labels without a row stay as
        they are.

    Returns
    -------
    dict of str to str
        The class of each label; "" if rows with the label are to be left out.

    Raises
    ------
    UsageError
        If the file cannot be read, lacks a column, has a row without a label, or gives a label two classes.

    """
    what = f"--map-labels {path}"
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = [*reader]
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{what} cannot be read ({error}): give a CSV file in UTF-8, such as\n{_EXAMPLE}") from error
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise UsageError(f"{what} has no column {missing[0]!r}: its first line is label,class, as in\n{_EXAMPLE}")
    classes: dict[str, str] = {}
    for number, row in enumerate(rows, 2):
        label, name = row["label"] or "", (row["class"] or "").strip()
        if not label:
            raise UsageError(f"{what}: line {number} names no label")
        if classes.setdefault(label, name) != name:
            raise UsageError(f"{what}: {label!r} stands for {classes[label]!r}, and in line {number} for {name!r}")
    return classes


def digest_of_label_map(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the content of a label map, which does not depend on the order of its rows. Raises the
    errors of `read_label_map`.
    """
    return hashlib.sha256(json.dumps(sorted(read_label_map(path).items())).encode()).hexdigest()


def unmatched(labels: Iterable[str], matched: Container[str]) -> tuple[str, ...]:
    """Return the labels of a label map that no row has.

    Parameters
    ----------
    labels : iterable of str
        The labels of the map.
    matched : container of str
        Labels that rows have.

    """
    return tuple(label for label in labels if label not in matched)


def unmatched_line(labels: Sequence[str]) -> str | None:
    """Return a line about labels of a label map that no row has, as `unmatched` returns them, or None if there are
    none.
    """
    if not labels:
        return None
    return f"no row has {counted(len(labels), 'label')} of --map-labels: {first_of([*map(repr, labels)])}"


_EXAMPLE = "label,class\nSprots,Sports\nn/a,"
