"""Docstrings name what is there: the public ones name each parameter, and their examples run. All others name only
parameters, fields and names that exist.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from pyarrow import csv
from test_english import NAMES as OLD_NAMES

import broadsheet
from broadsheet import cluster
from broadsheet.pipeline import duckdb, sklearn, train
from broadsheet.pipeline.model.charcnn import Model

torch = pytest.importorskip("torch")

IN_JOBS = {"JobReport.in_file", "Options.replaced", "Options.model_columns", "Options.selection", "Options.settings"}
"""Methods that jobs call, and users do not."""

PARAMETER = re.compile(rf"(?:^|[.,;] )({'|'.join(sorted(OLD_NAMES))}): ", re.MULTILINE)
"""One of these names before the text that explains it, as in a docstring without sections."""

IDENTIFIERS = ("id", "attr", "arg", "name", "asname")
"""The fields of syntax trees that hold identifiers."""

NAMES = [name for name in broadsheet.__all__ if name != "__version__"]

OF_A_SERVER = {"AsyncClient", "Client", "ServerError"}  # tests/serve/test_serve.py runs their examples
# "push" needs a Hub: see tests/ecosystem/test_hub.py.
EXAMPLES = sorted({"broadsheet", *NAMES} - OF_A_SERVER - {"push"})


def members() -> Iterator[tuple[str, Any]]:
    """Yield the public names, and the public methods of the classes among them."""
    for name in NAMES:
        found = getattr(broadsheet, name)
        yield name, found
        if inspect.isclass(found) and found.__module__.split(".")[0] == "broadsheet":
            for method, function in vars(found).items():
                of_users = not method.startswith("_") and f"{name}.{method}" not in IN_JOBS
                if of_users and inspect.isfunction(getattr(function, "__func__", function)):
                    yield f"{name}.{method}", getattr(found, method)


def documented(text: str, section: str) -> list[str]:
    """Return the names that a numpydoc section has."""
    body = re.search(rf"^{section}\n-+\n(.*?)(?=\n\n\S[^\n]*\n---|\Z)", text, re.S | re.M)
    lines = body[1].splitlines() if body else []
    return [name.strip() for line in lines if re.match(r"\S", line) for name in line.split(" : ")[0].split(",")]


def signatures() -> Iterator[tuple[str, inspect.Signature]]:
    """Yield the signatures of public functions, classes and methods, also of modules that a user imports on
    their own.
    """
    more = [(module, name) for module in (cluster, train) for name in module.__all__]
    more += [(duckdb, "register"), (sklearn, "TextClassifier")]
    for name, found in [*members(), *((name, getattr(module, name)) for module, name in more)]:
        of_class = vars(found).items() if inspect.isclass(found) else ()
        methods = [(f"{name}.{key}", getattr(found, key)) for key, value in of_class if not key.startswith("_")]
        for each, member in [(name, found), *methods]:
            if callable(member) and not (inspect.isclass(member) and issubclass(member, Exception)):
                yield each, inspect.signature(member)


def test_the_defaults_of_public_signatures_are_plain() -> None:
    """Defaults can be read and typed: no `<factory>` and no `<function …>`."""
    checked = 0
    for name, signature in signatures():
        for parameter in signature.parameters.values():
            if parameter.default is not parameter.empty:
                checked += 1
                shown = repr(parameter.default)
                try:
                    assert ast.literal_eval(shown) == parameter.default
                except (SyntaxError, ValueError):
                    pytest.fail(f"{name}: {parameter.name} is shown as {shown}")
    assert checked > 200


@pytest.mark.parametrize(("name", "found"), [pytest.param(*pair, id=pair[0]) for pair in members()])
def test_every_parameter_is_documented(name: str, found: Any) -> None:
    text = inspect.getdoc(found) or ""
    assert text
    if inspect.isclass(found) and issubclass(found, Exception) and "__init__" not in vars(found):
        return  # only the package creates it
    parameters = [p for p in inspect.signature(found).parameters if p not in ("self", "cls")]
    if name == "Options":
        text = inspect.getdoc(broadsheet.classify) or ""  # its own docstring refers to that one
        assert set(parameters) <= set(documented(text, "Parameters"))
    elif parameters:
        named = documented(text, "Parameters") or documented(text, "Attributes")
        assert set(parameters) == set(named), (parameters, named)


Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def own_names(node: Defined) -> set[str]:
    """The parameters of a function, or the parameters, fields, attributes and methods of a class without its bases."""
    if not isinstance(node, ast.ClassDef):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {each.name} | (own_names(each) if each.name in ("__init__", "__new__", "__call__") else set())
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            found.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
    return found


def with_bases(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """The names of each class, with those of its bases in these modules."""
    classes = {each.name: each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}

    def names(node: ast.ClassDef) -> set[str]:
        above = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        return own_names(node).union(*map(names, above))

    return {name: names(node) for name, node in classes.items()}


def absent_names(tree: ast.Module, classes: dict[str, set[str]]) -> Iterator[str]:
    """What docstrings of a module name and the code does not have. classes: the names of each class."""
    nodes = list(ast.walk(tree))
    texts = {node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    # Check the parameters and fields of each function and class.
    for node in nodes:
        if isinstance(node, Defined) and (text := ast.get_docstring(node)):
            there = own_names(node) | (classes.get(node.name, set()) if isinstance(node, ast.ClassDef) else set())
            for section in ("Parameters", "Attributes"):
                names = [name.lstrip("*") for name in documented(text, section)]
                yield from (f"{node.name}, {section}: {name}" for name in names if name not in there)
            yield from (f"{node.name}: {name}:" for name in PARAMETER.findall(text) if name not in there)
    # Check the everyday words in backticks against all identifiers of the module, and the words of its short strings.
    known = {value for node in nodes for key in IDENTIFIERS if isinstance(value := getattr(node, key, None), str)}
    strings = (node.value for node in {*nodes} - texts if isinstance(node, ast.Constant))
    for value in strings:
        known.update(re.findall(r"\w+", value) if isinstance(value, str) and len(value) < 60 else ())
    for text in (node.value for node in texts if isinstance(node.value, str)):
        yield from (f"`{name}`" for name in re.findall(r"(?<!`)`([a-z_]+)`(?!`)", text) if name in OLD_NAMES - known)


def test_docstrings_name_only_what_is_there() -> None:
    """A parameter or a field that was renamed keeps its old name in no docstring."""
    files = sorted(file for folder in ("pipeline", "cluster", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
    trees = {file: ast.parse(file.read_text()) for file in files}
    classes = with_bases(trees.values())
    absent = ((file.relative_to(ROOT), name) for file, tree in trees.items() for name in absent_names(tree, classes))
    lines = [f"{file}: {name}" for file, name in absent]
    assert not lines, "no such name:\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("docstring", "absent"),
    [
        ("Parameters\n    ----------\n    a, *b : int\n        Both.\n", []),
        ("Parameters\n    ----------\n    a, kept : int\n        Both.\n", ["f, Parameters: kept"]),
        ("Return `a`. how: the way.", ["f: how:"]),
        ("Return `kept` and `a`, and say `nothing` of it.", ["`kept`"]),
        ("Return `done`, a column.", []),
    ],
)
def test_an_absent_name_is_found(docstring: str, absent: list[str]) -> None:
    tree = ast.parse(f'def f(a, *b):\n    """{docstring}"""\n    return "done"\n')
    assert list(absent_names(tree, {})) == absent


@pytest.fixture(scope="module")
def folder(small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples name."""
    made = tmp_path_factory.mktemp("examples")
    texts = ["Stocks fell on Monday as oil prices rose.", "The home team won the cup final."] * 50
    topics = ["Business", "Sports"] * 48 + ["Sports", "Business"] * 2
    rows = pa.table({"title": texts, "body": texts, "topic": topics, "year": [2024] * 100})
    for name in ("news.csv", "held_back.csv"):
        csv.write_csv(rows, made / name)
    csv.write_csv(pa.table({"text": texts[:2]}), made / "january.csv")
    for name, table in (("news", rows.slice(0, 4)), ("february", pa.table({"text": texts[:2]}))):
        (made / name).mkdir()
        pq.write_table(table, made / name / "part.parquet")
    broadsheet.load_model("ag-news").save(made / "news.safetensors")
    small_model.save(made / "topics.safetensors")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shutil.rmtree("labels", ignore_errors=True)
    found = broadsheet if name == "broadsheet" else getattr(broadsheet, name)
    text = inspect.getdoc(found) or ""
    names = {"broadsheet": broadsheet, "pd": pd, "dask": dask, "torch": torch}
    test = doctest.DocTestParser().get_doctest(text, names, name, inspect.getsourcefile(found), 0)
    if not (inspect.isclass(found) and issubclass(found, Exception)):
        assert test.examples, "no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)
