"""A sample of an input, and how many rows the whole has: counted where that is cheap, else estimated. And which large
files only one core can read, and how fast that is: the user could store them otherwise.
"""

from __future__ import annotations

import io
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import BinaryIO, NamedTuple, cast

from ...errors import SourceError, UsageError
from ...processes.threads import available_cores, threads
from ..chunk import Chunk, Selection, concat, first_chunks, first_rows
from ..find.files import Files
from ..formats.base import FilePlan, Fragment, InputFile, Seek
from ..formats.record_format import RecordFormat
from ..formats.records import read_records
from ..inputs import Given, RowsInMemory, refuse_unfit
from ..open import rapidgzip_reader
from ..open.compression import HEAD_BYTES, UTF8, Compression, Transcoded, beginning, compression_of
from ..open.decompress import MOST_STORED, ZSTD, Damaged, Decompressed, frames_can_be_cut, frames_pay
from ..open.opening import LocalFile, open_at, open_location
from ..read.read import read_group
from .examine import Examined, examine
from .plan import Group, GroupChunk, GroupEnd, bound, examine_first, plan_files
from .scan import fragment_about, no_scan

PLACES = 20
"""Where a sample is taken, at even distances."""

_COUNTED_BYTES = 64 << 20
"""So much is read to count rows. Of more input, rows are estimated."""

_COUNTED_IN_ORDER = 8 << 20
"""The same of a file that one core reads front to back."""

_WINDOW_BYTES = 256 << 10
_FRONT_BYTES = 1 << 20
_CHUNK_ROWS = 1024


