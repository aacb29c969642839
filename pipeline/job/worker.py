"""The state of a worker process between tasks, apart from its engines: the functions by which it reads and commits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from ..labelling.engines import ENGINES
from ..output.commit import commit_chunk
from ..source.chunk import Chunk
from ..source.plan.plan import GroupChunk, GroupEnd, Unit
from ..source.read.read import read_group, read_run, read_unit
from ..source.read.readers import MOST_OF_ONE, Readers, Room

_Item = TypeVar("_Item")
_MOST_AT_ONCE = 16
"""Chunks of groups and runs that are scored, or written, at a time."""


class WorkerState:
    """The state of one process, in which several workers may run.

    read, read_group, read_run, commit: the functions that the tasks call; assign another to replace one on a worker.
    readers: the processes that read, where there are some; else this one does. room: for chunks of groups and runs.
    threads: those that score and write these. stopped: the runs of the graph that begin no further chunk here.
    """

    def __init__(self) -> None:
        self.read, self.read_group, self.read_run = self._read_unit, self._read_group, self._read_run
        self.commit = commit_chunk
        self.readers: Readers | None = None
        self.room = Room()
        self.threads = ThreadPoolExecutor(_MOST_AT_ONCE, "broadsheet-label")
        self.stopped: set[str] = set()

    def read_in_processes(self, count: int, at_once: int) -> None:
        """Read in so many processes until the last engine is withdrawn. at_once: as of `Readers`."""
        if self.readers is None:
            self.readers = Readers(count, at_once)
            ENGINES.when_empty = self._end_readers

    def _end_readers(self) -> None:
        if self.readers is not None:
            self.readers.close()
            self.readers = None

    def _read_unit(self, *given: Any) -> Chunk:
        return self.readers.read_unit(*given) if self.readers else read_unit(*given)

    def _read_group(self, *given: Any) -> Generator[GroupChunk | GroupEnd, None, None]:
        """As of `Readers`; `take` is the last of what is given."""
        return self.readers.read_group(*given) if self.readers else _with_room(read_group(*given[:-1]), given[-1])

    def _read_run(self, *given: Any) -> Generator[tuple[Unit, Chunk | None], None, None]:
        return self.readers.read_run(*given) if self.readers else _with_room(read_run(*given[:-1]), given[-1])


def _with_room(found: Generator[_Item, None, None], take: Callable[[int], bool]) -> Generator[_Item, None, None]:
    """What is read in this process, where how large a chunk is shows once it is read."""
    with closing(found):
        while take(MOST_OF_ONE):
            if (item := next(found, None)) is None:
                return
            yield item


STATE = WorkerState()
"""The state of this process."""


def read_in_processes(count: int, at_once: int) -> None:
    """Have this process's workers read in so many processes. at_once: as of `Readers`."""
    STATE.read_in_processes(count, at_once)
