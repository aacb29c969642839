r"""A template that joins the columns of a row into the text that is labelled, such as "{url}\n\n{text}"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import UsageError
from .columns import copied
from .layouts import is_textual

_PART = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|\\.?|[^{}\\]+", re.DOTALL)
"""A doubled brace, a column, a single brace, an escape, or text."""

_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", "\\\\": "\\"}
_WRITTEN = {text: escape for escape, text in _ESCAPES.items()} | {"{": "{{", "}": "}}"}


@dataclass(frozen=True)
class Join:
    """A template, split into its parts.

    Attributes
    ----------
    names : tuple of str
        The columns, in the order in which the template names them. A column may occur several times.
    literals : tuple of str
        The text before each column, and the text after the last one.

    """

    names: tuple[str, ...]
    literals: tuple[str, ...]

    @classmethod
    def of(cls, template: str) -> Join:
        r"""Read a template.

        Parameters
        ----------
        template : str
            Text with the names of columns in braces. ``{{`` and ``}}`` stand for braces, ``\n``, ``\r`` and ``\t`` for
            control characters, as a shell passes them on, and ``\\`` for a backslash.

        Raises
        ------
        UsageError
            If the template names no column, or has a brace without its counterpart or another escape.

        """
        if not isinstance(template, str):
            raise UsageError(f"--join is {template!r}: give a template as text, such as '{{title}} {{text}}'")
        names: list[str] = []
        literals = [""]
        for part in _PART.findall(template):
            if part in ("{{", "}}"):
                literals[-1] += part[0]
            elif part.startswith("\\"):
                if part not in _ESCAPES:
                    raise UsageError(f"--join has the escape {part!r}: a backslash that is text is written \\\\")
                literals[-1] += _ESCAPES[part]
            elif part in ("{", "}"):
                raise UsageError(f"--join has a single {part!r} in {template!r}: a brace that is text is written twice")
            elif part == "{}":
                raise UsageError(f"--join has empty braces in {template!r}: write the name of a column in them")
            elif part.startswith("{"):
                names.append(part[1:-1])
                literals.append("")
            else:
                literals[-1] += part
        if not names:
            raise UsageError(f"--join names no column in {template!r}: write one in braces, as in '{{url}} {{text}}'")
        return cls(tuple(names), tuple(literals))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, each once."""
        return tuple(dict.fromkeys(self.names))

    def __str__(self) -> str:
        """Return the template on one line. It is the same for all templates that make the same texts."""
        literals = ["".join(_WRITTEN.get(letter, letter) for letter in literal) for literal in self.literals]
        named = (f"{literal}{{{name}}}" for literal, name in zip(literals, self.names, strict=False))
        return "".join(named) + literals[-1]

    def texts(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Join the columns of each row.

        Parameters
        ----------
        columns : mapping of str to pyarrow.Array
            The values of each column, large_string [N]. A null adds nothing to the text.

        Returns
        -------
        pyarrow.Array
            large_string [N].

        """
        pieces: list[pa.Array | pa.Scalar] = []
        for literal, name in zip(self.literals, self.names, strict=False):
            pieces += [pa.scalar(literal, pa.large_string()), columns[name]]
        pieces.append(pa.scalar(self.literals[-1], pa.large_string()))
        separator = pa.scalar("", pa.large_string())
        return pc.binary_join_element_wise(*pieces, separator, null_handling="replace", null_replacement="")


template = lru_cache(maxsize=16)(Join.of)
"""Does the same as `Join.of`, and caches the result, because a job needs it for each chunk."""


def joined_columns(given: str, named: tuple[str, ...] = ()) -> tuple[tuple[str, ...], str]:
    """Return the columns of a template, and the template as it is recorded.

    Parameters
    ----------
    given : str
        The template.
    named : tuple of str
        The text columns that the user named as well.

    Raises
    ------
    UsageError
        If the template cannot be read, or its columns are not those that were named.

    """
    join = Join.of(given)
    if named and {*named} != {*join.columns}:
        raise UsageError(
            f"--join has the columns {', '.join(join.columns)}, and --text-column names {', '.join(named)}: leave out "
            "one of the two options"
        )
    return join.columns, str(join)


def why_not_text(name: str, kind: pa.DataType, join: str) -> str | None:
    """Return why a column cannot be part of the text, or None if it can.

    Parameters
    ----------
    name : str
        The column.
    kind : pyarrow.DataType
        Its type. A template also writes numbers, booleans, dates and times.
    join : str
        The template; "" if there is none.

    """
    types = pa.types
    value = kind.value_type if types.is_dictionary(kind) else kind
    if is_textual(kind) or (join and (types.is_primitive(value) or types.is_decimal(value))):
        return None
    return f"the text column {name!r} holds {kind}, not strings{' or numbers' if join else ''}"


def as_text(column: pa.Array) -> pa.Array:
    """Return the values as a template writes them, large_string: numbers and dates as in a CSV of kept columns."""
    if pa.types.is_large_string(column.type):
        return column
    return copied(column, pa.string()).cast(pa.large_string())
