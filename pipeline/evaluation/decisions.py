"""Reads and writes the decisions of a person about rows.

They are in a CSV file that the review page writes, a spreadsheet can edit, and `train --corrections` reads. A row is
recognised by its text and not by its place: `text_key` is a digest of the text. So decisions stay valid if the file of
rows is sorted, filtered or converted, and one decision counts for all rows with the same text.
"""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError, cause
from ..model.ngrams import MOST_READ
from ..storage.disk import write_file

KEY, DECISION, TEXT = "text_key", "decision", "text"
LEAVE_OUT = "(leave out)"
"""The decision to leave a row out of training."""

_DIGEST_BYTES = 8


class Decision(NamedTuple):
    """The decision of a person about the rows with one text.

    Attributes
    ----------
    key : str
        The key of the text.
    label : str
        The right label, or LEAVE_OUT.
    text : str
        The text; "" if the file does not have it.
    line : int
        The number of the line in the file, from 1.

    """

    key: str
    label: str
    text: str
    line: int


def key_of(text: str) -> str:
    """Return the key of a text, by its first MOST_READ characters. No spreadsheet mistakes it for a number."""
    return "t" + hashlib.blake2b(text[:MOST_READ].encode(), digest_size=_DIGEST_BYTES).hexdigest()


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a CSV file, as a person may have saved it from a spreadsheet.

    Raises UsageError if the file cannot be read, or lacks the column of decisions or those that identify a text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = cause(error) if isinstance(error, OSError) else "it is not UTF-8: save it as CSV UTF-8"
        raise UsageError(f"{path}: no decisions can be read from it: {why}") from error
    # In countries with a decimal comma, spreadsheets write semicolons between the fields.
    first = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=";" if ";" in first and "," not in first else ",")
    try:
        columns, rows = [*(reader.fieldnames or ())], [*reader]
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num} is no CSV: {error}") from error
    if DECISION not in columns or not {KEY, TEXT} & {*columns}:
        raise UsageError(
            f"{path} has the columns {', '.join(columns) or 'of an empty file'}: decisions need the columns "
            f"{DECISION!r} and {KEY!r} or {TEXT!r}, as files of suspects and of the next rows to label have them"
        )
    return columns, [{name: row.get(name) or "" for name in columns} for row in rows]


def read_decisions(path: Path) -> list[Decision]:
    """Return the decisions in a file. Rows without a decision are left out.

    If there are several decisions about one text, the last one counts. Raises UsageError like `read_table`, and for a
    decision without a text.
    """
    _, rows = read_table(path)
    found: dict[str, Decision] = {}
    for line, row in enumerate(rows, 2):
        if label := row[DECISION].strip():
            text = row.get(TEXT, "")
            key = row.get(KEY, "").strip() or (key_of(text) if text else "")
            if not key:
                raise UsageError(f"{path}: line {line} has the decision {label!r}, but no text and no {KEY}: add one")
            found[key] = Decision(key, label, text, line)
    return [*found.values()]


def write_table(path: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    """Write a CSV file whole, so that after a crash there is the old file or the new one. Raises OutputError."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, out.getvalue().encode())
