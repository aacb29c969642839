"""The state of a worker process between tasks: its engine, and the functions by which it reads and commits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipeline.engine.base import Backend, Engine
from pipeline.engine.open import open_engine
from pipeline.errors import BroadsheetError
from pipeline.output.commit import commit_chunk
from pipeline.source.chunk import Chunk
from pipeline.source.group import GroupChunk, GroupEnd
from pipeline.source.plan import Unit
from pipeline.source.read import read_group, read_run, read_unit
from pipeline.source.readers import Readers
from pipeline.source.room import Room
from pipeline.telemetry.spans import WHERE, Place

_MOST_LABELLED = 16
"""Chunks of groups and runs that are classified, or written, at a time."""


class WorkerState:
    """The state of one process, in which several workers may run.

    open_engine, read, read_group, read_run, commit: the functions that the plugin and the tasks call; assign another to
    replace one on a worker. computing: a lock, held while a chunk is computed and while engines are loaded or closed:
    an engine has one ring of slots (on a CPU one pool of threads), and must not be closed while it computes. readers:
    the processes that read, where there are some; else this one does. reading: held by each task of a group or run that
    reads, of which there are no more than processes: one that waited for a process would hold room that others need.
    room: for chunks of groups and runs. labelling: threads that classify and write these. stopped: the runs of the
    graph that begin no further chunk here.
    """

    def __init__(self) -> None:
        self.open_engine: Callable[..., Engine] = open_engine
        self.read, self.read_group, self.read_run = self._read_unit, self._read_group, self._read_run
        self.commit = commit_chunk
        self.computing: AbstractContextManager[object] = threading.Lock()
        self.readers: Readers | None = None
        self.reading: AbstractContextManager[object] = nullcontext()
        self.room = Room()
        self.labelling = ThreadPoolExecutor(_MOST_LABELLED, "broadsheet-label")
        self.stopped: set[str] = set()
        self.engines: dict[str, Engine] = {}
        self._places: dict[str, Place] = {}
        self._users: Counter[str] = Counter()

    def install(self, key: str, load: Callable[[], Engine]) -> None:
        """Provide an engine under `key`: loaded once, and kept until the last worker of this process gives it up."""
        with self.computing:
            if key not in self.engines:
                started = time.time()
                engine = self.engines[key] = load()
                self._places[key] = Place(WHERE, engine.device_name, started, engine.memory_ready, time.time())
            self._users[key] += 1

    def remove(self, key: str) -> None:
        """Give up one use of the engine; the last one closes it."""
        with self.computing:
            self._users[key] -= 1
            if self._users[key] <= 0 and key in self.engines:
                self.engines.pop(key).close()
                del self._places[key]
            if not self.engines and self.readers is not None:
                self.readers.close()
                self.readers, self.reading = None, nullcontext()

    def read_in_processes(self, count: int) -> None:
        """Read in so many processes, which start now, until the last engine is given up."""
        if self.readers is None:
            self.readers = Readers(count)
            self.reading = threading.Semaphore(count)

    def _read_unit(self, *given: Any) -> Chunk:
        return self.readers.read_unit(*given) if self.readers else read_unit(*given)

    def _read_group(self, *given: Any) -> Generator[GroupChunk | GroupEnd, None, None]:
        return self.readers.read_group(*given) if self.readers else read_group(*given)

    def _read_run(self, *given: Any) -> Generator[tuple[Unit, Chunk | None], None, None]:
        return self.readers.read_run(*given) if self.readers else read_run(*given)

    def engine(self, key: str) -> tuple[Engine, Place]:
        """The engine under `key`, and its place. Raises BroadsheetError where another job's engine is loaded."""
        if key not in self.engines:
            raise BroadsheetError("this worker holds another job's model: run one job at a time on a cluster")
        return self.engines[key], self._places[key]

    def backend(self, key: str) -> Backend | None:
        """The backend of the engine under `key`; None where there is none."""
        engine = self.engines.get(key)
        return None if engine is None else engine.backend


STATE = WorkerState()
"""The state of this process."""