@dataclass
class Sample:
    """Some rows of an input, and what is known of all of them.

    selection: with its columns resolved. chunks: the rows of each place. rows: of the whole input; None where that
    cannot be estimated. counted: whether `rows` is exact. reading_seconds: this machine takes for the files that are
    read front to back, each by one worker. problems: of whole files.
    """

    selection: Selection
    chunks: list[Chunk] = field(default_factory=list)
    rows: int | None = 0
    counted: bool = True
    reading_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def sample_input(given: Given, selection: Selection, rows: int, limit: int | None) -> Sample:
    """About `rows` rows of an input. limit: only its first rows count.

    Raises UsageError for a column that does not exist, an option that does not fit, and an input that can be read only
    once; SourceError where no file can be read.
    """
    refuse_unfit(given, selection)
    if isinstance(given, RowsInMemory):
        return _of_tables(given, selection, rows, limit)
    if not isinstance(given, Files):
        raise UsageError("a dry run takes files or a table in memory: other sources would have to be read for it")
    sample = Sample(selection, problems=[message for _, message in given.problems])
    found = bound(given.found, selection)
    by_rows = [file for file in found if file.format.seeks is Seek.ROWS]
    others = [file for file in found if file.format.seeks is not Seek.ROWS]
    if limit is not None:
        _count(sample, found, rows, limit)
        return _whole(sample)
    few = sum(file.stored for file in others) <= _COUNTED_BYTES
    counted = [file for file in others if few and not (file.front_to_back and file.stored > _COUNTED_IN_ORDER)]
    estimated = [file for file in others if file not in counted]
    parts = [
        (count, files)
        for count, files in ((_count_by_footer, by_rows), (_count, counted), (_estimate, estimated))
        if files
    ]
    for number, (count, files) in enumerate(parts):
        left = rows - sum(chunk.rows_read for chunk in sample.chunks)
        count(sample, files, left // (len(parts) - number))
    return _whole(sample)


def _whole(sample: Sample) -> Sample:
    """Raises SourceError where no file can be read."""
    if not sample.selection.text and not sample.chunks and sample.problems:
        raise SourceError(sample.problems[0])
    return sample


def _of_tables(given: RowsInMemory, selection: Selection, rows: int, limit: int | None) -> Sample:
    held, each = given.held, max(1, rows // PLACES)
    if held.rows is None:
        raise UsageError(f"a dry run would use up the {held.kind}, which can be read only once: give files or a table")
    selection, count = held.resolve(selection), min(limit or held.rows, held.rows)
    chosen = {*_even(-(-count // each), 1)}
    chunks = first_chunks(held.chunks(selection, each), count)
    return Sample(selection, [chunk for number, chunk in enumerate(chunks) if number in chosen], count)


def _even(count: int, each: int) -> list[int]:
    """Where runs of `each` of `count` rows begin at even distances, without a row twice."""
    runs = min(PLACES, -(-count // each))
    return [i * count // runs for i in range(runs)]


def _count_by_footer(sample: Sample, files: Sequence[InputFile], rows: int) -> None:
    """Count the rows of files that can be read from any row, and take a sample of them."""
    plan = plan_files(files, sample.selection, _CHUNK_ROWS)
    sample.selection = selection = plan.selection

    def planned(file: InputFile) -> FilePlan:
        try:
            found = examine(file, selection, plan.first)
            more = (found.remark,) if found.remark else ()
            planned = found.file.format.plan(found.file, found.schema, selection, _CHUNK_ROWS, no_scan)
            return FilePlan(list(planned.fragments), [*more, *planned.problems])
        except (SourceError, UsageError) as error:
            return FilePlan((), [error.message])

    fragments: list[Fragment] = []
    with threads(available_cores()) as pool:
        for found in pool.map(planned, plan.files):
            fragments += found.fragments
            sample.problems += found.problems
    sample.rows = (sample.rows or 0) + sum(fragment.rows for fragment in fragments)
    chosen = sorted((fragments[i] for i in _even(len(fragments), 1)), key=lambda fragment: fragment.rows)
    for number, fragment in enumerate(chosen):
        left = rows - sum(chunk.rows_read for chunk in sample.chunks)
        count = min(fragment.rows, max(1, left // (len(chosen) - number)))
        few = replace(fragment, stop=fragment.start + count, rows=count)
        sample.chunks += few.file.format.read(few, selection)


def _count(sample: Sample, files: Sequence[InputFile], rows: int, limit: int | None = None) -> None:
    """Count the rows of files, and take a sample of them: they are read twice, and parsed only where the sample is."""
    plan = plan_files(files, sample.selection, _CHUNK_ROWS, limit)
    sample.selection = plan.selection
    chunks: list[tuple[Group, str, int]] = []
    for group in plan.groups:
        for found in read_group(group, plan.selection, _CHUNK_ROWS, lambda _: True):
            if isinstance(found, GroupEnd):
                sample.problems += [message for _, message in found.problems]
                sample.rows = (sample.rows or 0) + sum(count or 0 for _, count in found.files)
            elif found.sources:
                chunks.append((group, found.name, sum(count for *_, count in found.sources)))
    chosen = {chunks[i][1]: chunks[i][0] for i in _even(len(chunks), 1)}
    each = _share({name: count for _, name, count in chunks if name in chosen}, rows)
    for group in {group.number: group for group in chosen.values()}.values():
        for found in read_group(group, plan.selection, _CHUNK_ROWS, lambda name: name not in chosen):
            if isinstance(found, GroupChunk) and found.chunk is not None:
                sample.chunks.append(first_rows(found.chunk, each[found.name]))


def _share(counts: Mapping[str, int], rows: int) -> dict[str, int]:
    """How many of `rows` to take from each of these, as even as can be."""
    shares: dict[str, int] = {}
    for number, (name, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        left = rows - sum(shares.values())
        shares[name] = min(count, max(1, left // (len(counts) - number)))
    return shares


class _Window(NamedTuple):
    """Part of a file. chunk: its first rows. rows, bytes: of all of it. seconds: reading it took."""

    chunk: Chunk
    rows: int
    bytes: int
    seconds: float


def _estimate(sample: Sample, files: Sequence[InputFile], rows: int) -> None:
    """Take a sample at even distances in the bytes of the files, and estimate how many rows they have by its density:
    apart for files that can be read from any record, and for each kind of others.
    """
    sample.counted = False
    each = max(1, rows // PLACES)
    sample.problems += [f"{file.path}: the file is empty" for file in files if not file.size]
    windows: dict[tuple[object, ...], list[_Window]] = defaultdict(list)
    for file, at in _places(files):
        try:
            found, sample.selection = examine_first(file, sample.selection)
            if file.front_to_back or not isinstance(found.file.format, RecordFormat):
                window = _front(found, each, sample.selection)
            else:
                window = _middle(found, at, each, sample.selection)
        except SourceError as error:
            if error.message not in sample.problems:
                sample.problems.append(error.message)
            continue
        if window is not None:
            windows[_kind(file)].append(window)
            sample.chunks.append(window.chunk)
    in_order: list[float] = []
    for file in files:
        here = windows[_kind(file)]
        total = sum(window.bytes for window in here)
        if not total and file.stored:
            sample.rows = None
        elif sample.rows is not None and total:
            share = file.stored / total
            sample.rows += round(share * sum(window.rows for window in here))
            if file.front_to_back:
                in_order.append(share * sum(window.seconds for window in here))
    sample.reading_seconds = max(sum(in_order) / available_cores(), max(in_order, default=0.0))


def _places(files: Sequence[InputFile]) -> Iterator[tuple[InputFile, int]]:
    """Files, each with a byte of it, at even distances in all bytes. One that is read front to back occurs once."""
    total, end, files = sum(file.stored for file in files), 0, deque(files)
    for i in range(PLACES):
        at = (2 * i + 1) * total // (2 * PLACES)
        while at >= end:
            file = files.popleft()
            end += file.stored
            seen = False
        if not (seen and file.front_to_back):
            yield file, at - (end - file.stored)
        seen = True


def _middle(found: Examined, at: int, each: int, selection: Selection) -> _Window | None:
    """About byte `at` of a file that can be read from any record."""
    form = found.file.format
    if not isinstance(form, RecordFormat):
        return None
    first = Fragment(found.file, found.schema.start, None, 0, 0)
    here = fragment_about(first, form.split, at, _WINDOW_BYTES)
    if here is None:
        return None
    chunk = concat(list(form.read(here, selection)))
    return _Window(first_rows(chunk, each), here.rows, here.size, 0.0)


def _front(examined: Examined, each: int, selection: Selection) -> _Window | None:
    """The beginning of a file that is read front to back; None where it has no records."""
    file, start = examined.file, examined.schema.start
    if not isinstance(file.format, RecordFormat):
        return None
    began = time.perf_counter()
    text, stored = _beginning(file)
    found = list(read_records(BytesIO(text[start:]), file.format.split, start, limits=file.format.limits))
    if stored < file.stored and found:
        found[-1] = found[-1].slice(0, len(found[-1]) - 1)  # it is cut off there
    if not any(map(len, found)):
        return None
    chunk = concat([file.format.parse(records, file.path, 0, selection) for records in found])
    seconds = time.perf_counter() - began
    return _Window(first_rows(chunk, each), chunk.rows_read, stored, seconds)


def _kind(file: InputFile) -> tuple[object, ...]:
    """Files of one kind have about as many rows for each byte."""
    return file.compression, file.member is not None, file.format.encoding


def _beginning(file: InputFile) -> tuple[bytes, int]:
    """The first text of a file, as UTF-8, and how many of its stored bytes that takes, about."""
    if file.compression and file.member is None:
        with open_location(file.location, file.ranges, endpoint=file.endpoint) as raw:
            head = raw.read(_FRONT_BYTES)
        text = beginning(head)
        if file.format.encoding != UTF8:
            text = Transcoded(BytesIO(text), file.format.encoding).read(4 * len(text))  # a character takes four bytes
        return text, len(head)
    blocks, room = [], _FRONT_BYTES
    with open_at(file) as stream:
        while room > 0 and (block := stream.read(room)):
            blocks.append(block)
            room -= len(block)
    found = b"".join(blocks)
    if file.member is not None:
        share = file.member.size / max(file.member.length, 1)
        return found, min(file.stored, round(len(found) * share))
    if file.format.encoding != UTF8:
        return found, len(found.decode(UTF8, "replace").encode(file.format.encoding, "replace"))
    return found, len(found)


_LARGE_BYTES = 1 << 30
"""From which size on it is worth saying: a core takes some ten seconds for so much."""

_SECONDS = 0.3
_HEAD_BYTES = MOST_STORED


def slow_to_read(files: Sequence[InputFile]) -> str | None:
    """A remark about the largest of the files, if it is large and one core must read it. None where it cannot be read:
    the job itself says that.
    """
    large = [file for file in files if file.stored >= _LARGE_BYTES]
    try:
        remark = how_it_is_read(max(large, key=lambda file: file.stored)) if large else None
    except (OSError, UsageError):
        return None
    others = f" (the largest of {len(large):,} files of 1 GiB and more)" if len(large) > 1 else ""
    return remark + others if remark else None


def how_it_is_read(file: InputFile) -> str | None:
    """A remark about a compressed file that one core must read, with the rate at which it does; None for others.

    It decompresses the beginning of the file for that, 0.3 s long. Raises OSError.
    """
    if file.member is not None or file.format.jumps:
        return None
    with open_location(file.location, file.ranges, endpoint=file.endpoint, stop=_HEAD_BYTES) as raw:
        head = cast(BinaryIO, io.BufferedReader(raw)).read(_HEAD_BYTES)
        is_local = isinstance(raw, LocalFile)
    compression = compression_of(head[:HEAD_BYTES], file.compression)
    if compression is None:
        return None
    if rapidgzip_reader.pays(compression, file.stored) and is_local:
        return None
    if frames_pay(compression, file.stored) and frames_can_be_cut(head):
        return None
    what = "one zstd frame, or several large ones" if compression is ZSTD else compression.name
    return f"{file.path}: {what}, read by one core ({_rate(head, compression):,.0f} MB/s){_remedy(compression)}"


def _remedy(compression: Compression) -> str:
    if compression.name in rapidgzip_reader.LEAST_BYTES and not rapidgzip_reader.is_there():
        return "; more with rapidgzip: pip install rapidgzip"
    return "; pzstd writes zstd that all cores can read"


def _rate(head: bytes, compression: Compression) -> float:
    """MB of content in a second of a core, whatever else this machine does."""
    stream = Decompressed(lambda: io.BytesIO(head), compression)
    began, count = time.thread_time(), 0
    try:
        while time.thread_time() < began + _SECONDS and (block := stream.read(1 << 20)):
            count += len(block)
    except Damaged:  # the file goes on
        pass
    return count / 1e6 / (time.thread_time() - began)
