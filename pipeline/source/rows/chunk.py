"""A chunk of readable rows, with the rows that could not be read and the places of all of them in the input; and the
selection of the columns that a job uses.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from numpy.typing import NDArray

from .columns import (
    refuse_uncopied,
)
from .compression import UTF8
from .labels import NAMES_ONLY, LabelRules

HEAD_BYTES, SHOWN_BYTES = 256, 400
"""How many bytes of a text the quarantine holds, and how many bytes of an example are shown."""

NOT_COPIED = 16
"""How many keys of a chunk, or labels that name no class, are reported with their rows. If they are data, each row may
have a different one.
"""

NOTED = 1024
"""How many such keys or labels are noted for a part of a chunk. Parts are cut where reading cuts them, and the counts
must not depend on that.
"""

MOST = 1 << 53
"""The largest number that is counted: every JSON reader and NumPy have integers of that size."""

_OTHER_THAN_TEXT = 256
"""A rough number of bytes in a record beside its text: keys, other columns, punctuation."""

_OURS = {"file", "row", "truth", "n_chars", "reason"}
"""The names of columns that the output may have beside the kept ones."""

_OF_MODEL = ("label", "score", "labels", "scores", "top_labels", "top_scores", "truncated", "unknown_chars")
"""The names of the columns that each model may have in the output, beside `score_` with the name of a class.
`output/model_columns.py` defines these columns.
"""

QUARANTINE_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("byte_offset", pa.int64()),
        ("reason", pa.string()),
        ("head", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Selection:
    """The columns of the input that a job uses, and how they are read.

    Attributes
    ----------
    text : tuple of str
        The columns of text.
    join : str
        The template that makes the text of these columns, as `Join` writes it; "" if a space joins them.
    kept_columns : tuple of str
        The columns that are copied to the output. With `keep_all`, these are all columns of the first file or table,
        once they are known.
    truth : str or None
        The column of true classes.
    header : tuple of str or None
        The names of the columns of a headerless CSV.
    classes : tuple of str
        The class names that the truth column may hold.
    kept_types : tuple of pyarrow.DataType
        The types of `kept_columns`, in order.
    answers : str or None
        The path of the parent program's answer file, for a one-hot input.
    keep_all : bool
        Whether every column is copied.
    encoding : str
        Python's name of the encoding of text files.
    delimiter, quote, escape : str or None
        For CSV files, if the user gave them: the character between fields, the character around a field ("none" if
        there is none), and the character that makes the next one stand for itself.
    reads : int
        How many characters of each text the model reads. The rest is counted and dropped; 0 keeps the whole texts.
    prefixes : tuple of str
        The prefixes of each model's columns in the output.
    windows : bool
        Whether each model has a column for the number of windows.
    of_path : tuple of (str, str or None)
        The kept columns that the current file lacks and its path names, and their values.
    preparations : tuple of (str, callable)
        The functions that models apply to the texts, a large_string array, before they read them, by name.
    byte_steps : tuple of (str, bytes, bool)
        The preparations that work byte by byte: the name, the new value of each byte, [256], and whether white space at
        the ends is then removed.
    only_prepared : bool
        Whether every model reads prepared texts. Then only the first `SHOWN_BYTES` characters of the original texts are
        kept.
    labels : tuple of str
        The kept columns whose cells are labels. They are copied as `labels_of` reads them.
    rules : LabelRules
        How the labels of the truth column name classes.
    class_names : tuple of (str, tuple of str)
        The label columns whose numbers stand for names that the current file has, and these names.

    """

    text: tuple[str, ...] = ("text",)
    kept_columns: tuple[str, ...] = ()
    truth: str | None = None
    header: tuple[str, ...] | None = None
    classes: tuple[str, ...] = ()
    kept_types: tuple[pa.DataType, ...] = ()
    answers: str | None = None
    keep_all: bool = False
    encoding: str = UTF8
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    reads: int = 0
    prefixes: tuple[str, ...] = ("",)
    windows: bool = False
    of_path: tuple[tuple[str, str | None], ...] = ()
    preparations: tuple[tuple[str, Callable[[pa.LargeStringArray], pa.LargeStringArray]], ...] = ()
    byte_steps: tuple[tuple[str, bytes, bool], ...] = ()
    only_prepared: bool = False
    labels: tuple[str, ...] = ()
    rules: LabelRules = NAMES_ONLY
    class_names: tuple[tuple[str, tuple[str, ...]], ...] = ()
    join: str = ""

    def __post_init__(self) -> None:
        for name, kind in zip(self.kept_columns, self.kept_types, strict=False):
            refuse_uncopied(name, kind)

    @property
    def dialect(self) -> tuple[str, ...]:
        """The names of the options about CSV that the user gave."""
        return tuple(name for name in ("delimiter", "quote", "escape") if getattr(self, name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is used, each once, with the text columns first."""
        truth = (self.truth,) if self.truth else ()
        return tuple(dict.fromkeys((*self.text, *self.kept_columns, *truth)))

    @property
    def needed(self) -> set[str]:
        """The columns that each row must have. A kept column that a row lacks is null."""
        return {*self.text, *((self.truth,) if self.truth else ())}

    @property
    def most_held(self) -> int:
        """The largest number of bytes that count for a record. A long record counts only the bytes that the model
        reads, with one byte per character.

        It is known before a record is parsed. If columns are kept, they may be the long ones, so the whole record
        counts. It also does if the whole text is read. A text with characters of four bytes takes up to four times as
        much.
        """
        return MOST if not self.reads or self.kept_columns else self.reads + _OTHER_THAN_TEXT

    @property
    def kept_names(self) -> tuple[str, ...]:
        """The names of the kept columns in the output. With `keep_all`, a column with the name of a column that the
        output makes itself gets the suffix `_source`, because the user did not name it.
        """
        if not self.keep_all:
            return self.kept_columns
        of_model = (*_OF_MODEL, *(["n_windows"] if self.windows else []), *(f"score_{name}" for name in self.classes))
        ours = _OURS | {prefix + name for prefix in self.prefixes for name in of_model}
        names: dict[str, str] = {}
        for name in self.kept_columns:
            renamed = name
            while renamed in ours or (renamed != name and renamed in {*self.kept_columns, *names.values()}):
                renamed += "_source"
            names[name] = renamed
        return tuple(names.values())

    @property
    def row_schema(self) -> pa.Schema:
        kept_fields = zip(self.kept_names, self.kept_types or [pa.string()] * len(self.kept_columns), strict=True)
        return pa.schema([("file", pa.string()), ("row", pa.int64()), *kept_fields])


