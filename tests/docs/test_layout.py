"""Data flows one way: the map in docs/architecture.md says what each room may import, and the code imports no more.
Each room's tests are known too.
"""

from __future__ import annotations

import ast
import re
import runpy
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("broadsheet", "pipeline", "cluster", "benchmarks")
TORCH_IN = ("pipeline/train/", "pipeline/engine/torch_encoder.py", "benchmarks/")
MOST_FLOORS, MOST_LINES = 12, 150
MAP = "docs/architecture.md, The map"


class Row(NamedTuple):
    """A row of the map: its places, the folders and files of their tests, and the places that these may import."""

    own: tuple[str, ...]
    tests: tuple[str, ...]
    may: tuple[str, ...]


@cache
def rows() -> list[Row]:
    """Return the rows of the map, from the top."""
    text = PAGE.read_text().partition("## The map")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:5] for line in text.splitlines() if line.startswith("| `")]
    named = [[tuple(re.findall(r"`([^`]+)`", cell)) for cell in (own, tests, may)] for own, _, tests, may in cells]
    return [Row(*row) for row in named]


@cache
def row_of_place() -> dict[str, int]:
    return {place: number for number, row in enumerate(rows()) for place in row.own}


def none_of(problems: Iterable[str]) -> None:
    """Fail if there are problems, with these sentences and nothing else."""
    if found := "\n".join(problems):
        pytest.fail(found, pytrace=False)


def files() -> list[str]:
    return sorted(p.relative_to(ROOT).as_posix() for name in PACKAGES for p in (ROOT / name).rglob("*.py"))


def closest(file: str, places: Iterable[str]) -> str | None:
    """Return the file itself if it is among the places, or the innermost of its folders there."""
    found = (place for place in places if file == place or (place.endswith("/") and file.startswith(place)))
    return max(found, key=len, default=None)


@cache
def place_of(file: str) -> str | None:
    """Return the room of a file, or the file itself where the map names it."""
    return closest(file, row_of_place())


@cache
def file_of(module: str) -> str | None:
    path = module.removeprefix("broadsheet.").replace(".", "/")
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if (ROOT / f).is_file()), None)


@cache
def tree_of(file: str) -> ast.Module:
    """Parse a file, once for all tests. No test changes the tree."""
    return ast.parse((ROOT / file).read_text())


