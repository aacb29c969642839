"""What a job did not read, and what may be amiss with its input: each in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..source.open.encoding import not_decoded
from .results import Results
from .tally import Tally

READ_AGAIN = "--resume tries again to read what could not be read, as long as those files are the same"
"""Of a job with an output folder."""

_NAMED = 3
_LOOKED_AT = 10_000
"""Quarantined rows that are looked at: all of those in a small job, a sample in a large one."""

_MANY = 0.1
"""The share of rows that are not text, from which the encoding is more likely to be wrong than the rows."""


def not_read(tally: Tally, left_out: Sequence[str], set_aside: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each kind of what was left out or read in part, with a count and the first names."""
    found = []
    if tally.unread:
        found.append(unread_line(tally.unread))
    if left_out:
        found.append(left_out_line(left_out))
    unread = {path for path, _ in tally.unread}
    in_part = [message for path, message in tally.problems if path not in unread]
    if in_part:
        found.append(f"{_count(in_part, 'read with a problem')}: {_first(in_part, 1, '; ')}")
    if set_aside:
        chunks = [f"{name}: {reason}" for name, reason in set_aside]
        found.append(f"{_count(chunks, 'set aside', 'chunk')}: {_first(chunks, 1, '; ')}")
    return found


def left_out_line(left_out: Sequence[str]) -> str:
    """How many files were left out, and the first of them."""
    return f"{_count(left_out, 'left out, being of no known format')}: {_first(left_out)}"


def unread_line(unread: Sequence[tuple[str, int | None]]) -> str:
    """How many files were not read, and the rows of those that tell."""
    known = [rows for _, rows in unread if rows]
    rows = f"{sum(known):,} rows" if len(known) == len(unread) else f"{sum(known):,} rows in {len(known):,} of them"
    return f"{_count(unread, 'not read')}{f' ({rows})' if known else ''}: {_first([path for path, _ in unread])}"


def _count(items: Sequence[object], what: str, kind: str = "file") -> str:
    return f"1 {kind} was {what}" if len(items) == 1 else f"{len(items):,} {kind}s were {what}"


def _first(names: Sequence[str], most: int = _NAMED, comma: str = ", ") -> str:
    more = f"{comma}and {len(names) - most:,} more" if len(names) > most else ""
    return comma.join(names[:most]) + more


def hints(tally: Tally, results: Results) -> list[str]:
    """Lines that name an option by which more rows may be read."""
    quarantined, read = tally.rows_quarantined, tally.rows_read
    if quarantined <= _MANY * read:
        return []
    looked_at = results.first_quarantined(_LOOKED_AT)
    encodings = Counter(name for row in looked_at if (name := not_decoded(row["reason"])))
    hint = encoding_hint(encodings, read, quarantined, len(looked_at))
    return [] if hint is None else [hint]


def encoding_hint(encodings: Counter[str], read: int, quarantined: int, looked_at: int) -> str | None:
    """A line where many of the rows that were read are not text. encodings: that they do not have, over `looked_at` of
    those in quarantine.
    """
    encoding, count = next(iter(encodings.most_common(1)), ("", 0))
    rows = count * quarantined // max(looked_at, 1)
    if rows <= _MANY * read:
        return None
    about = "about " if looked_at < quarantined else ""
    return (
        f"{about}{rows:,} of {read:,} rows are not {encoding}: if the files are in another encoding, name it, "
        "e.g. --encoding latin-1"
    )
