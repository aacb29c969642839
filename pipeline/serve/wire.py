"""Messages between the server and its engine processes, over a pair of sockets that only these two have.

A message is its length and a pickle. Pickle is safe here: each end is a process of the same user that the other end
started or was started by, and nobody else can open the sockets.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any, NamedTuple

from ..engine.base import Backend, Predictions, Texts
from ..errors import BroadsheetError
from .batch_time import Point

_LENGTH = struct.Struct("<Q")


class Load(NamedTuple):
    """Load a model under `key`, beside those that are there. longest: seconds of the longest batch to measure."""

    key: str
    name: str
    model: bytes
    device: str
    precision: str
    kernels: str
    threads: int
    longest: float


class Loaded(NamedTuple):
    """points: what was measured of batches. batch: texts in one at most, or None."""

    key: str
    backend: Backend
    device_name: str
    points: list[Point]
    batch: int | None


class Unload(NamedTuple):
    key: str


class Classify(NamedTuple):
    number: int
    key: str
    texts: Texts
    top_k: int


class Classified(NamedTuple):
    """seconds: on the device."""

    number: int
    predictions: Predictions
    seconds: float


class Failed(NamedTuple):
    """A model that could not be loaded under `key`; or with a key of "", the device: the process ends."""

    key: str
    error: BroadsheetError


def encode(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> Any:
    """The next message. Raises EOFError where the other end is gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


async def read(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises EOFError where the other end is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        count = connection.recv_into(view[have:])
        if count == 0:
            raise EOFError
        have += count
    return data
