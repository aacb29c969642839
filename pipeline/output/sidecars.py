"""Writes sidecars: files beside those of the input, with a row for each row of an input file, in the same order.

A sidecar joins its input file by position. A row that is in quarantine has nulls.

The job makes sidecars at its end from its committed parts, with one chunk in memory at a time. A record for each range
says which entries its sidecars were made from, so that a resumed job makes only those that are missing or would differ.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import UNSET, Meta, Struct

from ..errors import OutputError, UsageError
from ..processes.threads import available_cores, threads
from ..source.plan.plan import part_name
from ..source.rows.chunk import Chunk
from ..storage.disk import why_not
from . import layout
from .commit import committed_rows, read_committed
from .formats import from_plain, to_plain, writable_type
from .layout import EVERY_FOLDER, QUARANTINE, SIDECARS, VERSION, sidecars_file
from .model_columns import N_CHARS, Names
from .record import (
    ClosingEntry,
    Count,
    Digest,
    Entry,
    Fingerprint,
    JobId,
    Manifest,
    SavedPlan,
    Settings,
    Version,
    from_json,
    to_json,
)
from .store import Store, check_claim

SIDECAR_FORMATS = ("parquet", "jsonl", "npy")
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".xz": None}
"""The compressions of input files by suffix, as Arrow names them. Arrow cannot write xz, so no sidecar has it."""

_POSITION = ("file", "row")
_ROW_GROUP = 1 << 17
"""The rows of a row group in a Parquet sidecar."""

_BLOCK = 1 << 22
"""How many bytes of a sidecar are hashed in one go."""

_TRIES = 3
KEPT = "kept"
"""The field of a quarantined row that holds the columns that identify the row."""

REPAIR = "--resume repairs this"


class Sidecar(Struct, frozen=True, forbid_unknown_fields=True):
    """A file with a row for each row of an input file. name: its path within the output folder."""

    name: Annotated[str, Meta(pattern=r"(?s)^(?!/)(?!(.*/)?\.\.?(/|$)).+$")]
    rows: Count
    bytes: Count
    sha256: Digest


class Sidecars(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sidecars of a range's files. made_from: the SHA-256 of the range's entries."""

    version: Version = VERSION
    job: JobId
    group: Count
    made_from: Digest
    files: tuple[Sidecar, ...]

    @property
    def file_name(self) -> str:
        return sidecars_file(self.group, self.job)


msgspec.json.Decoder(Sidecars)  # build it on import, as in `record`


def refuse_unfit(options: Any, ids: Iterable[str]) -> None:
    """Raise UsageError for options of a job that do not go with its layout. ids: the columns that are copied."""
    if options.layout == "parts":
        if options.format == "npy":
            raise UsageError("--format npy goes with --layout attributes")
        return
    if options.format not in SIDECAR_FORMATS:
        raise UsageError(
            f"--layout attributes writes {', '.join(SIDECAR_FORMATS)}: leave out --format {options.format}"
        )
    for name in ("where", "partition_by", "limit"):
        if getattr(options, name) not in (None, ()):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--layout attributes has a row for each row of the input: leave out {flag}")
    if options.format == "jsonl" and not [*ids]:
        raise UsageError("--layout attributes --format jsonl writes the id of each document: add --id-column id")
    if options.format == "npy" and not options.scores:
        raise UsageError("--layout attributes --format npy writes the score of every class: add --scores")


def sidecar_name(path: str, format_: str) -> str:
    """Return the name of the sidecar of an input file. path: the path of the input file below the root.

    JSON lines beside JSON lines have exactly the same name, as Dolma expects.
    """
    folder, _, name = path.rpartition("/")
    pure = PurePosixPath(name)
    packed = pure.suffix.lower() if pure.suffix.lower() in _COMPRESSED else ""
    inner = PurePosixPath(pure.stem) if packed else pure
    if format_ == "jsonl" and inner.suffix.lower() == ".jsonl" and packed != ".xz":
        return path
    ending = ".jsonl.gz" if format_ == "jsonl" else f".{format_}"
    return f"{folder}/{inner.stem}{ending}" if folder else f"{inner.stem}{ending}"


