"""Messages between the main process and those that speak HTTP, over a pair of sockets that only these two have.

What is sent in one turn of the event loop goes together: a length, and a list of messages in MessagePack.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec

_LENGTH = struct.Struct("<Q")


class Message(msgspec.Struct, array_like=True, gc=False):
    """What all have: `number` is that of the request that it is about, as the HTTP process counts them."""


class Ask(Message, tag=0):
    """Classify texts with the model `key`. data, offsets, n_chars: of `Texts`, as bytes. arrived: when the request was
    there, by the monotonic clock, which all processes share. back: seconds that the answer will need on its way.
    """

    number: int
    key: str
    data: bytes
    offsets: bytes
    n_chars: bytes
    top_k: int
    arrived: float
    back: float


class Forget(Message, tag=1):
    """The client has hung up."""

    number: int


class Call(Message, tag=2):
    """Anything else that the main process answers. what: "models", "ready", "metrics" or "reload", then of `model`."""

    number: int
    what: str
    model: str


class Counted(Message, tag=3):
    """Requests that are over since the last such message, as `counts.py` counts them. is_asked: for by `Count`."""

    is_asked: bool
    requests: list[tuple[str, int, int]]
    texts: dict[str, int]
    seconds: dict[str, float]
    buckets: dict[str, list[int]]


class Listens(Message, tag=4):
    """The process takes connections."""


class Answered(Message, tag=10):
    """rows: of `rows.py`."""

    number: int
    rows: bytes


class Denied(Message, tag=11):
    """The request is refused. retry_after, until: of `Refused`."""

    number: int
    reason: str
    retry_after: float
    until: float


class Changed(Message, tag=12):
    """The model is not served any more under that key: ask with the one that `Served` has told of."""

    number: int


class Returned(Message, tag=13):
    """body: JSON, or the page of metrics."""

    number: int
    status: int
    body: bytes


class Served(Message, tag=14):
    """A model, at the start and whenever it has changed. reads: characters of a text."""

    name: str
    key: str
    reads: int
    classes: tuple[str, ...]
    thresholds: tuple[float, ...] | None


class Count(Message, tag=15):
    """Send `Counted` now."""


class Stop(Message, tag=16):
    """Take no new requests, and end once those that there are have been answered; at once if `now`."""

    now: bool


FromHttp = Ask | Forget | Call | Counted | Listens
ToHttp = Answered | Denied | Changed | Returned | Served | Count | Stop


class Link(asyncio.Protocol):
    """One end of the pair. kind: of the messages that come. take: is called with each of them, lost when the other end
    is gone.
    """

    def __init__(self, kind: Any, take: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._take, self._lost = take, lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._came = bytearray()
        self._going: list[Message] = []

    def send(self, message: Message) -> None:
        """Nothing is sent to an end that is gone."""
        if not self._going:
            self._loop.call_soon(self.flush)
        self._going.append(message)

    def flush(self) -> None:
        going, self._going = self._going, []
        if going and self._transport is not None and not self._transport.is_closing():
            data = self._encode(going)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        came = self._came
        came += data
        while len(came) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(came)[0]
            if len(came) < end:
                return
            messages = self._decode(bytes(memoryview(came)[_LENGTH.size : end]))
            del came[:end]
            for message in messages:
                self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()
