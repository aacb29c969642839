"""Opens a file for the first time: finds its columns, checks that it has those of the job, says which of them it
copies, and how they differ from the first file's columns.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from ...errors import SourceError, UsageError, did_you_mean
from ..formats.csv import Csv
from ..formats.record_format import FEW_BYTES, other_delimiter, separated_by
from ..formats.records import read_onto
from ..open.containers import TAR_BYTES, container_of
from ..open.front_to_back import ZIP_MAGIC, ZIP_SUFFIX
from ..open.opening import Held, open_at, open_stored
from ..rows.chunk import Selection
from ..rows.columns import is_held_by, type_of_both
from ..rows.compression import HEAD_BYTES, compression_of
from ..rows.format import Format, InputFile, Schema
from ..rows.join import why_not_text
from ..rows.labels import label_type
from ..rows.layouts import is_textual
from .files import FORMAT_OF_SUFFIX


def refuse_twice(path: str, schema: Schema, selection: Selection) -> None:
    """Raise UsageError if two columns that the job uses have the same name."""
    used = selection.columns if selection.text else ("text", *selection.columns)
    for name, count in Counter(schema.names).items():
        if count > 1 and (selection.keep_all or name in used):
            raise UsageError(f"{path}: {count} columns are called {name!r}: rename all but one (a CSV's in its header)")


def resolve(file: InputFile, schema: Schema, selection: Selection) -> Selection:
    """Return the selection for a job whose first readable file is this one. Raises UsageError."""
    path = file.path
    if schema.names is None:
        if selection.kept_columns or selection.keep_all or selection.truth or selection.text:
            raise UsageError(f"{path}: a one-hot file has no columns to name")
        return selection
    # Refuse options that do not fit the format.
    if selection.answers:
        raise UsageError(f"{path}: an answer file goes with a one-hot file only")
    if selection.header is not None and not file.format.takes_header:
        raise UsageError(f"{path}: its columns have names of their own; --columns is for a CSV or TSV without a header")
    if not selection.text:
        selection = replace(selection, text=("text",))
    # Check that each column that the job uses exists, in the file or in the names of its folders.
    folders = in_folders(file)
    for name in sorted({*selection.kept_columns} & folders.keys() & {*schema.every}):
        warnings.warn(f"{path}: {name!r} is copied from its column, not from its folder's name", stacklevel=2)
    for name in selection.columns:
        if name not in schema.every and (name not in folders or name in selection.needed):
            remedy = " (--text-column names another)" if (name,) == selection.text == ("text",) else ""
            meant = did_you_mean(name, schema.every)
            if file.format.takes_header and selection.header is None and not meant:
                meant = "; if its first line is no header, --columns names them"
            has = f"{_what_it_has(file, schema.every, name, selection)}{meant}"
            raise UsageError(f"{path}: no column {name!r}{remedy}; {has}")
    # Check that the text columns hold text.
    if strange := _not_text(schema, selection):
        textual = [name for name in schema.every if is_textual(schema.types.get(name, pa.string()))]
        others = f"; columns with strings: {', '.join(textual)}" if textual else ""
        raise UsageError(f"{path}: {strange}{others}")
    if selection.keep_all:
        selection = replace(selection, kept_columns=tuple(dict.fromkeys((*selection.kept_columns, *schema.names))))
    return selection


def kept_types(schemas: Sequence[Schema], selection: Selection) -> tuple[pa.DataType, ...]:
    """Return types of the copied columns that can hold the values of all these files. A column that has only nulls
    becomes one of strings.
    """
    types = []
    for name in selection.kept_columns:
        kinds = [_copied_type(s, name, selection) for s in schemas if name in s.every]
        kind = reduce(type_of_both, kinds) if kinds else pa.string()
        types.append(pa.string() if pa.types.is_null(kind) else kind)
    return tuple(types)


def _copied_type(schema: Schema, name: str, selection: Selection) -> pa.DataType:
    """Return the type that a column of a file has when it is copied. For a label column it is the type
    of its labels.
    """
    kind = schema.types.get(name, pa.string())
    return label_type(kind) if name in selection.labels else kind


def difference(file: InputFile, schema: Schema, first: tuple[str, Schema], selection: Selection) -> str | None:
    """Return a message if a file's columns differ from the first file's. Raises SourceError if the file cannot be read
    for that reason.
    """
    path, (other, expected) = file.path, first
    if (schema.names is None) != (expected.names is None):
        raise SourceError(f"{path}: not of the same kind as {other}; classify it in a job of its own")
    if schema.names is None or expected.names is None:
        return None
    # A text column or a truth column must exist, and hold text.
    known = {*schema.every, *dict(_of_path(file, schema, selection))}
    missing = [name for name in selection.columns if name not in known] if schema.complete else []
    for name in missing:
        if name in (*selection.text, selection.truth):
            has = _what_it_has(file, schema.every, name, selection)
            raise SourceError(f"{path}: no column {name!r} as in {other}; {has}. It was not read")
    if strange := _not_text(schema, selection):
        raise SourceError(f"{path}: {strange}, unlike {other}. It was not read")
    # The values of kept columns must fit the types of the output.
    for name, kind in zip(selection.kept_columns, selection.kept_types, strict=True):
        held = _copied_type(schema, name, selection)
        if name in schema.every and not is_held_by(kind, held):
            raise SourceError(
                f"{path}: the column {name!r} holds {held}, which this job cannot copy as {kind}, its type in {other} "
                "and others: name this file first, or do not keep the column. It was not read"
            )
    # Describe any other difference.
    more = [name for name in schema.names if name not in expected.names] if selection.keep_all else []
    if not (schema.named and schema.complete) or not (missing or more):
        return None
    remark = f"{path}: its columns differ from those of {other}; it was read by the columns that this job names"
    if missing:
        remark += f"; it has no {', '.join(map(repr, missing))}: null in its rows"
    if more:
        remark += f"; not copied: {', '.join(map(repr, more))}"
    return remark


def in_folders(file: InputFile) -> dict[str, str | None]:
    """Return the columns and values in the names of the folders above a file, in Hive's form: ``code=01001/``."""
    pairs = [folder.split("=", 1) for folder in file.location.split("/")[:-1] if "=" in folder]
    return {unquote(name): None if value == _HIVE_NULL else unquote(value) for name, value in pairs}


