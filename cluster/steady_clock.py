"""A clock for Dask that nobody can set: it begins with the time of day, then runs with the monotonic clock.

Dask and Tornado wait for moments of the wall clock: to send a batch of messages 10 ms after the last, to send a
heartbeat every half second. Where that clock is set back by an hour, they would wait for an hour. Neither has a setting
for it.
"""

from __future__ import annotations

import sys
import time

import distributed.metrics
from tornado.ioloop import IOLoop

_EPOCH = time.time() - time.monotonic()
_wall_clock = distributed.metrics.time


def steady_time() -> float:
    """Seconds since the epoch, as of the moment when this module was imported."""
    return _EPOCH + time.monotonic()


def use_steady_clock() -> None:
    """Give Dask and Tornado that clock in this process. They must have the same one, since Dask compares the two."""
    for name, module in list(sys.modules.items()):
        if name.startswith("distributed.") and vars(module).get("time") is _wall_clock:
            vars(module)["time"] = steady_time
    IOLoop.time = lambda self: steady_time()  # of loops that run already too
