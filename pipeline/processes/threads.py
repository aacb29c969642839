"""The cores and the memory that this process may use, thread pools, and contexts that are entered in the background."""

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
"""The key of Dask's configuration for the number of workers that share the cores. It is set in the workers of a cluster
that is started here. (Such a worker has more threads than its share, because it also reads and writes.)
"""


def available_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores() -> int:
    """Return the number of cores that other work leaves to this process, by the load of the last minute, or one."""
    return max(1, min(available_cores(), round((os.cpu_count() or 1) - os.getloadavg()[0])))


def available_memory() -> int:
    """Return the bytes that this process may have, by the machine, its container, or `ulimit -v`."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such limit exists, or it is "max"
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limit for limit in found if limit > 0)  # RLIM_INFINITY is -1


def share_of_cores(processes: int) -> int:
    """Return the number of cores for each of several equal processes on this host, of which this is one.

    Some processes may already be pinned to a part of the cores. Then the process that started this one has all cores.
    """
    cores = available_cores()
    every = cores
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            every = max(cores, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(cores, every // processes))


SWITCH_SECONDS = 0.0005
"""The time for which a thread may keep others from running, if some threads feed a GPU. Python's default is 5 ms."""


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `count` threads. After an error (or Ctrl-C), it does not wait for queued or running calls."""
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
        The pool that runs `make`, at most twice at a time.
    make : callable
        A function of an item. Its error is raised where its result would be yielded.
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
    """A context manager in which BLAS uses one thread for each call.

    That is a setting of the whole process, so uses are counted: the first of several that overlap sets it, and the last
    one, on any thread, restores it.
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
        """The libraries that are loaded at the first use, which include NumPy's. Finding them takes milliseconds."""
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()


def _let_any_thread_control_blas() -> None:
    """Let the next thread that sets a limit of OpenBLAS control it.

    threadpoolctl ignores all threads but the one that first set such a limit, so that threads do not restore each
    other's limits. That thread may be a user's.
    """
    from threadpoolctl import OpenBLASController

    OpenBLASController.clear_controlling_thread(force=True)


SINGLE_THREADED_BLAS = SingleThreadedBlas()
"""The context manager of this process."""


@contextmanager
def in_background(context: AbstractContextManager[_T], head_start: float) -> Iterator[Callable[[], _T]]:
    """Enter `context`, which takes seconds, in a thread while the block runs. Leave it in that thread after the block.

    Yields a function that waits for the value of `context`, or raises the error of entering it. The thread starts at
    the first call of that function, and after `head_start` seconds at the latest: a block that fails earlier starts
    nothing.
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

    # Run the block. If it fails, end the context with its error.
    threading.Thread(target=hold, name="broadsheet-start", daemon=True).start()
    try:
        yield value
    except BaseException as error:
        given_up.set()
        begin.set()
        ended.set_exception(error)
        raised = left.exception()  # wait, because a half-started context cannot be stopped
        if raised is None or raised is error:
            raise
        raise raised from raised.__cause__  # the context's error replaces that of the block
    # End the context, and wait until the thread has left it.
    ended.set_result(None)
    left.result()
