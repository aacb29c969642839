"""`environment.yml`, the extras and the installed packages form one working set."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest
import yaml
from conftest import ALL, ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from broadsheet.pipeline.model.loading import load_model

CONDA_NAMES = {
    "isal": "python-isal",
    "duckdb": "python-duckdb",
    "cupy-cuda13x": "cupy",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "distributed-ucxx-cu13": "distributed-ucxx",
    "rmm-cu13": "rmm",
}
"""The names of packages in PyPI and in conda, where they differ."""

PINNED_BY_DASK_CUDA = {"dask", "distributed", "bokeh"}
IN_CLONE = {"broadsheet-weights": "broadsheet_weights"}
"""A package that this repository also contains, and its folder."""

IN_CONDA = ("object-stores", "lz4", "cuda13", "cluster", "ucx13", "slurm", "notebook")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def conda() -> dict[str, str]:
    """Return the packages of environment.yml, and their versions as conda writes them."""
    lines = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    found = (re.fullmatch(r"([\w.-]+)(.*)", line) for line in lines if isinstance(line, str))
    return {match[1]: match[2] for match in found if match}


def test_conda_has_what_pip_has_at_a_version_that_pip_allows(project: dict, conda: dict[str, str]) -> None:
    lines = project["dependencies"] + [r for extra in IN_CONDA for r in project["optional-dependencies"][extra]]
    for requirement in map(Requirement, lines):
        if requirement.name in IN_CLONE:
            continue
        name = CONDA_NAMES.get(requirement.name, requirement.name)
        assert name in conda, f"environment.yml lacks {name}"
        if name in PINNED_BY_DASK_CUDA:
            assert conda[name] == ""
        elif conda[name].startswith("="):
            assert requirement.specifier.contains(f"{conda[name][1:]}.0"), f"{requirement}, but conda's {conda[name]}"
        else:
            assert SpecifierSet(conda[name]) == requirement.specifier, f"{requirement}, but conda's {conda[name]}"


def test_the_conda_recipe_needs_what_the_package_needs(project: dict) -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == project["version"]
    assert recipe["build"]["python"]["entry_points"] == [f"{n} = {at}" for n, at in project["scripts"].items()]
    listed = dict(line.split(" ") if " " in line else (line, "") for line in recipe["requirements"]["run"])
    names = {**CONDA_NAMES, "dask": "dask-core"}  # conda's "dask" brings all of its extras
    needed = {names.get(r.name, r.name): str(r.specifier) for r in map(Requirement, project["dependencies"])}
    assert listed == {"python": project["requires-python"]} | needed | {"__unix": ""}


def test_no_lower_bound_is_below_what_the_page_on_security_has_looked_into(project: dict) -> None:
    page = (ROOT / "SECURITY.md").read_text()
    checked = {
        name: SpecifierSet(f">={bound}") for name, bound in re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.M)
    }
    extras = project["optional-dependencies"]
    named = [Requirement(r) for r in project["dependencies"] + extras["train-network"] + extras["notebook"]]
    assert {r.name: r.specifier for r in named if r.name in checked} == checked


def test_what_is_installed_is_what_the_extras_name(project: dict, conda: dict[str, str]) -> None:
    for line in project["dependencies"] + [r for extra in IN_CONDA for r in project["optional-dependencies"][extra]]:
        requirement = Requirement(line)
        try:
            assert requirement.specifier.contains(version(requirement.name)), requirement
        except PackageNotFoundError:
            assert requirement.name not in PINNED_BY_DASK_CUDA


@pytest.mark.skipif(not ALL, reason="only `make test-all` needs every package")
def test_every_package_of_the_tests_is_installed(project: dict) -> None:
    """Otherwise tests of a missing package would be skipped in silence."""
    extras, wanted = project["optional-dependencies"], ["broadsheet[test-all]"]
    for requirement in map(Requirement, wanted):
        if requirement.name == "broadsheet":
            wanted += [line for extra in requirement.extras for line in extras[extra]]
        else:
            assert version(requirement.name), requirement


def test_the_weights_of_the_clone_are_those_that_the_package_needs(project: dict) -> None:
    """The places are the clone, conda's recipe, and what environment.yml installs from the clone."""
    (needed,) = (r for r in map(Requirement, project["dependencies"]) if r.name in IN_CLONE)
    folder = ROOT / IN_CLONE[needed.name]
    weights = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert weights["name"] == needed.name
    assert needed.specifier.contains(weights["version"])
    recipe = yaml.safe_load((ROOT / "conda" / "weights.yaml").read_text())
    assert (recipe["context"]["version"], recipe["package"]["name"]) == (weights["version"], needed.name)
    (by_pip,) = (
        line["pip"]
        for line in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
        if isinstance(line, dict)
    )
    assert by_pip == [f"-e ./{folder.name}", "-e ."]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_card_of_the_weights_is_of_these_weights() -> None:
    model, card = load_model("ag-news"), (ROOT / "broadsheet_weights" / "README.md").read_text()
    test, data = model.card["test"], model.card["data"]
    assert f"`{model.digest}`" in card
    assert f"{model.parameters:,}, {model.dtype}" in card
    assert f"the first {model.length:,} characters" in card
    assert ", ".join(model.classes[:3]) + f" or {model.classes[3]}" in card
    assert f"{test['accuracy']:.2%}".replace("%", " %") + f" of AG News's {test['rows']:,} test rows" in card
    assert f"{data['rows']:,} of AG News's" in card
    assert f"{model.card['temperature fitted on']['calibration error after']:.3f} on {data['held_out_rows']}" in card


def test_every_place_has_the_version_of_the_package(project: dict) -> None:
    version_here = project["version"]
    assert f"image: broadsheet:{version_here}\n" in (ROOT / "examples" / "kubernetes" / "broadsheet.yaml").read_text()
    assert re.findall(r'"version":"([\d.]+)"', (ROOT / "docs" / "http.md").read_text()) == [version_here]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] in (version_here, "Unreleased")
