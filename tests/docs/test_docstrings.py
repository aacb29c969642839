"""The docstrings of the public names: each parameter is in its place, and the examples run."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import broadsheet
from broadsheet import cluster
from broadsheet.pipeline import duckdb, sklearn, train
from broadsheet.pipeline.model.charcnn import Model

torch = pytest.importorskip("torch")

IN_JOBS = {"JobReport.in_file", "Options.replaced", "Options.model_columns", "Options.selection", "Options.settings"}
"""Methods that jobs call, and users do not."""

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
