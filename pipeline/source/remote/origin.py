"""Where the bytes of a remote file come from: what every kind of server can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


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
