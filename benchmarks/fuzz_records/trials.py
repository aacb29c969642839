"""The trials: files of randomly changed lines, and the ways in which each file is read."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.fuzz_records import fields, json_lines
from benchmarks.fuzz_records.fields import Dialect
from benchmarks.fuzz_records.texts import CHANGED
from broadsheet.pipeline.model.preparation import Preparation, Replace, Strip
from broadsheet.pipeline.source.rows.chunk import Selection

_POOL = 6_000
"""The number of distinct lines of each kind, usual and changed, from which a file's lines are drawn."""

_FIRST = 120
"""The number of usual lines at the beginning of a file, in which the reader finds the columns."""

_CLASSES = ("a", "b", "c d")

_PREPARATIONS = (
    Preparation((Replace("\n", " "), Replace("a", "_"))),
    Preparation((Strip(), Replace("\n", " "), Replace("e", "E"))),
)
_PREPARED = {
    "preparations": tuple((own.id, own.of) for own in _PREPARATIONS),
    "byte_steps": tuple((own.id, *own.byte_steps) for own in _PREPARATIONS if own.byte_steps),
}

_OF_JSON = (
    Selection(),
    Selection(kept_columns=("id",), **_PREPARED),
    Selection(kept_columns=("id", "label"), truth="label", classes=_CLASSES),
    Selection(kept_columns=("meta.source.name", "id", "text"), reads=33),
    Selection(kept_columns=("id", "score", "place"), truth="label", classes=_CLASSES, reads=1014),
    Selection(keep_all=True),
    Selection(keep_all=True, truth="label", classes=_CLASSES, reads=90),
    Selection(kept_columns=("meta", "id"), reads=90),
    Selection(text=("meta.body",), kept_columns=("meta.source.n", "ok"), reads=5),
    Selection(kept_columns=("label", "id", "meta.tags"), labels=("label",), truth="label", classes=_CLASSES),
)
_OF_RECORDS = (
    Selection(),
    Selection(reads=90, **_PREPARED),
    Selection(kept_columns=("id", "label"), truth="label", classes=_CLASSES),
    Selection(kept_columns=("more", "text", "place"), reads=33),
    Selection(keep_all=True, truth="label", classes=_CLASSES, reads=90),
    Selection(text=("more",), kept_columns=("id", "place"), reads=5),
    Selection(kept_columns=("label", "id"), labels=("label",), truth="label", classes=_CLASSES, reads=1014),
)
_OF_LINES = (
    Selection(),
    Selection(reads=33),
    Selection(kept_columns=("place", "text"), reads=90),
    Selection(kept_columns=("place",)),
)


@dataclass(frozen=True)
class Look:
    """One way to read a file.

    Attributes
    ----------
    selection : Selection
        The columns to read.
    slot_bytes : int
        The largest size of a block of raw bytes.
    chunk_rows : int
        The largest number of rows in a chunk.
    range_bytes : int or None
        The bytes of a range; None for the ranges that a job has.
    most_ranges : int
        The largest number of ranges to read.
    is_guessed : bool
        Whether each range guesses where its first record begins.

    """

    selection: Selection
    slot_bytes: int
    chunk_rows: int
    range_bytes: int | None = None
    most_ranges: int = 1 << 30
    is_guessed: bool = False


@dataclass(frozen=True)
class Trial:
    """One or more files that are read in both ways.

    Attributes
    ----------
    number : int
        The number, which together with the seed of the run determines everything random in the trial.
    kind : str
        "wide" for many lines and wide ranges, "narrow" for few lines and many ranges, "several" for several files that
        are read as one range.
    suffix : str
        The ending of the name of the first or only file.
    lines : int
        The number of lines of each file.

    """

    number: int
    kind: str
    suffix: str
    lines: int


