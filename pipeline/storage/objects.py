"""Remote files: what every kind of server can do; and objects in buckets, of which it says what they are now."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import PreconditionError

from .bucket_errors import FIRST_PATIENCE, PATIENCE, patiently
from .buckets import bucket_client, split_bucket

_PAGE = 1000  # objects that a store lists in one answer


class State(NamedTuple):
    """What a file is compared by. size: None where its server does not tell it. modified: its time in ns; of a remote
    file, an ETag or the like.
    """

    size: int | None
    modified: str

    def differs(self, other: State) -> bool:
        """Whether two states are not of the same content, as far as both are told."""
        sizes, times = (self.size, other.size), (self.modified, other.modified)
        return (None not in sizes and sizes[0] != sizes[1]) or ("" not in times and times[0] != times[1])


class Origin(ABC):
    """A remote file that is open for reading.

    state: as its server last told it. ranges: whether it can be read from any byte on. at_once: how many requests for
    it are worth having under way; 0 where the driver itself reads ahead.
    """

    state: State
    ranges: bool = True
    at_once: int = 8

    @abstractmethod
    def get(self, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop`, all of them, where it has ranges; called from several threads at once. Raises
        OSError, after which `state` is another where that is the reason.
        """

    def next(self, size: int) -> bytes:
        """Up to `size` of the next bytes, where it has no ranges; none at its end. Raises OSError."""
        raise NotImplementedError("it has ranges")

    @abstractmethod
    def close(self) -> None:
        """End what is under way."""


class BucketObject(Origin):
    """An object, by its URL. expected: its state as it was listed, which spares a request; None to ask for it."""

    def __init__(self, url: str, expected: State | None = None, endpoint: str | None = None) -> None:
        self._url = url
        bucket, self._key = split_bucket(url)
        self._client = bucket_client(bucket, endpoint)
        self._closed = False
        self.state = state_of_object(url, endpoint, PATIENCE) if expected is None else expected

    def get(self, start: int, stop: int) -> memoryview:
        options: Any = {"range": (start, stop)}
        if self.state.modified.startswith('"'):  # a time is none, nor is a weak tag, which no request may ask for
            options["if_match"] = self.state.modified

        def request() -> memoryview:
            if self._closed:
                raise _Closed
            result = obstore.get(self._client, self._key, options=options)
            now = _state_in(result.meta)
            if now.differs(self.state):
                raise PreconditionError
            data = memoryview(result.bytes())
            if len(data) != stop - start:
                raise ConnectionError(errno.ECONNRESET, f"{len(data):,} bytes came of {stop - start:,}")
            return data

        try:
            return patiently(request, self._url)
        except PreconditionError:
            self.state = state_of_object(self._url, None, PATIENCE, self._client)
            raise OSError(errno.ESTALE, "it has changed while it was read") from None

    def close(self) -> None:
        self._closed = True


class _Closed(Exception):
    """Nobody waits for the request any more."""


def state_of_object(url: str, endpoint: str | None, patience: float, client: Any = None) -> State:
    """Raises FileNotFoundError where there is none, and other OSErrors."""
    bucket, key = split_bucket(url)
    client = client or bucket_client(bucket, endpoint)
    try:
        return _state_in(patiently(lambda: obstore.head(client, key), url, patience))
    except PermissionError:  # only an answer with a body says why
        return _state_in(patiently(lambda: obstore.get(client, key), url, patience).meta)


def objects_below(bucket: str, folder: str, endpoint: str | None) -> Iterator[tuple[str, State]]:
    """Key and state of each object below a folder of a bucket, at any depth. Raises OSError."""
    client, last, pages = bucket_client(bucket, endpoint), None, None

    def page() -> Any:
        nonlocal pages
        try:
            if pages is None:
                pages = obstore.list(client, folder or None, offset=last, chunk_size=_PAGE)
            return next(pages, None)
        except BaseException:
            pages = None  # begin again, after the last object
            raise

    patience = FIRST_PATIENCE
    while found := patiently(page, f"{bucket}/{folder}", patience):
        for about in found:
            yield about["path"], _state_in(about)
        last, patience = found[-1]["path"], PATIENCE


def objects_in(bucket: str, folder: str, endpoint: str | None) -> tuple[list[tuple[str, State]], list[str]]:
    """The objects in a folder of a bucket itself, each with its state; and the folders in it. Raises OSError."""
    client = bucket_client(bucket, endpoint)
    found = patiently(lambda: obstore.list_with_delimiter(client, folder or None), f"{bucket}/{folder}", FIRST_PATIENCE)
    return [(about["path"], _state_in(about)) for about in found["objects"]], list(found["common_prefixes"])


def _state_in(about: Any) -> State:
    tag = about["e_tag"] or about["last_modified"].isoformat()
    if about["e_tag"] and not tag.startswith(("W/", '"')):
        tag = f'"{tag}"'  # Azure lists tags without the quotes that they have in its other answers
    return State(about["size"], tag)
