"""The link between the main process and those that speak HTTP: messages over a pair of sockets, and memory that all of
them share. The messages of one turn of the event loop are sent together: a length, and a list in MessagePack.
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
    """The base of all messages. A message's `number` is that of its request, as the HTTP process counts them."""


class Ask(Message, tag=0):
    """Classify texts.

    Attributes
    ----------
    number : int
        The request's.
    key : str
        By which the main process knows the model.
    data, offsets, n_chars : bytes
        Of `Packed`.
    top_k : int
        The most probable classes of each text, so many.
    arrived : float or None
        When the request was there, by the monotonic clock, which all processes share; None where its time begins now.
    back : float
        Seconds that the answer will need on its way.
    trace : str
        What `Traces.carried` has returned.

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
    """The client has hung up."""

    number: int


class Call(Message, tag=2):
    """Any other request that the main process answers.

    Attributes
    ----------
    number : int
        The request's.
    what : str
        "models", "ready", "metrics" or "reload".
    model : str
        The model to reload.

    """

    number: int
    what: str
    model: str


class Counted(Message, tag=3):
    """The requests that have ended since the last such message, as `RequestCounts` counts them.

    Attributes
    ----------
    is_asked : bool
        Whether this answers `Count`.
    requests : list of (str, int, int)
        Model, status and number of requests.
    texts : dict of str to int
        Texts of each model.
    seconds : dict of str to float
        Seconds that the requests of each model took, in all.
    buckets : dict of str to list of int
        Requests of each model, by the bucket of the seconds that they took.

    """

    is_asked: bool
    requests: list[tuple[str, int, int]]
    texts: dict[str, int]
    seconds: dict[str, float]
    buckets: dict[str, list[int]]


class Listens(Message, tag=4):
    """The process takes connections."""


class Answers(Message, tag=5):
    """The process has received an answer to a text of its own."""


class Answered(Message, tag=10):
    """The predictions of a request; `rows` is as `to_rows` makes them."""

    number: int
    rows: bytes


class Denied(Message, tag=11):
    """The request is refused.

    Attributes
    ----------
    number : int
        The request's.
    reason : str
        Why, as the client reads it.
    retry_after, until : float
        Of `Refused`.

    """

    number: int
    reason: str
    retry_after: float
    until: float


class Changed(Message, tag=12):
    """The model is not served any more under that key. Ask with the key that the last `Served` has."""

    number: int


class Returned(Message, tag=13):
    """The answer to a `Call`.

    Attributes
    ----------
    number : int
        The request's.
    status : int
        Of HTTP.
    body : bytes
        JSON, or the page of metrics.

    """

    number: int
    status: int
    body: bytes


class Served(Message, tag=14):
    """A model, sent at the start and whenever it has changed.

    Attributes
    ----------
    name : str
        The name by which clients ask for it.
    key : str
        By which the main process knows it.
    reads : int
        Characters that it reads of a text.
    classes : tuple of str
        Its classes.
    thresholds : tuple of float or None
        Where it gives several labels, the score from which on it gives each.
    is_number : bool
        Whether it gives a text a number.

    """

    name: str
    key: str
    reads: int
    classes: tuple[str, ...]
    thresholds: tuple[float, ...] | None
    is_number: bool


class Count(Message, tag=15):
    """Send `Counted` now."""


class Stop(Message, tag=16):
    """Take no new requests, and end once those that there are have been answered; at once if `now`."""

    now: bool


FromHttp = Ask | Forget | Call | Counted | Listens | Answers
ToHttp = Answered | Denied | Changed | Returned | Served | Count | Stop


class Link(asyncio.Protocol):
    """One end of the pair.

    `kind` is the union of the messages that come. `take` is called with each of them, and `lost` once the other end is
    gone.
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
        """Send a message with this turn of the event loop; to an end that is gone, nothing is sent."""
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


_PLACES = 2
_BYTES = 8


class Held:
    """Connections, and bytes of bodies. A process changes only its own numbers, so that no lock is needed.

    `file` is the descriptor of what `file_for` makes, and `number` that of the process.
    """

    def __init__(self, file: int, number: int) -> None:
        self._values = memoryview(mmap.mmap(file, 0)).cast("q")
        self._first = _PLACES * number

    @staticmethod
    def file_for(processes: int) -> IO[bytes]:
        """A file without a name, which holds the numbers of so many processes."""
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
"""A process that has asked for more than these, and not been answered, is busy."""


class Main:
    """The main process, as a process that speaks HTTP sees it.

    `models` has what is served, by name, and `counts` the requests that have ended. `stop` is called when the main
    process sends `Stop`, with its `now`.
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self.models: dict[str, Served] = {}
        self.counts = RequestCounts()
        self.link = Link(ToHttp, self._take, self._lost)
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
        """For a request of one text. Raises Refused while the main process would refuse it, as its last refusal says.

        That saves the main process the time to refuse it again.
        """
        reason, retry_after, until = self._closed.get(served.key, ("", 0.0, 0.0))
        if self.is_busy and time.monotonic() < until:
            raise Refused(reason, retry_after)

    async def classify(
        self, served: Served, texts: Packed, top_k: int, arrived: float | None, back: float, trace: str, gone: set[Any]
    ) -> Predictions:
        """Predictions with all scores.

        Parameters
        ----------
        served : Served
            The model.
        texts : Packed
            The texts.
        top_k : int
            The most probable classes of each text, so many, or all of them.
        arrived : float or None
            When the request was there, by the monotonic clock; None where its time begins once it is asked.
        back : float
            Seconds that the answer will need on its way.
        trace : str
            What `Traces.carried` has returned.
        gone : set of callable
            Receives a function to call once the client hangs up.

        Raises
        ------
        Refused, ModelChanged, Gone
            ModelChanged where the model is served under another key now; Gone once the client hangs up.

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
        """Ask the main process for anything else, as `Call` lists it."""
        number, answer = self._open_one()
        self.link.send(Call(number, what, model))
        try:
            returned: Returned = await answer
            return returned
        finally:
            del self._open[number]

    async def count(self) -> None:
        """Send what has been counted."""
        if self.counts.requests:
            self._count(is_asked=False)

    def close(self) -> None:
        """Send what has been counted, and close the link: this process ends."""
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

    def _take(self, message: Any) -> None:
        if isinstance(message, Answered):
            self._closed.clear()  # a batch is done, and the next one starts
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
        if not self._is_over:  # nobody answers any more
            os._exit(1)
