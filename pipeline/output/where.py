"""Which rows are written: the expression of `where` over the columns of the output.

A comparison with a null is neither true nor false, as in SQL, and only rows for which the whole is true are written.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .expression import (
    AllOf,
    AnyOf,
    Column,
    Comparison,
    IsNull,
    Literal,
    Node,
    Not,
    OneOf,
    parse,
    refuse,
    written,
)

_COMPARE: dict[str, Callable[..., pa.Array]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_PYTHON = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_CLASSES = 20
_ZONE = re.compile(r":.*(Z|[+-][\d:]+)$")


@dataclass(frozen=True)
class Where:
    """text: the expression."""

    text: str

    @property
    def columns(self) -> set[str]:
        """The columns that it names. Raises UsageError where it is no expression."""
        return {node.name for node in _nodes(parse(self.text)) if isinstance(node, Column)}

    def check(self, schema: pa.Schema) -> None:
        """Raise UsageError, with the place, unless it can be decided for every row of such a table."""
        self.mask(schema.empty_table())

    def check_labels(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Raise UsageError, with the place, where a label is compared with a text that is no class of the model.

        labels: what the columns of labels may hold, by name.
        """
        for node in _nodes(parse(self.text)):
            sides: tuple[Column | Literal, ...] = (node.left, node.right) if isinstance(node, Comparison) else ()
            sides = (node.left, *node.values) if isinstance(node, OneOf) else sides
            named = next((side.name for side in sides if isinstance(side, Column) and side.name in labels), None)
            if named is None:
                continue
            classes = labels[named]
            for side in sides:
                if isinstance(side, Literal) and isinstance(side.value, str) and side.value not in classes:
                    known = ", ".join(classes[:_MOST_CLASSES]) + (", …" if len(classes) > _MOST_CLASSES else "")
                    refuse(self.text, side.at, f"the model has no class {side.value!r} (it has {known})")

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """For which rows it is true. Raises UsageError for a column that is not there, or of another type."""
        found = _Rows(self.text, table).truth(parse(self.text))
        return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, AllOf | AnyOf):
        children: tuple[Node, ...] = node.parts
    elif isinstance(node, Not):
        children = (node.inner,)
    elif isinstance(node, Comparison):
        children = (node.left, node.right)
    else:
        children = (node.left,) if isinstance(node, OneOf | IsNull) else ()
    for child in children:
        yield from _nodes(child)