def trials_of(seed: int, jsonl_lines: int, csv_records: int, most_lines: int) -> list[Trial]:
    """Return the trials of a run in their order.

    Parameters
    ----------
    seed : int
        The seed of the order.
    jsonl_lines, csv_records : int
        The numbers of lines of JSON, and of records of CSV, TSV and plain text, in all wide trials together.
    most_lines : int
        The largest number of lines of a wide trial.

    """
    wide = [("wide", ".jsonl", min(most_lines, jsonl_lines - at)) for at in range(0, jsonl_lines, most_lines)]
    others = (".csv", ".tsv", ".csv", ".txt")
    for number, at in enumerate(range(0, csv_records, most_lines)):
        wide.append(("wide", others[number % len(others)], min(most_lines, csv_records - at)))
    endings = (".jsonl", ".csv", ".jsonl", ".tsv", ".jsonl", ".csv", ".jsonl", ".txt")
    small = max(len(endings), len(wide) // 3)
    few = min(2_500, max(200, most_lines // 4))
    narrow = [("narrow", endings[i % len(endings)], few) for i in range(small)]
    several = [("several", endings[i % len(endings)], few) for i in range(small // 2)]
    drawn = wide + narrow + several
    random.Random(seed).shuffle(drawn)
    return [Trial(number, *one) for number, one in enumerate(drawn)]


def files_of(trial: Trial, chance: random.Random, folder: Path) -> tuple[list[Path], list[Look]]:
    """Write the files of a trial, and draw the ways in which they are read."""
    # Draw the share of changed lines, and the dialect.
    folder = folder / "place=here"
    folder.mkdir(parents=True)
    suffixes = [trial.suffix]
    if trial.kind == "several":
        suffixes += chance.choices([".jsonl", ".csv", ".tsv"] if trial.suffix != ".txt" else [".txt"], k=2)
    slot_bytes = chance.choice(_SLOTS[trial.kind])
    share = _share(chance, trial.suffix, slot_bytes)
    if trial.kind != "wide" and chance.random() < 0.4:
        share = chance.choice([0.3, 0.7, 1.0])
    usual = {suffix: Dialect("\t" if suffix == ".tsv" else ",") for suffix in suffixes}
    dialect, options = usual[trial.suffix], Selection()
    if trial.suffix in (".csv", ".tsv") and trial.kind != "several" and chance.random() < 0.4:
        dialect, options = chance.choice(_DIALECTS)
    if trial.kind != "several" and chance.random() < 0.2:
        dialect = dialect._replace(columns=chance.choice(_COLUMNS))
    # Write the files, and draw the looks.
    paths = []
    for number, suffix in enumerate(suffixes):
        own = dialect if number == 0 else usual[suffix]
        data = _file(chance, suffix, trial, share, own)
        path = folder / f"{number}{suffix}"
        if chance.random() < 0.04:
            path, data = path.with_name(path.name + ".gz"), gzip.compress(data, 1)
        path.write_bytes(data)
        paths.append(path)
    return paths, [_with_options(look, options) for look in _looks(trial, chance, slot_bytes, dialect)]


_SLOTS = {
    "wide": [8 << 10, 64 << 10, 64 << 10, 256 << 10, 1 << 20, 32 << 20],
    "narrow": [4 << 10, 8 << 10, 64 << 10],
    "several": [8 << 10, 64 << 10],
}
"""The sizes of blocks in bytes, by the kind of the trial."""

_RECORD_BYTES = {".jsonl": 280, ".csv": 110, ".tsv": 110, ".txt": 85}
_LEFT_ALONE, _SHARE_LEFT_ALONE = 64, 0.01
"""The largest number and share of a block's records that the device leaves to the host while it reads the others."""


def _share(chance: random.Random, suffix: str, slot_bytes: int) -> float:
    """Draw the share of changed lines. With most shares, the device still reads blocks of this size."""
    records = slot_bytes / _RECORD_BYTES[suffix]
    allowed = max(_LEFT_ALONE, _SHARE_LEFT_ALONE * records) / records
    return min(0.6, allowed * chance.choice([0.1, 0.5, 0.5, 0.8, 2.0]))


_DIALECTS = [
    (Dialect(";"), Selection(delimiter=";")),
    (Dialect("|", ""), Selection(delimiter="|", quote="none")),
    (Dialect(",", "'"), Selection(delimiter=",", quote="'")),
    (Dialect(" "), Selection(delimiter=" ")),
]

_COLUMNS = [
    ("text",),
    ("text",),
    ("id", "text", "label", "more", "id"),
    ("id", "text", "label", "more", "text"),
    ("id", "text", "label", "more", *(f"c{i}" for i in range(20))),
    ("id", "text", "label", "more", *(f"c{i}" for i in range(40))),
]

_LINE_ENDS = [
    [b"\n"],
    [b"\n"],
    [b"\r\n"],
    [b"\n", b"\n", b"\r\n"],
    [*[b"\n"] * 20, b"\r\r\n", b"\n\n", b"\r\n\r\n"],
]
"""The choices of line ends, which are mixed in a file."""


def _with_options(look: Look, options: Selection) -> Look:
    selection = replace(look.selection, delimiter=options.delimiter, quote=options.quote)
    return replace(look, selection=selection)


def _looks(trial: Trial, chance: random.Random, slot_bytes: int, dialect: Dialect) -> list[Look]:
    """Draw the ways in which the files of a trial are read."""
    # Find the selections that fit the columns.
    of_records = [one for one in _OF_RECORDS if {*one.columns} <= {*dialect.columns, "place"}]
    every = {".jsonl": _OF_JSON, ".txt": _OF_LINES}.get(trial.suffix, of_records)
    # Draw a single look for wide ranges, two for several files, and many for narrow ranges.
    if trial.kind == "wide":
        rows = chance.choice([5_000, 40_000, 131_072])
        return [Look(chance.choice(every), slot_bytes, rows, chance.choice([None, 300_007, 300_007, 1 << 20]))]
    if trial.kind == "several":
        return [
            Look(selection, slot_bytes, chance.choice([300, 700, 5_000])) for selection in chance.choices(every, k=2)
        ]
    odd = chance.choice([997, 1_531, 4_099, 12_345, 65_537, 100_003])
    looks = []
    for selection in chance.choices(every, k=3):
        rows = chance.choice([7, 300, 5_000])
        looks += [
            Look(selection, slot_bytes, rows),
            Look(selection, slot_bytes, rows, 1 << 10, 40),
            Look(selection, slot_bytes, rows, odd, 40),
            Look(selection, slot_bytes, rows, chance.choice([1 << 10, odd]), 15, is_guessed=True),
        ]
    return looks


def _file(chance: random.Random, suffix: str, trial: Trial, share: float, dialect: Dialect) -> bytes:
    """Draw the bytes of a file.

    Parameters
    ----------
    chance : Random
        The source of all random choices.
    suffix : str
        The ending of the file's name.
    trial : Trial
        The trial.
    share : float
        The share of changed lines.
    dialect : Dialect
        The characters and columns of CSV.

    """
    # Draw usual lines and changed ones, and choose the lines of the file from them.
    usual, changed, open_ended = _drawing(suffix, dialect)
    ends = chance.choice(_LINE_ENDS)
    size = min(_POOL, max(50, trial.lines // 3))
    pool = [draw(chance) + chance.choice(ends) for draw in (usual, changed) for _ in range(size)]
    rng = np.random.default_rng(chance.randrange(1 << 62))
    lines = rng.integers(0, size, trial.lines) + size * (rng.random(trial.lines) < share)
    lines[:_FIRST] = rng.integers(0, size, min(_FIRST, trial.lines))
    drawn = pa.array(pool, pa.large_binary()).take(pa.array(lines))
    data = bytearray(drawn.buffers()[2])
    first = sum(len(pool[line]) for line in lines[:_FIRST])
    if open_ended is None or trial.kind != "wide":
        # Change a byte in some lines of the file. In CSV, any byte may put quotes out of place.
        is_rare = open_ended is not None and chance.random() < 0.5
        count = chance.randrange(3) if is_rare else int(trial.lines * share / 3)
        places = rng.integers(first, len(data), count) if first < len(data) else np.empty(0, np.int64)
        np.frombuffer(data, np.uint8)[places] = rng.choice(np.frombuffer(CHANGED + b"\n", np.uint8), count)
    # Insert long lines, and records that affect those after them.
    others = [*_long_lines(chance, trial, usual, ends)]
    if open_ended is not None and chance.random() < (0.3 if trial.kind == "wide" else 0.7):
        others += [open_ended(chance) + b"\n" for _ in range(chance.choice([1, 2, 20, trial.lines // 40]))]
    for other in others:
        at = data.find(b"\n", chance.randrange(len(data))) + 1
        data[at:at] = other
    # Add the header, and a last line that may lack its end.
    last = chance.choice([b"", b"", usual(chance), changed(chance), usual(chance)[:-3], b"\r", b" ", b"\n\n"])
    return _header(chance, suffix, dialect, ends) + bytes(data) + last


_Draw = Callable[[random.Random], bytes]


def _drawing(suffix: str, dialect: Dialect) -> tuple[_Draw, _Draw, _Draw | None]:
    """Return the functions that draw a usual line, a changed line, and a line that may affect those after it."""
    if suffix == ".jsonl":
        return json_lines.usual_line, json_lines.changed_line, None
    if suffix == ".txt":
        return fields.usual_text, fields.changed_text, None
    draws = (fields.usual_record, fields.changed_record, fields.record_with_odd_quotes)
    usual, changed, open_ended = (partial(draw, dialect=dialect) for draw in draws)
    return usual, changed, open_ended


def _long_lines(chance: random.Random, trial: Trial, usual: _Draw, ends: list[bytes]) -> list[bytes]:
    """Draw a few lines, most of them longer than a block. From the first such line on, the host reads the range."""
    if chance.random() > (0.15 if trial.kind == "wide" else 0.4):
        return []
    longs = []
    for _ in range(chance.choice([1, 1, 3])):
        line = usual(chance)
        at = chance.randrange(len(line) + 1)
        longs.append(line[:at] + b"long " * chance.choice([900, 2_000, 20_000]) + line[at:] + chance.choice(ends))
    return longs


def _header(chance: random.Random, suffix: str, dialect: Dialect, ends: list[bytes]) -> bytes:
    """Draw what stands before the records: a byte order mark, blank lines, "sep=", and the names of the columns."""
    mark = chance.choice([b""] * 9 + [b"\xef\xbb\xbf"])
    blank = chance.choice([b""] * 9 + [b"\n", b"\r\n\n"])
    if suffix not in (".csv", ".tsv"):
        return mark + (blank if suffix == ".jsonl" else b"")
    delimiter, quote = dialect.marks
    names = [name.encode() for name in dialect.columns]
    if chance.random() < 0.2:
        names = [quote + name + quote for name in names]
    line = delimiter.join(names) + chance.choice(ends).replace(b"\r\r\n", b"\r\n")
    said = b"sep=" + delimiter + b"\n" if suffix == ".csv" and chance.random() < 0.05 else b""
    return mark + (said or blank) + line
