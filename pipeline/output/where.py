"""Which rows are written: the expression of `where` over the columns of the output.

condition  = both { "or" both }
both       = negation { "and" negation }
negation   = "not" negation | test
test       = value [ comparison value { comparison value }
               | [ "not" ] "in" "(" literal { "," literal } ")"
               | "is" [ "not" ] "null" ]
       | "(" condition ")"
comparison = "==" | "!=" | "<" | "<=" | ">" | ">="
value      = column | literal
column     = a word, words with dots between them, or anything between backticks, in which two backticks stand for one
literal    = a number, "text", 'text', true or false; in text, a backslash before a quote or a backslash

The tree is made by Python's own parser, which is given a name for each value: a column between backticks, one that is
called `class`, or a number of 5,000 digits is nothing that it could read. The order of the tokens is checked before,
so that a message says what was expected, and where.

A comparison with a null is neither true nor false, as in SQL, and only rows for which the whole is true are written.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import UsageError, did_you_mean

_DEEPEST = 50
_WORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_PLAIN = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
  | `(?P<quoted>(?:[^`]|``)+)`
  | (?P<word>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
  | (?P<mark>==|!=|<=|>=|<|>|\(|\)|,)
  | (?P<end>$))""",
    re.VERBOSE,
)
_HINTS = {
    "=": "equality is written ==",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not` or !=",
    '"': "the quote is never closed, or a backslash stands before something else than a quote or a backslash",
    "'": "the quote is never closed, or a backslash stands before something else than a quote or a backslash",
    "`": "the backtick is never closed",
}
_KINDS = {
    **dict.fromkeys(("and", "or"), "and"),
    **{token: token for token in ("not", "in", "is", "null", "(", ")", ",")},
}
"""Of words and marks: other words are values, other marks comparisons."""

_VALUE = "a column, a number or a text in quotes"
_AFTER = {
    "": (("value", "(", "not"), _VALUE),
    "compare": (("value",), _VALUE),
    ",": (("value",), _VALUE),
    "value": (("compare", "and", ")", "in", "is", "not", "end"), None),
    "compared": (("compare", "and", ")", "end"), None),
    "closed": (("and", ")", "end"), None),
    "listed": ((",", ")"), "`)`"),
    "in": (("(",), "`(`"),
    "not in": (("in",), "`in`"),
    "is": (("null", "not"), "`null`"),
    "is not": (("null",), "`null`"),
}
"""Which kinds of tokens may follow in which state, and what is expected there: None for what ends or joins a test."""

_BECOMES = {"(": "", "and": "", "not": "", ")": "closed", "null": "closed"} | {
    ("compare", "value"): "compared",
    (",", "value"): "listed",
    ("in", "("): ",",
    ("value", "not"): "not in",
    ("is", "not"): "is not",
}
"""The state after a kind of token, in any state or in one; else it is called like the kind."""

_COMPARE: dict[type[ast.cmpop], tuple[Callable[..., pa.Array], Callable[[Any, Any], bool]]] = {
    ast.Eq: (pc.equal, operator.eq),
    ast.NotEq: (pc.not_equal, operator.ne),
    ast.Lt: (pc.less, operator.lt),
    ast.LtE: (pc.less_equal, operator.le),
    ast.Gt: (pc.greater, operator.gt),
    ast.GtE: (pc.greater_equal, operator.ge),
}
"""For columns, and for two literals."""

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_MOST_CLASSES = 20
_ZONE = re.compile(r":.*(Z|[+-][\d:]+)$")


@dataclass(frozen=True)
class _Column:
    """at: where it stands in the text."""

    at: int
    name: str


@dataclass(frozen=True)
class _Literal:
    at: int
    value: str | int | float | bool


@dataclass(frozen=True)
class _Test:
    """What stands on the left against each of `right`; none for `is null`. at: of the comparison in the text."""

    at: int
    left: _Column | _Literal
    how: type[ast.cmpop]
    right: tuple[_Column | _Literal, ...]


@dataclass(frozen=True)
class _Expression:
    """tree: of names. values: what each stands for. places: of every token in the text, by its number."""

    tree: ast.expr
    values: Mapping[str, _Column | _Literal]
    places: Sequence[int]

    def tests(self, chain: ast.Compare) -> Iterator[_Test]:
        """The comparison, or those of a chain such as `0.5 <= score < 0.9`."""
        left = _name(chain.left)
        for how, right in zip(chain.ops, chain.comparators, strict=True):
            names = [_name(each) for each in (right.elts if isinstance(right, ast.Tuple) else [right])]
            values = tuple(self.values[name] for name in names if name in self.values)
            yield _Test(self.places[int(left[1:]) + 1], self.values[left], type(how), values)
            left = names[0]