@dataclass(frozen=True)
class _Rows:
    """An expression over the rows of a table. Methods raise UsageError for what does not fit its columns."""

    text: str
    table: pa.Table

    def truth(self, node: Node) -> pa.Array:
        """True, false or null for each row."""
        if isinstance(node, AllOf):
            return reduce(pc.and_kleene, map(self.truth, node.parts))
        if isinstance(node, AnyOf):
            return reduce(pc.or_kleene, map(self.truth, node.parts))
        if isinstance(node, Not):
            return pc.invert(self.truth(node.inner))
        if isinstance(node, IsNull):
            return self._constant(False) if isinstance(node.left, Literal) else self._column(node.left).is_null()
        if isinstance(node, OneOf):
            return reduce(pc.or_kleene, (self._compare(node.at, node.left, "==", value) for value in node.values))
        if isinstance(node, Comparison):
            return self._compare(node.at, node.left, node.mark, node.right)
        if isinstance(node, Literal):
            if not isinstance(node.value, bool):
                refuse(self.text, node.at, "this is neither true nor false: compare it with something")
            return self._constant(node.value)
        column = self._column(node)
        if _kind(column.type) != "true or false":
            refuse(self.text, node.at, f"{node.name!r} is {_kind(column.type)}: compare it with something")
        return column

    def _compare(self, at: int, left: Column | Literal, mark: str, right: Column | Literal) -> pa.Array:
        if isinstance(left, Literal) and isinstance(right, Literal):
            if _kind_of(left) != _kind_of(right):
                self._refuse_kinds(at, left, _kind_of(left), right, _kind_of(right))
            return self._constant(_PYTHON[mark](left.value, right.value))
        if isinstance(left, Literal):
            turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(mark, mark)
            return self._compare(at, right, turned, left)
        column = self._column(left)
        kind = _kind(column.type)
        if isinstance(right, Column):
            other = self._column(right)
            if _kind(other.type) != kind:
                self._refuse_kinds(at, left, kind, right, _kind(other.type))
            if column.type != other.type and kind == "a number":
                column, other = column.cast(pa.float64(), safe=False), other.cast(pa.float64(), safe=False)
            return self._decided(at, mark, column, other)
        if kind != _kind_of(right) and not (kind == "a time" and isinstance(right.value, str)):
            self._refuse_kinds(at, left, kind, right, _kind_of(right))
        if kind == "a number":
            return self._decided(at, mark, *self._numbers(column, right))
        return self._decided(at, mark, column, self._scalar(right, column.type))

    def _numbers(self, column: pa.Array, literal: Literal) -> tuple[pa.Array, pa.Scalar]:
        """Both of one type. A literal takes the type of a float32 column: 0.9 is the score that is shown as 0.9."""
        value, kind = literal.value, column.type
        if pa.types.is_floating(kind):
            return column, self._scalar(Literal(literal.at, float(value)), kind)
        if pa.types.is_integer(kind) and isinstance(value, int):
            if pa.types.is_uint64(kind) and 0 <= value < 1 << 64:
                return column, pa.scalar(value, kind)
            if not pa.types.is_uint64(kind) and -1 << 63 <= value < 1 << 63:
                return column.cast(pa.int64()), pa.scalar(value, pa.int64())
        return column.cast(pa.float64(), safe=False), pa.scalar(float(value), pa.float64())

    def _scalar(self, literal: Literal, kind: pa.DataType) -> pa.Scalar:
        """As a value of a column. A time without a zone is one in the column's zone."""
        value = pa.scalar(literal.value)
        try:
            if pa.types.is_timestamp(kind) and kind.tz is not None and not _ZONE.search(str(literal.value)):
                return pc.assume_timezone(value.cast(pa.timestamp(kind.unit)), kind.tz)
            return value.cast(kind, safe=False)
        except pa.ArrowException:
            refuse(self.text, literal.at, f"this is no {kind}")

    def _decided(self, at: int, mark: str, left: pa.Array, right: pa.Array | pa.Scalar) -> pa.Array:
        try:
            return _COMPARE[mark](left, right)
        except pa.ArrowException as error:
            refuse(self.text, at, f"these cannot be compared ({str(error).splitlines()[0]})")

    def _column(self, node: Column) -> pa.Array:
        if node.name not in self.table.column_names:
            known = ", ".join(map(written, self.table.column_names))
            refuse(self.text, node.at, f"there is no column {node.name!r} (there are {known})")
        column = self.table.column(node.name).combine_chunks()
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

    def _constant(self, value: bool) -> pa.Array:
        return pa.repeat(value, len(self.table))

    def _refuse_kinds(
        self, at: int, left: Column | Literal, kind: str, right: Column | Literal, other: str
    ) -> NoReturn:
        names = [node.name if isinstance(node, Column) else node.value for node in (left, right)]
        refuse(self.text, at, f"{names[0]!r} is {kind} and {names[1]!r} is {other}: they cannot be compared")


def _kind(kind: pa.DataType) -> str:
    """What a column holds, in words; comparisons are within one kind."""
    types = pa.types
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "a number"
    if types.is_boolean(kind):
        return "true or false"
    return "a time" if types.is_temporal(kind) else f"a {kind}"


def _kind_of(literal: Literal) -> str:
    if isinstance(literal.value, bool):
        return "true or false"
    return "text" if isinstance(literal.value, str) else "a number"
