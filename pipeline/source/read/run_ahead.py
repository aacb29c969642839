"""Iterators that run ahead of their use, in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

_T = TypeVar("_T")
_SECONDS_BETWEEN_LOOKS = 0.2


class _End:
    """What follows the last item. error: that ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Ahead(Generic[_T]):
    """One iterator in a thread of its own, up to `held` items ahead."""

    def __init__(self, make: Callable[[], Iterator[_T]], held: int, stopped: threading.Event) -> None:
        self._items: Queue[_T | _End] = Queue(held)
        self._stopped = stopped
        threading.Thread(target=self._run, args=(make,), name="broadsheet-ahead", daemon=True).start()

    def _run(self, make: Callable[[], Iterator[_T]]) -> None:
        error: BaseException | None = None
        try:
            for item in make():
                if not self._put(item):
                    return
        except BaseException as raised:
            error = raised
        self._put(_End(error))

    def _put(self, item: _T | _End) -> bool:
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
                item = self._items.get(timeout=_SECONDS_BETWEEN_LOOKS)  # with a limit, so that Ctrl-C is heard
            except Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item


def ahead(iterators: Iterable[Callable[[], Iterator[_T]]], width: int, held: int) -> Generator[_T, None, None]:
    """The items of all iterators, one iterator after the other; `width` of them run at the same time, each up to `held`
    items ahead. An error of one is raised in its place. Left early, they end at their next item.
    """
    stopped = threading.Event()
    waiting = iter(iterators)
    running: deque[_Ahead[_T]] = deque()
    try:
        while True:
            while len(running) < width and (make := next(waiting, None)) is not None:
                running.append(_Ahead(make, held, stopped))
            if not running:
                return
            yield from running[0]
            running.popleft()
    finally:
        stopped.set()
