"""Stores an output folder as whole files, on any file system that every worker sees at the same path."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..errors import OutputError
from ..processes.threads import available_cores
from ..storage.disk import TEMPORARY, Content, sync_folder, temporary, why_not, write_new
from .layout import MANIFEST, PLAN, SIDECARS, SUCCESS
from .store import Store, no_check

_Result = TypeVar("_Result")
_TRIES = 5
"""How often the writing or removal of a file is tried, if another process removes or adds files at the same time."""

_LEAST_READERS = 8
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""The errors of a file system that has no hard links, or allows no more of them for a file."""


@dataclass(frozen=True)
class LocalStore(Store):
    """The files within `root`.

    A write is atomic and survives a power failure. The file is written under a name that is unique to the attempt and
    cannot be guessed, and flushed to the disk. Then it is renamed, and its folder is flushed. There are no locks, so it
    works on NFS. Only regular files are read, since a FIFO or a device would wait for ever.
    """

    root: Path

    @property
    def readers(self) -> int:
        return max(_LEAST_READERS, available_cores())

    def put(self, name: str, data: Content, check: Callable[[], None] = no_check) -> None:
        """Write a file, or replace it.

        check: a function that is called before the temporary file is renamed. If it raises an error, so does this
        method, and the file is not renamed. Another process can thus stop every write: it changes what `check` looks
        at, then removes the temporary files. A write that was checked before the change finds its temporary file gone,
        and is checked again.
        """

        def write(path: Path) -> None:
            with temporary(path, data) as written:
                check()
                os.replace(written, path)

        self._write(name, data, write, check)

    def add_all(self, files: Sequence[tuple[str, Content]], check: Callable[[], None]) -> None:
        for name, data in files:
            self.put(name, data, check)

    def update(self, name: str, before: bytes, data: Content, check: Callable[[], None]) -> None:
        self.put(name, data, check)

    def take(self, name: str, source: Store, there: str, check: Callable[[], None]) -> None:
        """Add the file as a hard link, or as a copy if a link is impossible."""
        path = self.root / name
        attempt = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
        try:
            if not isinstance(source, LocalStore):
                raise OSError(errno.EXDEV, "another kind of store")
            self._make_within(path.parent)
            os.link(os.path.realpath(source.root / there), attempt)  # a symbolic link is followed to its file
            check()
            os.replace(attempt, path)  # it does nothing if both are the same file
            sync_folder(path.parent)
        except OSError:
            super().take(name, source, there, check)
        finally:
            attempt.unlink(missing_ok=True)

    def put_stream(self, name: str, write: Callable[[BinaryIO], _Result], check: Callable[[], None]) -> _Result:
        path, folder = self.root / name, self.root / SIDECARS
        attempt = folder / f".{uuid.uuid4().hex}{TEMPORARY}"  # `remove_attempts` finds it there
        try:
            with open(attempt, "xb") as file:
                result = write(file)
                file.flush()
                os.fsync(file.fileno())
            check()
            self._make_within(path.parent)
            os.replace(attempt, path)
            sync_folder(path.parent)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise OutputError(self._explain(name, 0, error)) from error
        finally:
            attempt.unlink(missing_ok=True)
        return result

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        try:
            with open(self.root / name, "rb") as file:
                while block := file.read(size):
                    yield block
        except OSError as error:
            raise OutputError(why_not("read", self.root / name, error)) from error

    def create(self, name: str, data: Content) -> bool:
        """Write a file unless it exists; return whether it was written. Raises OutputError.

        Nobody sees the file incomplete, except on a file system without hard links.
        """

        def write(path: Path) -> bool:
            with temporary(path, data) as written:
                created = _link(written, path, data)
                written.unlink(missing_ok=True)
            return created

        return self._write(name, data, write)

    def _write(
        self, name: str, data: Content, write: Callable[[Path], _Result], check: Callable[[], None] = no_check
    ) -> _Result:
        """Write a file, and try again if the temporary file was removed: another run of the job has then finished."""
        path = self.root / name
        for _ in range(_TRIES):
            try:
                result = write(path)
                sync_folder(path.parent)
                return result
            except FileNotFoundError as error:
                check()
                missing = error
                if path.parent.parent != self.root:  # the first part of a label creates the label's folder
                    self._make_within(path.parent)
            except OSError as error:
                raise OutputError(self._explain(name, len(data), error)) from error
        raise OutputError(self._explain(name, len(data), missing)) from missing

    def _make_within(self, folder: Path) -> None:
        """Create a folder below the root. Raises OutputError."""
        if folder.is_dir():
            return
        try:
            if folder.parent != self.root:
                self._make_within(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
        except OSError as error:
            raise OutputError(why_not("created", folder, error)) from error

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises OutputError if there is no such regular file, or it cannot be read."""
        path = self.root / name
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # before it is opened: to open some devices is to use them
                raise OutputError(f"{path} is not a regular file")
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OutputError(f"{path} is not a regular file")
                return file.read()
        except FileNotFoundError as error:
            raise OutputError(f"{path} is missing") from error
        except OSError as error:
            raise OutputError(why_not("read", path, error)) from error

    def size(self, name: str) -> int | None:
        """Return the size of a regular file in bytes; None if there is no such file."""
        try:
            about = os.stat(self.root / name)
        except OSError:
            return None
        return about.st_size if stat.S_ISREG(about.st_mode) else None

    def sizes(self, folders: tuple[str, ...]) -> Callable[[str], int | None]:
        return self.size

    def names(self) -> set[str]:
        """Return the names in the root; none if it is no folder. Raises OutputError if it cannot be read."""
        try:
            return set(os.listdir(self.root))
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except (OSError, ValueError) as error:
            raise OutputError(why_not("read", self.root, error)) from error

    def exists(self) -> bool:
        return bool(self.names()) or (os.path.exists(self.root) and not os.path.isdir(self.root))

    def is_empty(self, folder: str) -> bool:
        return not LocalStore(self.root / folder).names()

    def files(self, folder: str) -> list[str]:
        """Return the sorted names of all files in a folder and below it, without hidden ones. Raises OutputError.

        The names include links to folders, which are not followed.
        """
        names = []
        for place, folders, files in os.walk(self.root / folder, onerror=_unreadable):
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            folders[:] = [name for name in folders if not name.startswith(".")]
            within = Path(place).relative_to(self.root)
            names += [(within / name).as_posix() for name in (*files, *links) if not name.startswith(".")]
        return sorted(names)

    def make(self, folders: tuple[str, ...]) -> None:
        """Create the root and folders in it. Raises OutputError."""
        try:
            for name in folders:
                (self.root / name).mkdir(parents=True, exist_ok=True)
            sync_folder(self.root)
        except (OSError, ValueError) as error:
            raise OutputError(f"{why_not('created', self.root, error)}, or choose another folder") from error

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists. Raises OutputError."""
        path = self.root / name
        for attempt in range(_TRIES):
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                return
            except OSError as error:  # another process may remove, or begin to write, a file in it
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY) or attempt + 1 == _TRIES:
                    raise OutputError(why_not("removed", path, error)) from error
                time.sleep(0.05 * attempt)

    def remove_all(self, names: Collection[str]) -> None:
        for name in names:
            self.remove(name)

    def remove_attempts(self, folders: tuple[str, ...]) -> None:
        """Remove temporary files. Raises OutputError.

        A write that is under way starts again, unless its check fails.
        """
        for name in ("", *folders):
            find = (self.root / name).rglob if name else self.root.glob
            for path in find(f".*{TEMPORARY}"):
                self.remove(path.relative_to(self.root).as_posix())

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders in a folder."""
        for path, *_ in os.walk(self.root / folder, topdown=False):
            if path != os.fspath(self.root / folder):
                with suppress(OSError):  # it is not empty
                    os.rmdir(path)

    def is_attempt(self, name: str) -> bool:
        """Return whether a file name is that of a temporary file."""
        return name.startswith(".") and name.endswith(TEMPORARY)

    def _explain(self, name: str, size: int, error: OSError) -> str:
        """Return what is wrong, and the remedy. A job can be resumed once its manifest is written."""
        message, smaller = why_not("written", self.root / name, error, size), ""
        if error.errno == errno.EFBIG:
            if name == PLAN:
                message += ", or use a larger --chunk-size"
            elif name not in (MANIFEST, SUCCESS):
                smaller = ". Or begin anew with a smaller --chunk-size and --overwrite"
        if not self.has(MANIFEST):
            return message + ", then start again"
        return message + f", then continue with --resume: what is committed stays{smaller}"


def _link(written: Path, path: Path, data: Content) -> bool:
    """Give a file its name unless another file has it; return whether it was given. Raises OSError."""
    try:
        os.link(written, path)
    except FileExistsError:
        return (
            os.stat(written).st_nlink == 2
        )  # an NFS server may refuse to repeat a request that it has already carried out
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        try:
            write_new(path, data)
        except FileExistsError:
            return False
    return True


def _unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise OutputError(why_not("read", error.filename, error)) from error
