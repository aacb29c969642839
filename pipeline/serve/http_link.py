"""The link between the main process and the HTTP processes: messages over a pair of sockets, and shared memory.

All messages of one turn of the event loop are sent together, as a length and a list in MessagePack.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from ..engine.base import Predictions
from .metrics import RequestCounts
from .requests import Gone, ModelChanged, Packed, Refused, from_rows, settle

_LENGTH = struct.Struct("<Q")


class Message(msgspec.Struct, array_like=True, gc=False):
    """The base of all messages. The field `number` is the number of a request, which its HTTP process has given it."""


class Ask(Message, tag=0):
    """Asks for the labels of texts.

    Attributes
    ----------
    number : int
        The number of the request.
    key : str
        The key of the model, which also names its version.
    data, offsets, n_chars : bytes
        The texts, as in `Packed`.
    top_k : int
        The number of most probable classes to find for each text.
    arrived : float or None
        The time at which the request had arrived, by the monotonic clock, which all processes share. None if its time
        begins now.
    back : float
        The seconds that this process will need to write the answer.
    trace : str
        The result of `Traces.carried`.

    """

    number: int
    key: str
    data: bytes
    offsets: bytes
    n_chars: bytes
    top_k: int
    arrived: float | None
    back: float
    trace: str


class Forget(Message, tag=1):
    """Reports that the client of a request has hung up."""

    number: int


class Call(Message, tag=2):
    """Any other request that the main process answers.

    Attributes
    ----------
    number : int
        The number of the request.
    what : str
        "models", "ready", "metrics" or "reload".
    model : str
        The model to reload.

    """

    number: int
    what: str
    model: str


class Counted(Message, tag=3):
    """Reports the requests that have ended since the last such message, as `RequestCounts` counts them.

    Attributes
    ----------
    is_asked : bool
        Whether this message answers `Count`.
    requests : list of (str, int, int)
        Model, HTTP status and number of requests.
    texts : dict of str to int
        The number of texts for each model.
    seconds : dict of str to float
        The sum of the seconds of all requests for each model.
    buckets : dict of str to list of int
        The number of requests for each model, in each bucket of seconds.

    """

    is_asked: bool
    requests: list[tuple[str, int, int]]
    texts: dict[str, int]
    seconds: dict[str, float]
    buckets: dict[str, list[int]]


class Listens(Message, tag=4):
    """Reports that the process accepts connections."""


class Answers(Message, tag=5):
    """Reports that the process has received an answer for a text of its own, so that it can answer clients too."""


class Answered(Message, tag=10):
    """The predictions for a request. `rows` has the bytes of the array that `to_rows` makes."""

    number: int
    rows: bytes


class Denied(Message, tag=11):
    """Reports that a request is refused.

    Attributes
    ----------
    number : int
        The number of the request.
    reason : str
        The reason, in words for the client.
    retry_after, until : float
        The attributes of `Refused`.

    """

    number: int
    reason: str
    retry_after: float
    until: float


class Changed(Message, tag=12):
    """Reports that the model has another key now. The request must be sent again, with the key in the last `Served`."""

    number: int


class Returned(Message, tag=13):
    """The answer to a `Call`.

    Attributes
    ----------
    number : int
        The number of the request.
    status : int
        The HTTP status.
    body : bytes
        JSON, or the page of metrics.

    """

    number: int
    status: int
    body: bytes


class Served(Message, tag=14):
    """Describes a model. The main process sends it at the start, and again whenever the model has changed.

    Attributes
    ----------
    name : str
        The name that clients use.
    key : str
        The key of the model, which also names its version.
    reads : int
        The number of characters that the model reads of a text.
    classes : tuple of str
        The classes.
    thresholds : tuple of float or None
        For a model that gives several labels, the lowest score at which it gives each.
    is_number : bool
        Whether the model gives each text a number.

    """

    name: str
    key: str
    reads: int
    classes: tuple[str, ...]
    thresholds: tuple[float, ...] | None
    is_number: bool


class Count(Message, tag=15):
    """Asks the process to send `Counted` now."""


class Stop(Message, tag=16):
    """Asks the process to accept no new requests, and to end after it has answered the others, or at once if `now`."""

    now: bool


FromHttp = Ask | Forget | Call | Counted | Listens | Answers
ToHttp = Answered | Denied | Changed | Returned | Served | Count | Stop


class Link(asyncio.Protocol):
    """One end of the pair of sockets.

    `kind` is the union of the messages that this end receives. The link calls `receive` with each message, and `lost`
    after the other end has gone.
    """

    def __init__(self, kind: Any, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._receive, self._lost = receive, lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._came = bytearray()
        self._going: list[Message] = []

    def send(self, message: Message) -> None:
        """Send a message at the end of this turn of the event loop. If the other end is gone, the message is lost."""
        if not self._going:
            self._loop.call_soon(self.flush)
        self._going.append(message)

    def flush(self) -> None:
        """Send all waiting messages now."""
        going, self._going = self._going, []
        if going and self._transport is not None and not self._transport.is_closing():
            data = self._encode(going)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """Send all waiting messages, and close this end."""
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
                self._receive(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()


_PLACES = 2
"""The numbers of each process: its connections, and its bytes of bodies."""

_BYTES = 8
"""The size of a number, an int64."""


class Held:
    """The numbers of connections and of bytes of bodies that each process holds, in shared memory.

    Each process changes only its own numbers, so no lock is needed. `file` is the descriptor of the file that
    `file_for` makes, and `number` the number of the process.
    """

    def __init__(self, file: int, number: int) -> None:
        self._values = memoryview(mmap.mmap(file, 0)).cast("q")
        self._first = _PLACES * number

    @staticmethod
    def file_for(processes: int) -> IO[bytes]:
        """Return a file without a name, for the numbers of this many processes."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the server is
        os.truncate(file.fileno(), processes * _PLACES * _BYTES)
        return file

    def add_connections(self, count: int) -> None:
        self._values[self._first] += count

    def add_bytes(self, count: int) -> None:
        self._values[self._first + 1] += count

    @property
    def connections(self) -> int:
        """The connections of all processes."""
        return sum(self._values[::_PLACES])

    @property
    def bytes(self) -> int:
        """The bytes of bodies in all processes."""
        return sum(self._values[1::_PLACES])

    def clear(self) -> None:
        """Set the numbers of a process that is gone to zero."""
        self._values[self._first] = self._values[self._first + 1] = 0


