"""Defines `Store`, which holds an output folder as whole files by name, with "/" between folder and file.

A small file, the claim, says which job owns the folder. It is created once, and only `--overwrite` replaces it. Every
write of a job is checked against the claim (see `Store.add`). A job that has lost its folder writes nothing more there,
however late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from ..errors import OutputError
from ..storage.buckets import BucketPath
from ..storage.disk import Content
from .layout import CLAIM
from .record import Claim, from_json, to_json

_Result = TypeVar("_Result")

Location = Path | BucketPath
"""The place of an output folder."""


def no_check() -> None:
    """Check nothing: the `check` of a write that needs none."""


class Store(Protocol):
    """A folder of whole files. Nobody sees a file incomplete, and there are no locks.

    Every method raises OutputError if the store cannot be read or written, and OutputUnavailable if the cause is not
    the content of the store.

    Attributes
    ----------
    root : Path or BucketPath
        The place of the store. Messages call a file `root / name`.
    readers : int
        The number of threads that read small files. On a network file system such reads mostly wait.

    """

    root: Location

    @property
    def readers(self) -> int: ...

    def probe(self) -> None:
        """Raise OutputError if the store cannot keep two jobs apart. Called once, before a job writes anything."""
        return  # most stores have nothing to check

    def put(self, name: str, data: Content, check: Callable[[], None] = no_check) -> None:
        """Write a file, or replace it. check: raises an error if the file must not be written, or no longer."""

    def add(self, name: str, data: Content, check: Callable[[], None]) -> None:
        """Write a file that always has this content, whoever writes it. A write that `check` refuses leaves nothing.

        A file that is there with another content is damaged and has to be removed first.
        """
        self.add_all([(name, data)], check)

    def add_all(self, files: Sequence[tuple[str, Content]], check: Callable[[], None]) -> None:
        """`add` several files, in parallel if that is faster."""

    def update(self, name: str, before: bytes, data: Content, check: Callable[[], None]) -> None:
        """Replace a file whose content is `before`."""

    def take(self, name: str, source: Store, there: str, check: Callable[[], None]) -> None:
        """`add` a file from another store, which has it under the name `there`."""
        self.add(name, source.read(there), check)

    def put_stream(self, name: str, write: Callable[[BinaryIO], _Result], check: Callable[[], None]) -> _Result:
        """Write or replace a file that need not fit into memory, and return what `write` returns.

        write: writes the content to the file that it is given. check: see `put`. Raises FileNotFoundError if another
        run of the job has removed the unfinished file.
        """

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield a file in blocks of about `size` bytes."""

    def create(self, name: str, data: Content) -> bool:
        """Write a file unless it exists, and return whether this call wrote it."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises OutputError also if there is no such file."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if there is no such file."""

    def has(self, name: str) -> bool:
        return self.size(name) is not None

    def sizes(self, folders: tuple[str, ...]) -> Callable[[str], int | None]:
        """Return a function like `size` for many files in these folders. It lists them first to save requests."""

    def names(self) -> set[str]:
        """Return the names of the files and folders in the root; an empty set if there is no root."""

    def exists(self) -> bool:
        """Return whether there is anything at the root."""

    def is_empty(self, folder: str) -> bool:
        """Return whether a folder is empty or missing."""

    def files(self, folder: str) -> list[str]:
        """Return the names of all files in a folder and below it, sorted, without hidden files."""

    def make(self, folders: tuple[str, ...]) -> None:
        """Create the root and these folders in it."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""

    def remove_all(self, names: Collection[str]) -> None:
        """Remove those of the files that exist."""

    def remove_attempts(self, folders: tuple[str, ...]) -> None:
        """Remove the temporary files that stopped writes have left."""

    def is_attempt(self, name: str) -> bool:
        """Return whether a file in the root is a temporary file that a stopped write has left."""

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders in a folder."""


def claim(store: Store, job: str) -> bool:
    """Claim a folder for a job unless it is claimed, and return whether this call claimed it. Raises OutputError."""
    return store.create(CLAIM, to_json(Claim(job)))


def take_over(store: Store, job: str) -> None:
    """Claim a folder for a job, whoever owned it before. Raises OutputError."""
    store.put(CLAIM, to_json(Claim(job)))


def claimed_by(store: Store) -> str:
    """Return the id of the job that owns the folder. Raises OutputError if the claim is missing or damaged."""
    try:
        return from_json(store.read(CLAIM), Claim, store.root / CLAIM).job
    except OutputError as error:
        remedy = ". If no other job runs there, remove it, then" if store.has(CLAIM) else ":"
        raise OutputError(f"{error.message}{remedy} continue with --resume") from error


def is_claimed(store: Store) -> bool:
    """Return whether the folder has a claim that can be read, of any job."""
    try:
        claimed_by(store)
    except OutputError:
        return False
    return True


def check_claim(store: Store, job: str) -> None:
    """Raise OutputError if another job has taken the folder."""
    if claimed_by(store) != job:
        raise OutputError(f"another job has overwritten {store.root}: the labels of this one are lost")
