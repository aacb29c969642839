"""Runs threads ahead of the code that uses their results: a pool that parses blocks of one file or of many, and
iterators that run in threads of their own.

Parsers release the GIL nearly all the time, so threads use all cores.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import Empty, Full, Queue
from typing import Any, Generic, TypeVar

from ...processes.threads import available_cores

_MOST_THREADS = 16
"""With more threads than this, they would wait for each other at the GIL."""

_Result = TypeVar("_Result")


def in_order(
    pool: Executor, calls: Iterable[Callable[[], _Result]], ahead: Callable[[], int]
) -> Generator[_Result, None, None]:
    """Yield the results of the calls, in order. The caller's thread draws the calls, and the pool makes them, up to
    `ahead()` calls ahead.

    An error that `calls` itself raises is raised after the results of the calls before it.
    """
    waiting: deque[Future[_Result]] = deque()
    try:
        for call in _ending_in_a_call(calls):
            waiting.append(pool.submit(call))
            while len(waiting) > ahead():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _ending_in_a_call(calls: Iterable[Callable[[], _Result]]) -> Iterator[Callable[[], _Result]]:
    """Yield the calls. If drawing them fails, yield one more call, which raises the error."""
    try:
        yield from calls
    except Exception as error:
        failure = error  # `error` no longer exists when the call is made

        def fail() -> _Result:
            raise failure

        yield fail


class Parsing:
    """A pool of threads that start when they are needed.

    Parameters
    ----------
    threads : int, optional
        The number of threads; by default one for each core, up to 16.

    Attributes
    ----------
    share : callable
        Returns how many cores may be used now, in a process that shares them with others.

    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(available_cores(), _MOST_THREADS)
        self.share: Callable[[], int] = lambda: self._threads
        self._pool = ThreadPoolExecutor(self._threads, "parsing", self._begin)
        self._readers = 0
        self._lock = threading.Lock()
        self._here = threading.local()

    def in_order(self, calls: Iterable[Callable[[], _Result]]) -> Generator[_Result, None, None]:
        """Yield the results of the calls, in order. The caller's thread draws the calls, and the pool makes them ahead.

        The pool runs ahead by as many calls as it has threads, divided among the readers of the moment. In a thread of
        the pool, which must not wait for other threads, the calls are made one after another.
        """
        if getattr(self._here, "is_of_pool", False):
            yield from (call() for call in calls)
            return
        with self._lock:
            self._readers += 1
        try:
            yield from in_order(self._pool, calls, self._ahead)
        finally:
            with self._lock:
                self._readers -= 1

    def _ahead(self) -> int:
        return 1 + min(self.share(), self._threads) // max(self._readers, 1)

    def _begin(self) -> None:
        self._here.is_of_pool = True


PARSING = Parsing()


_T = TypeVar("_T")
_SECONDS_BETWEEN_LOOKS = 0.2


_END = object()
"""The mark after the last item."""


class InThread(Generic[_T]):
    """Runs one iterator in a thread of its own, up to `held` items ahead, until `stopped` is set."""

    def __init__(self, make: Callable[[], Iterator[_T]], held: int, stopped: threading.Event) -> None:
        self._items: Queue[Any] = Queue(held)
        self._error: BaseException | None = None
        self._stopped = stopped
        self._thread = threading.Thread(target=self._run, args=(make,), name="broadsheet-ahead", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self, make: Callable[[], Iterator[_T]]) -> None:
        try:
            for item in make():
                if not self._put(item):
                    return
                del item  # the item may be large, and is not needed while the next one is made
        except BaseException as error:
            self._error = error
        self._put(_END)

    def _put(self, item: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._items.put(item, timeout=_SECONDS_BETWEEN_LOOKS)
                return True
            except Full:
                continue
        return False

    def __iter__(self) -> Iterator[_T]:
        while True:
            try:
                item = self._items.get(timeout=_SECONDS_BETWEEN_LOOKS)  # the timeout lets Ctrl-C interrupt
            except Empty:
                continue
            if item is _END:
                if self._error is not None:
                    raise self._error
                return
            yield item
            del item


def ahead(iterators: Iterable[Callable[[], Iterator[_T]]], width: int, held: int) -> Generator[_T, None, None]:
    """Yield the items of all iterators, one iterator after the other. `width` of them run at the same time, each up to
    `held` items ahead. An error of an iterator is raised in its place. If the caller stops early, they end at their
    next item.
    """
    stopped = threading.Event()
    waiting = iter(iterators)
    running: deque[InThread[_T]] = deque()
    try:
        while True:
            while len(running) < width and (make := next(waiting, None)) is not None:
                running.append(InThread(make, held, stopped))
            if not running:
                return
            yield from running[0]
            running.popleft()
    finally:
        stopped.set()
