"""The cores and the memory that this process may use, thread pools, and what is entered in the background."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_T = TypeVar("_T")
_Item = TypeVar("_Item")

WORKERS_PER_HOST = "broadsheet.workers-per-host"
"""Of Dask's configuration, in the workers of a cluster that is started here: how many share the cores. (Such a worker
has more threads than its share, so that it reads and writes beside.)
"""


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores() -> int:
    """Cores that other work leaves to this process, by the load of the last minute; at least one."""
    return max(1, min(available_cores(), round((os.cpu_count() or 1) - os.getloadavg()[0])))


def available_memory() -> int:
    """Bytes that this process may have: of the machine, of its container, or by `ulimit -v`."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # there is no such limit, or it is "max"
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limit for limit in found if limit > 0)  # RLIM_INFINITY is -1


def share_of_cores(processes: int) -> int:
    """Cores for each of several equal processes on this host, of which this is one. Some may be pinned to a part of
    the cores already: then the process that started this one has them all.
    """
    cores = available_cores()
    every = cores
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            every = max(cores, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(cores, every // processes))


SWITCH_SECONDS = 0.0005
"""How long a thread may keep others from running in a process where some feed a GPU: by default it is 5 ms."""


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `count` threads. Left by an error (or Ctrl-C), it does not wait for queued or running calls."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def one_ahead(pool: ThreadPoolExecutor, make: Callable[[_Item], _T], items: Iterable[_Item]) -> Iterator[_T]:
    """Yield ``make(item)`` for each item, in order. While you use one result, a thread of the pool makes the next.

    Parameters
    ----------
    pool : ThreadPoolExecutor
        Runs `make`, at most twice at once.
    make : callable
        Takes an item. What it raises is raised where its result would be yielded.
    items : iterable
        The items.

    """
    waiting: Future[_T] | None = None
    for item in items:
        following = pool.submit(make, item)
        if waiting is not None:
            yield waiting.result()
        waiting = following
    if waiting is not None:
        yield waiting.result()


class SingleThreadedBlas:
    """A context manager in which BLAS has one thread a call. That is a setting of the whole process, so it is counted:
    the first of several that overlap sets it, and the last one, of whatever thread, gives the threads back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._uses:
                _let_any_thread_control_blas()
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._uses += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uses -= 1
            if not self._uses:
                _let_any_thread_control_blas()
                self._limit.restore_original_limits()
                _let_any_thread_control_blas()

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """What is loaded when this is first used: NumPy's by then. To look for it takes milliseconds."""
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()


def _let_any_thread_control_blas() -> None:
    """threadpoolctl ignores all threads but the one that set a limit of OpenBLAS first, so that threads do not give
    back each other's; that one may be a user's. It is the next to set one from here on.
    """
    from threadpoolctl import OpenBLASController

    OpenBLASController.clear_controlling_thread(force=True)


SINGLE_THREADED_BLAS = SingleThreadedBlas()
"""That of this process."""


@contextmanager
def in_background(context: AbstractContextManager[_T], head_start: float) -> Iterator[Callable[[], _T]]:
    """Enter `context`, which takes seconds, in a thread while the block runs, and leave it there at the end of that.

    Yields a function that waits for the value of `context`, or raises the error of entering it. The thread begins when
    that is first called, and after `head_start` seconds at the latest: a block that fails before has started nothing.
    """
    begin, given_up = threading.Event(), threading.Event()
    entered: Future[_T] = Future()
    ended: Future[None] = Future()
    left: Future[None] = Future()

    def hold() -> None:
        begin.wait(head_start)
        try:
            if not given_up.is_set():
                with context as value:
                    entered.set_result(value)
                    ended.result()
        except BaseException as error:
            (left if entered.done() else entered).set_exception(error)
        if not left.done():
            left.set_result(None)

    def value() -> _T:
        begin.set()
        return entered.result()

    threading.Thread(target=hold, name="broadsheet-start", daemon=True).start()
    try:
        yield value
    except BaseException as error:
        given_up.set()
        begin.set()
        ended.set_exception(error)
        raised = left.exception()  # waits: what has half started could not be stopped
        if raised is None or raised is error:
            raise
        raise raised from raised.__cause__  # of the context, in place of that of the block
    ended.set_result(None)
    left.result()
