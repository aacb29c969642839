"""The engines of a process: those of several models and jobs side by side, as long as there is memory for them.

An engine is loaded when it is first used, and kept for the next task and the next job. Where memory is short, or there
are many, the one that was used longest ago is closed, but never one in use: it is loaded again if a task needs it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, Thread

from ..engine.base import Engine, Texts
from ..engine.open import open_engine
from ..errors import BroadsheetError, NoRoom
from ..model.charcnn import Model
from ..telemetry.activity import COUNTS
from ..telemetry.spans import Place, here

_ONE_ARTICLE = Texts.of([b"x"])

MOST_ENGINES = 8
"""Engines of a process at most. One takes some 200 MB of a host, and on a GPU what its batches take."""


def engine_key(model: Model, device: str, precision: str, kernels: str) -> str:
    """The key of an engine: by the model's content, and how it computes."""
    return f"{model.digest[:16]}-{device}-{precision}-{kernels}"


@dataclass
class _Held:
    """An engine that is loaded.

    Attributes
    ----------
    engine : Engine
        The engine.
    place : Place
        The process and its moments, for reports.
    holds : int
        How many uses there are now.
    used : float
        When it was last taken for a use, by `time.monotonic`.

    """

    engine: Engine
    place: Place
    holds: int = 0
    used: float = 0.0


class EngineCache:
    """The engines of a process, by key.

    open_engine: what those who offer an engine call; assign another to replace it on a worker. computing: a lock, held
    while engines are loaded or closed, and while a chunk is computed (on a GPU until all of it has been handed over),
    since an engine has one ring of slots, and on a CPU each has a thread for every core. is_short: whether there is
    little memory left; the workers of the process set it. when_empty: called once the last offer is withdrawn.
    """

    def __init__(self) -> None:
        self.open_engine: Callable[..., Engine] = open_engine
        self.computing: AbstractContextManager[object] = Lock()
        self.is_short: Callable[[], bool] = lambda: False
        self.when_empty: Callable[[], object] = lambda: None
        self._lock, self._loading = Lock(), Lock()
        self._loads: dict[str, Callable[[], Engine]] = {}
        self._offers: Counter[str] = Counter()
        self._engines: dict[str, _Held] = {}

    @property
    def engines(self) -> dict[str, Engine]:
        """The engines that are loaded now."""
        with self._lock:
            return {key: loaded.engine for key, loaded in self._engines.items()}

    def offer(self, key: str, load: Callable[[], Engine]) -> None:
        """Say how to load an engine. Each worker of the process does so, and withdraws it at its end."""
        with self._lock:
            self._loads[key] = load
            self._offers[key] += 1

    def withdraw(self, key: str) -> None:
        """Give up one offer; the last one of a key closes its engine, once nobody uses it."""
        with self._lock:
            self._offers[key] -= 1
            idle = None
            if self._offers[key] <= 0:
                del self._offers[key]
                self._loads.pop(key, None)
                held = self._engines.pop(key, None)
                idle = None if held is None or held.holds else held
            is_last = not self._offers
        if idle is not None:
            self._close(idle)
        if is_last:
            self.when_empty()

    @contextmanager
    def offered(self, loads: Mapping[str, Callable[[], Engine]]) -> Iterator[None]:
        """In the block these are offered, and a thread loads them: whoever uses one waits for that. An error of loading
        is left for them.
        """

        def load() -> None:
            with suppress(Exception), self.use([*loads]):
                pass

        for key, own in loads.items():
            self.offer(key, own)
        thread = Thread(target=load, name="broadsheet-load")
        thread.start()
        try:
            yield
        finally:
            thread.join()
            for key in loads:
                self.withdraw(key)

    def load(self, model: Model, device: str, precision: str, kernels: str, threads: int | None = None) -> Engine:
        """An engine that has labelled a text: its kernels are loaded, or compiled, and its memory is allocated.

        Parameters
        ----------
        model, device, precision, kernels, threads
            As of `broadsheet.pipeline.engine.open.open_engine`, which raises what this does.

        """
        engine = self.open_engine(model, device, precision, threads, kernels)
        engine.classify(_ONE_ARTICLE)
        return engine

    @contextmanager
    def use(self, keys: Sequence[str]) -> Iterator[list[tuple[Engine, Place]]]:
        """The engines under these keys, and their places, loaded where they are not; they stay for the block.

        Raises BroadsheetError for a key that no worker here has offered, and what loading raises.
        """
        with ExitStack() as held:
            yield [held.enter_context(self._use(key)) for key in keys]

    @contextmanager
    def _use(self, key: str) -> Iterator[tuple[Engine, Place]]:
        loaded = self._held(key) or self._load(key)
        try:
            yield loaded.engine, loaded.place
        finally:
            with self._lock:
                loaded.holds -= 1
                is_over = not loaded.holds and self._engines.get(key) is not loaded
            if is_over:
                self._close(loaded)

    def _held(self, key: str) -> _Held | None:
        """One that is loaded, from now on in use."""
        with self._lock:
            loaded = self._engines.get(key)
            if loaded is not None:
                loaded.holds, loaded.used = loaded.holds + 1, time.monotonic()
            return loaded

    def _load(self, key: str) -> _Held:
        with self._loading:
            if (loaded := self._held(key)) is not None:  # by another thread meanwhile
                return loaded
            load = self._loads.get(key)
            if load is None:
                raise BroadsheetError(
                    "this worker does not have the job's model: its cluster was restarted, or is ending"
                )
            while (self.is_short() or len(self._engines) >= MOST_ENGINES) and self._evict():
                pass
            while True:
                started = time.time()
                try:
                    with self.computing:
                        engine = load()
                    break
                except NoRoom:
                    if not self._evict():
                        raise
            COUNTS.add(engines_loaded=1)
            place = Place(here(), engine.device_name, started, engine.memory_ready, time.time())
            loaded = _Held(engine, place, 1, time.monotonic())
            with self._lock:
                if key in self._offers:  # else it is closed after this use
                    self._engines[key] = loaded
            return loaded

    def _evict(self) -> bool:
        """Close the engine that was used longest ago, of those that nobody uses; False where there is none."""
        with self._lock:
            idle = {key: loaded for key, loaded in self._engines.items() if not loaded.holds}
            if not idle:
                return False
            oldest = self._engines.pop(min(idle, key=lambda key: idle[key].used))
        self._close(oldest)
        COUNTS.add(engines_evicted=1)
        return True

    def _close(self, loaded: _Held) -> None:
        with self.computing:
            loaded.engine.close()


ENGINES = EngineCache()
"""The engines of this process."""
