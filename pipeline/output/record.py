"""The JSON files of an output folder as types, which check what is read: entries, manifest, plan, claim.

A file of another version, or with a value that does not fit its type, is rejected with the place in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from ..engine.base import Backend
from ..errors import OutputError
from ..labelling.counts import LENGTHS, SCORES, count_lengths
from ..source.rows.chunk import MOST, RowRange
from . import layout
from .cut import Chosen
from .layout import COMPACTING, HIDDEN_PARTS, QUARANTINE, VERSION, WITHDRAWING, PartNames, folder_values
from .model_columns import Names

Count = Annotated[int, Meta(ge=0, le=MOST)]
AtLeastOne = Annotated[int, Meta(ge=1, le=MOST)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
JobId = Annotated[str, Meta(pattern=layout.JOB_PATTERN)]
ChunkName = Annotated[str, Meta(pattern=layout.CHUNK_PATTERN)]
Scores = dict[str, tuple[Count, ...]] | UnsetType
Version = Literal[4]
PlanVersion = Literal[4, 5, 6]
_Record = TypeVar("_Record")


class FileRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A committed file. name: within the output folder, e.g. "parts/part-000000-0000003-1a2b3c4d.parquet"."""

    name: Annotated[str, Meta(pattern=layout.FILE_PATTERN)]
    rows: Count
    bytes: Count
    sha256: Digest


