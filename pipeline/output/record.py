"""The types of the JSON files of an output folder: entries, manifest, plan, claim.

They check what is read. A file of another version is rejected, and so is one with a value that does not fit its type.
The message names the place in the file.
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
from msgspec import UNSET, Meta, Struct, UnsetType, field
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
    """A committed file. name: its path in the output folder, e.g. "parts/part-000000-0000003-1a2b3c4d.parquet"."""

    name: Annotated[str, Meta(pattern=layout.FILE_PATTERN)]
    rows: Count
    bytes: Count
    sha256: Digest


class LearnedFrom(Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of rows with a truth and a label, by whether the model has learned from them.

    Attributes
    ----------
    checked : int
        The rows for which it is known whether the model has learned from them.
    learned : int
        The checked rows that the model has learned from.
    right : int
        The checked rows that the model has not learned from and whose label is the truth.

    """

    checked: Count
    learned: Count
    right: Count

    def plus(self, other: LearnedFrom) -> LearnedFrom:
        """Return the sum of these counts and others."""
        return LearnedFrom(self.checked + other.checked, self.learned + other.learned, self.right + other.right)


class Figures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of a model over some rows. `Entry` explains each of them."""

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
    """The figures of one of several models: over a chunk in an entry, and over all chunks in the totals."""

    multi_label: bool = False

    def check(self, written: int, labelled: int) -> None:
        """Raise ValueError if the figures contradict each other.

        written: the number of written rows. labelled: the number of rows that the model has read, which are the written
        and the filtered ones.
        """
        with_label, given = written - self.unlabelled, sum(self.labels.values())
        if self.multi_label:
            if with_label < 0 or given < with_label or max(self.labels.values(), default=0) > with_label:
                raise ValueError("`labels` do not fit `rows_written` and `unlabelled`")
        elif given != with_label:
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
    """What became of the rows that were read, and the figures of the first model. `Entry` explains each field."""

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

    The number of rows that were read is the sum of the rows that were written, filtered and quarantined.

    Attributes
    ----------
    sources : tuple of RowRange
        The file, the first row and the number of rows of each piece that the chunk was read from.
    labels : dict of str to int
        Written rows by label.
    unlabelled : int
        Written rows without a label, because the score was too low or none of several labels applies.
    multi_label : bool
        Whether a row may have several labels.
    chars, truncated, unknown_chars : int
        Sums of these columns over written rows.
    saturated : int
        8-bit activations that have the greatest value, over all labelled rows.
    asked : int
        How often the network was asked, over all labelled rows; 0 if it is asked about every row.
    lengths : tuple of int
        Written rows by class of `counts.LENGTHS`.
    doubtful : dict of str to int
        Labelled rows that the model could hardly judge, by reason; filtered rows too.
    confusion : tuple of (int, int, int), or None
        True class, predicted class and rows of every pair that occurs, if there is a truth; filtered rows too.
    problems : tuple of str
        Messages about whole files.
    not_copied, unknown_labels, mapped_labels : dict of str to int
        Rows by key or label. See `Chunk`.
    files : tuple of FileRecord
        One part, or one part for each label, sorted; then the file of quarantined rows, if there are any.
    others : tuple of Judged, optional
        With several models, the figures of the second and further ones. All other figures are those of the first model.
    scores : dict of str to tuple of int, optional
        Written rows by label and bin of `counts.SCORES`. They are counted since 2026-11.
    right : dict of str to tuple of int, optional
        If there is a truth, written rows that have a truth and a label. The keys are "right" and "wrong", by whether
        the two are the same; the values are rows by bin.
    learned : LearnedFrom, optional
        If there is a truth, and the model's file says which rows it has learned from: how many of these rows have a
        truth and a label; filtered rows too.

    """

    version: Version = VERSION
    chunk: ChunkName
    job: JobId
    sources: tuple[RowRange, ...]
    multi_label: bool = False
    problems: tuple[str, ...]
    files: tuple[FileRecord, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if the figures contradict each other, which msgspec reports as an error of the file."""
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
        """Return the entry of some rows.

        judged: the figures of each model. n_chars: the number of characters of each written row, [N].
        """
        first, *others = judged
        about |= {"others": tuple(others) or UNSET, **msgspec.structs.asdict(first)}
        lengths, chars = tuple(count_lengths(n_chars)), int(n_chars.sum())
        return cls(rows_written=len(n_chars), lengths=lengths, chars=chars, **about)

    @property
    def judged(self) -> tuple[Judged, ...]:
        """The figures of each model."""
        first = Judged(**{name: getattr(self, name) for name in Judged.__struct_fields__})
        return first, *(() if self.others is UNSET else self.others)

    def has_files(self, names: PartNames) -> bool:
        """Return whether the files are those of a chunk in a job whose parts have such names."""
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
        """SHA-256 of the entry."""
        return hashlib.sha256(to_json(self)).digest()


_NO_PART = PartNames(by=("label",))
"""The names of the parts of a chunk without written rows, in a job with folders."""


class ClosingEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="group"):
    """The end of a range, or of rows in memory, which are range 0.

    Attributes
    ----------
    job : str
        The job's id.
    group : int
        The number of the range.
    files : tuple of (str, int or None)
        The path of each file as in the column `file`, and the number of rows that were read. The number is None for the
        partitions of a Dask DataFrame, whose rows the workers count.
    chunks : int
        The number of chunks of the range. They are numbered from 0.
    problems : tuple of (str, str)
        Messages about files that could not be read completely, or have other columns than the first file.
    unread : tuple of (str, int or None)
        Files from which nothing was read, and their number of rows if it is known.
    after : int, optional
        For a part of a file of records, the place at which the first record after the part begins.

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
    """What identifies an input file.

    Attributes
    ----------
    path : str
        The path of the file.
    size : int or None
        Its size in bytes; None if its server does not report it.
    modified : str
        The time of its last change in ns, or the equivalent on a remote file system.
    digest : str
        The digest of its content, if the user asked for it. For rows in memory, the digest of the rows.

    """

    path: str
    size: Count | None = None
    modified: str = ""
    digest: str = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that change a byte of the output. Fields that are not listed here are explained in `classify`.

    Attributes
    ----------
    truth : str or None
        SHA-256 of the answer file.
    models : tuple of str, optional
        With several models, the names by which their columns are named.
    abstain : float, optional
        A row whose score is lower has no label.
    multi_label : tuple of bool, optional
        For each model, whether it gives several labels. It is set if one of them does.
    windows : tuple of (int or str, int, str), optional
        How many windows or which ones, their overlap, and how their scores are combined.
    chosen : Chosen, optional
        How the rows were chosen from those of a finished job.
    network : str, optional
        The texts about which the network is asked, if it is not the default.
    layout, quote, escape, input_format, label_numbers_from, fold_labels : optional
        The options of these names, if they are not the default.
    map_labels : str, optional
        SHA-256 of the label map.
    join : str, optional
        The template that makes a text from the text columns.
    shard : str, optional
        The share of the files that is labelled, as "3/64".

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
        """The names of each model's columns."""
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
"""The software of this process."""


class Fingerprint(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that determines the bytes of the output.

    input: SHA-256 of the listing of the input files, or of what identifies the rows in memory. model: the digest of the
    model.
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
    """The sums over all chunks of a job. They do not depend on how often it was interrupted.

    Attributes
    ----------
    chunks : int
        Committed chunks.
    rows_read, rows_written, rows_filtered, rows_quarantined : int
        Numbers of rows. The number that were read is the sum of the other three.
    chars, truncated, unknown_chars : int
        Over written rows: characters, truncated rows, characters outside the alphabet.
    saturated : int
        In int8, the activations that have the greatest value of 8 bits, to which larger ones are clipped.
    asked : int
        The number of labelled rows, or windows of them, about which the network was asked; 0 if it is asked about all.
    labels : dict of str to int
        Written rows by label.
    unlabelled : int
        Written rows without a label, because the score was too low or none of several labels applies.
    doubtful : dict of str to int
        Labelled rows that the model could hardly judge, by reason.
    lengths : tuple of int
        Written rows by class of `counts.LENGTHS`.
    confusion : tuple of (int, int, int), or None
        Rows by true and predicted class, if there is a truth; filtered rows too.
    problems : tuple of (str, str)
        The path and the message of each file that could not be read completely.
    unread : tuple of (str, int or None)
        Each file or folder from which nothing was read, and its number of rows if it is known. `problems` gives the
        reason.
    left_out : tuple of (str, str), optional
        What was skipped when the input was last listed, because it is no input, each with the reason.
    not_copied : dict of str to int
        If all columns are copied, rows by a key that was not among them.
    unknown_labels : dict of str to int, optional
        If there is a truth column, rows by a label that names no class.
    mapped_labels : dict of str to int, optional
        If there is a truth column, rows by a label that the label map names.
    others : tuple of Judged, optional
        With several models, the figures of the second and further ones. All other figures are those of the first model.
    scores : dict of str to tuple of int, optional
        Written rows by label and bin of `counts.SCORES`. They are counted since 2026-11.
    right : dict of str to tuple of int, optional
        If there is a truth, written rows that have a truth and a label: "right" and "wrong" ones, by bin.
    learned : LearnedFrom, optional
        If there is a truth, and the model's file says which rows it has learned from: how many of these rows have a
        truth and a label; filtered rows too.

    """

    chunks: Count
    problems: tuple[tuple[str, str], ...]
    unread: tuple[tuple[str, Count | None], ...]
    left_out: tuple[tuple[str, str], ...] | UnsetType = UNSET


class Update(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an update added to a finished job. plan: SHA-256 of its saved plan. totals: the sums over its own chunks."""

    plan: Digest
    totals: Totals


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a job, and its totals.

    schema: the columns of the written rows, as the IPC message of an Arrow schema in hexadecimal. plan: SHA-256 of the
    saved plan. totals: the sums over the job and its updates, which are added one by one; None until the job is
    finished.
    """

    format: Literal["broadsheet-output"] = "broadsheet-output"
    version: Version = VERSION
    fingerprint: Fingerprint
    schema: str
    plan: Digest | None
    totals: Totals | None = None
    updates: tuple[Update, ...] = ()


class SavedSelection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A saved `source.rows.chunk.Selection`.

    kept_types: the Arrow schema of the kept columns, as its IPC message in hexadecimal. label_numbers_from: the number
    of the first class in a truth column of class numbers, as the user gave it or the job found it.
    """

    text: tuple[str, ...]
    kept_columns: tuple[str, ...] = field(name="kept")
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
        The number of consecutive files in each group, which are read together.
    parts : tuple of int, optional
        The number of ranges that each group is cut into: 1, except for large files. It is left out if all are 1.
    first_group : int
        The number of the first range.
    first : (str, tuple of str or None) or None
        The path and columns of the job's first readable file, which decided the selection.
    selection : SavedSelection
        The columns that the job uses.
    chunk_rows : int
        The largest number of rows in a chunk.
    problems : tuple of (str, str)
        The path and the message of each file that could not be listed.
    unread : tuple of (str, int or None)
        The same files, without the messages.
    left_out : tuple of (str, str), optional
        What was skipped, because it is no input, each with the reason. It is recorded since 2026-11.
    whole : str, optional
        If these files are a share of a job, SHA-256 of the listing of all files.
    withdrawn : tuple of int, optional
        The numbers of earlier ranges that no longer count once this update has ended, because their files have changed
        or are gone. The plan then has version 5.
    compacted : int, optional
        For a compaction, which labels nothing, the target number of rows of a part. Its ranges hold the rows of the
        ranges that it withdraws, in larger parts. The plan then has version 6.

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
        """The number of ranges."""
        return len(self.groups) if self.parts is UNSET else sum(self.parts)


class Claim(Struct, frozen=True, forbid_unknown_fields=True):
    """The job that owns the folder."""

    job: JobId
    version: Version = VERSION


class _Versioned(Struct):
    version: Count | None = None


# msgspec prepares a type when it first decodes it, and crashes if two threads do that at once. So it is done here.
for _kind in (Entry, ClosingEntry, Manifest, SavedPlan, Claim, _Versioned):
    msgspec.json.Decoder(_kind)


def to_json(value: object) -> bytes:
    """Return a value as JSON with sorted keys. The same value always gives the same bytes."""
    plain = msgspec.to_builtins(value, enc_hook=_scalar)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    try:
        return msgspec.json.format(text.encode(), indent=1) + b"\n"  # several times as fast as `json`'s own indent
    except UnicodeEncodeError:  # msgspec accepts no lone surrogates, which stand for a path that is not UTF-8
        text = json.dumps(plain, sort_keys=True, ensure_ascii=False, indent=1)
        return text.encode("utf-8", "backslashreplace") + b"\n"


def _scalar(value: object) -> object:
    """Return a NumPy scalar as a number. Raises TypeError for a value that JSON has no form for."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"JSON has no form for a {type(value).__name__}")


class OtherVersion(OutputError):
    """A file of another version of the layout."""

    def __init__(self, name: object, version: int) -> None:
        super().__init__(f"{name} is of version {version}, this version of broadsheet reads version {VERSION}")
        self.version = version


def from_json(data: bytes, kind: type[_Record], name: object) -> _Record:
    """Decode a value of type `kind`. Raises OutputError if the file is damaged or of another version.

    The message names the file, `name`, and the place in it.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        known = (VERSION, WITHDRAWING, COMPACTING) if kind is SavedPlan else (VERSION,)
        if version is not None and version not in known:
            raise OtherVersion(name, version)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OutputError(f"{name} is damaged: {error}") from error
