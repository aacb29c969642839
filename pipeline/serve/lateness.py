"""How far an event loop is behind: a request waits in its socket before it is read, which nothing else tells."""

from __future__ import annotations

import asyncio
import time

_IDLE_SECONDS = 0.001
"""A loop that looks for what has come so long after its last work had nothing to do. Its clock counts milliseconds."""


class Lateness:
    """The loop's clock stands still from one time that it looks for what has come to the next (uvloop's does). What it
    finds came since it looked the time before, if it worked in the meantime, or just now, if it had nothing to do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._looked = self._before = self._worked = 0.0

    def earliest(self) -> float:
        """When what is read now came at the earliest, by the monotonic clock."""
        looked = self._loop.time()
        if looked != self._looked:
            is_fresh = looked - self._worked > _IDLE_SECONDS
            self._before = looked if is_fresh else self._looked
            self._looked = looked
        return self._before

    def note_work(self) -> None:
        """To be called at the end of whatever takes long."""
        self.earliest()
        self._worked = time.monotonic()