@lru_cache(1)
def parse(text: str) -> _Expression:
    """Raises UsageError, with the place, where the text does not follow the grammar."""
    source: list[str] = []
    values: dict[str, _Column | _Literal] = {}
    places: list[int] = []
    state, depth = "", 0
    outside: list[int] = []  # the depth before each parenthesis that is open
    for kind, found in _tokens(text):
        token, at = found[found.lastindex or 0], found.start(found.lastindex or 0)
        allowed, expected = _AFTER[state]
        if kind == "null" and expected is _VALUE:
            refuse(text, at, "a null equals nothing: write `is null` or `is not null`")
        if kind not in allowed or (kind == ")" and not outside) or (kind == "end" and outside):
            refuse(text, at, "expected " + (expected or ("`)`" if outside else "`and`, `or` or the end")))
        if kind == "value":
            token = f"v{len(places)}"
            values[token] = value = _value(found, at)
            if state == "," and isinstance(value, _Column):
                refuse(text, at, "expected a number or a text in quotes")
        source.append(",)" if state == "listed" and kind == ")" else token)  # so that one value is a list, too
        places.append(at)
        state = _BECOMES.get((state, kind)) or _BECOMES.get(kind, kind)
        if kind == "(":
            outside.append(depth)
            depth += 1
        elif kind == ")":
            depth = outside.pop()
        elif kind == "and":
            depth = outside[-1] + 1 if outside else 0
        elif kind == "not" and not state:
            depth += 1
        if depth > _DEEPEST:
            refuse(text, at, f"more than {_DEEPEST} parentheses and `not` within one another")
    return _Expression(ast.parse(" ".join(source), mode="eval").body, values, places)


