"""The character between the fields of a CSV: checked where the user names it, suggested where another is plain."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError

DELIMITERS = (";", "|", "\t", ",")
"""Those that are suggested, the most common first."""

_NAMES = {"tab": "\t", "\\t": "\t"}


def delimiter_named(name: str) -> str:
    """The character of that name, which is itself but for a tab. Raises UsageError for what cannot delimit fields."""
    found = _NAMES.get(name, name)
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0':
        raise UsageError(f"delimiter {name!r}: give one ASCII character, e.g. ';', or tab; not a quote or a line end")
    return found


def separated_by(delimiter: str) -> str:
    """A message that suggests a delimiter."""
    name = "tab" if delimiter == "\t" else f"'{delimiter}'"
    return f"it looks separated by {name}: --delimiter {name}"


def other_delimiter(names: Sequence[str], wanted: str) -> str | None:
    """A delimiter by which a header would hold the column `wanted`, or would have more than its one column.

    names: of the columns, as the header was split.
    """
    pieces = {c: [piece.strip(' "') for name in names for piece in name.split(c)] for c in DELIMITERS}
    holding = [c for c in DELIMITERS if wanted in pieces[c]]
    many = [c for c in DELIMITERS if len(names) == 1 and len(pieces[c]) > 1]
    return next(iter([*holding, *sorted(many, key=lambda c: -len(pieces[c]))]), None)