RowsByName = Mapping[str, NDArray[np.int64]]
"""The numbers of rows, in order, by a key or label that these rows have."""


class RowRange(NamedTuple):
    """Consecutive rows of one file.

    Attributes
    ----------
    path : str
        The file, as the column `file` has it.
    first : int
        The number of the first row.
    rows : int
        The number of rows.

    """

    path: str
    first: Annotated[int, Meta(ge=0, le=MOST)]
    rows: Annotated[int, Meta(ge=0, le=MOST)]


@dataclass(frozen=True)
class BadRow:
    """A row for the quarantine.

    Attributes
    ----------
    row : int
        The number of the row in its file.
    offset : int or None
        The first byte of the row in the (decompressed) file, if known.
    reason : str
        Why the row is in the quarantine.
    head : bytes
        The first bytes of the row.

    """

    row: int
    offset: int | None
    reason: str
    head: bytes


class OffHost(Protocol):
    """N texts that are not in the memory of this host, but on a GPU, for example.

    Attributes
    ----------
    data : array
        uint8 [bytes], the texts one after another, in the memory where they are.
    offsets : ndarray
        int64 [N + 1], on the host: text i is ``data[offsets[i]:offsets[i + 1]]``.
    is_blank : ndarray
        bool [N], on the host: which texts hold nothing but white space.

    """

    @property
    def data(self) -> Any: ...

    @property
    def offsets(self) -> NDArray[np.int64]: ...

    @property
    def is_blank(self) -> NDArray[np.bool_]: ...

    @property
    def nbytes(self) -> int:
        """The number of bytes of the texts."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> OffHost:
        """Return consecutive texts."""

    def filter(self, which: pa.BooleanArray) -> pa.LargeBinaryArray:
        """Return a copy, on the host, of the texts for which `which`, bool [N], is true."""

    def joined(self, others: Sequence[OffHost | pa.LargeBinaryArray]) -> OffHost:
        """Return these texts followed by others."""

    def on_host(self) -> pa.LargeBinaryArray:
        """Return a copy of the texts on the host."""

    def beginnings(self, rows: Sequence[int], size: int) -> list[bytes]:
        """Return the first `size` bytes of the texts of these rows."""


def buffers_of(text: pa.LargeBinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of N texts, uint8, and int64 [N + 1] offsets: text i is ``data[offsets[i]:offsets[i + 1]]``."""
    _, offsets, data = text.buffers()
    bytes_of_all = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    if not len(text):
        return bytes_of_all, np.zeros(1, np.int64)
    return bytes_of_all, np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]


