"""Data flows one way: the map in docs/architecture.md says what each place may import, and the code does no more."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT

PAGE = ROOT / "docs" / "architecture.md"
FREE = {"pipeline/errors.py", "pipeline/processes/threads.py"}
CHECKED = ("broadsheet", "pipeline", "cluster", "benchmarks")
TORCH_IN = ("pipeline/train/", "benchmarks/")


class Rule(NamedTuple):
    """A row of the map. number: from the top."""

    number: int
    may_import: tuple[str, ...]


@cache
def rules() -> dict[str, Rule]:
    text = PAGE.read_text().partition("## The map")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    found = {place.strip(" `"): tuple(re.findall(r"`([^`]+)`", allowed)) for place, _, allowed in rows}
    return {place: Rule(number, allowed) for number, (place, allowed) in enumerate(found.items())}


def files() -> list[str]:
    return sorted(p.relative_to(ROOT).as_posix() for name in CHECKED for p in (ROOT / name).rglob("*.py"))


def within(file: str, place: str) -> bool:
    return file == place or (place.endswith("/") and file.startswith(place))


def place_of(file: str) -> str | None:
    """The most particular row that a file belongs to."""
    return max((place for place in rules() if within(file, place)), key=len, default=None)


def file_of(module: str) -> str | None:
    path = module.replace(".", "/")
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if (ROOT / f).is_file()), None)


@cache
def imports(file: str, for_types: bool = True) -> tuple[set[str], set[str]]:
    """Files of ours that a file imports, in functions too, and names of other people's packages.

    for_types: also what only a type checker imports.
    """
    ours, others = set(), set()
    tree = ast.parse((ROOT / file).read_text())
    if not for_types:
        tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports"
            package = node.module or ""
            modules = [m if file_of(m) else package for m in (f"{package}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            found = file_of(module) if module.partition(".")[0] in CHECKED else None
            if found:
                ours.add(found)
            elif module.partition(".")[0] not in sys.stdlib_module_names:
                others.add(module.partition(".")[0])
    return ours - {file}, others


def packages_of(file: str) -> set[str]:
    """The `__init__.py` of the packages that a file is in."""
    folders = [folder.as_posix() for folder in Path(file).parents if folder.name]
    return {f"{folder}/__init__.py" for folder in folders if (ROOT / folder / "__init__.py").is_file()} - {file}


def allows(place: str, imported: str) -> set[str]:
    """The permissions of a place by which it may import a file."""
    return {allowed for allowed in rules()[place].may_import if within(imported, allowed)}


def test_every_file_has_a_row_and_every_row_a_file() -> None:
    assert [file for file in files() if place_of(file) is None] == []
    assert [place for place in rules() if not any(place_of(file) == place for file in files())] == []


def test_a_place_imports_only_what_the_map_lets_it_and_needs_all_that() -> None:
    forbidden, used = [], {place: set() for place in rules()}
    for file in files():
        place = place_of(file)
        assert place is not None
        for imported in imports(file)[0]:
            permissions = allows(place, imported)
            used[place] |= permissions
            if not permissions and imported not in FREE and place_of(imported) != place:
                forbidden.append(f"{file} imports {imported}")
    assert forbidden == []
    unused = {place: set(rule.may_import) - used[place] for place, rule in rules().items()}
    assert {place: names for place, names in unused.items() if names} == {}


def test_the_map_points_downwards() -> None:
    """What a place may import stands below it."""
    upwards = []
    for place, rule in rules().items():
        for allowed in rule.may_import:
            numbers = [r.number for p, r in rules().items() if within(p, allowed)]
            if min(numbers or [rules()[place_of(allowed) or place].number]) <= rule.number:
                upwards.append(f"{place} -> {allowed}")
    assert upwards == []


def test_no_circle_is_among_the_files() -> None:
    """Imports within functions included: what waits for a function to run is a circle all the same. So is what comes
    with a file because it is in a package.
    """
    done: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> None:
        assert file not in path, " -> ".join((*path[path.index(file) :], file))
        if file not in done:
            direct = imports(file, for_types=False)[0]
            with_them = set().union(*(packages_of(imported) for imported in direct)) - packages_of(file)
            for imported in sorted((direct | with_them) - {file}):
                visit(imported, (*path, file))
            done.add(file)

    for file in files():
        visit(file, ())


def test_torch_stays_out_of_the_package_but_for_training() -> None:
    others = {file for file in files() if "torch" in imports(file)[1]}
    assert {file for file in others if not file.startswith((*TORCH_IN, "pipeline/cli/train.py"))} == set()


def test_the_way_of_a_row_names_each_room_once() -> None:
    """The page's first part is what a newcomer reads."""
    way = PAGE.read_text().partition("## From a row")[2].partition("\n## ")[0]
    named = re.findall(r"\*\*`([^`]+)`\*\*", way)
    assert len(named) == len(set(named))
    rooms = {p.name + "/" * p.is_dir() for p in (ROOT / "pipeline").iterdir() if p.suffix == ".py" or p.is_dir()}
    rooms -= {"__init__.py", "__main__.py", "__pycache__/", "weights/", "errors.py", "threads.py", "visible.py"}
    assert rooms - set(named) == set()
    assert [name for name in named if not (ROOT / "pipeline" / name).exists() and not (ROOT / name).exists()] == []


def test_a_part_is_imported_without_the_others() -> None:
    code = "import sys, cluster.tls, pipeline.errors; assert 'pipeline.api' not in sys.modules, sorted(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
