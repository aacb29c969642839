"""What a message tells a user to install can be installed, wherever this package came from."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
from conftest import ROOT
from packaging.requirements import Requirement

from broadsheet.pipeline.errors import install

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
CALLS = {
    name
    for folder in ("pipeline", "cluster")
    for file in (ROOT / folder).rglob("*.py")
    for name in re.findall(r"install\('([\w-]+)'\)", file.read_text())
}


@pytest.mark.parametrize("extra", sorted(CALLS))
def test_the_command_names_the_packages_of_the_extra(extra: str) -> None:
    assert install(extra).startswith("pip install ")
    named = {Requirement(one).name for one in shlex.split(install(extra))[2:]}
    direct = [Requirement(one) for one in EXTRAS[extra]]
    assert named >= {one.name for one in direct} - {"broadsheet"}
    assert "broadsheet" not in named
    for inner in (name for one in direct if one.name == "broadsheet" for name in one.extras):
        assert named >= {Requirement(one).name for one in EXTRAS[inner]}


def test_no_message_has_an_index_look_for_this_package() -> None:
    files = [file for folder in ("pipeline", "cluster") for file in (ROOT / folder).rglob("*.py")]
    assert [str(file) for file in files if re.search(r"pip install '?broadsheet", file.read_text())] == []
