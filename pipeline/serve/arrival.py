"""When a request came: it waits in its socket until the process has time to read it, which only the kernel knows."""

from __future__ import annotations

import socket
import struct
import time
from typing import Protocol

_SIZE, _LAST_DATA_RECEIVED = 60, 52
"""Of `struct tcp_info` (linux/tcp.h), and where `tcpi_last_data_recv` is in it."""

_HALF_TICK_MS = 2
"""The kernel counts milliseconds in ticks, of 4 by default."""


class Connection(Protocol):
    """A socket, or what an event loop has in place of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def came(connection: Connection) -> float:
    """When the last that was read of a TCP connection came to this machine, by the monotonic clock, to some 2 ms."""
    now = time.monotonic()
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    milliseconds: int = struct.unpack_from("I", told, _LAST_DATA_RECEIVED)[0]
    return now - max(0, milliseconds - _HALF_TICK_MS) / 1000
