"""Checks of a file's columns: that the job's columns exist, and that they are those of the first file."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.errors import SourceError, UsageError
from pipeline.source.chunk import Selection
from pipeline.source.formats.base import InputFile, Schema


def refuse_twice(path: str, schema: Schema) -> None:
    """Raise UsageError where two columns have the same name."""
    names = schema.names or ()
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{path}: two columns are called {twice!r}; rename one (a CSV's by naming its columns)")


def resolve(file: InputFile, schema: Schema, selection: Selection) -> Selection:
    """The selection for a job whose first file is this one. Raises UsageError."""
    path = file.path
    if schema.names is None:
        if selection.kept or selection.truth or selection.text:
            raise UsageError(f"{path}: a one-hot file has no columns to name")
        return selection
    if selection.answers:
        raise UsageError(f"{path}: an answer file goes with a one-hot file only")
    if selection.header is not None and not file.format.takes_header:
        raise UsageError(f"{path}: its columns have names of their own; --columns is for a CSV or TSV without a header")
    if not selection.text:
        selection = replace(selection, text=("text",))
    for name in selection.columns:
        if name not in schema.names:
            have = ", ".join(schema.names) or "none"
            asked = "--text-column names another" if selection.text == ("text",) else "it is named in the options"
            raise UsageError(f"{path}: no column {name!r} ({asked}); it has: {have}")
    for name in selection.text:
        kind = schema.types.get(name, pa.string())
        if kind != pa.string():
            raise UsageError(f"{path}: the text column {name!r} holds {kind}, not strings")
    types = tuple(schema.types.get(name, pa.string()) for name in selection.kept)
    return replace(selection, kept_types=types)


def difference(path: str, schema: Schema, first: tuple[str, Schema], selection: Selection) -> str | None:
    """A message where a file's columns differ from the first file's; SourceError where it thus cannot be read."""
    other, expected = first
    if (schema.names is None) != (expected.names is None):
        raise SourceError(f"{path}: not of the same kind as {other}; classify it in a job of its own")
    if schema.names is None or expected.names is None:
        return None
    missing = [name for name in selection.columns if name not in schema.names]
    if missing and schema.complete:
        have = ", ".join(schema.names) or "none"
        raise SourceError(f"{path}: no column {missing[0]!r} as in {other}; it has: {have}. It was not read")
    wanted = dict(zip(selection.kept, selection.kept_types, strict=True))
    for name in selection.columns:
        held = schema.types.get(name, pa.string())
        if held != wanted.get(name, held if name == selection.truth else pa.string()):
            raise SourceError(f"{path}: column {name!r} holds {held}, unlike {other}. It was not read")
    if not (schema.named and schema.complete) or set(schema.names) == set(expected.names):
        return None
    return f"{path}: its columns differ from those of {other}; it was read by the columns that this job names"
