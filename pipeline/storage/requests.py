"""Repeats requests to servers while their error may pass, reacts to Ctrl-C, and lists requests that are under way."""

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
"""The seconds for which a request is repeated while its error may pass."""

FIRST_PATIENCE = 5.0
"""The seconds for which the first request of a job is repeated if there is no answer.

A wrong address should be reported within seconds.
"""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_NAP = 0.5
"""A pausing thread checks at this interval, in seconds, whether its process ends."""

_Result = TypeVar("_Result")


class Fault(NamedTuple):
    """The judgement of a failed request.

    Attributes
    ----------
    error : Exception
        The error to raise if the request is not repeated.
    seconds : float
        The seconds for which the request is repeated.
    wait : float
        The seconds that the server asks the client to wait before the next request.

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
        The requested URL, without secrets.
    began : float
        The time at which it was first sent, by `time.monotonic`.
    error : str
        The reason for repeating it; empty if it is not repeated.

    """

    url: str
    began: float = field(default_factory=time.monotonic)
    error: str = ""


_under_way: dict[int, UnderWay] = {}


def under_way() -> list[UnderWay]:
    """Return the requests of this process that have no answer yet, the oldest first."""
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
    """Make a request and return its result. Repeat it with growing pauses for as long as `judge` says.

    Ctrl-C and SIGTERM interrupt it meanwhile. A process that ends repeats no request.

    Parameters
    ----------
    call : callable
        Makes the request.
    judge : callable
        Returns the judgement of an error that `call` has raised.
    url : str
        The requested URL without secrets, for messages.
    clock : object
        An object with the functions `monotonic` and `sleep`.

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
    """Make a call and return its result.

    Python handles signals in the main thread, but not while that is in the code of a library. So the main thread lets
    another thread make the call and only waits for it.
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