def check_names(paths: Iterable[str], format_: str) -> None:
    """Raise UsageError if the names of sidecars collide.

    Two input files must not have the same sidecar. The name of a sidecar must be neither one of the job's own names nor
    the name of a folder that holds another sidecar.
    """
    taken: dict[str, str] = {}
    names = {path: sidecar_name(path, format_) for path in paths}
    folders = {str(folder): path for path, name in names.items() for folder in PurePosixPath(name).parents}
    for path, name in names.items():
        first = name.partition("/")[0]
        if "://" in path or os.path.isabs(path) or {"", ".", ".."} & {*name.split("/")}:
            raise UsageError(f"{path}: --layout attributes has no place for it: unpack an archive, or rename the file")
        if first in EVERY_FOLDER:
            raise UsageError(f"{path}: the output has a folder {first} of its own: give a --root one folder higher")
        if name in taken:
            raise UsageError(f"{taken[name]} and {path} would both have {name} beside them: rename one, or use jsonl")
        if name in folders:
            raise UsageError(f"{path} would have {name} beside it, a folder for {folders[name]}: rename one")
        taken[name] = path


def with_ids(chunk: Chunk) -> pa.Table:
    """Return the quarantined rows of a chunk, with the columns that identify them if these are known."""
    if chunk.bad is None or not len(chunk.bad):
        return chunk.quarantine
    columns = [to_plain(column.combine_chunks()) for column in chunk.bad.columns]
    return chunk.quarantine.append_column(KEPT, pa.StructArray.from_arrays(columns, chunk.bad.column_names))


@dataclass(frozen=True)
class _About:
    """The columns of the sidecars.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the rows of a sidecar.
    names : tuple of Names
        The names of each model's columns.
    ids : tuple of str
        The names of the columns that are copied.

    """

    schema: pa.Schema
    names: tuple[Names, ...]
    ids: tuple[str, ...]

    def scores_of(self, names: Names) -> list[str]:
        return [name for name in self.schema.names if name.startswith(names.score_of("")) and name not in self.ids]


def write_sidecars(store: Store, manifest: Manifest, schema: pa.Schema, ranges: Iterable[int]) -> None:
    """Write the sidecars of these ranges, all of whose entries are there. Skip those that are already correct."""
    job, settings = manifest.fingerprint, manifest.fingerprint.settings
    if settings.layout is UNSET:
        return

    def write(number: int) -> None:
        made_from, closing = _made_from(store, number, job)
        record = _record(store, number, job)
        if closing is None or (record and record.made_from == made_from and not _damage(store, record)):
            return
        for left in reversed(range(_TRIES)):
            try:
                files = tuple(_write_files(store, closing, schema, settings))
                break
            except FileNotFoundError as error:  # another run of the job ended meanwhile and removed the temporary file
                if not left:
                    raise OutputError(why_not("written", str(store.root / SIDECARS), error)) from error
        record = Sidecars(job=job.id, group=number, made_from=made_from, files=files)
        store.put(record.file_name, to_json(record), partial(check_claim, store, job.id))

    with threads(available_cores()) as pool:
        list(pool.map(write, ranges))


def check_sidecars(store: Store, manifest: Manifest, ranges: Iterable[int]) -> None:
    """Raise OutputError unless the sidecars of these ranges are intact and made from the present entries."""
    if manifest.fingerprint.settings.layout is UNSET:
        return
    for number in ranges:
        made_from, closing = _made_from(store, number, manifest.fingerprint)
        record = _record(store, number, manifest.fingerprint)
        if closing is not None and (record is None or record.made_from != made_from):
            raise OutputError(f"{store.root}: the files of group {number} are not made from its entries: {REPAIR}")
        if record and (damage := _damage(store, record)):
            raise OutputError(f"{damage}: {REPAIR}")


def remove_planned(store: Store, settings: Settings, plan: SavedPlan) -> None:
    """Remove the sidecars of a plan's files. A job that was killed may have written some of them before their record.

    Raises UsageError for a plan with file names that such a job would have refused.
    """
    if settings.layout is not UNSET:
        check_names((file.path for file in plan.files), settings.format)
        store.remove_all(planned(settings, plan))


def planned(settings: Settings, plan: SavedPlan | None) -> set[str]:
    """Return the names of the sidecars of a plan's files."""
    files = () if settings.layout is UNSET or plan is None else plan.files
    return {sidecar_name(file.path, settings.format) for file in files}


