"""Text from anywhere as text that is safe to show: control characters become escapes."""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"  # within words of some scripts and within emoji


def visible(text: str) -> str:
    """The text on one line, in which everything that a terminal or a browser would obey is an escape.

    Control characters, line breaks, lone surrogates (the bytes of a file name that is not UTF-8) and the marks that
    change the direction of writing become escapes as in Python's `repr`; letters, signs and spaces of all scripts stay.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def visible_lines(text: str) -> str:
    """A message of several lines, each `visible`, and indented from the second on, so that none passes for another."""
    return "\n  ".join(visible(line) for line in text.rstrip("\n").split("\n"))


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs":
        return character
    return repr(character)[1:-1]
