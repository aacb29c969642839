"""A file a format, and which of them reads which files: found here by suffix, then part of the file it reads."""

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
    """Have files with the suffixes of this format read by it. The workers must be able to import it.

    Raises ValueError where one of them belongs to another format.
    """
    if taken := FORMATS.keys() & added.suffixes:
        raise ValueError(f"{added.name} cannot have {min(taken)}: it belongs to {FORMATS[min(taken)].name}")
    FORMATS.update(dict.fromkeys(added.suffixes, added))


def unregister(removed: Format) -> None:
    """Take a format out again."""
    for suffix in removed.suffixes:
        del FORMATS[suffix]


for _format in (Csv(), Tsv(), Jsonl(), Parquet(), Text(), OneHot()):
    register(_format)
