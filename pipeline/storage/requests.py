"""Requests to servers: repeated while their error may pass, heard by Ctrl-C, and noted while they are under way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..errors import cause
from ..telemetry.spans import STORE_WAITS, Span

PATIENCE = 300.0
"""Seconds for which a request is repeated while its error may pass."""

FIRST_PATIENCE = 5.0
"""The same for the first request of a job, unless it is answered: a wrong address should be reported within seconds."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_NAP = 0.5
"""A thread that pauses checks after so many seconds whether its process ends."""

_Result = TypeVar("_Result")


class Fault(NamedTuple):
    """What came of a request.

    Attributes
    ----------
    error : Exception
        What is raised if it is not repeated.
    seconds : float
        For which it is repeated.
    wait : float
        Seconds that the server asks for before the next time.

    """

    error: Exception
    seconds: float = 0.0
    wait: float = 0.0


@dataclass
class UnderWay:
    """A request that has no answer yet.

    Attributes
    ----------
    url : str
        What is requested, without secrets.
    began : float
        When it was sent first, by `time.monotonic`.
    error : str
        Why it is repeated; empty while it is not.

    """

    url: str
    began: float = field(default_factory=time.monotonic)
    error: str = ""


_under_way: dict[int, UnderWay] = {}


def under_way() -> list[UnderWay]:
    """The requests of this process that have no answer yet, the oldest first."""
    return sorted(_under_way.copy().values(), key=lambda request: request.began)


@contextmanager
def _noted(url: str) -> Iterator[UnderWay]:
    request = UnderWay(url)
    _under_way[id(request)] = request
    try:
        yield request
    finally:
        del _under_way[id(request)]


def repeated(call: Callable[[], _Result], judge: Callable[[Exception], Fault], url: str, clock: Any = time) -> _Result:
    """The result of a request, which is repeated, with growing pauses, for as long as `judge` says of what it raises.

    Ctrl-C and SIGTERM are heard meanwhile. No request is repeated in a process that ends.

    Parameters
    ----------
    call : callable
        Makes the request.
    judge : callable
        Says what came of an error that `call` has raised.
    url : str
        What is requested, for messages, without secrets.
    clock : object
        Has `monotonic` and `sleep`.

    """
    start, began, pause, has_failed = time.time(), clock.monotonic(), _FIRST_PAUSE, False
    with _noted(url) as request:
        try:
            while True:
                try:
                    return _heard(call)
                except Exception as error:
                    fault = judge(error)
                    left = began + fault.seconds - clock.monotonic()
                    if pause > left and fault.error is error:
                        raise
                    if pause > left:
                        raise fault.error from error
                request.error, has_failed = cause(fault.error), True
                _pause(min(max(fault.wait, pause * random.uniform(0.5, 1.0)), left), clock)
                if not threading.main_thread().is_alive():
                    raise fault.error
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            if has_failed:
                STORE_WAITS.append(Span("store", start, clock.monotonic() - began, lane="store"))


def _heard(call: Callable[[], _Result]) -> _Result:
    """The result of a call. The main thread, in which Python handles signals, only waits for it: while it is in the
    code of a library, it hears none.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: Future[_Result] = Future()

    def answer() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=answer, name="broadsheet-request", daemon=True).start()
    return result.result()


def _pause(seconds: float, clock: Any) -> None:
    """Sleep, unless the process ends."""
    until = clock.monotonic() + seconds
    while (left := until - clock.monotonic()) > 0 and threading.main_thread().is_alive():
        clock.sleep(min(left, _LONGEST_NAP))
