"""Decides which rows are written, by the expression of `where` over the columns of the output.

condition  = both { "or" both }
both       = negation { "and" negation }
negation   = "not" negation | test | "(" condition ")"
test       = value [ comparison value { comparison value }
               | [ "not" ] "in" "(" literal { "," literal } ")"
               | "is" [ "not" ] "null" ]
comparison = "==" | "!=" | "<" | "<=" | ">" | ">="
value      = column | literal
column     = a word, which may contain . - and /, or anything between backticks, where two backticks stand for one
literal    = a number, "text", 'text', true or false; in text, a backslash before a quote or a backslash

Each rule is a method, which returns an expression of Arrow. Python's parser would not do. It cannot read a column
between backticks or called `class`, a null, or a number of 5,000 digits, and it does not say what it expected.

A comparison with a null is neither true nor false, as in SQL. A row is written only if the whole expression is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import UsageError, did_you_mean

_DEEPEST = 50
_KEYWORDS = ("and", "or", "not", "in", "is", "null")
_WORDS = (*_KEYWORDS, "true", "false")
_WORD = r"[^\W\d](?:\w|[-./](?=\w))*"
"""A name as most columns have it: author.name, ag-news_label, score_Sci/Tech. Expressions have no arithmetic."""

_PLAIN = re.compile(_WORD)
_TOKEN = re.compile(
    rf"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
  | `(?P<quoted>(?:[^`]|``)+)`
  | (?P<word>{_WORD})
  | (?P<mark>==|!=|<=|>=|<|>|\(|\)|,)
  | (?P<end>$))""",
    re.VERBOSE,
)
_NOT_CLOSED = "the quote is never closed, or a backslash stands before something else than a quote or a backslash"
_HINTS = {
    "=": "equality is written ==",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not` or !=",
    '"': _NOT_CLOSED,
    "'": _NOT_CLOSED,
    "`": "the backtick is never closed",
}
_LITERAL = "a number or a text in quotes"
_TRUTH, _NUMBER, _TEXT, _TIME = "true or false", "a number", "text", "a time"
_KINDS = {bool: _TRUTH, int: _NUMBER, float: _NUMBER, str: _TEXT}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
"""The function of each comparison, for expressions and for two literals."""

_MOST_CLASSES = 20
_ZONE = re.compile(r":.*(Z|[+-][\d:]+)$")
"""Matches the text of a time that ends with its time zone, such as ``12:00+01:00``."""


@dataclass(frozen=True)
class _Value:
    """A column or a literal: a number, a text, true or false.

    Attributes
    ----------
    at : int
        The position of its first character in the text of the expression.
    name : object
        The name of the column, or the value itself.
    is_column : bool
        Whether it is a column.

    """

    at: int
    name: Any
    is_column: bool


def written(name: str) -> str:
    """Return the name of a column as an expression writes it."""
    return name if _PLAIN.fullmatch(name) and name not in _WORDS else "`{}`".format(name.replace("`", "``"))


def refuse(text: str, at: int, what: str) -> NoReturn:
    """Raise UsageError that names a place in the expression. at: the position of the place. what: the message."""
    place = f"at {text[at : at + 20]!r} (character {at + 1})" if text[at:] else "at the end"
    raise UsageError(f"where: {what}, {place}")


