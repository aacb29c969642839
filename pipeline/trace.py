"""Spans: when a step of a chunk began and how long it took. Imports the standard library only."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_WHERE = f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class Span:
    """start: seconds since the epoch. where: host and process id."""

    name: str
    start: float
    seconds: float
    where: str


@contextmanager
def span(name: str, into: list[Span]) -> Iterator[None]:
    """Append the span of the block under it to `into`, also when the block raises."""
    start, began = time.time(), time.perf_counter()
    try:
        yield
    finally:
        into.append(Span(name, start, time.perf_counter() - began, _WHERE))
