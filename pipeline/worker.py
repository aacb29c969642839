"""The state of a worker process between tasks: its engine, and the functions by which it reads and commits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from pipeline.engine.base import Backend, Engine
from pipeline.engine.open import open_engine
from pipeline.errors import BroadsheetError
from pipeline.output.commit import commit_chunk
from pipeline.source.read import read_group, read_run, read_unit
from pipeline.telemetry.spans import WHERE, Place

_MOST_CHUNKS = 16
"""Chunks of groups and runs that a process holds at a time, whatever the number of tasks: of 64 MiB each at most, so
1 GiB. Two for each task of a worker: one is read while another is classified and written.
"""


class WorkerState:
    """The state of one process, in which several workers may run.

    open_engine, read, read_group, read_run, commit: the functions that the plugin and the tasks call; assign another to
    replace one on a worker. computing: a lock, held while a chunk is computed and while engines are loaded or closed:
    an engine has one ring of slots (on a CPU one pool of threads), and must not be closed while it computes. room: for
    chunks of groups and runs. labelling: threads that classify and write these. stopped: the runs of the graph that
    begin no further chunk here.
    """

    def __init__(self) -> None:
        self.open_engine: Callable[..., Engine] = open_engine
        self.read = read_unit
        self.read_group, self.read_run = read_group, read_run
        self.commit = commit_chunk
        self.computing: AbstractContextManager[object] = threading.Lock()
        self.room = threading.BoundedSemaphore(_MOST_CHUNKS)
        self.labelling = ThreadPoolExecutor(_MOST_CHUNKS, "broadsheet-label")
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
