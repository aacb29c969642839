"""The formats, a file each, and the registry: which of them reads a file is decided here, by the file's suffix."""

from __future__ import annotations

from pipeline.source.formats.base import Format
from pipeline.source.formats.csv import Csv, Tsv
from pipeline.source.formats.jsonl import Jsonl
from pipeline.source.formats.onehot import OneHot
from pipeline.source.formats.parquet import Parquet
from pipeline.source.formats.text import Text

FORMATS: dict[str, Format] = {}
"""By suffix."""


def register(added: Format) -> None:
    """Read files with the suffixes of a format by it, from now on.

    Parameters
    ----------
    added
        The format. It travels to the workers with each file, so they must be able to import its class.

    Raises
    ------
    ValueError
        If one of its suffixes belongs to another format.

    """
    if taken := FORMATS.keys() & added.suffixes:
        raise ValueError(f"{added.name} cannot have {min(taken)}: it belongs to {FORMATS[min(taken)].name}")
    FORMATS.update(dict.fromkeys(added.suffixes, added))


def unregister(removed: Format) -> None:
    """Remove a format that was registered."""
    for suffix in removed.suffixes:
        del FORMATS[suffix]


for _format in (Csv(), Tsv(), Jsonl(), Parquet(), Text(), OneHot()):
    register(_format)