@dataclass(frozen=True)
class Where:
    """The condition for writing a row. text: the expression."""

    text: str

    def __post_init__(self) -> None:
        """Raise UsageError, with the place, if the text is not an expression."""
        _Parser(self.text)

    @property
    def columns(self) -> set[str]:
        """The columns that the expression names."""
        return {side.name for sides in _Parser(self.text).tests for side in sides if side.is_column}

    def check(self, schema: pa.Schema) -> None:
        """Raise UsageError, with the place, if the expression does not fit the columns of a table."""
        try:
            self.mask(schema.empty_table())
        except pa.ArrowException as error:
            refuse(self.text, 0, f"these cannot be compared ({str(error).splitlines()[0]})")

    def check_labels(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Raise UsageError, with the place, if a label is compared with a text that is no class of the model.

        labels: the classes that each column of labels may hold, by the column's name.
        """
        for sides in _Parser(self.text).tests:
            compared = [labels[side.name] for side in sides if side.is_column and side.name in labels]
            for side in sides if compared else ():
                if isinstance(side.name, str) and not side.is_column and side.name not in compared[0]:
                    more = ", …" if len(compared[0]) > _MOST_CLASSES else ""
                    known = ", ".join(compared[0][:_MOST_CLASSES]) + more
                    refuse(self.text, side.at, f"the model has no class {side.name!r} (it has {known})")

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return for which rows the expression is true, [N].

        Raises UsageError if a column is missing or has an unfitting type.
        """
        from pyarrow.dataset import dataset  # takes a while to import

        columns = {"decided": _Parser(self.text, table.schema).expression}
        decided = dataset(table).to_table(columns, use_threads=False).column("decided")
        return np.asarray(pc.fill_null(decided, False).to_numpy(), np.bool_)


class _Parser:
    """Reads an expression from its first token to its last. Methods raise UsageError, with the place.

    Attributes
    ----------
    tests : list of tuple
        The values of each test, in order.
    expression : pyarrow.compute.Expression
        The expression, which is true, false or null for each row. Without a schema, types are not checked and the
        expression has no meaning.

    """

    def __init__(self, text: str, schema: pa.Schema | None = None) -> None:
        self._text, self._schema = text, schema
        self._tokens = self._read()
        self._next()
        self.tests: list[tuple[_Value, ...]] = []
        self.expression = self._condition(0)
        if self._kind:
            refuse(text, self._at, "expected `and`, `or` or the end")

    def _read(self) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the kind of each token and its match. The kind is a keyword, a mark, "value", or "" at the end."""
        end = 0
        while (token := _TOKEN.match(self._text, end)) is not None:
            end, word = token.end(), token[token.lastindex or 0]
            is_kind = token.lastgroup in ("mark", "end") or (token.lastgroup == "word" and word in _KEYWORDS)
            yield word if is_kind else "value", token
        at = len(self._text) - len(self._text[end:].lstrip())
        hint = _HINTS.get(self._text[at], "a column whose name is no plain word stands between backticks")
        refuse(self._text, at, hint)

    def _next(self) -> None:
        self._kind, self._token = next(self._tokens)
        self._at = self._token.start(self._token.lastindex or 0)

    def _accept(self, kind: str) -> bool:
        """Skip the next token if it is of this kind, and return whether it was."""
        is_next = self._kind == kind
        if is_next:
            self._next()
        return is_next

    def _expect(self, kind: str) -> None:
        if not self._accept(kind):
            refuse(self._text, self._at, f"expected `{kind}`")

    def _condition(self, depth: int) -> pc.Expression:
        ways = [self._both(depth)]
        while self._accept("or"):
            ways.append(self._both(depth))
        return _joined(or_, ways)

    def _both(self, depth: int) -> pc.Expression:
        parts = [self._negation(depth)]
        while self._accept("and"):
            parts.append(self._negation(depth))
        return _joined(and_, parts)

    def _negation(self, depth: int) -> pc.Expression:
        if depth > _DEEPEST:
            refuse(self._text, self._at, f"more than {_DEEPEST} parentheses and `not` within one another")
        if self._accept("not"):
            return ~self._negation(depth + 1)
        if not self._accept("("):
            return self._test()
        condition = self._condition(depth + 1)
        self._expect(")")
        return condition

    def _test(self) -> pc.Expression:
        left = self._value()
        if self._kind in _COMPARE:
            return _joined(and_, list(self._chain(left)))
        at, negated = self._at, self._accept("not")
        if negated or self._kind == "in":
            self._expect("in")
            test = self._is_in(at, left)
        else:
            self.tests.append((left,))
            if not self._accept("is"):
                return self._truth(left)
            negated = self._accept("not")
            self._expect("null")
            test = self._column(left)[0].is_null() if left.is_column else pc.scalar(False)
        return ~test if negated else test

    def _chain(self, left: _Value) -> Iterator[pc.Expression]:
        """Yield a comparison, or each comparison of a chain such as `0.5 <= score < 0.9`."""
        while (mark := self._kind) in _COMPARE:
            at = self._at
            self._next()
            right = self._value()
            self.tests.append((left, right))
            yield self._compared(at, left, mark, right)
            left = right

    def _is_in(self, at: int, left: _Value) -> pc.Expression:
        self._expect("(")
        values = [self._value()]
        while not values[-1].is_column and self._accept(","):
            values.append(self._value())
        if values[-1].is_column:
            refuse(self._text, values[-1].at, f"expected {_LITERAL}")
        self._expect(")")
        self.tests.append((left, *values))
        return _joined(or_, [self._compared(at, left, "==", value) for value in values])

    def _value(self) -> _Value:
        at, group, word = self._at, self._token.lastgroup, self._token[self._token.lastindex or 0]
        if self._kind == "null":
            refuse(self._text, at, "a null equals nothing: write `is null` or `is not null`")
        if self._kind != "value":
            refuse(self._text, at, f"expected a column, {_LITERAL}")
        self._next()
        if group == "number":
            return _Value(at, int(word) if re.fullmatch(r"-?\d{1,20}", word) else float(word), False)
        if group == "text":
            return _Value(at, re.sub(r"\\(.)", r"\1", word[1:-1]), False)
        is_truth = group == "word" and word in _WORDS
        return _Value(at, word == "true" if is_truth else word.replace("``", "`"), not is_truth)

    def _truth(self, value: _Value) -> pc.Expression:
        """Return the expression of a value that is compared with nothing, which must be true or false."""
        kind = self._kind_of(value)
        if kind == _TRUTH:
            return self._column(value)[0] if value.is_column else pc.scalar(value.name)
        what = f"{value.name!r} is {kind}" if value.is_column else "this is neither true nor false"
        refuse(self._text, value.at, f"{what}: compare it with something")

    def _compared(self, at: int, left: _Value, mark: str, right: _Value) -> pc.Expression:
        if self._schema is None:
            return pc.scalar(True)
        sides, kinds = (left, right), [self._kind_of(left), self._kind_of(right)]
        values = [side.name for side in sides if not side.is_column]
        if kinds[0] != kinds[1] and not (values and {*kinds} == {_TIME, _TEXT}):
            what = f"{left.name!r} is {kinds[0]} and {right.name!r} is {kinds[1]}"
            refuse(self._text, at, f"{what}: they cannot be compared")
        if len(values) == 2:
            return pc.scalar(_COMPARE[mark](*values))
        types = [self._column(side)[1] for side in sides if side.is_column]
        shared = _shared_type(types, *values) if kinds[0] == _NUMBER else types[0] if values else None
        return _COMPARE[mark](*(self._operand(side, shared) for side in sides))

    def _operand(self, side: _Value, kind: Any) -> pc.Expression:
        """Return a side of a comparison in the type `kind`; None keeps its own type.

        A time without a zone is in the time zone of the column.
        """
        if side.is_column:
            column, column_type = self._column(side)
            return column if kind in (None, column_type) else column.cast(kind, safe=False)
        value = side.name
        try:
            if pa.types.is_timestamp(kind) and kind.tz is not None and not _ZONE.search(str(value)):
                return pc.scalar(pc.assume_timezone(pa.scalar(value).cast(pa.timestamp(kind.unit)), kind.tz))
            number = float(value) if pa.types.is_floating(kind) else value
            scalar = pa.scalar(number, kind if type(value) is int else None)
            return pc.scalar(scalar.cast(kind, safe=False))
        except pa.ArrowException:
            refuse(self._text, side.at, f"this is no {kind}")

    def _column(self, column: _Value) -> tuple[pc.Expression, pa.DataType]:
        """Return a column and its type. A dictionary becomes a column of its values."""
        field = pc.field(column.name)
        if self._schema is None:
            return field, pa.bool_()
        names = self._schema.names
        if column.name not in names:
            known, meant = ", ".join(map(written, names)), did_you_mean(column.name, names)
            refuse(self._text, column.at, f"there is no column {column.name!r} (there are {known}){meant}")
        kind = self._schema.field(column.name).type
        return (field.cast(kind.value_type), kind.value_type) if pa.types.is_dictionary(kind) else (field, kind)

    def _kind_of(self, value: _Value) -> str:
        """Return the kind of a value in words. Only values of the same kind can be compared."""
        if not value.is_column:
            return _KINDS[type(value.name)]
        kind, types = self._column(value)[1], pa.types
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return _TEXT
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            return _NUMBER
        if types.is_boolean(kind):
            return _TRUTH
        return _TIME if types.is_temporal(kind) else f"a {kind}"


def _joined(join: Callable[[Any, Any], Any], parts: list[pc.Expression]) -> pc.Expression:
    """Join expressions in a tree of little depth, because Arrow walks the tree by recursion."""
    while len(parts) > 1:
        parts = [reduce(join, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


_EXACT = pa.decimal128(38, 0)
"""The type for comparing integers that no integer type holds. As floats, neighbouring integers could be equal."""


def _shared_type(types: Sequence[pa.DataType], value: int | float = 0) -> pa.DataType:
    """Return the type in which numbers are compared.

    A literal takes the type of a float32 column, so that 0.9 equals the score that is shown as 0.9.

    types: the type of one column, which is compared with `value`, or the types of two columns.
    """
    kind = types[0]
    if len(types) == 2:
        if kind == types[1]:
            return kind
        return _EXACT if all(map(pa.types.is_integer, types)) else pa.float64()
    if pa.types.is_floating(kind):
        return kind
    if not (pa.types.is_integer(kind) and isinstance(value, int)):
        return pa.float64()
    wide, least, end = (pa.uint64(), 0, 1 << 64) if pa.types.is_uint64(kind) else (pa.int64(), -1 << 63, 1 << 63)
    if least <= value < end:
        return wide
    return _EXACT if abs(value) < 10**_EXACT.precision else pa.float64()
