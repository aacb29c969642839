"""Reading planned input: a unit, on a worker; or the whole input, in this process."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import SourceError
from pipeline.source.chunk import Chunk, Selection, concat, empty_chunk
from pipeline.source.inputs import JobInput, Loaded, Partition, Unread
from pipeline.source.plan import Unit
from pipeline.source.tables import partition_chunk
from pipeline.telemetry.spans import Span


def read_unit(unit: Unit, selection: Selection, spans: list[Span] | None = None) -> Chunk:
    """The rows of a unit, in input order. spans: a span "decode" is appended for the time spent parsing.

    Raises SourceError where a file can no longer be read, or has changed since it was planned.
    """
    if not unit.fragments:
        return empty_chunk(selection)
    return concat([piece for f in unit.fragments for piece in f.file.format.read(f, selection, spans)])


def chunks_here(job_input: JobInput) -> Iterator[Chunk]:
    """Every chunk in input order, read in this process.

    Raises SourceError for a file that is not wholly readable; single bad rows are in the quarantine of their chunk.
    """
    if job_input.problems:
        raise SourceError(job_input.problems[0][1])
    for source in job_input.chunks(()):
        if isinstance(source, Loaded):
            chunk = source.chunk
        elif isinstance(source, Partition):
            chunk = partition_chunk(source.frame.compute(), source.number, job_input.selection)
        elif isinstance(source, Unread):
            raise SourceError(source.reason)
        else:
            chunk = read_unit(source, job_input.selection)
        if chunk.problems:
            raise SourceError(chunk.problems[0])
        yield chunk
