"""Reports what a job waits for while it is planned: a server that lists files may be slow to answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..storage.requests import under_way

_LOOK_SECONDS = 0.5
_FIRST_SECONDS = 3.0
"""A request that takes longer gets a message. The next message comes after twice that time, and so on."""


@contextmanager
def told_waits(tell: Callable[[str], None]) -> Iterator[None]:
    """While a request of the block has no answer, call `tell` with a message now and then, from a thread of its own."""
    ended = threading.Event()
    threading.Thread(target=_tell, args=(tell, ended), name="broadsheet-waits", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _tell(tell: Callable[[str], None], ended: threading.Event) -> None:
    began, seconds = time.monotonic(), _FIRST_SECONDS
    while not ended.wait(_LOOK_SECONDS):
        requests = under_way()
        waited = time.monotonic() - max(requests[0].began, began) if requests else 0.0
        if waited < _FIRST_SECONDS:
            seconds = _FIRST_SECONDS
        elif waited >= seconds:
            seconds *= 2
            others = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
            why = f": {requests[0].error}; it is tried again" if requests[0].error else ", which has not answered"
            tell(f"waiting for {requests[0].url}{others} for {waited:.0f} s{why}")