def are_blank(text: pa.LargeBinaryArray) -> NDArray[np.bool_]:
    """Return which of N texts are empty or hold nothing but white space: bool [N]."""
    data, offsets = buffers_of(text)
    blank: NDArray[np.bool_] = np.diff(offsets) == 0
    filled = np.flatnonzero(~blank)
    # Only texts that begin with a space are searched: a search of all texts would take a tenth of a GPU's time.
    spaced = filled[data[offsets[filled]] <= ord(" ")]
    blank[spaced] = pc.utf8_is_space(text.take(pa.array(spaced)).cast(pa.large_string())).to_numpy(zero_copy_only=False)
    return blank


@dataclass(frozen=True)
class Chunk:
    """N readable articles in input order, and the rows and files that could not be read.

    Attributes
    ----------
    text : pyarrow.LargeBinaryArray or OffHost
        [N], the texts, in valid UTF-8.
    rows : pyarrow.Table
        [N], with the columns `file`, `row` and the kept ones.
    quarantine : pyarrow.Table
        The rows that could not be read, with the schema QUARANTINE_SCHEMA.
    ids : ndarray or None
        uint8 [N, length], encoded characters, for input that is already encoded. Then all strings of `text` are empty.
    truth : ndarray or None
        int32 [N], class indices or NO_TRUTH; None without a truth column.
    problems : tuple of str
        Messages about whole files.
    n_chars : ndarray or None
        int64 [N], the characters of each whole text, if `text` holds only the beginnings.
    bad : pyarrow.Table or None
        The kept columns of the quarantined rows, null if a row could not be parsed; None without kept columns.
    name : str
        The name of the part that the chunk becomes.
    sources : tuple of RowRange
        The ranges of rows that were read, in input order.
    stored : int
        How many stored bytes of its range had been read by then; 0 if that is not known.
    index : pandas.Index or None
        For a partition of a Dask DataFrame, the index of the pandas DataFrame.
    not_copied : mapping of str to ndarray
        With `keep_all`, the numbers of rows by a key that they have and that is not among the kept columns. It has the
        commonest keys, and more than `NOT_COPIED` of them.
    prepared : mapping of str to pyarrow.LargeStringArray or OffHost
        The texts, [N], after each of the selection's preparations, by name.
    unknown_labels : mapping of str to ndarray
        The numbers of rows by a label of the truth column that names no class. It has the commonest labels, and more
        than `NOT_COPIED` of them.
    mapped_labels : mapping of str to ndarray
        The numbers of rows by a label of the truth column that the user's label map names.

    """

    text: pa.LargeBinaryArray | OffHost
    rows: pa.Table
    quarantine: pa.Table
    ids: NDArray[np.uint8] | None = None
    truth: NDArray[np.int32] | None = None
    problems: tuple[str, ...] = ()
    n_chars: NDArray[np.int64] | None = None
    bad: pa.Table | None = None
    name: str = ""
    sources: tuple[RowRange, ...] = ()
    stored: int = 0
    index: Any = None
    not_copied: RowsByName = field(default_factory=dict)
    prepared: Mapping[str, pa.LargeStringArray | OffHost] = field(default_factory=dict)
    unknown_labels: RowsByName = field(default_factory=dict)
    mapped_labels: RowsByName = field(default_factory=dict)

    @property
    def data(self) -> Any:
        """uint8 [bytes], the texts one after another, in the memory where they are."""
        return buffers_of(self.text)[0] if isinstance(self.text, pa.Array) else self.text.data

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [N + 1]: text i is ``data[offsets[i]:offsets[i + 1]]``."""
        return buffers_of(self.text)[1] if isinstance(self.text, pa.Array) else self.text.offsets

    @property
    def text_bytes(self) -> int:
        """The number of bytes of the texts, as far as they are kept."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def digest(self) -> bytes:
        """The sha256 of the texts, of the prepared texts, and of which rows have one. The same rows have the same
        digest.
        """
        if not isinstance(self.text, pa.Array):
            return replace(self, text=self.text.on_host()).digest
        sources = self.sources
        starts = np.cumsum([0, *(rows for *_, rows in sources)])
        rows = self.rows.column("row").to_numpy()
        if len(sources) == 1:
            places = rows - sources[0][1]
        else:
            pieces = pc.index_in(self.rows.column("file"), pa.array([file for file, *_ in sources], pa.string()))
            piece = pieces.to_numpy()
            places = starts[piece] + rows - np.array([first for _, first, _ in sources], np.int64)[piece]
        digest = hashlib.sha256(places.astype(np.int64).tobytes())
        for chunk in (self, *(replace(self, text=texts) for texts in self.prepared.values())):
            digest.update(np.diff(chunk.offsets).tobytes())
            digest.update(chunk.data[chunk.offsets[0] : chunk.offsets[-1]].data)
        return digest.digest()

    @property
    def is_blank(self) -> NDArray[np.bool_]:
        """bool [N]: which texts are empty or hold nothing but white space."""
        return are_blank(self.text) if isinstance(self.text, pa.Array) else self.text.is_blank

    def beginnings(self, rows: Sequence[int], size: int) -> list[bytes]:
        """Return the first `size` bytes of the texts of these rows."""
        if not isinstance(self.text, pa.Array):
            return self.text.beginnings(rows, size)
        return [self.text[i].as_py()[:size] for i in rows]

    def without_text(self) -> Chunk:
        """Return the chunk without its texts, which are not needed once it is classified."""
        return replace(self, text=pa.array([], pa.large_binary()), ids=None, prepared={})

    def take(self, which: NDArray[np.bool_]) -> Chunk:
        """Return the chunk with only those readable rows for which `which`, bool [N], is true. Its quarantine stays."""
        is_kept = pa.array(which)
        return replace(
            self,
            text=self.text.filter(is_kept),
            prepared={name: texts.filter(is_kept) for name, texts in self.prepared.items()},
            rows=self.rows.filter(is_kept),
            ids=None if self.ids is None else self.ids[which],
            truth=None if self.truth is None else self.truth[which],
            n_chars=None if self.n_chars is None else self.n_chars[which],
        )

    def slice(self, rows: slice) -> Chunk:
        """Return the chunk with only these readable rows. Its quarantine stays."""
        return replace(
            self,
            text=self.text[rows],
            prepared={name: texts[rows] for name, texts in self.prepared.items()},
            rows=self.rows[rows],
            ids=None if self.ids is None else self.ids[rows],
            truth=None if self.truth is None else self.truth[rows],
            n_chars=None if self.n_chars is None else self.n_chars[rows],
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows_read(self) -> int:
        return len(self.rows) + len(self.quarantine)

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that the kept columns of all rows take."""
        return int(self.rows.nbytes) + (0 if self.bad is None else int(self.bad.nbytes))


def bad_rows_table(file: str, bad: Sequence[BadRow]) -> pa.Table:
    names, values = QUARANTINE_SCHEMA.names, ((file, b.row, b.offset, b.reason, b.head[:HEAD_BYTES]) for b in bad)
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in values], QUARANTINE_SCHEMA)


def concat(chunks: Sequence[Chunk]) -> Chunk:
    """Join several chunks to one, in order. `ids` and `truth` are in all of them or in none. The result has no name."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        _joined([c.text for c in chunks]),
        pa.concat_tables([c.rows for c in chunks]),
        pa.concat_tables([c.quarantine for c in chunks]),
        _together((c.ids for c in chunks), np.concatenate),
        _together((c.truth for c in chunks), np.concatenate),
        tuple(dict.fromkeys(p for c in chunks for p in c.problems)),
        _together((c.n_chars for c in chunks), np.concatenate),
        _together((c.bad for c in chunks), pa.concat_tables),
        sources=tuple(source for c in chunks for source in c.sources),
        not_copied=commonest_rows(c.not_copied for c in chunks),
        unknown_labels=commonest_rows(c.unknown_labels for c in chunks),
        mapped_labels=joined_rows(c.mapped_labels for c in chunks),
        prepared={name: _joined([c.prepared[name] for c in chunks]) for name in chunks[0].prepared},
    )