_FEW = 8
"""A process is busy if more than this many of its requests wait for an answer of the main process."""


class Main:
    """The main process, as an HTTP process sees it.

    `models` has the served models by name, and `counts` the requests that have ended. When the main process sends
    `Stop`, `stop` is called with its `now`.
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self.models: dict[str, Served] = {}
        self.counts = RequestCounts()
        self.link = Link(ToHttp, self._handle, self._lost)
        self._stop, self._is_over = stop, False
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._number = self._asked = 0
        self._closed: dict[str, tuple[str, float, float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether this process may refuse requests by itself. The main process, which knows the queue, always may."""
        return self._asked > _FEW

    def check_open(self, served: Served) -> None:
        """Raise Refused if the main process would refuse a request of one text, according to its last refusal.

        This saves the main process the time to refuse the request.
        """
        reason, retry_after, until = self._closed.get(served.key, ("", 0.0, 0.0))
        if self.is_busy and time.monotonic() < until:
            raise Refused(reason, retry_after)

    async def classify(
        self, served: Served, texts: Packed, top_k: int, arrived: float | None, back: float, trace: str, gone: set[Any]
    ) -> Predictions:
        """Return predictions for texts, with all scores.

        Parameters
        ----------
        served : Served
            The model.
        texts : Packed
            The texts.
        top_k : int
            The number of most probable classes to find for each text; fewer if the model has fewer classes.
        arrived : float or None
            The time at which the request had arrived, by the monotonic clock. None if its time begins when the main
            process receives it.
        back : float
            The seconds that this process will need to write the answer.
        trace : str
            The result of `Traces.carried`.
        gone : set of callable
            Receives a function to call if the client hangs up.

        Raises
        ------
        Refused
            If the main process refuses the request.
        ModelChanged
            If the model now has another key.
        Gone
            If the client hangs up.

        """
        number, answer = self._open_one()
        top_k = min(top_k, len(served.classes))

        def forget() -> None:
            if not answer.done():
                self.link.send(Forget(number))
                answer.set_exception(Gone())

        gone.add(forget)
        self._asked += 1
        self.link.send(Ask(number, served.key, texts.data, texts.offsets, texts.n_chars, top_k, arrived, back, trace))
        try:
            rows: bytes = await answer
        except Refused as error:
            if error.until:
                self._closed[served.key] = str(error), error.retry_after, error.until
            raise
        finally:
            gone.discard(forget)
            self._asked -= 1
            del self._open[number]
        return from_rows(rows, len(served.classes), top_k)

    async def call(self, what: str, model: str = "") -> Returned:
        """Ask the main process for anything else that `Call` lists, and return its answer."""
        number, answer = self._open_one()
        self.link.send(Call(number, what, model))
        try:
            returned: Returned = await answer
            return returned
        finally:
            del self._open[number]

    async def count(self) -> None:
        """Send the counts, if there are any."""
        if self.counts.requests:
            self._count(is_asked=False)

    def close(self) -> None:
        """Send the counts and close the link, before this process ends."""
        self._count(is_asked=False)
        self._is_over = True
        self.link.close()

    def _count(self, is_asked: bool) -> None:
        counts = self.counts
        requests = [(*key, count) for key, count in counts.requests.items()]
        self.link.send(Counted(is_asked, requests, dict(counts.texts), dict(counts.seconds), dict(counts.buckets)))
        self.counts = RequestCounts()

    def _open_one(self) -> tuple[int, asyncio.Future[Any]]:
        self._number += 1
        answer = self._open[self._number] = self._loop.create_future()
        return self._number, answer

    def _handle(self, message: Any) -> None:
        if isinstance(message, Answered):
            self._closed.clear()  # a batch has ended, so the queue has room again
            self._resolve(message.number, message.rows)
        elif isinstance(message, Denied):
            self._resolve(message.number, Refused(message.reason, message.retry_after, message.until))
        elif isinstance(message, Changed):
            self._resolve(message.number, ModelChanged())
        elif isinstance(message, Returned):
            self._resolve(message.number, message)
        elif isinstance(message, Served):
            self.models[message.name] = message
            self._closed.clear()
        elif isinstance(message, Count):
            self._count(is_asked=True)
        elif isinstance(message, Stop):
            self._stop(message.now)

    def _resolve(self, number: int, result: object) -> None:
        if (answer := self._open.get(number)) is not None:
            settle(answer, result)

    def _lost(self) -> None:
        if not self._is_over:  # without the main process, nobody can answer requests
            os._exit(1)
