"""Ctrl-C and SIGTERM, postponed where they would leave a cluster half started, which cannot be closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone the first interrupt to the end of the block; a second one, for the impatient, ends it at once.

    Does nothing outside the main thread, which gets no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught:
            restore()
            signal.raise_signal(number)
        caught.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        yield
    finally:
        restore()
        if caught:
            signal.raise_signal(caught[0])