def _joined(texts: Sequence[pa.LargeBinaryArray | OffHost]) -> pa.LargeBinaryArray | OffHost:
    """Join the texts of several chunks. The result is off the host if some of them are."""
    filled = [text for text in texts if len(text)] or texts[:1]
    off_host = next((text for text in filled if not isinstance(text, pa.Array)), None)
    return pa.concat_arrays(filled) if off_host is None else off_host[slice(0)].joined(filled)


def _together(parts: Iterable[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Join what several chunks have. Return None if none has it. A chunk without rows may lack it."""
    given = [part for part in parts if part is not None]
    return join(given) if given else None


def commonest(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by key or label, for the `NOT_COPIED` commonest."""
    total: Counter[str] = sum(map(Counter, counts), Counter())
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:NOT_COPIED])


def commonest_rows(parts: Iterable[RowsByName]) -> dict[str, NDArray[np.int64]]:
    """Join rows by key or label, and return those of the commonest."""
    return noted_rows(joined_rows(parts))


def noted_rows(rows: RowsByName) -> dict[str, NDArray[np.int64]]:
    """Return the rows of the commonest keys or labels."""
    return dict(sorted(rows.items(), key=lambda item: (-len(item[1]), item[0]))[:NOTED])


def joined_rows(parts: Iterable[RowsByName]) -> dict[str, NDArray[np.int64]]:
    """Join rows by key or label."""
    rows: dict[str, list[NDArray[np.int64]]] = {}
    for part in parts:
        for name, numbers in part.items():
            rows.setdefault(name, []).append(numbers)
    return {name: np.concatenate(numbers) for name, numbers in rows.items()}


