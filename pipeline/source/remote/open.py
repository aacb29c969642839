"""Opening a remote file, and asking for its state, by whatever serves its URL."""

from __future__ import annotations

from ...errors import UsageError
from ...storage.bucket_errors import PATIENCE
from ...storage.buckets import is_bucket
from ...storage.names import is_web
from ...storage.objects import BucketObject, Origin, State, state_of_object
from .driver import DriverFile, state_by_driver
from .file import RemoteFile


def open_remote(
    url: str,
    ranges: bool | None = None,
    expected: State | None = None,
    endpoint: str | None = None,
    stop: int | None = None,
) -> RemoteFile:
    """Open a remote file. Raises OSError.

    ranges, expected: what is known of it; None to ask for it. endpoint: as of `bucket_client`. stop: as of
    `RemoteFile`.
    """
    origin: Origin
    if is_bucket(url):
        origin = _object(url, expected, endpoint)
    elif is_web(url):
        from .web import WebFile  # urllib3 takes long to import

        origin = WebFile(url, ranges, expected)
    else:
        origin = DriverFile(url)
    return RemoteFile(origin, stop)


def state_now(url: str, endpoint: str | None = None) -> State:
    """The state of a remote file. Raises OSError."""
    if is_bucket(url):
        return state_of_object(url, endpoint, PATIENCE)
    if is_web(url):
        with open_remote(url) as file:
            return file.state()
    return state_by_driver(url)


def _object(url: str, expected: State | None, endpoint: str | None) -> BucketObject:
    try:
        return BucketObject(url, expected, endpoint)
    except UsageError as error:
        raise OSError(error.message) from error
