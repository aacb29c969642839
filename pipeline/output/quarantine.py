r"""Quarantined rows as JSON Lines: file, row, byte_offset, reason and head, the row's first bytes as escaped text.

Well-formed UTF-8 stands for itself; any other byte is `\xNN`, and a backslash is doubled, so `unescape` is exact.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa

from ..errors import OutputError
from ..source.chunk import QUARANTINE_SCHEMA

_ESCAPE = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")


def escape(head: bytes) -> str:
    return head.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", text.encode())


def quarantine_bytes(rows: pa.Table) -> bytes:
    """The lines of a chunk's file. rows: of QUARANTINE_SCHEMA."""
    lines = (row | {"head": escape(row["head"])} for row in rows.to_pylist())
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def quarantine_table(data: bytes, path: object) -> pa.Table:
    """The rows again. Raises OutputError, with `path`, for what `quarantine_bytes` does not write."""
    try:
        rows = [json.loads(line) for line in data.splitlines()]
        return pa.Table.from_pylist([row | {"head": unescape(row["head"])} for row in rows], QUARANTINE_SCHEMA)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise OutputError(f"{path} holds no quarantined rows of a job ({error})") from error
