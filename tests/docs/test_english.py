"""Finds sentences and names that are hard to read: none may be added to those that `english_allowed.txt` lists.

That file counts, for each file of ours, the remaining findings of each kind. A count that is too high fails as well, so
the list only shrinks: after you rewrite a sentence, lower its number, or remove the line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

ALLOWED = Path(__file__).with_name("english_allowed.txt")
PAGES = ("README.md", "CONTRIBUTING.md", "RELEASING.md", "docs/*.md", "findings/README.md")
CODE = ("pipeline/**/*.py", "cluster/**/*.py", "benchmarks/**/*.py")

NAMES = frozenset({"begun", "done", "how", "keep", "kept", "most", "take", "together"})
"""Everyday words that say nothing as the name of a variable, a parameter or an attribute."""

SENTENCES = {
    "opens with Not": re.compile(r"(?:^|[.:!?] )Not (?!to\b|only\b)"),
    "opens with Of": re.compile(r"(?:^|[.:!?] )Of (?!course\b)"),
    "ends with of": re.compile(r"\bof[.;](?: |$)"),
    "is told": re.compile(r"\b(?:is|are|was|were|be) told\b"),
}
"""Patterns to avoid. Write who says what to whom. Begin a sentence with its subject, and end it with a noun."""


class Found(NamedTuple):
    """A finding: something to rewrite."""

    file: str
    kind: str
    line: int
    text: str


def of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page outside code and comments, with their first lines."""
    text = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]*`", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    yield from paragraphs(text, 1)


def paragraphs(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, each joined into one line, with their first line numbers. first: the number of the
    first line.
    """
    lines: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], first):
        bare = re.sub(r"^\s*(?:[-*|>#]+|\d+\.)\s+", "", line).strip()
        if lines and (not bare or bare != line.strip()):
            yield number - len(lines), " ".join(lines)
            lines = []
        lines += [bare] if bare else []


def of_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of comments and docstrings, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from paragraphs(node.value.value, node.lineno)


def names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the names from the list that code gives to variables, parameters and attributes, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg) and node.arg in NAMES:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr.lstrip("_") in NAMES:
            yield node.lineno, node.attr


def found_in(file: str, text: str) -> Iterator[Found]:
    """Yield all findings in a file."""
    prose = of_page(text) if file.endswith(".md") else of_code(text)
    for line, paragraph in prose:
        for kind, pattern in SENTENCES.items():
            yield from (Found(file, kind, line, paragraph) for _ in pattern.finditer(paragraph))
    if file.endswith(".py"):
        yield from (Found(file, "a name of the list", line, name) for line, name in names(text))


def files() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for pattern in (*PAGES, *CODE) for path in ROOT.glob(pattern))


def allowed() -> Counter[tuple[str, str]]:
    lines = (line.split("\t") for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#"))
    return Counter({(file, kind): int(count) for file, kind, count in lines})


@pytest.mark.slow
def test_no_sentence_or_name_is_added_to_those_that_are_allowed() -> None:
    found = [one for file in files() for one in found_in(file, (ROOT / file).read_text())]
    counts, known = Counter((one.file, one.kind) for one in found), allowed()
    added = [one for one in found if counts[one.file, one.kind] > known[one.file, one.kind]]
    lines = [f"{one.file}:{one.line}: {one.kind}: {one.text[:100]}" for one in added]
    lines += [
        f"{ALLOWED.name}: {file} has {counts[file, kind]} in place of {count} of {kind!r}: lower the number"
        for (file, kind), count in known.items()
        if counts[file, kind] < count
    ]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize(
    ("file", "text", "kinds"),
    [
        ("a.md", "Rows are read. Not all of them count.", ["opens with Not"]),
        ("a.md", "Rows that are read, not written. Nothing else.", []),
        ("a.md", "- Of which none was read\n  at all", ["opens with Of"]),
        ("a.md", "Of a file in an archive,\nit is this. Of course.", ["opens with Of"]),
        ("a.md", "That is what it consists\nof.", ["ends with of"]),
        ("a.md", "The user is\ntold. `is told`\n\n```\nis told\n```\n", ["is told"]),
        ("a.py", '"""Not a sentence."""\nx = "is told"  # it is told\n', ["is told", "opens with Not"]),
        ("a.py", "def f(how):\n    self._done = most = 1\n    return kept.done\n", ["a name of the list"] * 3),
    ],
)
def test_each_pattern_is_found_where_it_is_and_nowhere_else(file: str, text: str, kinds: list[str]) -> None:
    assert sorted(one.kind for one in found_in(file, text)) == sorted(kinds)
