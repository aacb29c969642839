"""What `make lint` finds in the words of the pages."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("proselint", reason="the tools of `make lint` are not installed (pip install '.[dev]')")


@pytest.fixture(scope="module")
def prose() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "prose"))


# One case for each of our own lists, one for proselint, and text that is not prose.
@pytest.mark.parametrize(
    ("page", "rules"),
    [
        ("Rows are read in order to count them.", ["broadsheet.plain"]),
        ("A format, e.g. CSV.", ["broadsheet.latin"]),
        ("Rows that are labeled.", ["broadsheet.spelling"]),
        ("Rows of the the file.", ["lexical_illusions"]),
        ("Rows that are labelled, before they are counted.", []),
        ("The option `--labeled`, and [a page](labeled.md).", []),
        ("```\nlabeled in order to\n```\n<!--labeled-->\n", []),
        ("# The row\n\nThe row is read.", []),
    ],
)
def test_words_are_found_where_they_are_prose(prose: dict[str, Any], page: str, rules: list[str]) -> None:
    assert [line.split(": ")[1] for line in prose["found_in"]("a.md", page)] == rules


def test_a_finding_names_the_line_of_the_page(prose: dict[str, Any]) -> None:
    page = "# Title\n\n```\ncode\n```\n\nRows are read prior to that.\n"
    (line,) = prose["found_in"]("a.md", page)
    assert line.startswith("a.md:7:")
    assert "Write 'before', not 'prior to'." in line


def test_the_newest_section_of_the_changelog_is_read_alone(prose: dict[str, Any]) -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0\n\n- old\n"
    section = prose["changes_since_the_last_release"](changelog)
    assert "- new" in section
    assert "- old" not in section
