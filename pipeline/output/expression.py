"""The grammar of `where`: a text as a tree of comparisons, each with its place in the text.

condition  = both { "or" both }
both       = negation { "and" negation }
negation   = "not" negation | test
test       = value [ comparison value { comparison value }
               | [ "not" ] "in" "(" literal { "," literal } ")"
               | "is" [ "not" ] "null" ]
       | "(" condition ")"
comparison = "==" | "!=" | "<" | "<=" | ">" | ">="
value      = column | literal
column     = a word, or anything between backticks, in which a doubled backtick stands for one
literal    = a number, "text", 'text', true or false; in text, a backslash before a quote or a backslash
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from ..errors import UsageError

_DEEPEST = 50
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_WORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_PLAIN = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
  | `(?P<quoted>(?:[^`]|``)+)`
  | (?P<word>[^\W\d]\w*)
  | (?P<mark>==|!=|<=|>=|<|>|\(|\)|,)
  | (?P<end>$))""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Column:
    """at: where it stands in the text, like that of every node."""

    at: int
    name: str


@dataclass(frozen=True)
class Literal:
    at: int
    value: str | int | float | bool


@dataclass(frozen=True)
class Comparison:
    """`left mark right`, with a mark such as "<="."""

    at: int
    left: Column | Literal
    mark: str
    right: Column | Literal


@dataclass(frozen=True)
class OneOf:
    """`left in (values)`."""

    at: int
    left: Column | Literal
    values: tuple[Literal, ...]


@dataclass(frozen=True)
class IsNull:
    at: int
    left: Column | Literal


@dataclass(frozen=True)
class Not:
    at: int
    inner: Node


@dataclass(frozen=True)
class AllOf:
    """Every one of several is true."""

    at: int
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class AnyOf:
    """At least one of several is true."""

    at: int
    parts: tuple[Node, ...]


Node = Column | Literal | Comparison | OneOf | IsNull | Not | AllOf | AnyOf


def parse(text: str) -> Node:
    """The tree. Raises UsageError, with the place, where the text does not follow the grammar."""
    return _Parser(text).whole()


def written(name: str) -> str:
    """A column as an expression names it."""
    return name if _PLAIN.fullmatch(name) and name not in _WORDS else "`{}`".format(name.replace("`", "``"))


def refuse(text: str, at: int, what: str) -> NoReturn:
    """Raise UsageError about a place in the expression."""
    place = f"at {text[at : at + 20]!r} (character {at + 1})" if text[at:] else "at the end"
    raise UsageError(f"where: {what}, {place}")


class _Parser:
    """Recursive descent: each method reads what its name says, from the token at hand on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = self._depth = 0
        self._next()

    def whole(self) -> Node:
        found = self._condition()
        if self._kind != "end":
            self._refuse("expected `and`, `or` or the end")
        return found

    def _condition(self) -> Node:
        at, parts = self._at, [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else AnyOf(at, tuple(parts))

    def _both(self) -> Node:
        at, parts = self._at, [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else AllOf(at, tuple(parts))

    def _negation(self) -> Node:
        at = self._at
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"more than {_DEEPEST} parentheses and `not` within one another")
        found = Not(at, self._negation()) if self._take("not") else self._test()
        self._depth -= 1
        return found

    def _test(self) -> Node:
        if self._take("("):
            found = self._condition()
            self._expect(")")
            return found
        left, at = self._value(), self._at
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            return Not(at, IsNull(at, left)) if negated else IsNull(at, left)
        negated = self._take("not")
        if negated or self._token == "in":
            self._expect("in")
            found = OneOf(at, left, self._list())
            return Not(at, found) if negated else found
        parts: list[Node] = []
        while self._kind == "mark" and self._token in _COMPARISONS:
            at, mark = self._at, self._token
            self._next()
            right = self._value()
            parts.append(Comparison(at, left, mark, right))
            left = right
        if not parts:
            return left
        return parts[0] if len(parts) == 1 else AllOf(at, tuple(parts))

    def _list(self) -> tuple[Literal, ...]:
        self._expect("(")
        values = [self._literal()]
        while self._take(","):
            values.append(self._literal())
        self._expect(")")
        return tuple(values)

    def _literal(self) -> Literal:
        found = self._value()
        if isinstance(found, Column):
            refuse(self._text, found.at, "expected a number or a text in quotes")
        return found

    def _value(self) -> Column | Literal:
        at, kind, token = self._at, self._kind, self._token
        found: Column | Literal
        if kind == "number":
            is_integer = re.fullmatch(r"-?\d{1,20}", token) is not None
            found = Literal(at, int(token) if is_integer else float(token))
        elif kind == "text":
            found = Literal(at, re.sub(r"\\(.)", r"\1", token[1:-1]))
        elif kind == "quoted":
            found = Column(at, token.replace("``", "`"))
        elif kind == "word" and token in ("true", "false"):
            found = Literal(at, token == "true")
        elif kind == "word" and token not in _WORDS:
            found = Column(at, token)
        elif token == "null":
            self._refuse("a null equals nothing: write `is null` or `is not null`")
        else:
            self._refuse("expected a column, a number or a text in quotes")
        self._next()
        return found

    def _take(self, token: str) -> bool:
        """Whether this is the next token, which is then passed."""
        if self._token != token or self._kind not in ("word", "mark"):
            return False
        self._next()
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            self._refuse(f"expected `{token}`")

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._end)
        if found is None:
            start = len(self._text) - len(self._text[self._end :].lstrip())
            self._refuse_token(start)
        self._kind, self._end = str(found.lastgroup), found.end()
        self._token, self._at = found[self._kind], found.start(self._kind)

    def _refuse(self, what: str) -> NoReturn:
        refuse(self._text, self._at, what)

    def _refuse_token(self, at: int) -> NoReturn:
        hints = {
            "=": "equality is written ==",
            "&": "write `and`",
            "|": "write `or`",
            "!": "write `not` or !=",
            '"': "the quote is never closed, or a backslash stands before something else than a quote or a backslash",
            "'": "the quote is never closed, or a backslash stands before something else than a quote or a backslash",
            "`": "the backtick is never closed",
        }
        what = "a column whose name is no plain word stands between backticks"
        refuse(self._text, at, hints.get(self._text[at], what))
