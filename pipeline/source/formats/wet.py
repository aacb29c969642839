"""WET files, in which Common Crawl publishes the text of web pages. Each WARC record of the type "conversion" is a row.

Records are found here rather than by a library such as fastwarc or warcio. These skip damaged bytes without an error,
and give the place of a record in the compressed file. Here each byte belongs to a record with a number, or to a row of
the quarantine. A record ends where its Content-Length says, if a blank line or the next record follows. Otherwise it is
damaged, and ends where the next one begins. So damage costs only the records in which it is. A compressed file ends at
its damage, like any other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...errors import SourceError, first_of
from ..rows.chunk import Selection
from ..rows.format import InputFile, Schema
from .record_format import RecordFormat
from .records import Split

_HEADERS = {
    "url": b"WARC-Target-URI",
    "date": b"WARC-Date",
    "language": b"WARC-Identified-Content-Language",
    "id": b"WARC-Record-ID",
    "refers_to": b"WARC-Refers-To",
    "digest": b"WARC-Block-Digest",
}
"""The columns beside the text, and their headers."""

_CONVERSION = b"conversion"
_TYPES = {_CONVERSION, *b"warcinfo response resource request metadata revisit continuation".split()}

_FOLD = re.compile(rb"[ \t]*\r\n[ \t]+")
"""The line break within a field of a header that continues in the next line. It stands for a space."""

_BEGIN = re.compile(rb"WARC/[01]\.[01]\r\n")
_BEGIN_BYTES = 10
_BLANK_LINES = re.compile(rb"[\r\n]*")
_BLANK = b"\r\n\r\n"
_MOST_HEADER = 64 << 10


def _field(name: bytes, value: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\r\n%s:[ \t]*(%s)[ \t]*\r\n" % (re.escape(name), value), re.IGNORECASE)


_FIELDS = {name: _field(header, rb"[^\r\n]*?") for name, header in _HEADERS.items()}
_TYPE, _LENGTH = _field(b"WARC-Type", rb"[^\r\n]*?"), _field(b"Content-Length", rb"\d{1,18}")


class _Piece(NamedTuple):
    """A record, or bytes that belong to none.

    Attributes
    ----------
    end : int
        Where the content of the piece ends.
    after : int
        Where the next piece begins.
    kind : bytes
        The type of a whole record.
    problem : str
        Why the piece is damaged; empty if it is not.

    """

    end: int
    after: int
    kind: bytes = b""
    problem: str = ""


class Wet(RecordFormat):
    """WET files. The columns are the text, and the headers of its record, which are null if they are missing. Other
    headers are not read.
    """

    name = "wet"
    suffixes = (".wet", ".warc")
    magic = b"WARC/1."
    takes_encoding = False  # the text of a conversion is UTF-8

    @property
    def boundary(self) -> re.Pattern[bytes]:
        return re.compile(rb"\r\n\r\n(?=WARC/[01]\.[01]\r\n)")

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        kinds: set[bytes] = set()
        for head in self.heads(file):
            records = self.split(head.data, head.final)
            kinds.update(kind.lower() for kind in _TYPE.findall(head.data))
            if len(records.starts) or _CONVERSION in kinds:
                return Schema(("text", *_HEADERS), start=head.start, named=False)
        if others := sorted(kind.decode("ascii", "replace") for kind in kinds - {b"warcinfo"}):
            raise SourceError(
                f"{file.path}: its records are of the types {first_of(others)}: pages as a server sent them, or about "
                "them, and no text. Take the WET files of the crawl (.warc.wet.gz), or extract the text first, with "
                "trafilatura or resiliparse for example"
            )
        if head.final:
            raise SourceError(f"{file.path}: it holds no WARC record of the type conversion, so no text")
        return Schema(("text", *_HEADERS), start=head.start, named=False)

    def split(self, buffer: bytes, final: bool) -> Split:
        """Return the conversions and the damaged pieces. Other records are skipped."""
        starts: list[int] = []
        ends: list[int] = []
        problems: dict[int, str] = {}
        at = 0
        while (at := _blank_end(buffer, at)) < len(buffer) and (piece := self._piece(buffer, at, final)) is not None:
            if piece.problem:
                problems[len(starts)] = piece.problem
            if piece.problem or piece.kind == _CONVERSION:
                starts.append(at)
                ends.append(piece.end)
            at = piece.after
        return Split(np.array(starts, np.int64), np.array(ends, np.int64), problems, at)

    def table(self, records: list[bytes], columns: tuple[str, ...]) -> pa.Table:
        ends = [record.index(_BLANK) for record in records]
        headers = [_unfolded(record[: end + 2]) for record, end in zip(records, ends, strict=True)]
        values_of = {}
        for name in columns:
            if name in _FIELDS:
                fields = map(_FIELDS[name].search, headers)
                values = [field and field[1] for field in fields]
                values_of[name] = [value and _without_brackets(value) for value in values] if name == "url" else values
            else:
                values_of[name] = [record[end + 4 :] for record, end in zip(records, ends, strict=True)]
        return pa.table({name: pa.array(values, pa.large_binary()) for name, values in values_of.items()})

    def _piece(self, buffer: bytes, at: int, final: bool) -> _Piece | None:
        """Return the piece that begins at `at`, or None if it, or what must follow it, continues after the buffer."""
        # Find the header of the record.
        left = len(buffer) - at
        if not final and left < _BEGIN_BYTES:
            return None
        if not _BEGIN.match(buffer, at):
            return self._damaged(buffer, at, at, final, "no WARC record begins here: something is damaged")
        header = buffer.find(_BLANK, at, at + _MOST_HEADER) + 2
        if header < 2:
            if not final and left < _MOST_HEADER:
                return None
            return self._damaged(buffer, at, at, final, "its header is cut off or damaged")
        # Read the type and the length of the record from the header.
        fields = _unfolded(buffer[at:header])
        length, kind = _LENGTH.search(fields), _TYPE.search(fields)
        if length is None or kind is None or kind[1].lower() not in _TYPES or _BEGIN.search(buffer, at + 1, header):
            return self._damaged(buffer, at, at, final, "its header is damaged, or has no known type or no length")
        # Find the end of the content.
        begin, count = header + 2, int(length[1])
        end = begin + count
        if end - at > self.limits.field_bytes:
            problem = f"the record is longer than {self.limits.field_bytes >> 20} MiB"
            return self._damaged(buffer, at, begin, final, problem)
        if end > len(buffer):
            problem = f"cut off: {len(buffer) - begin:,} of {count:,} bytes are there"
            return self._damaged(buffer, at, begin, final, problem) if final else None
        # A blank line or another record must follow.
        if (after := _blank_end(buffer, end)) - end < len(_BLANK) or not buffer.startswith(_BLANK, end):
            if not final and len(buffer) - after < _BEGIN_BYTES:
                return None
            if after < len(buffer) and not _BEGIN.match(buffer, after):
                problem = f"damaged: no record follows after the {count:,} bytes that its header tells"
                return self._damaged(buffer, at, begin, final, problem)
        return _Piece(end, after, kind[1].lower())

    def _damaged(self, buffer: bytes, at: int, begin: int, final: bool, problem: str) -> _Piece | None:
        """Return a damaged piece, up to where the next record begins, or up to the limit on its length, wherever a
        block ends.

        Parameters
        ----------
        buffer : bytes
            The buffer.
        at : int
            Where the damaged piece begins.
        begin : int
            The byte from which on the next record may begin.
        final : bool
            Whether the stream ends with the buffer.
        problem : str
            What is wrong with the piece.

        """
        limit = at + self.limits.field_bytes
        following = _BEGIN.search(buffer, max(begin, at + 1), limit + _BEGIN_BYTES)
        if following is None and not final and len(buffer) < limit + _BEGIN_BYTES:
            return None
        end = min(limit, len(buffer)) if following is None else following.start()
        return _Piece(end, end, problem=problem)


def _unfolded(header: bytes) -> bytes:
    """Return the header of a record with each field on one line."""
    return _FOLD.sub(b" ", header) if b"\r\n " in header or b"\r\n\t" in header else header


def _without_brackets(uri: bytes) -> bytes:
    """Return a URI without the < and > that the grammar of WARC 1.0 puts around it, as Wget does."""
    return uri[1:-1] if uri.startswith(b"<") and uri.endswith(b">") else uri


def _blank_end(buffer: bytes, at: int) -> int:
    """Return where the blank lines that begin at `at` end."""
    lines = _BLANK_LINES.match(buffer, at)
    return lines.end() if lines else at
