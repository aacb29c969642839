"""A request's texts on their way to the dispatcher, and what may become of a request there."""

from __future__ import annotations

import math
from typing import NamedTuple


class Packed(NamedTuple):
    """What `Texts` holds, as bytes: the texts, int64 offsets, and int64 characters of the whole texts."""

    data: bytes
    offsets: bytes
    n_chars: bytes


class Refused(Exception):
    """A request that is not computed. retry_after: in seconds. until: by the monotonic clock, how long any other of
    one text for the same model would be refused too; 0: that is not known.
    """

    def __init__(self, message: str, retry_after: float = 1.0, until: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after, self.until = max(1, math.ceil(retry_after)), until


class Gone(Exception):
    """The client has hung up."""


class ModelChanged(Exception):
    """The model was loaded anew since the request was read."""