class LearnedFrom(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows with a truth and a label, and how many of them the model has learned from.

    Attributes
    ----------
    checked : int
        Those of which it is known.
    learned : int
        Those of them that the model has learned from.
    right : int
        Of the other ones, those whose label is the truth.

    """

    checked: Count
    learned: Count
    right: Count

    def plus(self, other: LearnedFrom) -> LearnedFrom:
        """Those of both."""
        return LearnedFrom(self.checked + other.checked, self.learned + other.learned, self.right + other.right)


class Figures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model says of rows. What each figure is: see `Entry`."""

    labels: dict[str, Count]
    unlabelled: Count = 0
    truncated: Count
    unknown_chars: Count
    saturated: Count = 0
    asked: Count = 0
    doubtful: dict[str, Count]
    confusion: tuple[tuple[int, int, Count], ...] | None
    scores: Scores = UNSET
    right: Scores = UNSET
    learned: LearnedFrom | UnsetType = UNSET


class Judged(Figures, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one of several models: in a chunk's entry its own, in totals those of all."""

    multi_label: bool = False

    def check(self, written: int, labelled: int) -> None:
        """Raise ValueError where the figures contradict each other. written, labelled: rows."""
        labelled_rows, given = written - self.unlabelled, sum(self.labels.values())
        if self.multi_label:
            if labelled_rows < 0 or given < labelled_rows or max(self.labels.values(), default=0) > labelled_rows:
                raise ValueError("`labels` do not fit `rows_written` and `unlabelled`")
        elif given != labelled_rows:
            raise ValueError("`labels` and `unlabelled` do not add up to `rows_written`")
        if min(self.labels.values(), default=1) < 1:
            raise ValueError("`labels` has a label without rows")
        if sum(self.doubtful.values()) > labelled:
            raise ValueError("`doubtful` has more rows than were labelled")
        if self.scores is not UNSET:
            rows = {name: sum(bins) for name, bins in self.scores.items() if len(bins) == len(SCORES)}
            if rows != self.labels:
                raise ValueError("`scores` do not add up to `labels`")
        if self.confusion is not None and labelled != sum(rows for *_, rows in self.confusion):
            raise ValueError("`confusion` does not add up to `rows_written` and `rows_filtered`")


class Accounted(Figures, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of rows that were read, with the figures of the first model. What each is: see `Entry`."""

    rows_read: Count
    rows_written: Count
    rows_filtered: Count
    rows_quarantined: Count
    chars: Count
    lengths: tuple[Count, ...]
    not_copied: dict[str, Count] = {}
    unknown_labels: dict[str, Count] | UnsetType = UNSET
    mapped_labels: dict[str, Count] | UnsetType = UNSET
    others: tuple[Judged, ...] | UnsetType = UNSET


class Entry(Accounted, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="chunk"):
    """The commit of a chunk: its files, and its share of the job's totals.

    sources: (file, first row, rows) of each piece it was read from. rows_read = rows_written + rows_filtered +
    rows_quarantined. labels: written rows by label. unlabelled: written rows without one, as the score was too low or
    none of several applies. multi_label: whether a row may have several. chars, truncated, unknown_chars: sums of those
    columns over written rows. saturated: 8-bit activations at their greatest, over all rows that were labelled. asked:
    how often a network was asked that is not asked about all rows, over the same rows.
    lengths: written rows by class of `counts.LENGTHS`. doubtful: labelled rows that the model could hardly judge, by
    reason, filtered ones too. confusion: (true class, predicted class, rows) of every pair that occurs, where there is
    a truth, over the filtered rows too. problems: messages about whole files. not_copied, unknown_labels,
    mapped_labels: rows by key or label, as of `Chunk`. files: one part, or one for each label, sorted; then the
    quarantined rows, where there are any. others: of several models, what the second and further ones say; the rest is
    the first one's. scores: written rows by label and bin of `counts.SCORES`, since 2026-11. right: where there is a
    truth, written rows that have one and a label, by whether these are the same ("right", "wrong") and by bin. learned:
    where there is a truth, and the model's file says which rows it has learned from: how many of these have a truth and
    a label, over the filtered rows too.
    """

    version: Version = VERSION
    chunk: ChunkName
    job: JobId
    sources: tuple[RowRange, ...]
    multi_label: bool = False
    problems: tuple[str, ...]
    files: tuple[FileRecord, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where the figures contradict each other; in a file that is read, an error of that file."""
        written, quarantined = self.rows_written, self.rows_quarantined
        if self.rows_read != written + self.rows_filtered + quarantined:
            raise ValueError("`rows_read` is not the sum of the rows written, filtered and quarantined")
        if self.rows_read != sum(rows for *_, rows in self.sources):
            raise ValueError("`rows_read` is not the sum of the rows of `sources`")
        if written != sum(self.lengths) or len(self.lengths) != len(LENGTHS):
            raise ValueError("`lengths` do not add up to `rows_written`")
        for judged in self.judged:
            judged.check(written, written + self.rows_filtered)
        if self.problems and not self.sources:
            raise ValueError("there are `problems`, and no `sources`")
        if self.files and not self.has_files(PartNames.like(self.files[0].name)) and not self.has_files(_NO_PART):
            raise ValueError("`files` are not those of this chunk")

    @classmethod
    def of(cls, judged: Iterable[Judged], n_chars: NDArray[np.int64], **about: Any) -> Entry:
        """Of some rows. judged: what each model says of them. n_chars: the characters of those that are written."""
        first, *others = judged
        about |= {"others": tuple(others) or UNSET, **msgspec.structs.asdict(first)}
        lengths, chars = tuple(count_lengths(n_chars)), int(n_chars.sum())
        return cls(rows_written=len(n_chars), lengths=lengths, chars=chars, **about)

    @property
    def judged(self) -> tuple[Judged, ...]:
        """What each model says."""
        first = Judged(**{name: getattr(self, name) for name in Judged.__struct_fields__})
        return first, *(() if self.others is UNSET else self.others)

    def has_files(self, names: PartNames) -> bool:
        """Whether its files are those of a chunk of a job whose parts have such names."""
        parts = [file for file in self.files if not file.name.startswith(QUARANTINE)]
        of_parts = names.files(self.chunk, self.job, (tuple(folder_values(file.name).values()) for file in parts))
        rows = [file.rows for file in parts] if names.by else [self.rows_written]
        expected = [(name, count) for (name, _), count in zip(of_parts, rows, strict=False)]
        if self.rows_quarantined:
            expected.append((layout.quarantine_file(self.chunk, self.job), self.rows_quarantined))
        return [(file.name, file.rows) for file in self.files] == expected and sum(rows) == self.rows_written

    @property
    def file_name(self) -> str:
        return layout.entry_file(self.chunk, self.job)

    @property
    def digest(self) -> bytes:
        """Of all that it says."""
        return hashlib.sha256(to_json(self)).digest()


_NO_PART = PartNames(by=("label",))
"""Of a chunk without written rows, in a job with folders."""


class ClosingEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="group"):
    """The end of a range, or of rows in memory, which are range 0.

    Attributes
    ----------
    job : str
        The job's id.
    group : int
        The number of the range.
    files : tuple of (str, int or None)
        Each as in the column `file`, with the rows that were read of it; None for the partitions of a Dask DataFrame,
        which are counted where they are.
    chunks : int
        How many it has, which are numbered from 0.
    problems : tuple of (str, str)
        Messages about files that were not wholly readable, or have other columns than the first.
    unread : tuple of (str, int or None)
        Files of which nothing was read, with their rows where they are known.
    after : int, optional
        Of a part of a file of records, where the first record after it begins.

    """

    version: Version = VERSION
    job: JobId
    group: Count
    files: tuple[tuple[str, Count | None], ...]
    chunks: Count
    problems: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, Count | None], ...] = ()
    after: Count | UnsetType = UNSET

    @property
    def file_name(self) -> str:
        return layout.closing_file(self.group, self.job)


class ListedFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What identifies an input file. size: None where its server does not report it. modified: time in ns, or the
    equivalent of a remote file system. digest: of its content, where the user asked for it; of rows in memory, of
    these.
    """

    path: str
    size: Count | None = None
    modified: str = ""
    digest: str = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that change a byte of the output. truth: SHA-256 of the answer file. models: the names of several, by
    which their columns are named. abstain: below which score a row has no label. multi_label: for each model, whether
    it gives several labels, where one does. windows: how many or which, their overlap, and how they are scored
    together. chosen: of rows that were chosen from those of a finished job. network: about which texts it is asked,
    where that is not the default. layout, quote, escape, input_format, label_numbers_from, fold_labels: the same.
    map_labels: SHA-256 of the label map. join: the template that makes the text of the text columns. shard: which share
    of the files, as "3/64".
    """

    text_columns: tuple[str, ...]
    kept_columns: tuple[str, ...]
    keep_all: bool
    columns: tuple[str, ...] | None
    truth_column: str | None
    truth: Digest | None
    scores: bool
    top_k: AtLeastOne
    chunk_size: AtLeastOne
    hash: str
    encoding: str
    delimiter: str | None
    limit: AtLeastOne | None
    format: str
    partition_by: str | tuple[str, ...] | None
    where: str | None
    models: tuple[str, ...] | UnsetType = UNSET
    abstain: float | UnsetType = UNSET
    multi_label: tuple[bool, ...] | UnsetType = UNSET
    windows: tuple[AtLeastOne | str, Count, str] | UnsetType = UNSET
    chosen: Chosen | UnsetType = UNSET
    network: str | UnsetType = UNSET
    preparation: str | UnsetType = UNSET
    layout: Literal["attributes"] | UnsetType = UNSET
    shard: str | UnsetType = UNSET
    quote: str | UnsetType = UNSET
    escape: str | UnsetType = UNSET
    input_format: str | UnsetType = UNSET
    label_numbers_from: Literal[0, 1] | UnsetType = UNSET
    fold_labels: bool | UnsetType = UNSET
    map_labels: Digest | UnsetType = UNSET
    join: str | UnsetType = UNSET

    @property
    def labelled(self) -> tuple[Names, ...]:
        """Of each model's columns."""
        prefixes = ("",) if self.models is UNSET else tuple(f"{model}_" for model in self.models)
        several = (False,) * len(prefixes) if self.multi_label is UNSET else self.multi_label
        return tuple(map(Names, prefixes, several))

    @property
    def names(self) -> PartNames:
        if self.layout is not UNSET:
            return PartNames(folder=HIDDEN_PARTS)
        by = (self.partition_by,) if isinstance(self.partition_by, str) else self.partition_by or ()
        return PartNames(self.format, tuple(self.labelled[0].label if name == "label" else name for name in by))