def _tokens(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """The kind of each token and its match, with an end as the last one."""
    kind, end = "", 0
    while kind != "end":
        found = _TOKEN.match(text, end)
        if found is None:
            at = len(text) - len(text[end:].lstrip())
            refuse(text, at, _HINTS.get(text[at], "a column whose name is no plain word stands between backticks"))
        end, token = found.end(), found[found.lastindex or 0]
        kind = {"mark": "compare", "end": "end"}.get(str(found.lastgroup), "value")
        if found.lastgroup in ("word", "mark"):
            kind = _KINDS.get(token, kind)
        yield kind, found


def _value(found: re.Match[str], at: int) -> _Column | _Literal:
    group, token = found.lastgroup, found[found.lastindex or 0]
    if group == "number":
        is_integer = re.fullmatch(r"-?\d{1,20}", token) is not None
        return _Literal(at, int(token) if is_integer else float(token))
    if group == "text":
        return _Literal(at, re.sub(r"\\(.)", r"\1", token[1:-1]))
    if group == "word" and token in ("true", "false"):
        return _Literal(at, token == "true")
    return _Column(at, token.replace("``", "`"))


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise TypeError(f"{ast.dump(node)} is no value")
    return node.id


def written(name: str) -> str:
    """A column as an expression names it."""
    return name if _PLAIN.fullmatch(name) and name not in _WORDS else "`{}`".format(name.replace("`", "``"))


def refuse(text: str, at: int, what: str) -> NoReturn:
    """Raise UsageError about a place in the expression."""
    place = f"at {text[at : at + 20]!r} (character {at + 1})" if text[at:] else "at the end"
    raise UsageError(f"where: {what}, {place}")


@dataclass(frozen=True)
class Where:
    """text: the expression."""

    text: str

    @property
    def columns(self) -> set[str]:
        """The columns that it names. Raises UsageError where it is no expression."""
        return {value.name for value in parse(self.text).values.values() if isinstance(value, _Column)}

    def check(self, schema: pa.Schema) -> None:
        """Raise UsageError, with the place, unless it can be decided for every row of such a table."""
        self.mask(schema.empty_table())

    def check_labels(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Raise UsageError, with the place, where a label is compared with a text that is no class of the model.

        labels: what the columns of labels may hold, by name.
        """
        found = parse(self.text)
        chains = (node for node in ast.walk(found.tree) if isinstance(node, ast.Compare))
        for test in sorted((test for chain in chains for test in found.tests(chain)), key=lambda test: test.at):
            sides = (test.left, *test.right)
            named = next((side.name for side in sides if isinstance(side, _Column) and side.name in labels), None)
            if named is None:
                continue
            classes = labels[named]
            for side in sides:
                if isinstance(side, _Literal) and isinstance(side.value, str) and side.value not in classes:
                    known = ", ".join(classes[:_MOST_CLASSES]) + (", …" if len(classes) > _MOST_CLASSES else "")
                    refuse(self.text, side.at, f"the model has no class {side.value!r} (it has {known})")

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """For which rows it is true. Raises UsageError for a column that is not there, or of another type."""
        found = parse(self.text)
        decided = _Decision(self.text, found, table).truth(found.tree)
        return np.asarray(pc.fill_null(decided, False).to_numpy(zero_copy_only=False), np.bool_)


@dataclass(frozen=True)
class _Decision:
    """An expression over the rows of a table. Methods raise UsageError for what does not fit its columns."""

    text: str
    expression: _Expression
    table: pa.Table

    def truth(self, node: ast.expr) -> pa.Array:
        """True, false or null for each row."""
        if isinstance(node, ast.BoolOp):
            join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            return reduce(join, map(self.truth, node.values))
        if isinstance(node, ast.UnaryOp):
            return pc.invert(self.truth(node.operand))
        if isinstance(node, ast.Compare):
            return reduce(pc.and_kleene, map(self._tested, self.expression.tests(node)))
        value = self.expression.values[_name(node)]
        if isinstance(value, _Literal):
            if not isinstance(value.value, bool):
                refuse(self.text, value.at, "this is neither true nor false: compare it with something")
            return self._constant(value.value)
        column = self._column(value)
        if _kind(column.type) != "true or false":
            refuse(self.text, value.at, f"{value.name!r} is {_kind(column.type)}: compare it with something")
        return column

    def _tested(self, test: _Test) -> pa.Array:
        if test.how in (ast.Is, ast.IsNot):
            left = test.left
            found = self._constant(False) if isinstance(left, _Literal) else self._column(left).is_null()
        elif test.how in (ast.In, ast.NotIn):
            found = reduce(pc.or_kleene, (self._compare(test.at, test.left, ast.Eq, each) for each in test.right))
        else:
            found = self._compare(test.at, test.left, test.how, test.right[0])
        return pc.invert(found) if test.how in (ast.IsNot, ast.NotIn) else found

    def _compare(self, at: int, left: _Column | _Literal, how: type[ast.cmpop], right: _Column | _Literal) -> pa.Array:
        of_columns, of_literals = _COMPARE[how]
        if isinstance(left, _Literal) and isinstance(right, _Literal):
            if _kind_of(left) != _kind_of(right):
                self._refuse_kinds(at, left, _kind_of(left), right, _kind_of(right))
            return self._constant(of_literals(left.value, right.value))
        if isinstance(left, _Literal):
            return self._compare(at, right, _TURNED.get(how, how), left)
        column = self._column(left)
        kind = _kind(column.type)
        other: pa.Array | pa.Scalar
        if isinstance(right, _Column):
            other = self._column(right)
            if _kind(other.type) != kind:
                self._refuse_kinds(at, left, kind, right, _kind(other.type))
            if column.type != other.type and kind == "a number":
                column, other = column.cast(pa.float64(), safe=False), other.cast(pa.float64(), safe=False)
        elif kind != _kind_of(right) and not (kind == "a time" and isinstance(right.value, str)):
            self._refuse_kinds(at, left, kind, right, _kind_of(right))
        elif kind == "a number":
            column, other = self._numbers(column, right)
        else:
            other = self._scalar(right, column.type)
        try:
            return of_columns(column, other)
        except pa.ArrowException as error:
            refuse(self.text, at, f"these cannot be compared ({str(error).splitlines()[0]})")

    def _numbers(self, column: pa.Array, literal: _Literal) -> tuple[pa.Array, pa.Scalar]:
        """Both of one type. A literal takes the type of a float32 column: 0.9 is the score that is shown as 0.9."""
        value, kind = literal.value, column.type
        if pa.types.is_floating(kind):
            return column, self._scalar(_Literal(literal.at, float(value)), kind)
        if pa.types.is_integer(kind) and isinstance(value, int):
            if pa.types.is_uint64(kind) and 0 <= value < 1 << 64:
                return column, pa.scalar(value, kind)
            if not pa.types.is_uint64(kind) and -1 << 63 <= value < 1 << 63:
                return column.cast(pa.int64()), pa.scalar(value, pa.int64())
        return column.cast(pa.float64(), safe=False), pa.scalar(float(value), pa.float64())

    def _scalar(self, literal: _Literal, kind: pa.DataType) -> pa.Scalar:
        """As a value of a column. A time without a zone is one in the column's zone."""
        value = pa.scalar(literal.value)
        try:
            if pa.types.is_timestamp(kind) and kind.tz is not None and not _ZONE.search(str(literal.value)):
                return pc.assume_timezone(value.cast(pa.timestamp(kind.unit)), kind.tz)
            return value.cast(kind, safe=False)
        except pa.ArrowException:
            refuse(self.text, literal.at, f"this is no {kind}")

    def _column(self, node: _Column) -> pa.Array:
        if node.name not in self.table.column_names:
            known = ", ".join(map(written, self.table.column_names))
            meant = did_you_mean(node.name, self.table.column_names)
            refuse(self.text, node.at, f"there is no column {node.name!r} (there are {known}){meant}")
        column = self.table.column(node.name).combine_chunks()
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

    def _constant(self, value: bool) -> pa.Array:
        return pa.repeat(value, len(self.table))

    def _refuse_kinds(
        self, at: int, left: _Column | _Literal, kind: str, right: _Column | _Literal, other: str
    ) -> NoReturn:
        names = [node.name if isinstance(node, _Column) else node.value for node in (left, right)]
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


def _kind_of(literal: _Literal) -> str:
    if isinstance(literal.value, bool):
        return "true or false"
    return "text" if isinstance(literal.value, str) else "a number"
