"""The registry of formats: it chooses one by the suffix of a file."""

from __future__ import annotations

from .arrow import Arrow
from .base import Format
from .csv import Csv, Tsv
from .jsonl import Jsonl
from .onehot import OneHot
from .parquet import Parquet
from .text import Text
from .xlsx import Xlsx

FORMATS: dict[str, Format] = {}
"""The formats by suffix, with the dot."""


def register(added: Format) -> None:
    """Register a format: files with its suffixes are read by it from now on.

    Parameters
    ----------
    added : Format
        The format. It is sent to the workers with each file, so they must be able to import its class.

    Raises
    ------
    ValueError
        If one of its suffixes belongs to another format.

    Examples
    --------
    >>> class Log(Text):
    ...     name = "log"
    ...     suffixes = (".log",)
    >>> register(Log())
    >>> report = broadsheet.classify("messages.log")

    """
    if taken := FORMATS.keys() & added.suffixes:
        raise ValueError(f"{added.name} cannot have {min(taken)}: it belongs to {FORMATS[min(taken)].name}")
    FORMATS.update(dict.fromkeys(added.suffixes, added))


def unregister(removed: Format) -> None:
    """Remove a format that was registered."""
    for suffix in removed.suffixes:
        del FORMATS[suffix]


for _format in (Csv(), Tsv(), Jsonl(), Parquet(), Arrow(), Text(), Xlsx(), OneHot()):
    register(_format)
