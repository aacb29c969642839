"""Writes files to a disk, each whole, and checks before any work which of the user's files may be written.

A file is written under a name unique to the attempt, flushed to the disk and renamed, and its folder is flushed. So
there is always the old file or the new one, whatever fails, even after a power failure.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from ..errors import OutputError, UsageError, cause
from .names import MANIFEST, as_url, in_archive, is_url

TEMPORARY = ".tmp"
"""The suffix of files that are being written. Their names begin with a dot."""

_REMEDIES: dict[int | None, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Get the right to do that"),
    errno.EROFS: "Mount that for writing",
    errno.EFBIG: "Raise the limit on file size (ulimit -f)",
    errno.ENAMETOOLONG: "Choose another name",
}

Named = str | os.PathLike[str]
Content = bytes | memoryview
"""The content of a file."""


def refuse_outputs(
    files: Mapping[str, Named | None],
    overwrite: bool,
    read: Callable[[], Iterable[str]],
    folder: str | None = None,
) -> None:
    """Raise UsageError if a file or a folder cannot be written, or must not be replaced.

    Every command that writes calls this function before its work.

    files: the files to write, by the option that names each; None if the option is not given. overwrite: whether they
    may be replaced, unless the command reads them. read: returns the paths and URLs of everything that is read: input,
    models, output folders of jobs. It is called only if something that exists could be one of these. folder: the path
    or URL of a folder to write into.
    """
    # The files need a folder that can be written, and must be different files.
    given = {option: Path(name) for option, name in files.items() if name is not None}
    for option, path in given.items():
        if os.path.isdir(path) or not os.access(path.absolute().parent, os.W_OK):
            raise UsageError(f"{option} {path}: give a file in a folder that exists and can be written")
        others = [one for one, other in given.items() if other.resolve() == path.resolve() and one != option]
        if others:
            raise UsageError(f"{option} and {others[0]} are the same file, {path}: give two")

    # None may be inside the output folder of a job.
    new = {"--output": Path(folder)} if folder and not is_url(folder) and not os.path.lexists(folder) else {}
    for option, path in {**given, **new}.items():
        for above in Path(os.path.realpath(path)).parents:
            if os.path.exists(above / MANIFEST):
                raise UsageError(f"{option} {path} is in {above}, the output folder of a job: choose another place")

    # None may be something that the command reads.
    there = {option: path for option, path in given.items() if os.path.isfile(path)}
    target = folder if folder and (is_url(folder) or os.path.isdir(folder)) else ""
    within = cache(partial(_is_within, target))
    for source in read() if there or target else ():
        source = member.archive if (member := in_archive(source)) else source
        name = as_url(source) or os.path.realpath(source)
        if target and _same(name, target):
            raise UsageError(f"--output {folder} is what the command reads: give another folder")
        if target and within(os.path.dirname(name)) and (is_url(name) or os.path.exists(name)):
            raise UsageError(f"{source} is in {folder}, which the command writes to: give another folder")
        for option, path in there.items():
            if _same(path, name):
                raise UsageError(f"{option} {path} is what the command reads: give another file")

    # Existing files are replaced only with --overwrite.
    if there and not overwrite:
        option, path = next(iter(there.items()))
        raise UsageError(f"{option} {path} is there already: give another name, or --overwrite")


def _same(one: Named, other: Named) -> bool:
    """Return whether two names are of one file, folder or URL, also through links and mounts."""
    with suppress(OSError):  # a URL is no file
        return os.path.samefile(one, other)
    return str(one).rstrip("/") == str(other).rstrip("/")


def _is_within(folder: str, path: str) -> bool:
    """Return whether a path or URL is a folder or below it, under whatever name."""
    above = (Path(path), *Path(path).parents)
    return f"{path}/".startswith(f"{folder.rstrip('/')}/") or any(_same(one, folder) for one in above)


def write_file(path: Named, data: Content) -> None:
    """Write a file that the user named, or replace it. A link stays a link, and a file keeps its permissions.

    Raises OutputError with the remedy. The file is then as it was before.
    """
    target = Path(os.path.realpath(path))
    try:
        about = target.stat() if target.exists() else None
        if about is not None and not stat.S_ISREG(about.st_mode):  # /dev/stdout, a FIFO
            Path(path).write_bytes(data)
            return
        with temporary(target, data) as written:
            if about is not None:
                os.chmod(written, stat.S_IMODE(about.st_mode))
            os.replace(written, target)
        sync_folder(target.parent)
    except OSError as error:
        unchanged = ". What it held is unchanged" if target.is_file() else ""
        remedy = why_not("written", path, error, len(data))
        raise OutputError(f"{remedy}, or name a file elsewhere{unchanged}") from error


def why_not(action: str, path: Named, error: OSError | ValueError, size: int | None = None) -> str:
    """Return why a file or a folder could not be written or read, and what helps. More text may follow the sentence.

    action: the past participle of the action, such as "written". size: the size of the file in bytes, if it matters.
    """
    message = f"{path}{'' if size is None else f' ({size:,} bytes)'} cannot be {action}: {cause(error)}"
    number = error.errno if isinstance(error, OSError) else errno.ENAMETOOLONG
    if number in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            message += f"; {shutil.disk_usage(Path(path).absolute().parent).free:,} bytes are free there"
    return f"{message}. {_REMEDIES.get(number, 'See what is wrong with that file system')}"


@contextmanager
def temporary(path: Path, data: Content) -> Iterator[Path]:
    """Write a temporary file next to `path`, which the block renames or removes. Raises OSError.

    After an error the file is removed.
    """
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        write_new(written, data)
        yield written
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: Content) -> None:
    """Write a new file, with the permissions that the umask leaves, and flush it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