@cache
def imports(file: str, for_types: bool = True) -> tuple[set[str], set[str]]:
    """Return our files that a file imports, in functions too, and the names of other people's packages.

    for_types: include imports for type checkers only.
    """
    ours, others = set(), set()
    top_level = tree_of(file).body
    if not for_types:
        top_level = [n for n in top_level if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    for node in ast.walk(ast.Module(top_level, [])):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = Path(file).parents[node.level - 1].as_posix().replace("/", ".") if node.level else ""
            package = ".".join(part for part in (above.strip("."), node.module) if part)
            names = (f"{package}.{alias.name}" if package else alias.name for alias in node.names)
            modules = [name if file_of(name) else package for name in names]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            found = file_of(module) if top in PACKAGES else None
            if found:
                ours.add(found)
            elif top not in sys.stdlib_module_names and top not in PACKAGES:
                others.add(top)
    return ours - {file}, others


def packages_of(file: str) -> set[str]:
    """Return the `__init__.py` of the packages that contain a file."""
    folders = [folder.as_posix() for folder in Path(file).parents if folder.name]
    return {f"{folder}/__init__.py" for folder in folders if (ROOT / folder / "__init__.py").is_file()} - {file}


def arrows() -> dict[tuple[str, str], str]:
    """Return which place imports which, with a pair of files for each."""
    found = {}
    for file in files():
        for imported in imports(file)[0]:
            own, other = place_of(file), place_of(imported)
            if own and other and own != other:
                found[own, other] = f"{file} imports {imported}"
    return found


def test_every_file_has_a_room_and_every_room_a_file() -> None:
    """So the map names each file at the root of `pipeline/`."""
    none_of(f"{file} is in no room: add it to {MAP}, or move it" for file in files() if place_of(file) is None)
    held = {place_of(file) for file in files()}
    none_of(f"{place} holds no file: take it out of {MAP}" for place in row_of_place() if place not in held)


def test_readmes_of_rooms_name_files_that_are_there() -> None:
    for readme in sorted((ROOT / "pipeline").glob("*/README.md")):
        named = re.findall(r"`([\w./]+(?:\.py|/))`", readme.read_text())
        assert len(named) > 5, f"{readme} names no files"
        none_of(f"{readme}: there is no {name}" for name in named if not (readme.parent / name).exists())


def test_classes_that_pages_name_are_there() -> None:
    sources = [path for room in PACKAGES for path in (ROOT / room).rglob("*") if path.suffix in {".py", ".cu", ".cuh"}]
    code = "\n".join(path.read_text() for path in sources)
    defined = set(re.findall(r"^\s*(?:class|struct) (\w+)|^(\w+) = ", code, re.MULTILINE))
    names = {name for pair in defined for name in pair}
    pages = [PAGE, ROOT / "docs" / "kernels.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("pipeline/*/README.md")]
    for page in pages:
        assert {*re.findall(r"`([A-Z][a-z]\w*)`", page.read_text())} <= names, page


def test_every_room_has_tests_and_every_test_a_room() -> None:
    places = [place for row in rows() for place in row.tests]
    none_of(f"{row.own[0]} names no tests in {MAP}" for row in rows() if not row.tests)
    none_of(f"{place} is named twice as tests in {MAP}" for place in {*places} if places.count(place) > 1)
    tests = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")]
    none_of(f"{test} is of no room: name it, or its folder, in {MAP}" for test in tests if not closest(test, places))
    held = {closest(test, places) for test in tests}
    none_of(f"{place} holds no tests: take it out of {MAP}" for place in places if place not in held)


def test_a_room_imports_only_what_the_map_lets_it_and_needs_all_that() -> None:
    found = arrows()
    none_of(
        f"{said}, but {own} may not import {other} ({MAP})"
        for (own, other), said in found.items()
        if other not in rows()[row_of_place()[own]].may
    )
    none_of(
        f"{' '.join(row.own)} may import {may}, and does not: take that out of {MAP}"
        for row in rows()
        for may in row.may
        if not any((one, may) in found for one in row.own)
    )


def test_the_map_points_downwards() -> None:
    """The rooms that a room may import are below it."""
    none_of(
        f"{row.own[0]} may import {may}, which does not stand below it in {MAP}"
        for number, row in enumerate(rows())
        for may in row.may
        if row_of_place()[may] <= number
    )


def test_no_circle_is_among_the_files() -> None:
    """An import counts even if it waits until a function runs, or is for type checkers only. So does a file that runs
    because its package is imported.
    """
    done: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> None:
        if file in path:
            pytest.fail("a circle of imports: " + " -> ".join((*path[path.index(file) :], file)), pytrace=False)
        if file not in done:
            direct = imports(file, for_types=False)[0]
            # A package lists its names for type checkers, and imports them when they are used.
            is_package = file.endswith("__init__.py")
            for_types = set() if is_package else {f for f in imports(file)[0] - direct if not f.endswith("__init__.py")}
            with_them = set().union(*(packages_of(imported) for imported in direct)) - packages_of(file)
            for imported in sorted((direct | for_types | with_them) - {file}):
                visit(imported, (*path, file))
            done.add(file)

    for file in files():
        visit(file, ())


@pytest.mark.slow
def test_the_house_has_few_floors_and_short_files() -> None:
    """A place is on the floor above all that it imports."""
    below: dict[str, set[str]] = {place: set() for place in row_of_place()}
    for own, other in arrows():
        if row_of_place()[own] < row_of_place()[other]:  # other files are in no map
            below[own].add(other)

    @cache
    def floor(place: str) -> int:
        return 1 + max(map(floor, below[place]), default=0)

    assert max(map(floor, below)) <= MOST_FLOORS, sorted(below, key=floor)
    measured = runpy.run_path(str(ROOT / ".ci" / "size"))["measured"]
    lines = [measured(ROOT / file).code_lines for file in files() if file.startswith("pipeline/")]
    assert statistics.median(lines) <= MOST_LINES, "half of the files of pipeline/ are longer: split some"


def test_records_and_long_signatures_have_sections() -> None:
    """A record of three or more fields has `Attributes`. A function of five or more parameters, or its class, has
    `Parameters`. A command needs none: its docstring is its help, and the table of options describes each.
    """
    for file in files():
        if file.startswith(("pipeline/cli/", "pipeline/options/")):
            continue
        tree = tree_of(file)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in classes:
            marks = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.bases)]
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            if len(fields) >= 3 and any("dataclass" in mark or mark in ("NamedTuple", "TypedDict") for mark in marks):
                assert "Attributes\n" in (ast.get_docstring(node) or ""), f"{file}: {node.name}"
        of_class = {item: node for node in classes for item in node.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)} - {"self", "cls"}
                made = of_class.get(node) if node.name == "__init__" else None
                text = (ast.get_docstring(node) or "") + ((made and ast.get_docstring(made)) or "")
                assert len(names) < 5 or "Parameters\n" in text or "Attributes\n" in text, f"{file}: {node.name}"


def test_modules_that_are_named_in_strings_are_there() -> None:
    """These are modules that a process is started with, or that it imports before others fork from it. Python does not
    report that such a module is missing.
    """
    for file in files():
        for node in ast.walk(tree_of(file)):
            name = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.fullmatch(r"(broadsheet\.)?(pipeline|cluster)(\.[a-z_]+)+", name) and not name.endswith(".log"):
                assert file_of(name), f"{file} names {name}, which is no module"


def test_torch_stays_out_of_the_package_but_for_training_and_one_engine() -> None:
    others = {file for file in files() if "torch" in imports(file)[1]}
    assert {file for file in others if not file.startswith((*TORCH_IN, "pipeline/cli/train.py"))} == set()


SET = {"STATE", "ENGINES", "FOOTERS", "FORKS", "Limits"}
"""Objects whose fields tests may set."""


def patches(code: str, above: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the lines of a test that change a name of our packages, also in code that the test holds as a string."""
    tree = ast.parse(code)
    ours = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (node.module or "" if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0] in PACKAGES
    } - SET

    def is_ours(target: ast.expr) -> bool:
        if isinstance(target, ast.Constant):
            return str(target.value).startswith(tuple(f"{package}." for package in PACKAGES))
        while isinstance(target, ast.Attribute):
            target = target.value
        return isinstance(target, ast.Name) and target.id in ours

    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")
            if called[2] in ("setattr", "delattr", "patch") or called[0].endswith("patch"):  # mock.patch, patch.object
                targets = node.args[:1]
        elif isinstance(node, ast.Assign | ast.Delete):
            targets = [
                each
                for target in node.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load)
            ]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            targets = [node.target]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                yield from patches(dedent(node.value), above + node.lineno - 1)
            except SyntaxError:  # the string is not code
                continue
        yield from ((above + node.lineno, ast.unparse(target)) for target in targets if is_ours(target))


def test_no_test_patches_a_name_of_ours() -> None:
    """Fields of `STATE`, `ENGINES`, `FOOTERS` and `FORKS` are exceptions, made for tests to set."""
    none_of(
        f"{file.relative_to(ROOT)}:{line} patches {name}: pass an argument, or set a field of one of {sorted(SET)}"
        for file in sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)})
        for line, name in patches(file.read_text())
    )


PATCHES = [
    "from broadsheet.pipeline.model import ngrams\nmonkeypatch.setattr(ngrams, 'BITS', 1)",
    "import broadsheet.pipeline as b\nb.api.classify = None",
    "from broadsheet.cluster import connect\nwith mock.patch.object(connect, 'x'): pass",
    "patch('pipeline.api.classify')",
    "monkeypatch.setattr('broadsheet.pipeline.api.classify', None)",
    "CODE = 'from broadsheet.pipeline import api\\napi.classify, x = 1, 2'",
]


@pytest.mark.parametrize("code", PATCHES)
def test_a_patch_is_found(code: str) -> None:
    assert len(list(patches(code))) == 1
    assert not list(
        patches("from broadsheet.pipeline.job.worker import STATE\nSTATE.read = None\nimport time\ntime.time = None")
    )


def test_every_child_is_started_the_one_way() -> None:
    """That way keeps a child process from importing what is in the current folder."""
    starts = [f for f in files() if not f.startswith("benchmarks/") and "sys.executable," in (ROOT / f).read_text()]
    assert starts == ["pipeline/processes/child.py"]


def test_the_way_of_a_row_names_each_room_once() -> None:
    """The page's first part is what a newcomer reads."""
    way = PAGE.read_text().partition("## From a row")[2].partition("\n## ")[0]
    named = re.findall(r"\*\*`([^`]+)`\*\*", way)
    assert len(named) == len(set(named))
    rooms = {p.name + "/" * p.is_dir() for p in (ROOT / "pipeline").iterdir() if p.suffix == ".py" or p.is_dir()}
    rooms -= {"__init__.py", "__pycache__/", "errors.py"}
    assert rooms - set(named) == set()
    assert [name for name in named if not (ROOT / "pipeline" / name).exists() and not (ROOT / name).exists()] == []


def test_a_part_is_imported_without_the_others() -> None:
    code = "import sys, broadsheet.cluster.tls; assert 'broadsheet.pipeline.api' not in sys.modules, list(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