def _of_path(file: InputFile, schema: Schema, selection: Selection) -> tuple[tuple[str, str | None], ...]:
    """Return the kept columns of text that a file lacks and its folders name, each with the value that all its rows
    have.
    """
    lacks = {*selection.kept_columns} - selection.needed - {*schema.every}
    types = dict(zip(selection.kept_columns, selection.kept_types, strict=False))
    return tuple(
        (name, value)
        for name, value in in_folders(file).items()
        if name in lacks and types.get(name, pa.string()) == pa.string()
    )


def _not_text(schema: Schema, selection: Selection) -> str | None:
    """Return what is wrong with a text column whose values cannot be read as text, or None."""
    reasons = (why_not_text(name, schema.types.get(name, pa.string()), selection.join) for name in selection.text)
    return next(filter(None, reasons), None)


def _what_it_has(file: InputFile, names: Sequence[str], missing: str, selection: Selection) -> str:
    """Return a list of the columns of a file that lacks one, and a hint if another delimiter would give it the missing
    one.
    """
    guesses = isinstance(file.format, Csv) and not selection.delimiter
    delimiter = other_delimiter(names, missing) if guesses else None
    if delimiter is None or not _is_separated(file, delimiter):
        return f"it has: {', '.join(names) or 'none'}"
    one = "one column" if len(names) == 1 else f"{len(names)} columns"
    return f"it has {one}, {', '.join(map(repr, names))}: {separated_by(delimiter)}"


def _is_separated(file: InputFile, delimiter: str) -> bool:
    """Whether the first records of a CSV have as many fields as its header if this delimiter separates them."""
    assert isinstance(file.format, Csv)
    form = replace(file.format, delimiter=delimiter)
    try:
        form = form.for_schema(form.schema(file, Selection(delimiter=delimiter)))
    except (SourceError, UsageError):
        return False
    head = form.head(file, FEW_BYTES)
    return not form.split(head.data, head.final).problems


class EmptyFile(SourceError):
    """Raised for a file without a byte. It has no rows and no columns, so it does not differ from any other."""


_FIRST_BYTES = TAR_BYTES
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Hive writes as the value in a folder's name if the value is null."""

_HELD_BYTES = 4 << 20
"""The largest stored size of a file, and of its decoded content, that `held` takes into memory."""


class Examined(NamedTuple):
    """A file that can be read.

    Attributes
    ----------
    file : InputFile
        The file, with a format that is bound to its columns.
    schema : Schema
        Its columns.
    remark : str or None
        How its columns differ from those of the first file.
    of_path : tuple of (str, str or None)
        See `Selection`.
    class_names : tuple of (str, tuple of str)
        See `Selection`.
    notes : list of str
        What else the user should know, although nothing is wrong.

    """

    file: InputFile
    schema: Schema
    remark: str | None
    of_path: tuple[tuple[str, str | None], ...]
    class_names: tuple[tuple[str, tuple[str, ...]], ...]
    notes: list[str]


