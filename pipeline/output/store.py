"""What an output folder is kept in, seen as a store of whole files by name, with "/" between folder and file.

Whose folder it is says a small file, the claim, created once, that only `--overwrite` replaces. Every write of a job is
checked against it (see `Store.add`), so that a job whose folder has been taken writes nothing more there, however late.
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
"""Where an output folder is."""


def no_check() -> None:
    """For a write that nothing has to be checked for."""


class Store(Protocol):
    """A folder of whole files. Nobody sees a file incomplete, and there are no locks.

    Every method raises OutputError where the store cannot be read or written, and OutputUnavailable where that is not
    for what is in it.

    Attributes
    ----------
    root : Path or BucketPath
        Where it is; `root / name` is what messages call a file.
    readers : int
        Threads that read small files, which takes time rather than work on a file system of the network.

    """

    root: Location

    @property
    def readers(self) -> int: ...

    def probe(self) -> None:
        """Raise OutputError where jobs in it could not be kept apart. Called once, before a job writes anything."""
        return  # nothing to do is the usual case

    def put(self, name: str, data: Content, check: Callable[[], None] = no_check) -> None:
        """Write a file, or replace it. check: raises where it must not be written (any more)."""

    def add(self, name: str, data: Content, check: Callable[[], None]) -> None:
        """Write a file that always has this content, whoever writes it. A write that `check` refuses leaves nothing.

        One that is there with another content is damaged, and has to be removed first.
        """
        self.add_all([(name, data)], check)

    def add_all(self, files: Sequence[tuple[str, Content]], check: Callable[[], None]) -> None:
        """`add` several files, side by side where that is faster."""

    def update(self, name: str, before: bytes, data: Content, check: Callable[[], None]) -> None:
        """Replace a file whose content is `before`."""

    def take(self, name: str, source: Store, there: str, check: Callable[[], None]) -> None:
        """`add` a file that another store has, under the name `there`."""
        self.add(name, source.read(there), check)

    def put_stream(self, name: str, write: Callable[[BinaryIO], _Result], check: Callable[[], None]) -> _Result:
        """Write a file that need not fit into memory, or replace it. write: writes it; what it returns is returned.
        check: as of `put`. Raises FileNotFoundError where another run of the job has removed what was begun.
        """

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """A file in blocks of about that size."""

    def create(self, name: str, data: Content) -> bool:
        """Write a file unless it exists; return whether this call wrote it."""

    def read(self, name: str) -> bytes:
        """Raises OutputError also where there is no such file."""

    def size(self, name: str) -> int | None:
        """The size of a file; None where there is none."""

    def has(self, name: str) -> bool:
        return self.size(name) is not None

    def sizes(self, folders: tuple[str, ...]) -> Callable[[str], int | None]:
        """`size` for many files in these folders: they are listed first where that takes fewer requests."""

    def names(self) -> set[str]:
        """What is in the root; nothing where there is none."""

    def exists(self) -> bool:
        """Whether there is anything at the root."""

    def is_empty(self, folder: str) -> bool:
        """Whether there is nothing in a folder, or no folder."""

    def files(self, folder: str) -> list[str]:
        """The names of all files in a folder and below it, sorted, without hidden ones."""

    def make(self, folders: tuple[str, ...]) -> None:
        """Create the root and folders in it."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""

    def remove_all(self, names: Collection[str]) -> None:
        """Remove files, those that exist."""

    def remove_attempts(self, folders: tuple[str, ...]) -> None:
        """Remove what writes that were stopped have left."""

    def is_attempt(self, name: str) -> bool:
        """Whether a file in the root is what such a write has left."""

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders in a folder."""


def claim(store: Store, job: str) -> bool:
    """Claim a folder for a job unless it is claimed; return whether this call claimed it. Raises OutputError."""
    return store.create(CLAIM, to_json(Claim(job)))


def take_over(store: Store, job: str) -> None:
    """Claim a folder for a job, whosever it was. Raises OutputError."""
    store.put(CLAIM, to_json(Claim(job)))


def claimed_by(store: Store) -> str:
    """The id of the job that owns the folder. Raises OutputError where the claim is missing or damaged."""
    try:
        return from_json(store.read(CLAIM), Claim, store.root / CLAIM).job
    except OutputError as error:
        remedy = ". If no other job runs there, remove it, then" if store.has(CLAIM) else ":"
        raise OutputError(f"{error.message}{remedy} continue with --resume") from error


def is_claimed(store: Store) -> bool:
    """Whether a job, of any id, owns the folder by a claim that can be read."""
    try:
        claimed_by(store)
    except OutputError:
        return False
    return True


def check_claim(store: Store, job: str) -> None:
    """Raise OutputError where another job has taken the folder."""
    if claimed_by(store) != job:
        raise OutputError(f"another job has overwritten {store.root}: the labels of this one are lost")
