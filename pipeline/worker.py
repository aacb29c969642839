"""What a worker process keeps from task to task: its engine, and the functions by which it reads and commits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from pipeline.engine.base import Backend, Engine
from pipeline.engine.open import open_engine
from pipeline.errors import BroadsheetError
from pipeline.output.commit import commit_chunk
from pipeline.source.read import read_unit
from pipeline.telemetry.spans import WHERE, Place


class WorkerState:
    """Of one process, which may be several workers.

    open_engine, read, commit: what the plugin and the tasks call; whoever wants another in their place, on a worker of
    theirs, sets it here. computing: held while a chunk is on the device and while engines come and go: an engine has
    one ring of slots (on a CPU one pool of threads), and must not be closed under a chunk.
    """

    def __init__(self) -> None:
        self.open_engine: Callable[..., Engine] = open_engine
        self.read = read_unit
        self.commit = commit_chunk
        self.computing: AbstractContextManager[object] = threading.Lock()
        self.engines: dict[str, Engine] = {}
        self._places: dict[str, Place] = {}
        self._users: Counter[str] = Counter()

    def install(self, key: str, load: Callable[[], Engine]) -> None:
        """Have an engine under `key`: loaded once, kept for the last worker of this process that uses it."""
        with self.computing:
            if key not in self.engines:
                started = time.time()
                engine = self.engines[key] = load()
                self._places[key] = Place(WHERE, engine.device_name, started, engine.memory_ready, time.time())
            self._users[key] += 1

    def remove(self, key: str) -> None:
        """Give up one use of the engine; it is closed with the last."""
        with self.computing:
            self._users[key] -= 1
            if self._users[key] <= 0 and key in self.engines:
                self.engines.pop(key).close()
                del self._places[key]

    def engine(self, key: str) -> tuple[Engine, Place]:
        """The engine under `key`, and its place. Raises BroadsheetError where there is another job's in its place."""
        if key not in self.engines:
            raise BroadsheetError("this worker holds another job's model: run one job at a time on a cluster")
        return self.engines[key], self._places[key]

    def backend(self, key: str) -> Backend | None:
        """What the engine under `key` computes with; None where there is none."""
        engine = self.engines.get(key)
        return None if engine is None else engine.backend


STATE = WorkerState()
"""This process's."""
