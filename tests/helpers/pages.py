"""Reads the code blocks of a page of the documentation."""

from __future__ import annotations

import re

from conftest import ROOT

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def blocks(page: str, language: str) -> dict[str, list[str]]:
    """Return the code blocks in a language, by the heading above them."""
    text = (ROOT / "docs" / page).read_text()
    code = [match.span() for match in _BLOCK.finditer(text)]
    headings = [m for m in _HEADING.finditer(text) if not any(start < m.start() < end for start, end in code)]
    found: dict[str, list[str]] = {}
    for match in _BLOCK.finditer(text):
        if match[1] == language:
            above = [heading[1] for heading in headings if heading.start() < match.start()][-1]
            found.setdefault(above, []).append(match[2])
    return found
