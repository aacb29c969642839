"""Where a job may write: a folder of a file system that every worker sees at the same path, or one in a bucket."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError
from ..storage.buckets import BucketPath, is_bucket, split_bucket
from ..storage.names import as_url, without_secrets
from .local_store import LocalStore
from .object_store import ObjectStore
from .store import Location, Store


def place_of(output: str | os.PathLike[str], endpoint: str | None = None) -> Location:
    """The place that a path or URL names. endpoint: as of `bucket_client`.

    Raises UsageError for the URL of anything but an object store, of which only a local folder with such a name could
    be made.
    """
    given = os.fspath(output)
    url = as_url(given)
    if url is None:
        return Path(given).absolute()
    if not is_bucket(url):
        raise UsageError(
            f"{without_secrets(url)}: labels are written into a folder, or into an object store (s3://, gs://, az://): "
            "give one of these, and copy it when the job is done"
        )
    bucket, key = split_bucket(url)
    names = key.strip("/").split("/")
    if {"", ".", ".."} & {*names} and names != [""]:
        raise UsageError(f"{without_secrets(url)}: a folder in a bucket has no empty names in it, and no '.' or '..'")
    return BucketPath(bucket, "/".join(names), endpoint)


def open_store(place: Location) -> Store:
    """The store at a place."""
    return ObjectStore(place) if isinstance(place, BucketPath) else LocalStore(place)