class Writer(Struct, frozen=True, forbid_unknown_fields=True):
    """The software that encodes the parts."""

    broadsheet: str
    pyarrow: str
    encoding: int


WRITER = Writer(version("broadsheet"), pa.__version__, layout.PART_ENCODING)
"""This process's."""


class Fingerprint(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that determines the bytes of the output. input: SHA-256 of the listing of its files, or of what
    identifies rows in memory. model: its digest.
    """

    input: Digest
    model: str
    backend: Backend
    settings: Settings
    writer: Writer

    @property
    def id(self) -> str:
        """The job's name: 16 hexadecimal digits."""
        return hashlib.sha256(to_json(self)).hexdigest()[:16]


class Totals(Accounted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sums over all chunks of a job; the same however often it was interrupted.

    Attributes
    ----------
    chunks : int
        Committed chunks.
    rows_read, rows_written, rows_filtered, rows_quarantined : int
        Rows; those read are the sum of the other three.
    chars, truncated, unknown_chars : int
        Over written rows: characters, truncated rows, characters outside the alphabet.
    saturated : int
        In int8, activations at the greatest number of 8 bits, where all that was above is too.
    asked : int
        About how many labelled rows, or windows of them, the network was asked; 0 where it is asked about all.
    labels : dict of str to int
        Written rows by label.
    unlabelled : int
        Written rows without a label, since their score was too low or none of several applies.
    doubtful : dict of str to int
        Labelled rows that the model could hardly judge, by reason.
    lengths : tuple of int
        Written rows by class of `counts.LENGTHS`.
    confusion : tuple of (int, int, int), or None
        Rows by true and predicted class, where there is a truth; filtered rows too.
    problems : tuple of (str, str)
        File and message of each file that was not wholly readable.
    unread : tuple of (str, int or None)
        Each file or folder of which nothing was read, and its rows where they are known; `problems` say why.
    left_out : tuple of (str, str), optional
        What was skipped when the input was last listed, since it is no input, each with the reason.
    not_copied : dict of str to int
        Where all columns are copied, rows by a key that was not among these.
    unknown_labels : dict of str to int, optional
        Where there is a truth column, rows by a label that names no class.
    mapped_labels : dict of str to int, optional
        Where there is a truth column, rows by a label that the label map names.
    others : tuple of Judged, optional
        Of several models, the figures of the second and further ones; all others are the first one's.
    scores : dict of str to tuple of int, optional
        Written rows by label and bin of `counts.SCORES`; they are counted since 2026-11.
    right : dict of str to tuple of int, optional
        Where there is a truth, written rows that have one and a label: "right" and "wrong" ones, by bin.
    learned : LearnedFrom, optional
        Where there is a truth, and the model's file says which rows it has learned from: how many of these are among
        the rows that have a truth and a label; filtered rows too.

    """

    chunks: Count
    problems: tuple[tuple[str, str], ...]
    unread: tuple[tuple[str, Count | None], ...]
    left_out: tuple[tuple[str, str], ...] | UnsetType = UNSET


class Update(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an update has added to a finished job. plan: SHA-256 of its saved plan. totals: over its own chunks."""

    plan: Digest
    totals: Totals


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the job is, and its totals. schema: of the written rows, an Arrow schema's IPC message in hexadecimal. plan:
    SHA-256 of the saved plan. totals: None until it is finished; with those of its updates, which come one by one.
    """

    format: Literal["broadsheet-output"] = "broadsheet-output"
    version: Version = VERSION
    fingerprint: Fingerprint
    schema: str
    plan: Digest | None
    totals: Totals | None = None
    updates: tuple[Update, ...] = ()


class SavedSelection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source.chunk.Selection`; kept_types: an Arrow schema of the kept columns, its IPC message in hexadecimal.
    label_numbers_from: the number of the first class in a truth column of class numbers, as the job found or got it.
    """

    text: tuple[str, ...]
    kept: tuple[str, ...]
    kept_types: str
    truth: str | None
    header: tuple[str, ...] | None
    classes: tuple[str, ...]
    answers: str | None
    label_numbers_from: Count | UnsetType = UNSET


class SavedPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a job, or of an update, as they were listed, and how they are cut into ranges.

    Attributes
    ----------
    files : tuple of ListedFile
        The files.
    groups : tuple of int
        How many of them, one after the other, are read together.
    parts : tuple of int, optional
        Into how many ranges each of these is cut: 1 but for large files; where all are 1, this is left out.
    first_group : int
        The number of the first range.
    first : (str, tuple of str or None) or None
        Path and columns of the job's first readable file, by which the selection was resolved.
    selection : SavedSelection
        The columns that the job uses.
    chunk_rows : int
        Rows in a chunk at most.
    problems : tuple of (str, str)
        Of what could not be listed.
    unread : tuple of (str, int or None)
        The same, without the messages.
    left_out : tuple of (str, str), optional
        What was skipped, since it is no input, each with the reason. Recorded since 2026-11.
    whole : str, optional
        SHA-256 of the listing of which these files are a share.
    withdrawn : tuple of int, optional
        The numbers of earlier ranges that count no longer once this update has ended: files of theirs have changed or
        are gone. It is then of version 5.
    compacted : int, optional
        Of a compaction, which labels nothing: the rows that a part is to have. Its ranges hold the rows of those that
        it withdraws, in larger parts. It is then of version 6.

    """

    version: PlanVersion = VERSION
    files: tuple[ListedFile, ...]
    groups: tuple[Count, ...]
    first_group: Count = 0
    first: tuple[str, tuple[str, ...] | None] | None
    selection: SavedSelection
    chunk_rows: AtLeastOne
    problems: tuple[tuple[str, str], ...]
    unread: tuple[tuple[str, Count | None], ...]
    left_out: tuple[tuple[str, str], ...] | UnsetType = UNSET
    whole: Digest | UnsetType = UNSET
    parts: tuple[AtLeastOne, ...] | UnsetType = UNSET
    withdrawn: tuple[Count, ...] | UnsetType = UNSET
    compacted: AtLeastOne | UnsetType = UNSET

    @property
    def ranges(self) -> int:
        """How many there are."""
        return len(self.groups) if self.parts is UNSET else sum(self.parts)


class Claim(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose folder it is."""

    job: JobId
    version: Version = VERSION


class _Versioned(Struct):
    version: Count | None = None


# msgspec prepares a type when it is first decoded, and crashes where two threads do that at once: so it is done here.
for _kind in (Entry, ClosingEntry, Manifest, SavedPlan, Claim, _Versioned):
    msgspec.json.Decoder(_kind)


def to_json(value: object) -> bytes:
    """JSON with sorted keys: the same value is always the same bytes."""
    plain = msgspec.to_builtins(value, enc_hook=_scalar)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    try:
        return msgspec.json.format(text.encode(), indent=1) + b"\n"  # several times as fast as `json`'s own indent
    except UnicodeEncodeError:  # a path that is not UTF-8, as JSON escapes it; msgspec accepts no lone surrogates
        text = json.dumps(plain, sort_keys=True, ensure_ascii=False, indent=1)
        return text.encode("utf-8", "backslashreplace") + b"\n"


def _scalar(value: object) -> object:
    """A NumPy scalar as a number. Raises TypeError for what JSON has no form for."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"JSON has no form for a {type(value).__name__}")


class OtherVersion(OutputError):
    """A file of another version of the layout."""

    def __init__(self, name: object, version: int) -> None:
        super().__init__(f"{name} is of version {version}, this version of broadsheet reads version {VERSION}")
        self.version = version


def from_json(data: bytes, kind: type[_Record], name: object) -> _Record:
    """A value of type `kind`. Raises OutputError, naming file and place, where it is damaged or of another version."""
    try:
        own = msgspec.json.decode(data, type=_Versioned).version
        known = (VERSION, WITHDRAWING, COMPACTING) if kind is SavedPlan else (VERSION,)
        if own is not None and own not in known:
            raise OtherVersion(name, own)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OutputError(f"{name} is damaged: {error}") from error
