"""An output folder as a store of whole files, on any file system that every worker sees at the same path."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import OutputError

_TEMPORARY = ".tmp"


@dataclass(frozen=True)
class LocalStore:
    """Files by name within `root`, with "/" between folder and file.

    A write is atomic and survives a power failure: the file is written under a name unique to the attempt, flushed to
    the disk, renamed, and its folder flushed. There are no locks, so it works on NFS.
    """

    root: Path

    def put(self, name: str, data: bytes) -> None:
        """Write a file, or replace it. Raises OutputError."""
        path = self.root / name
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            try:
                _write(temporary, data)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(path.parent)
        except OSError as error:
            raise OutputError(_explain(path, len(data), error)) from error

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it was written. Raises OutputError.

        A process that is killed in here leaves an incomplete file.
        """
        path = self.root / name
        try:
            _write(path, data)
            _sync(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise OutputError(_explain(path, len(data), error)) from error
        return True

    def read(self, name: str) -> bytes:
        """Raises OutputError where there is no such file, or it cannot be read."""
        path = self.root / name
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise OutputError(f"{path} is missing") from error
        except OSError as error:
            raise OutputError(f"{path} cannot be read: {error.strerror}") from error

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def files(self, folder: str) -> list[str]:
        """The names of all files in a folder and below it, sorted, without temporary files of attempts."""
        found = (self.root / folder).rglob("[!.]*")
        return sorted(path.relative_to(self.root).as_posix() for path in found if not path.is_dir())

    def make(self, folders: tuple[str, ...]) -> None:
        """Create the root and folders in it. Raises OutputError."""
        try:
            for name in folders:
                (self.root / name).mkdir(parents=True, exist_ok=True)
            _sync(self.root)
        except OSError as error:
            raise OutputError(f"{self.root} cannot be created: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists. Raises OutputError."""
        path = self.root / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{path} cannot be removed: {error.strerror}") from error

    def remove_attempts(self, folders: tuple[str, ...]) -> None:
        """Remove the temporary files of interrupted attempts."""
        for name in (".", *folders):
            for path in (self.root / name).glob(f".*{_TEMPORARY}"):
                path.unlink(missing_ok=True)

    @staticmethod
    def is_attempt(name: str) -> bool:
        """Whether a file name is that of a temporary file."""
        return name.startswith(".") and name.endswith(_TEMPORARY)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(path: Path, size: int, error: OSError) -> str:
    message = f"{path} ({size:,} bytes) cannot be written: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free
        message += f"; {free:,} bytes are free there. Free some space"
    elif error.errno == errno.EFBIG:
        message += " (a limit on file size). Raise the limit, or use a smaller --chunk-size with --overwrite"
    return message + ", then continue with --resume: what is committed stays"