def empty_chunk(selection: Selection, problems: tuple[str, ...] = ()) -> Chunk:
    """Return a chunk without rows, with the usual schemas."""
    none = pa.array([], pa.large_binary())
    truth = np.empty(0, np.int32) if selection.truth or selection.answers else None
    rows, quarantine = selection.row_schema.empty_table(), QUARANTINE_SCHEMA.empty_table()
    prepared = {name: none.cast(pa.large_string()) for name, _ in selection.preparations}
    return Chunk(none, rows, quarantine, None, truth, problems, prepared=prepared)


def held_together(size: int, rows: int, selection: Selection) -> int:
    """Return how many bytes count for rows that take `size` bytes together, if the size of each row is not known."""
    return min(size, min(-(-size // max(rows, 1)), selection.most_held) * rows)


def numbered(chunk: Chunk, first: int) -> Chunk:
    """Return a chunk whose row numbers begin at `first`, from one whose row numbers begin at 0."""
    if not first:
        return chunk
    rows, quarantine = (
        table.set_column(1, "row", pa.array(table.column("row").to_numpy() + first))
        for table in (chunk.rows, chunk.quarantine)
    )
    return replace(
        chunk,
        rows=rows,
        quarantine=quarantine,
        sources=tuple(source._replace(first=source.first + first) for source in chunk.sources),
        not_copied={name: numbers + first for name, numbers in chunk.not_copied.items()},
        unknown_labels={name: numbers + first for name, numbers in chunk.unknown_labels.items()},
        mapped_labels={name: numbers + first for name, numbers in chunk.mapped_labels.items()},
    )


def first_chunks(chunks: Iterable[Chunk], rows: int | None) -> Iterator[Chunk]:
    """Yield the chunks of one file or table up to its first `rows` rows, which include quarantined ones. With None,
    yield all.

    Nothing after these rows is read.
    """
    limit = left = MOST if rows is None else rows
    for chunk in chunks:
        yield chunk if chunk.rows_read <= left else rows_between(chunk, 0, limit)
        left -= chunk.rows_read
        if left <= 0:
            return


def rows_between(chunk: Chunk, first: int, last: int) -> Chunk:
    """Return the rows of a chunk of one file with the numbers from `first` up to, but without, `last`. The rows of the
    chunk are in order.
    """
    bad = _between(chunk.quarantine, first, last)
    return replace(
        chunk.slice(_between(chunk.rows, first, last)),
        quarantine=chunk.quarantine[bad],
        bad=None if chunk.bad is None else chunk.bad[bad],
        not_copied=_rows_between(chunk.not_copied, first, last),
        unknown_labels=_rows_between(chunk.unknown_labels, first, last),
        mapped_labels=_rows_between(chunk.mapped_labels, first, last),
    )


def _rows_between(rows: RowsByName, first: int, last: int) -> RowsByName:
    parts = {name: numbers[slice(*np.searchsorted(numbers, [first, last]))] for name, numbers in rows.items()}
    return {name: numbers for name, numbers in parts.items() if len(numbers)}


def _between(table: pa.Table, first: int, last: int) -> slice:
    return slice(*np.searchsorted(table.column("row").to_numpy(), [first, last]).tolist())