def examine(file: InputFile, selection: Selection, first: tuple[str, Schema] | None) -> Examined:
    """Open a file and read its columns.

    Parameters
    ----------
    file : InputFile
        The file.
    selection : Selection
        The columns that the job uses.
    first : (str, Schema) or None
        The path and columns of the job's first file; None if this is the first file.

    Raises
    ------
    SourceError
        If the file cannot be read, or its columns do not fit the first file's. If it is empty, an EmptyFile.
    UsageError
        If an option does not fit.

    """
    file = identified(file)
    with open_at(file, peek=True) as stream:
        head = stream.read(_FIRST_BYTES)
    if not head:
        # An empty CSV has no rows, but a file that must have metadata, such as Parquet, is damaged.
        kind = SourceError if file.format.jumps else EmptyFile
        raise kind(f"{file.path}: the file is empty")
    if not file.format.jumps and (within := compression_of(head)):
        raise SourceError(f"{file.path}: it holds {within.name} within {file.compression}: decompress it once")
    _refuse_other(file.path, head, file.format)
    schema = file.format.schema(file, selection)
    refuse_twice(file.path, schema, selection)
    remark = difference(file, schema, first, selection) if first else None
    of_path = _of_path(file, schema, selection)
    kept_of_folders = {*selection.kept_columns} & in_folders(file).keys()
    from_columns = sorted(kept_of_folders & ({*schema.every} - {*first[1].every})) if first else []
    notes = (
        [f"{', '.join(map(repr, from_columns))} is copied from its column, not from its folder's name"]
        if from_columns
        else []
    )
    if gone := [name for name in selection.kept_columns if name in schema.absent and name not in dict(of_path)]:
        notes.append(f"none of its first rows has {', '.join(map(repr, gone))}, which is null in rows without it")
    class_names = tuple(
        (name, names) for name, names in schema.class_names.items() if name in (*selection.labels, selection.truth)
    )
    return Examined(replace(file, format=file.format.for_schema(schema)), schema, remark, of_path, class_names, notes)


def examine_like(file: InputFile, selection: Selection, first: tuple[str, Schema] | None) -> Examined:
    """Examine a file of a job that is already planned. first: None if no file could be read when the job was planned;
    then no file is read now.
    """
    examined = examine(file, selection, first)
    if first is None:
        raise SourceError(
            f"{file.path}: no file could be read when the job was planned, so the columns are not known. Start again, "
            "overwriting the output"
        )
    return examined


def held(file: InputFile) -> InputFile:
    """Return a small file with its content in memory, so that it is opened and decompressed only once. Return any other
    file with the compression that its first bytes show.

    Raises SourceError if it cannot be opened.
    """
    # Read a small file as it is stored. All further opening then takes the content from memory.
    if file.member is None and 0 < file.stored <= _HELD_BYTES:
        with open_stored(file) as stream:
            content = stream.read(_HELD_BYTES + 1)
        file = Held(**vars(file), content=content, is_decoded=False)
    # Decompress it, if its content is small too. Content that is neither compressed nor transcoded stays as it is.
    file = identified(file)
    if isinstance(file, Held) and not file.front_to_back:
        return replace(file, is_decoded=True)
    decoded = _decoded(file) if file.stored <= _HELD_BYTES else None
    if decoded is None:
        return file
    return Held(**vars(file) | {"content": decoded, "is_decoded": True})


def identified(file: InputFile) -> InputFile:
    """Return the file with the compression that its first bytes show, if its name tells none. Raises SourceError."""
    if file.format.jumps or not file.seekable:
        return file
    with open_stored(file) as stream:
        compression = compression_of(stream.read(HEAD_BYTES))
    return replace(file, compression=compression.name) if compression else file


def _decoded(file: InputFile) -> bytes | None:
    """Return the content of a file, or None if it is large or cannot be read to its end."""
    with open_at(file) as stream:
        content, failure = read_onto(b"", stream, _HELD_BYTES + 1)
    if failure is not None and not isinstance(failure, SourceError):
        raise failure
    # The task that reads the file block by block finds what can be read before the damage.
    return content if failure is None and len(content) <= _HELD_BYTES else None


def _refuse_other(name: str, head: bytes, expected: Format) -> None:
    """Raise SourceError if the first bytes are those of another format, or of an archive that cannot be read."""
    if archive := container_of(head):
        raise SourceError(f"{name}: it is a {archive} file by its first bytes; unpack it. It was not read")
    others = {
        form.name: form.suffixes[0] for form in FORMAT_OF_SUFFIX.values() if form.magic and head.startswith(form.magic)
    }
    if head.startswith(ZIP_MAGIC):
        others[ZIP_SUFFIX[1:]] = ZIP_SUFFIX
    if others and expected.name not in others:
        what, suffixes = " or ".join(others), " or ".join(others.values())
        raise SourceError(f"{name}: it is a {what} file by its first bytes; rename it ({suffixes})")
