"""Reads files on web servers. Some servers send a file from any byte on, and some do not even report its size.

obstore's HTTPStore reads from three of the seven kinds of servers in tests/source/test_remote_input.py: those that send
ranges, redirect, or have no HEAD but report the size. It opens no file whose address has a query, such as a signature,
and none if the server sends no ranges or does not report the length. fsspec's driver needs aiohttp.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from functools import cache
from http.client import responses
from typing import TypeVar
from urllib.request import getproxies, proxy_bypass

from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Retry, Timeout
from urllib3.exceptions import HTTPError, LocationParseError, NameResolutionError, NewConnectionError
from urllib3.util import make_headers, parse_url

from ...storage.buckets import Origin, State, patience
from ...storage.names import without_secrets
from ...storage.requests import FIRST_PATIENCE, PATIENCE, Fault, repeated

_TIMEOUT = Timeout(connect=10, read=60)
_REDIRECTS = Retry(total=None, connect=0, read=0, other=0, status=0, redirect=10, raise_on_status=False)
_STATUSES_THAT_MAY_PASS = {408, 425, 429, 500, 502, 503, 504}
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")

_Result = TypeVar("_Result")


class WebFile(Origin):
    """A file on a web server. Raises OSError.

    ranges, expected: what was found out before, which saves a request; None to ask the server.
    """

    at_once = 4

    def __init__(self, url: str, ranges: bool | None = None, expected: State | None = None) -> None:
        self._url = url.partition("#")[0]
        self._closed = self._is_read = False
        self._body: BaseHTTPResponse | None = None
        self._given = 0
        if ranges and expected:
            self.state = expected
            return
        seconds = FIRST_PATIENCE if ranges is None else PATIENCE
        if ranges is not False:
            self.ranges, self.state = self._patiently(self._ask, seconds)
        else:
            self.ranges = False
            self._patiently(self._begin, seconds)

    def get(self, start: int, stop: int) -> memoryview:
        def request() -> memoryview:
            response = self._open({"Range": f"bytes={start}-{stop - 1}"})
            try:
                match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
                if response.status != 206 or match is None or match[1] != str(start):
                    raise OSError(errno.EIO, "its server sent ranges of it, and does so no longer")
                self._compare(_state_in(response))
                data = response.read(decode_content=False)
                if len(data) != stop - start:
                    raise ConnectionResetError(f"{len(data):,} bytes came of {stop - start:,}")
                return memoryview(data)
            finally:
                response.release_conn()

        return self._patiently(request, PATIENCE)

    def next(self, size: int) -> bytes:
        def read() -> bytes:
            if self._body is None:
                self._begin()
            assert self._body is not None
            self._is_read = True
            try:
                data: bytes = self._body.read(size, decode_content=False)
            except BaseException:
                self._end()
                raise
            finally:
                self._is_read = False
                if self._closed:
                    self._end()
            self._given += len(data)
            return data

        return self._patiently(read, PATIENCE)

    def close(self) -> None:
        self._closed = True
        if not self._is_read:  # otherwise the thread that reads the body ends it, and nobody waits for that
            self._end()

    def _ask(self) -> tuple[bool, State]:
        """Return whether the server sends ranges, and the file's state. Without its size, ranges are of no use, because
        nobody knows where the file ends.
        """
        with self._open({"Range": "bytes=0-0"}) as response:
            state = _state_in(response)
            return response.status in (206, 416) and state.size is not None, state

    def _begin(self) -> None:
        """Open the file at the byte that comes next. The server sends all bytes before it too, and these
        are skipped.
        """
        self._body = self._open({})
        now = _state_in(self._body)
        if not self._given:
            self.state = now
            return
        try:
            self._compare(now)
            left = self._given
            while left and (data := self._body.read(min(left, 1 << 20), decode_content=False)):
                left -= len(data)
            if left:
                raise OSError(errno.ESTALE, "it has changed while it was read")
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def _compare(self, now: State) -> None:
        if now.differs(self.state):
            self.state = now
            raise OSError(errno.ESTALE, "it has changed while it was read")

    def _open(self, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Return the response to a request. Its body is still to be read."""
        if self._closed:
            raise OSError(errno.EBADF, "it is closed")
        address = parse_url(self._url)
        # Otherwise the body might be compressed and have another length.
        headers = {**headers, "Accept-Encoding": "identity"}
        if address.auth:
            headers |= make_headers(basic_auth=address.auth)
        response = _connections(address.scheme or "", address.host or "").request(
            "GET", self._url, headers=headers, preload_content=False, retries=_REDIRECTS, timeout=_TIMEOUT
        )
        if response.status not in (200, 206, 416):
            response.close()
            raise _Refused(response.status, response.headers.get("Retry-After", ""))
        return response

    def _patiently(self, call: Callable[[], _Result], seconds: float) -> _Result:
        """Return the result of a call. The call is repeated, with growing pauses, while its error may pass."""

        def judge(error: Exception) -> Fault:
            if isinstance(error, _Refused):
                wait = float(error.after) if error.after.isdecimal() else 0.0
                return Fault(
                    error, patience(seconds, error.answer) if error.answer in _STATUSES_THAT_MAY_PASS else 0.0, wait
                )
            if not isinstance(error, (HTTPError, ConnectionError, TimeoutError)):
                return Fault(error)
            cause = getattr(error, "reason", None) or error
            never = isinstance(cause, (NewConnectionError, NameResolutionError)) and seconds <= FIRST_PATIENCE
            never |= isinstance(error, LocationParseError)
            unreachable = OSError(errno.ETIMEDOUT, f"its server cannot be reached: {_last_part(cause)}")
            return Fault(unreachable, 0.0 if never else seconds)

        return repeated(call, judge, without_secrets(self._url))


class _Refused(OSError):
    """Raised if a server answers a request with something other than the file."""

    def __init__(self, status: int, after: str) -> None:
        said = responses.get(status, "")
        number = errno.ETIMEDOUT if status in _STATUSES_THAT_MAY_PASS else errno.EIO
        super().__init__(number, f"its server answers {status} {said}".rstrip())
        self.answer, self.after = status, after


def _last_part(error: BaseException) -> str:
    """Return the last part of an error's message. The parts before it name connections as Python objects."""
    return without_secrets(str(error).rpartition(": ")[2] or type(error).__name__)


def _state_in(response: BaseHTTPResponse) -> State:
    headers = response.headers
    length = headers.get("Content-Length", "")
    size = int(length) if length.isdecimal() and response.status == 200 else None
    if match := _RANGE.fullmatch(headers.get("Content-Range", "")):
        size = int(match[2])
    return State(size, headers.get("ETag") or headers.get("Last-Modified") or "")


@cache
def _connections(scheme: str, host: str) -> PoolManager:
    """Return a pool of connections that are kept for later requests, through a proxy if the environment names one."""
    proxy = getproxies().get(scheme)
    if proxy and not proxy_bypass(host):
        return ProxyManager(proxy, maxsize=32)
    return PoolManager(maxsize=32)
