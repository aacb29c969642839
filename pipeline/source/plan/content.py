"""Finds the format of a file by its first bytes, if its name does not tell it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from ..formats.jsonl import Jsonl
from ..formats.record_format import FEW_BYTES
from ..formats.records import BOM
from ..open.containers import container_of
from ..open.decompress import beginning, why
from ..open.frames import NotSupported
from ..rows.compression import HEAD_BYTES, compression_of, looks_like
from ..rows.format import Format

_JSON_LINE = re.compile(rb'\s*\{[ \t]*"')
_EMPTY_OBJECT_LINE = re.compile(rb"\s*\{[ \t]*\}[ \t]*\r?\n\s*\S")
HEADS = (FEW_BYTES, 16 << 20)
"""How many first bytes are read; and how many are read in a second try, if these are too few to decompress anything,
because the file is compressed in larger blocks.
"""
_SHOWN = 40
"""How many bytes of the first line a message shows."""


class Kind(Enum):
    """What the first bytes of a file tell about it.

    Attributes
    ----------
    READABLE
        Its format is known.
    OTHER
        It is no input, but a configuration, for example.
    UNKNOWN
        It should hold rows, and its format is not known.
    UNREADABLE
        It cannot be read at all.
    CUT
        More bytes are needed to decompress its beginning.

    """

    READABLE = auto()
    OTHER = auto()
    UNKNOWN = auto()
    UNREADABLE = auto()
    CUT = auto()


class Told(NamedTuple):
    """The result of looking at the first bytes of a file.

    Attributes
    ----------
    kind : Kind
        Whether the file can be read.
    suffix : str
        The suffix of its format, if it can be read.
    reason : str
        Why it cannot be read, otherwise.

    """

    kind: Kind
    suffix: str = ""
    reason: str = ""


def told_by(stored: bytes, is_whole: bool, compression: str | None, is_json: bool, formats: Iterable[Format]) -> Told:
    """Find out what a file is by its first bytes.

    Parameters
    ----------
    stored : bytes
        The first bytes, as they are stored.
    is_whole : bool
        Whether these are all bytes of the file.
    compression : str or None
        The compression that the file's name promises.
    is_json : bool
        Whether the file is called .json.
    formats : iterable of Format
        The formats to compare with.

    """
    found = compression_of(stored[:HEAD_BYTES], compression)
    head, failure = beginning(stored, found, FEW_BYTES)
    if not head and isinstance(failure, NotSupported):
        return Told(Kind.UNREADABLE, reason=str(failure))
    if not head and failure is not None:
        kind = Kind.UNREADABLE if is_whole or not isinstance(failure, EOFError) else Kind.CUT
        return Told(kind, reason=f"cut off or damaged, so that nothing of it can be read ({why(failure)})")
    text = head.removeprefix(BOM)
    for form in formats:
        if form.magic and head.startswith(form.magic):
            return Told(Kind.READABLE, form.suffixes[0])
    if other := container_of(head):
        return Told(Kind.UNKNOWN, reason=f"it is a {other} file by its first bytes; unpack it")
    if encoding := looks_like(head):  # the reader of the file asks for --encoding
        text = head.decode(encoding, "ignore").encode().removeprefix(BOM)
    if not text.strip() or _JSON_LINE.match(text) or _EMPTY_OBJECT_LINE.match(text):
        return Told(Kind.READABLE, Jsonl.suffixes[0])
    reason = _why_not_lines(text, is_json)
    if is_json and found is None and is_whole and _is_one_object(text):
        return Told(Kind.OTHER, reason=reason)
    return Told(Kind.UNKNOWN, reason=reason)


def _is_one_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _why_not_lines(text: bytes, is_json: bool) -> str:
    """Return why a file is not read as JSON Lines, and a remedy."""
    begin = text.lstrip()
    line = begin.partition(b"\n")[0]
    what = f"its first line is {line[:_SHOWN].decode('utf-8', 'replace')!a}{'…' if len(line) > _SHOWN else ''}"
    remedy = ""
    if begin.startswith(b"["):
        what, remedy = "it is a JSON array", " (jq -c '.[]' FILE > FILE.jsonl)"
    elif begin.startswith(b"{"):
        what, remedy = "its JSON objects have several lines", " (jq -c . FILE > FILE.jsonl)"
    expected = "it must hold an object a line" if is_json or remedy else "its name does not tell its format"
    return f"{what}, and {expected}{remedy}, or --input-format names the format of all files"
