"""Makes a chunk of the parsed rows of a file: texts, kept columns and classes, and the rows for the quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .chunk import (
    NOTED,
    SHOWN_BYTES,
    BadRow,
    Chunk,
    RowsByName,
    Selection,
    bad_rows_table,
    commonest_rows,
)
from .columns import (
    beginnings,
    characters,
    column_of,
    copied,
    decoded_text,
    is_copied_as_it_is,
    joined,
    out_of_range,
)
from .join import as_text, template
from .labels import class_indices, labels_of, one_label_each
from .layouts import is_textual
from .limits import LIMITS


class TrueClasses(NamedTuple):
    """What the labels of a truth column say about N rows.

    Attributes
    ----------
    classes : ndarray or None
        int32 [N], class indices or NO_TRUTH; None without a truth column.
    unknown, mapped : mapping of str to ndarray
        As `Chunk.unknown_labels` and `Chunk.mapped_labels`.

    """

    classes: NDArray[np.int32] | None
    unknown: RowsByName
    mapped: RowsByName


NO_LABELS = TrueClasses(None, {}, {})


def true_classes(labels: pa.Array, selection: Selection, numbers: NDArray[np.int64]) -> TrueClasses:
    """Find the classes that labels name.

    Labels for which the label map has no class are not among the unknown ones, because the user left them out.

    Parameters
    ----------
    labels : pyarrow.Array
        [N], strings; null if a row has no label.
    selection : Selection
        The classes, and how labels name them.
    numbers : ndarray
        int64 [N], the number of each row.

    """
    classes, unknown = class_indices(labels, selection.classes, selection.rules)
    class_of = selection.rules.classes_of
    to_report = {label: rows for label, rows in unknown.items() if class_of.get(label, label)}
    noted = sorted(to_report, key=lambda label: (-to_report[label], label))[:NOTED]
    if not (noted or class_of):
        return TrueClasses(classes, {}, {})
    which = np.flatnonzero(labels.is_valid().to_numpy(zero_copy_only=False))
    encoded = labels.take(pa.array(which)).dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    counts = np.bincount(codes, minlength=len(names))
    rows_of = np.split(numbers[which[np.argsort(codes, kind="stable")]], np.cumsum(counts)[:-1])
    by_label = dict(zip(names, rows_of, strict=False))
    mapped = {label: by_label[label] for label in names if label in class_of}
    return TrueClasses(classes, {label: by_label[label] for label in noted}, mapped)


def assemble(
    file: str,
    numbers: NDArray[np.int64],
    table: pa.Table,
    selection: Selection,
    raw: Callable[[int], tuple[int | None, bytes]] | None = None,
    bad: Sequence[BadRow] = (),
    problems: tuple[str, ...] = (),
    is_utf8: bool = False,
    not_copied: RowsByName | None = None,
) -> Chunk:
    """Make a chunk from the parsed rows of one file.

    Parameters
    ----------
    file : str
        The file.
    numbers : ndarray
        int64 [N], the record number of each row.
    table : pyarrow.Table
        N rows with the selection's columns. Text and string columns may be binary or string. Kept columns may be
        missing; then they are null.
    selection : Selection
        The columns that the job uses.
    raw : callable, optional
        Returns the byte offset and first bytes of row i, for the quarantine. By default the quarantine has the first
        bytes of its first text.
    bad : sequence of BadRow
        Rows that could not be parsed. Rows whose text is null, too long or not UTF-8 are added to them.
    problems : tuple of str
        Messages about the file.
    is_utf8 : bool
        Whether the strings are known to be valid UTF-8.
    not_copied : mapping of str to ndarray, optional
        See `Chunk`. There may be any number of keys.

    """
    # Get the columns of the job, from the table and from the path.
    reasons: dict[int, str] = {}
    held = {name: column_of(table, name) for name in selection.columns}
    held |= {name: pa.repeat(pa.scalar(value, pa.string()), len(numbers)) for name, value in selection.of_path}
    # Decode the columns that are used as text. Rows that are not UTF-8 get a reason.
    kept_types = dict(zip(selection.kept_columns, selection.row_schema.types[2:], strict=True))
    used = {*selection.text, *selection.labels, selection.truth}
    ascii_only: set[str] = set()
    decoded = {
        name: column if is_utf8 else decoded_text(name, column, reasons, selection.encoding, ascii_only)
        for name, column in held.items()
        if name in used or not is_copied_as_it_is(column.type, kept_types[name])
    }
    # Find times that Arrow cannot write as text.
    for name in dict.fromkeys((*kept_types, *selection.text)):
        if len(beyond := out_of_range(held[name])):
            reasons |= {i: f"column {name!r} holds a time out of range" for i in beyond.tolist() if i not in reasons}
            is_beyond = np.isin(np.arange(len(numbers)), beyond)
            decoded[name] = pc.if_else(pa.array(is_beyond), None, held[name])
    # Join the text columns. Rows whose text is null or too long get a reason.
    texts = [as_text(decoded[name]) if selection.join else decoded[name] for name in selection.text]
    for i in np.flatnonzero(np.logical_and.reduce([t.is_null().to_numpy(False) for t in texts])).tolist():
        reasons.setdefault(i, "the text is null")
    if selection.join:
        text = template(selection.join).texts(dict(zip(selection.text, texts, strict=True)))
    else:
        text = joined(texts)
    sizes = pc.fill_null(pc.binary_length(text), 0).to_numpy()
    for i in np.flatnonzero(sizes > LIMITS.field_bytes).tolist():
        reasons.setdefault(i, LIMITS.long_text)
    # Read the labels, and the true classes of rows that are not bad.
    names = dict(selection.class_names)
    for name in selection.labels:
        decoded[name] = held[name] = labels_of(decoded[name], names.get(name))
    truth = NO_LABELS
    if selection.truth:
        labels = one_label_each(labels_of(decoded[selection.truth], names.get(selection.truth)), selection.truth)
        if reasons:
            is_bad = np.isin(np.arange(len(numbers)), [*reasons])
            labels = pc.if_else(pa.array(is_bad), pa.scalar(None, labels.type), labels)
        truth = true_classes(labels, selection, numbers)
    # Collect the rows for the quarantine, in order.
    set_aside: list[tuple[BadRow, int | None]] = [(row, None) for row in bad]
    first_text = held[selection.text[0]] if is_textual(held[selection.text[0]].type) else texts[0]
    for i, reason in reasons.items():
        offset, head = raw(i) if raw else (None, first_text[i].cast(pa.large_binary()).as_py() or b"")
        set_aside.append((BadRow(int(numbers[i]), offset, reason, head), i))
    set_aside.sort(key=lambda item: item[0].row)
    # Make the table of kept columns, for readable and for bad rows.
    is_readable = np.ones(len(numbers), np.bool_)
    is_readable[list(reasons)] = False
    columns = [pa.repeat(pa.scalar(file, pa.string()), len(numbers)), pa.array(numbers)]
    for name, kind in kept_types.items():
        as_it_is = is_copied_as_it_is(held[name].type, kind)
        columns.append(copied(held[name] if as_it_is else decoded[name], kind))
    rows = pa.table(columns, selection.row_schema)
    # Count the characters of each text, and cut it to what the models read.
    n_chars = None
    if selection.reads or selection.preparations:  # the characters of the original texts are counted
        is_ascii = ascii_only.issuperset(selection.text) and not selection.join
        n_chars = sizes if is_ascii else characters(text, sizes)
        if selection.reads:
            text = beginnings(text, sizes, n_chars, selection.reads)
    # Make the chunk of all rows, then leave out the bad ones.
    kept_of_bad = None
    if selection.kept_columns:
        kept_of_bad = rows.drop_columns(["file", "row"]).take(pa.array([i for _, i in set_aside], pa.int64()))
    chunk = Chunk(
        text,
        rows,
        bad_rows_table(file, [row for row, _ in set_aside]),
        truth=truth.classes,
        problems=problems,
        n_chars=n_chars,
        bad=kept_of_bad,
        not_copied=commonest_rows([not_copied or {}]),
        unknown_labels=truth.unknown,
        mapped_labels=truth.mapped,
    )
    chunk = chunk.take(is_readable) if reasons else chunk
    # Prepare the texts. If models read only prepared texts, a short beginning of the others is enough.
    text, n_chars = chunk.text, chunk.n_chars
    prepared = {name: prepare(text) for name, prepare in selection.preparations}
    if selection.only_prepared and n_chars is not None:
        short = beginnings(text, pc.binary_length(text).to_numpy(), n_chars, SHOWN_BYTES)
        blank = pc.utf8_is_space(short).to_numpy(zero_copy_only=False)
        if not (blank & (n_chars > SHOWN_BYTES)).any():  # a text may have words after its first characters
            text = short
    return replace(chunk, text=text.cast(pa.large_binary()), prepared=prepared)
