"""Data flows one way: the map in docs/architecture.md says what each room may import, and the code does no more."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from conftest import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("broadsheet", "pipeline", "cluster", "benchmarks")
TORCH_IN = ("pipeline/train/", "benchmarks/")
MOST_FLOORS, MOST_LINES = 13, 450


@cache
def rows() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Of each row of the map, from the top: its places, and the places that these may import."""
    text = PAGE.read_text().partition("## The map")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    return [(tuple(re.findall(r"`([^`]+)`", own)), tuple(re.findall(r"`([^`]+)`", may))) for own, _, may in cells]


@cache
def row_of_place() -> dict[str, int]:
    return {place: number for number, (places, _) in enumerate(rows()) for place in places}


def files() -> list[str]:
    return sorted(p.relative_to(ROOT).as_posix() for name in PACKAGES for p in (ROOT / name).rglob("*.py"))


@cache
def place_of(file: str) -> str | None:
    """The room of a file, or the file itself where the map names it."""
    found = (place for place in row_of_place() if file == place or (place.endswith("/") and file.startswith(place)))
    return max(found, key=len, default=None)


def file_of(module: str) -> str | None:
    path = module.removeprefix("broadsheet.").replace(".", "/")
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
    """The `__init__.py` of the packages that a file is in."""
    folders = [folder.as_posix() for folder in Path(file).parents if folder.name]
    return {f"{folder}/__init__.py" for folder in folders if (ROOT / folder / "__init__.py").is_file()} - {file}


def arrows() -> dict[tuple[str, str], str]:
    """Which place imports which, with a pair of files for each."""
    found = {}
    for file in files():
        for imported in imports(file)[0]:
            own, other = place_of(file), place_of(imported)
            if own and other and own != other:
                found[own, other] = f"{file} imports {imported}"
    return found


def test_every_file_has_a_room_and_every_room_a_file() -> None:
    """So a file at the root of `pipeline/` is one that the map names."""
    assert [file for file in files() if place_of(file) is None] == []
    assert [place for place in row_of_place() if not any(place_of(file) == place for file in files())] == []


def test_a_room_imports_only_what_the_map_lets_it_and_needs_all_that() -> None:
    found = arrows()
    assert [said for (own, other), said in found.items() if other not in rows()[row_of_place()[own]][1]] == []
    unused = [(own, may) for own, allowed in rows() for may in allowed if not any((one, may) in found for one in own)]
    assert unused == []


def test_the_map_points_downwards() -> None:
    """What a room may import stands below it."""
    upwards = [(own, may) for row, (own, allowed) in enumerate(rows()) for may in allowed if row_of_place()[may] <= row]
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


def test_the_house_has_few_floors_and_short_files() -> None:
    """A place stands on the floor above all that it imports."""
    below: dict[str, set[str]] = {place: set() for place in row_of_place()}
    for own, other in arrows():
        below[own].add(other)

    @cache
    def floor(place: str) -> int:
        return 1 + max(map(floor, below[place]), default=0)

    assert max(map(floor, below)) <= MOST_FLOORS, sorted(below, key=floor)
    long = [file for file in files() if len((ROOT / file).read_text().splitlines()) > MOST_LINES]
    assert [file for file in long if file.startswith("pipeline/")] == []


def test_torch_stays_out_of_the_package_but_for_training() -> None:
    others = {file for file in files() if "torch" in imports(file)[1]}
    assert {file for file in others if not file.startswith((*TORCH_IN, "pipeline/cli/train.py"))} == set()


def test_every_child_is_started_the_one_way() -> None:
    """Which keeps it from importing what lies in the current folder."""
    starts = [f for f in files() if not f.startswith("benchmarks/") and "sys.executable," in (ROOT / f).read_text()]
    assert starts == ["pipeline/processes/child.py"]


def test_the_way_of_a_row_names_each_room_once() -> None:
    """The page's first part is what a newcomer reads."""
    way = PAGE.read_text().partition("## From a row")[2].partition("\n## ")[0]
    named = re.findall(r"\*\*`([^`]+)`\*\*", way)
    assert len(named) == len(set(named))
    rooms = {p.name + "/" * p.is_dir() for p in (ROOT / "pipeline").iterdir() if p.suffix == ".py" or p.is_dir()}
    rooms -= {"__init__.py", "__main__.py", "__pycache__/", "weights/", "errors.py"}
    assert rooms - set(named) == set()
    assert [name for name in named if not (ROOT / "pipeline" / name).exists() and not (ROOT / name).exists()] == []


def test_a_part_is_imported_without_the_others() -> None:
    code = "import sys, broadsheet.cluster.tls; assert 'broadsheet.pipeline.api' not in sys.modules, list(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
