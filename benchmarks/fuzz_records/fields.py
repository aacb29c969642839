"""Random records of CSV and lines of plain text: usual ones, and ones with random changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.fuzz_records.texts import INVALID_UTF8, drawn_text, with_bytes_changed

COLUMNS = ("id", "text", "label", "more")
_ODD = (b"\x00", b"\x00\x00", b"\xef\xbb\xbf", b"\x1a", b"\x0b", b"\x0c", b"\xc2\x85", b"\xe2\x80\xa8", b"\\", b"\\N")
_ODD_TEXTS = (b"\x00", b"\xef\xbb\xbf", b"\r", b"\r\r", b'"', b"\t", b"\x0b", b"\xc2\xa0", b"\xe3\x80\x80", b"\x1c")
_WORDS = [0, 1, 3, 5, 8, 13, 21, 40, 150]


class Dialect(NamedTuple):
    """The characters and columns of a CSV file.

    Attributes
    ----------
    delimiter, quote : str
        The delimiter and the quote character. The quote is "" for a file without quotes.
    columns : tuple of str
        The names in the first line: those of `COLUMNS` and more, or only that of the text.

    """

    delimiter: str
    quote: str = '"'
    columns: tuple[str, ...] = COLUMNS

    @property
    def marks(self) -> tuple[bytes, bytes]:
        """The delimiter and the quote as bytes."""
        return self.delimiter.encode(), self.quote.encode()


def _fields(chance: random.Random, dialect: Dialect) -> list[str]:
    """Draw the values of a record. Some of them need quotes."""
    fields = [str(chance.randrange(10**9)), drawn_text(chance, chance.choice(_WORDS))]
    fields += [chance.choice(["a", "b", "b", "c d", "é"]), drawn_text(chance, chance.choice([0, 0, 2]))]
    if chance.random() < 0.25 and dialect.quote:
        mark = chance.choice([dialect.delimiter, "\n", "\r\n", "\r", dialect.quote, "\n\n", '"', "'"])
        _insert(chance, fields, mark * chance.choice([1, 1, 2]))
    more = chance.choices(fields, k=max(0, len(dialect.columns) - len(COLUMNS)))
    return [*fields, *more] if len(dialect.columns) > 1 else fields[1:2]


def _insert(chance: random.Random, fields: list[str], what: str) -> None:
    i = chance.randrange(len(fields))
    at = chance.randrange(len(fields[i]) + 1)
    fields[i] = fields[i][:at] + what + fields[i][at:]


def _written(chance: random.Random, fields: list[str], dialect: Dialect, quoted: float = 0.3) -> bytes:
    """Write a record. quoted: the probability that a field that needs no quotes gets them."""
    delimiter, quote, _ = dialect

    def field(value: str) -> str:
        if quote and (chance.random() < quoted or set(value) & {delimiter, quote, "\n", "\r"}):
            return quote + value.replace(quote, 2 * quote) + quote
        return "".join(c for c in value if c not in (delimiter, "\n", "\r", quote))

    return delimiter.join(map(field, fields)).encode("utf-8", "surrogateescape")


def usual_record(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a usual record."""
    return _written(chance, _fields(chance, dialect), dialect)


_Change = Callable[[random.Random, Dialect], bytes]


def _with_other_count(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a record with another number of fields. It has one line, since the host takes a quote in others for open."""
    fields = [value.replace("\n", "").replace("\r", "") for value in _fields(chance, dialect)]
    count = chance.choice([1, 2, 3, 5, 6, 40])
    return _written(chance, (fields * 40)[:count], dialect)


def _with_odd_bytes(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a record with bytes that are no UTF-8, or with odd characters."""
    fields = _fields(chance, dialect)
    _insert(chance, fields, chance.choice([*INVALID_UTF8, *_ODD]).decode("utf-8", "surrogateescape"))
    return _written(chance, fields, dialect)


def _blank(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a line that is blank, or has only empty fields."""
    delimiter, quote = dialect.marks
    none = [b"", b" ", b"\r", b"\t", delimiter * 3, b"\x00", b"\xef\xbb\xbf", b" " + delimiter * 3]
    return chance.choice([*none, quote * 2, quote * 2 + delimiter * 3])


def _with_spaces(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a record with spaces beside delimiters. They are part of the fields."""
    without_quotes = dialect._replace(quote="")
    space = chance.choice([" {}", "{} ", "{}\r", "\t{}", "{}\r\r"])
    record = _written(chance, _fields(chance, without_quotes), without_quotes)
    mark = dialect.marks[1]
    record = record.replace(mark, b"") if mark else record
    return record.replace(dialect.marks[0], space.format(dialect.delimiter).encode(), 1)


_HARMLESS: list[_Change] = [_with_other_count, _with_odd_bytes, _with_odd_bytes, _blank, _with_spaces]


def changed_record(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a changed record that does not affect the following ones, since all of its quotes are in valid places."""
    return chance.choice(_HARMLESS)(chance, dialect)


def record_with_odd_quotes(chance: random.Random, dialect: Dialect) -> bytes:
    """Draw a record with an additional or a missing quote, cut off, or with other bytes.

    The following records may then be within quotes.
    """
    record, mark = usual_record(chance, dialect), dialect.marks[1] or b'"'
    kind = chance.random()
    if kind < 0.3:
        return with_bytes_changed(chance, record)
    if kind < 0.4:
        return record[: chance.randrange(len(record) + 1)]
    places = [i for i in range(len(record)) if record[i : i + 1] == mark]
    # Add something beside a quote, or remove or add quotes.
    if places and kind < 0.8:
        at = chance.choice(places) + chance.randrange(2)
        beside = [b" ", b"\r", b"\r\r", b"\n", b"\r\n", b"a", b"\\", b"\0", b"\xff", mark, 2 * mark, dialect.marks[0]]
        return record[:at] + chance.choice(beside) + record[at:]
    if places and kind < 0.9:
        at = chance.choice(places)
        return record[:at] + record[at + 1 :]
    at = chance.randrange(len(record) + 1)
    return record[:at] + mark * chance.choice([1, 1, 2, 3]) + record[at:]


def usual_text(chance: random.Random) -> bytes:
    """Draw a usual line of plain text."""
    return drawn_text(chance, chance.choice(_WORDS)).encode()


def changed_text(chance: random.Random) -> bytes:
    """Draw a line of plain text with odd characters or other bytes in it."""
    text = chance.choice([usual_text(chance), b"", b" ", b"\t \x0b"])
    for _ in range(chance.choice([1, 1, 2, 9])):
        at = chance.choice([0, len(text), chance.randrange(len(text) + 1)])
        odd = _ODD_TEXTS if chance.random() < 0.6 else INVALID_UTF8
        text = text[:at] + chance.choice(odd) + text[at:]
    return text if chance.random() < 0.7 else with_bytes_changed(chance, text)
