"""Keeps the engines of a process, for several models and jobs at once, as long as there is memory for them.

An engine is loaded at its first use, and kept for the next task and the next job. If memory is short or there are many
engines, the cache closes the one that was used longest ago, but never one in use. It is loaded again if a task needs
it.
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
"""The limit of engines in a process. One takes about 200 MB on a host, and the memory of its batches on a GPU."""


def engine_key(model: Model, device: str, precision: str, kernels: str) -> str:
    """Return the key of an engine, which follows from the model's content and how the engine computes."""
    return f"{model.digest[:16]}-{device}-{precision}-{kernels}"


@dataclass
class _Held:
    """An engine that is loaded.

    Attributes
    ----------
    engine : Engine
        The engine.
    place : Place
        The process, and the times at which it loaded the engine, for reports.
    holds : int
        The number of uses that are not over.
    used : float
        The time at which its last use began, by `time.monotonic`.

    """

    engine: Engine
    place: Place
    holds: int = 0
    used: float = 0.0


class EngineCache:
    """The engines of a process, by key.

    The order of calls: ``offer -> use (many) -> withdraw``. The first use loads the engine.

    Attributes
    ----------
    open_engine : callable
        The function that `load` calls to open an engine. A worker may replace it.
    computing : context manager
        A lock that is held while engines are loaded or closed, and while a chunk is computed (on a GPU until all of it
        has been handed over). It is needed because an engine has one ring of slots, and because on a CPU each engine
        has a thread for every core.
    is_short : callable
        Says whether there is little memory left. The workers of the process set it.
    when_empty : callable
        Called after the last offer is withdrawn.

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
        """Say how to load an engine. Each worker of the process makes this offer, and withdraws it at its end."""
        with self._lock:
            self._loads[key] = load
            self._offers[key] += 1

    def withdraw(self, key: str) -> None:
        """Withdraw one offer. After the last offer of a key, its engine is closed as soon as it is not in use."""
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
        """Offer engines during the block, while a thread loads them.

        A `use` of an engine waits until it is loaded, and raises the error if loading fails.
        """

        def load() -> None:
            with suppress(Exception), self.use([*loads]):
                pass

        for key, loader in loads.items():
            self.offer(key, loader)
        thread = Thread(target=load, name="broadsheet-load")
        thread.start()
        try:
            yield
        finally:
            thread.join()
            for key in loads:
                self.withdraw(key)

    def load(self, model: Model, device: str, precision: str, kernels: str, threads: int | None = None) -> Engine:
        """Open an engine, label one text with it, and return it.

        After that its kernels are loaded or compiled, and its memory is allocated. Raises the errors of `open_engine`.

        Parameters
        ----------
        model, device, precision, kernels, threads
            See `broadsheet.pipeline.engine.open.open_engine`.

        """
        engine = self.open_engine(model, device, precision, threads, kernels)
        engine.classify(_ONE_ARTICLE)
        return engine

    @contextmanager
    def use(self, keys: Sequence[str]) -> Iterator[list[tuple[Engine, Place]]]:
        """Give the engines of these keys and their places, and keep them loaded during the block.

        Engines that are not loaded yet are loaded. Raises BroadsheetError for a key that no worker of this process has
        offered, and the errors of loading.
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
        """Return the engine of a key, which counts as in use from now on; None if it is not loaded."""
        with self._lock:
            loaded = self._engines.get(key)
            if loaded is not None:
                loaded.holds, loaded.used = loaded.holds + 1, time.monotonic()
            return loaded

    def _load(self, key: str) -> _Held:
        with self._loading:
            if (loaded := self._held(key)) is not None:  # another thread has loaded it meanwhile
                return loaded
            load = self._loads.get(key)
            if load is None:
                raise BroadsheetError(
                    "this worker does not have the job's model: its cluster was restarted, or is ending"
                )
            # Make room, load the engine, and make more room if it does not fit.
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
                if key in self._offers:  # without an offer it is closed after this use
                    self._engines[key] = loaded
            return loaded

    def _evict(self) -> bool:
        """Close the engine that was used longest ago and is not in use. Return False if all are in use."""
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
