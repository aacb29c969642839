"""Keeps an output folder in an object store: S3 and compatible stores, Google Cloud Storage, Azure Blob Storage.

An object is written whole or not at all, so no file has to be renamed. An object that must not be replaced is written
on the condition that it does not exist (`If-None-Match: *`). An object that is replaced is written on the condition
that it is still the one that was read (`If-Match`). A store that ignores these conditions is refused.

The functions `place_of` and `open_store` find the store that a path or a URL names.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from ..errors import OutputError, OutputUnavailable, UsageError, cause
from ..processes.threads import threads
from ..storage.buckets import BucketPath, bucket_client, is_bucket, patiently, split_bucket
from ..storage.disk import Content
from ..storage.driver import AlreadyExistsError, PreconditionError
from ..storage.names import as_url, without_secrets
from ..storage.requests import FIRST_PATIENCE, PATIENCE
from .layout import MANIFEST, PLAN
from .local_store import LocalStore
from .store import Location, Store, no_check

if TYPE_CHECKING:
    import obstore.store
    from obstore import UpdateVersion

_Result = TypeVar("_Result")
_REQUESTS = 32
"""The number of parallel requests of one process. Each takes some tens of milliseconds, whatever its size."""

_DELETED_AT_ONCE = 1000
"""The number of objects that one request deletes, which is the limit of S3."""

_OF_ANY_JOB = (PLAN, MANIFEST)
"""Names without the id of a job. An object of such a name may belong to the job that has taken the folder."""

_ATTEMPT = "attempt"
"""The metadata of a created object by which a repeated request finds that the first one was carried out."""


@dataclass(frozen=True)
class ObjectStore(Store):
    """The objects under `root`. Requests are repeated through an outage of some minutes, see `patiently`.

    `add` checks the claim after it has written the object. If the check passes, the object was there before another job
    could take the folder. Such a job lists the objects after it has taken the folder, so it finds the object and
    removes it. If the check fails, `add` removes the object.
    """

    root: BucketPath
    patience: float = PATIENCE
    readers = _REQUESTS

    @property
    def _client(self) -> obstore.store.ObjectStore:
        """The client of this process, with its own credentials."""
        return bucket_client(self.root.bucket, self.root.endpoint)

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.root.key, name)))

    def _request(self, call: Callable[[], _Result], name: str, what: str) -> _Result:
        """Return the result of a request. Raises FileNotFoundError if the object is missing, and OutputUnavailable."""
        try:
            return patiently(call, str(self.root / name), self.patience)
        except (FileNotFoundError, UsageError):
            raise
        except OSError as error:
            raise OutputUnavailable(f"{self.root / name} cannot be {what}: {cause(error)}") from error

    @property
    def _soon(self) -> ObjectStore:
        """The store for the first requests of a command, which reports a wrong address soon."""
        return replace(self, patience=FIRST_PATIENCE)

    def probe(self) -> None:
        """Check that the store keeps to conditions on writes. Raises OutputError if it does not.

        Create an object twice, and update it as if it were another one. The store must refuse the second and the third
        request.
        """
        name, store = f".probe-{uuid.uuid4().hex}", self._soon
        store.create(name, b"first")
        try:
            is_kept = not store.create(name, b"second") and store._refuses_stale(name) and store.read(name) == b"first"
        finally:
            store.remove_all([name])
        if not is_kept:
            raise OutputError(
                f"{self.root}: its store ignores conditions on writes (If-None-Match, If-Match), so two jobs could "
                "overwrite each other's labels. Use a store that has them, as S3, Google Cloud Storage and Azure do, "
                "or write to a folder and copy that"
            )

    def _refuses_stale(self, name: str) -> bool:
        try:
            self._put(name, b"third", {"e_tag": '"00000000000000000000000000000000"', "version": "1"})
        except PreconditionError:
            return True
        return False

    def put(self, name: str, data: Content, check: Callable[[], None] = no_check) -> None:
        check()
        self._request(lambda: self._client.put(self._key(name), data, mode="overwrite"), name, "written")

    def take(self, name: str, source: Store, there: str, check: Callable[[], None]) -> None:
        """See `Store.take`. If the source is in the same bucket, the server copies the object."""
        bucket = self.root.bucket, self.root.endpoint
        if not isinstance(source, ObjectStore) or (source.root.bucket, source.root.endpoint) != bucket:
            super().take(name, source, there, check)
            return
        check()
        self._existing(lambda: self._client.copy(source._key(there), self._key(name)), name)
        try:
            check()
        except OutputError:
            self.remove_all([name])
            raise

    def put_stream(self, name: str, write: Callable[[BinaryIO], _Result], check: Callable[[], None]) -> _Result:
        with TemporaryFile() as file:
            result = write(file)
            check()

            def put() -> None:
                file.seek(0)
                self._client.put(self._key(name), file, mode="overwrite")

            self._request(put, name, "written")
        return result

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        length = self.size(name) or 0
        for first in range(0, length, size):
            part = partial(self._client.get_range, self._key(name), start=first, end=min(first + size, length))
            yield bytes(self._existing(part, name))

    def add_all(self, files: Sequence[tuple[str, Content]], check: Callable[[], None]) -> None:
        """Create the objects in parallel.

        An object that is there already must have the same content, because an earlier attempt has written it. If it has
        another content, this method raises OutputError and replaces nothing.
        """
        if len(files) == 1:
            created = [self._add(*files[0])]
        else:
            with threads(min(len(files), _REQUESTS) or 1) as pool:
                created = list(pool.map(lambda file: self._add(*file), files))
        try:
            check()
        except OutputError:
            new = [name for (name, _), is_new in zip(files, created, strict=True) if is_new]
            self.remove_all([name for name in new if name not in _OF_ANY_JOB])
            raise

    def _add(self, name: str, data: Content) -> bool:
        """Create an object and return whether it is new. Raises OutputError if it is there with another content."""
        if self.create(name, data):
            return True
        there = self.read(name)
        if there != data:
            hashes = [hashlib.sha256(content).hexdigest()[:16] for content in (there, data)]
            raise OutputError(
                f"{self.root / name} is there already with another content (SHA-256 {hashes[0]}…, not {hashes[1]}…): "
                "it was changed, or a worker that computes otherwise wrote it. Remove it, then continue with --resume"
            )
        return False

    def create(self, name: str, data: Content) -> bool:
        attempt = uuid.uuid4().hex
        put = partial(self._client.put, self._key(name), data, mode="create", attributes={_ATTEMPT: attempt})
        try:
            self._request(put, name, "written")
        except AlreadyExistsError:
            about = self._request(lambda: self._client.get(self._key(name)).attributes, name, "read")
            return about.get(_ATTEMPT) == attempt  # the answer to an earlier request was lost
        return True

    def update(self, name: str, before: bytes, data: Content, check: Callable[[], None]) -> None:
        """See `Store.update`. Raises OutputError if the object has changed since `before` was read.

        An object that has the new content already is accepted.
        """
        check()

        def read() -> tuple[bytes, UpdateVersion]:
            answer = self._client.get(self._key(name))
            version: Any = {part: answer.meta[part] for part in ("e_tag", "version") if answer.meta[part] is not None}
            return answer.bytes().to_bytes(), version

        there, version = self._existing(read, name)
        if there == before != data:
            try:
                self._put(name, data, version)
                return
            except PreconditionError:
                there = self.read(name)
        if there != data:
            check()  # the better message if another job has taken the folder
            raise OutputError(f"{self.root / name} was changed while this job finished. Continue with --resume")

    def _put(self, name: str, data: Content, version: UpdateVersion) -> None:
        """Replace an object of this version. Raises PreconditionError if the object has another version now."""
        self._request(lambda: self._client.put(self._key(name), data, mode=version), name, "written")

    def read(self, name: str) -> bytes:
        return self._existing(lambda: self._client.get(self._key(name)).bytes().to_bytes(), name)

    def _existing(self, call: Callable[[], _Result], name: str) -> _Result:
        try:
            return self._request(call, name, "read")
        except FileNotFoundError as error:
            raise OutputError(f"{self.root / name} is missing") from error

    def size(self, name: str) -> int | None:
        try:
            return int(self._request(lambda: self._client.head(self._key(name))["size"], name, "read"))
        except FileNotFoundError:
            return None

    def sizes(self, folders: tuple[str, ...]) -> Callable[[str], int | None]:
        return {name: size for folder in folders for name, size in self._list(folder)}.get

    def _list(self, folder: str) -> list[tuple[str, int]]:
        """Return the name and the size of every object in a folder and below it."""
        prefix = self._key(folder)
        objects = self._request(lambda: self._client.list(prefix, chunk_size=1000).collect(), folder, "listed")
        start = len(self.root.key) + 1 if self.root.key else 0
        return [(about["path"][start:], about["size"]) for about in objects]

    def names(self) -> set[str]:
        listing = self._request(lambda: self._client.list_with_delimiter(self.root.key or None), "", "read")
        keys = {*listing["common_prefixes"], *(about["path"] for about in listing["objects"])}
        return {key.rpartition("/")[2] for key in keys - {self.root.key}}  # without an object that stands for a folder

    def exists(self) -> bool:
        return not self._soon.is_empty("")

    def is_empty(self, folder: str) -> bool:
        first = lambda: next(iter(self._client.list(self._key(folder), chunk_size=1)), [])
        return not self._request(first, folder, "read")

    def files(self, folder: str) -> list[str]:
        return sorted(name for name, _ in self._list(folder) if not any(p.startswith(".") for p in name.split("/")))

    def make(self, folders: tuple[str, ...]) -> None:
        """Do nothing. An object store has no folders, and a name with a "/" needs none."""

    def remove(self, name: str) -> None:
        self.remove_all([name, *(below for below, _ in self._list(name))])

    def remove_all(self, names: Collection[str]) -> None:
        names_of = {self._key(name): name for name in names}
        keys = list(names_of)
        batches = [keys[i : i + _DELETED_AT_ONCE] for i in range(0, len(keys), _DELETED_AT_ONCE)]

        def delete(batch: list[str]) -> None:
            try:
                self._request(lambda: self._client.delete(batch), names_of[batch[0]], "removed")
            except FileNotFoundError:  # a store may report one object that is gone before it has removed the others
                if len(batch) > 1:
                    for key in batch:
                        delete([key])

        with threads(min(len(batches), _REQUESTS) or 1) as pool:
            list(pool.map(delete, batches))

    def remove_attempts(self, folders: tuple[str, ...]) -> None:
        """Do nothing. A stopped write leaves nothing but a probe, and a probe may belong to a job that is beginning."""

    def is_attempt(self, name: str) -> bool:
        return name.startswith(".probe-")

    def remove_empty_folders(self, folder: str) -> None:
        """Do nothing. An object store has no empty folders."""


def place_of(output: str | os.PathLike[str], endpoint: str | None = None) -> Location:
    """Return the place that a path or URL names. endpoint: see `bucket_client`.

    Raises UsageError for a URL that is not of an object store, since it could only become a local folder of that name.
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
    """Return the store at a place."""
    return ObjectStore(place) if isinstance(place, BucketPath) else LocalStore(place)