def remove_sidecars(store: Store, chosen: Callable[[str], bool], but: Container[str] = ()) -> None:
    """Remove the sidecars of the chosen records, and leave the records themselves.

    A damaged record names no files.

    chosen: says whether a record is chosen, by its name. but: the names of sidecars that stay.
    """
    for name in filter(chosen, store.files(SIDECARS)):
        with suppress(OutputError):
            files = from_json(store.read(name), Sidecars, store.root / name).files
            store.remove_all([file.name for file in files if file.name not in but])


def _record(store: Store, number: int, job: Fingerprint) -> Sidecars | None:
    """Return the record of a range's sidecars; None if it is missing or damaged."""
    name = sidecars_file(number, job.id)
    try:
        return from_json(store.read(name), Sidecars, store.root / name) if store.has(name) else None
    except OutputError:
        return None


def _damage(store: Store, record: Sidecars) -> str | None:
    for file in record.files:
        digest, size = hashlib.sha256(), 0
        if store.size(file.name) == file.bytes:
            for block in store.blocks(file.name, _BLOCK):
                digest.update(block)
                size += len(block)
        if (size, digest.hexdigest()) != (file.bytes, file.sha256):
            return f"{store.root / file.name} is missing or damaged"
    return None


def _entries(store: Store, closing: ClosingEntry) -> Iterator[Entry]:
    for chunk in range(closing.chunks):
        name = layout.entry_file(part_name(closing.group, chunk), closing.job)
        yield from_json(store.read(name), Entry, store.root / name)


def _made_from(store: Store, number: int, job: Fingerprint) -> tuple[str, ClosingEntry | None]:
    """Return the digest of a range's entries, and its closing entry; None in its place if the range was discarded."""
    name = layout.closing_file(number, job.id)
    if not store.has(name):
        return "", None
    closing = from_json(store.read(name), ClosingEntry, store.root / name)
    digest = hashlib.sha256(to_json(closing))
    for entry in _entries(store, closing):
        digest.update(entry.digest)
    return digest.hexdigest(), closing


def _write_files(store: Store, closing: ClosingEntry, schema: pa.Schema, settings: Settings) -> Iterator[Sidecar]:
    """Write the sidecar of each file of a range that could be read, one after the other, and yield its record."""
    # Read the rows of the range as they are needed, in the order of its files.
    ids = schema.names[2 : schema.names.index(settings.labelled[0].label)]
    about = _About(pa.schema([field for field in schema if field.name not in _POSITION]), settings.labelled, tuple(ids))
    pieces = (piece for entry in _entries(store, closing) for piece in _pieces(store, entry, schema, about))
    write, unread = _WRITE[settings.format], {path for path, _ in closing.unread}
    # Write a sidecar for each file from the rows that have its path.
    coming = next(pieces, None)
    for path, rows in closing.files:
        if path in unread:
            continue

        def of_file(path: str = path) -> Iterator[pa.Table]:
            nonlocal coming
            while coming is not None and coming[0] == path:
                yield coming[1]
                coming = next(pieces, None)

        name = sidecar_name(path, settings.format)
        compression = _COMPRESSED.get(PurePosixPath(name).suffix) if settings.format == "jsonl" else None

        def written(file: BinaryIO, rows: int = rows or 0, compression: str | None = compression) -> _Hashed:
            hashed = _Hashed(file)
            out: Any = pa.CompressedOutputStream(hashed, compression) if compression else hashed
            with out:
                write(of_file(), about, rows, out)
            return hashed

        hashed = store.put_stream(name, written, partial(check_claim, store, closing.job))
        yield Sidecar(name, rows or 0, hashed.size, hashed.digest.hexdigest())


def _pieces(store: Store, entry: Entry, schema: pa.Schema, about: _About) -> Iterator[tuple[str, pa.Table]]:
    """Yield the path of each file that a chunk was read from, and the rows of the chunk from that file.

    A row that has no label is a row of nulls, or of its ids and nulls.
    """
    written = committed_rows(store, entry, schema)
    tables = [written, *(_quarantined(store, entry, schema, about))]
    rows = pa.concat_tables(tables, promote_options="default").select(schema.names)
    numbers = rows.column("row").to_numpy()
    for path, first, count in entry.sources:
        of_file = pc.equal(rows.column("file"), path).to_numpy()
        here = np.flatnonzero(of_file & (numbers >= first) & (numbers < first + count))
        places = np.full(count, -1, np.int64)
        places[numbers[here] - first] = here
        yield path, rows.select(about.schema.names).take(pa.array(places, mask=places < 0))


