"""An input read in this process, chunk after chunk: for what needs no cluster."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import SourceError
from pipeline.source import read_unit
from pipeline.source.chunk import Chunk
from pipeline.source.inputs import JobInput, Loaded, Partition
from pipeline.source.tables import partition_chunk


def chunks_here(job_input: JobInput, symbols: int, length: int) -> Iterator[Chunk]:
    """Every chunk in input order. symbols, length: of the model, for one-hot input.

    Raises SourceError for a file that is not wholly readable; rows that are not are in each chunk's quarantine.
    """
    if job_input.problems:
        path, message = job_input.problems[0]
        raise SourceError(f"{path}: {message}")
    for source in job_input.chunks(()):
        if isinstance(source, Loaded):
            chunk = source.chunk
        elif isinstance(source, Partition):
            chunk = partition_chunk(source.frame.compute(), source.number, job_input.selection)
        else:
            chunk = read_unit(source, job_input.selection, symbols, length)
        if chunk.problems:
            raise SourceError(chunk.problems[0])
        yield chunk