def _quarantined(store: Store, entry: Entry, schema: pa.Schema, about: _About) -> Iterator[pa.Table]:
    """Yield the file, the row and the ids of the quarantined rows, if there are ids."""
    for file in entry.files:
        if file.name.startswith(QUARANTINE) and about.ids:
            lines = [json.loads(line) for line in read_committed(store, file).splitlines()]
            fields = [schema.field(name) for name in (*_POSITION, *about.ids)]
            held = [{**(line.get(KEPT) or {}), **{name: line[name] for name in _POSITION}} for line in lines]
            columns = [pa.array([line.get(field.name) for line in held], writable_type(field.type)) for field in fields]
            plain = [from_plain(column, field.type) for column, field in zip(columns, fields, strict=True)]
            yield pa.table(plain, pa.schema(fields))


class _Hashed(io.RawIOBase):
    """Writes to a file and computes the hash and the size of what was written. Closing it leaves the file open."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest, self.size, self._file = hashlib.sha256(), 0, file

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)


def _write_parquet(pieces: Iterator[pa.Table], about: _About, _rows: int, out: BinaryIO) -> None:
    """Write all columns but `file` and `row`. Row groups have one size, however small the chunks are."""
    with pq.ParquetWriter(out, about.schema, compression="zstd") as writer:
        held, count = [about.schema.empty_table()], 0
        for piece in pieces:
            held, count = [*held, piece], count + len(piece)
            if count >= _ROW_GROUP:
                writer.write_table(pa.concat_tables(held))
                held, count = [about.schema.empty_table()], 0
        writer.write_table(pa.concat_tables(held))


def _write_dolma(pieces: Iterator[pa.Table], about: _About, _rows: int, out: BinaryIO) -> None:
    """Write attributes in Dolma's format: the id of each document and, by the name of a score, spans with their values.

    Here each score has one span, the whole document.
    """
    encoder = msgspec.json.Encoder()
    for piece in pieces:
        plain = {name: to_plain(piece.column(name).combine_chunks()).to_pylist() for name in piece.column_names}
        ends, documents = plain[N_CHARS.name], [{} for _ in range(len(piece))]  # type: list[int], list[dict[str, object]]
        for names in about.names:
            for attributes, scores, end in zip(documents, _named_scores(plain, names, about), ends, strict=True):
                attributes.update((name, [[0, end, score]]) for name, score in scores if score is not None)
        lines = zip(plain[about.ids[0]], documents, strict=True)
        out.write(encoder.encode_lines([{"id": id_, "attributes": attributes} for id_, attributes in lines]))


def _named_scores(plain: dict[str, list[Any]], names: Names, about: _About) -> Iterator[Iterable[tuple[str, Any]]]:
    """Yield for each row the scores of one model, each as a pair with the name of its column, `score_NAME`."""
    if columns := about.scores_of(names):
        yield from (zip(columns, row, strict=True) for row in zip(*(plain[name] for name in columns), strict=True))
    elif names.multi_label:
        for labels, scores in zip(plain[names.label], plain[names.score], strict=True):
            yield zip(map(names.score_of, labels or ()), scores or (), strict=True)
    else:
        for label, score in zip(plain[names.label], plain[names.score], strict=True):
            yield [] if label is None else [(names.score_of(label), score)]


def _write_npy(pieces: Iterator[pa.Table], about: _About, rows: int, out: BinaryIO) -> None:
    """Write float32 [rows, classes]: the scores of every class, one model after the other; NaN for a missing score."""
    columns = [name for names in about.names for name in about.scores_of(names)]
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, len(columns))}
    np.lib.format.write_array_header_1_0(out, header)
    for piece in pieces:
        scores = [piece.column(name).combine_chunks().fill_null(np.nan).to_numpy() for name in columns]
        out.write(np.column_stack(scores).astype("<f4").tobytes())


_WRITE = {"parquet": _write_parquet, "jsonl": _write_dolma, "npy": _write_npy}
