"""CUDA sources to cubins with NVRTC, through a cache on disk. It needs no GPU: any architecture is built anywhere.

A file of the cache is one kernel: the sha256 of what follows, a line about it in JSON, and its cubin. What runs on the
GPU comes from there, so a cache that others may write to is not used, and a damaged file is compiled anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ..errors import BroadsheetError, UsageError, install
from ..processes.threads import available_cores
from .tiles import shared_limit

FOLDER = Path(__file__).resolve().parent
_importing = threading.Lock()
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel.

    Attributes
    ----------
    code : bytes
        The cubin.
    symbol : str
        The kernel's name in it.
    log : str
        What the compiler wrote, with ptxas's report.

    """

    code: bytes
    symbol: str
    log: str


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of a kernel.

    Attributes
    ----------
    registers : int
        32-bit registers a thread.
    stack_bytes : int
        Bytes of the stack frame of a thread.
    spill_bytes : int
        Bytes of registers that a thread stores to local memory and loads again.
    shared_bytes : int
        Bytes of static shared memory of a block.
    warnings : tuple of str
        Lines of the log that may be warnings.

    """

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]


def compile_kernel(
    file: str, expression: str, architecture: str, cache: Path | None = None, folder: Path = FOLDER
) -> Cubin:
    """Compile a template instance, or find it in the cache.

    The cache key covers the source, everything it includes, the options and the version of the compiler. Processes that
    need the same kernel at once wait for the first. Raises BroadsheetError with the compiler's log where it does not
    compile, UsageError where NVRTC is missing or the cache cannot be written.

    Parameters
    ----------
    file : str
        The source, relative to `folder`.
    expression : str
        The template instance, in C++.
    architecture : str
        The target, such as "sm_90a".
    cache : Path, optional
        The folder of the cache; by default `cache_folder`.
    folder : Path
        The folder of the sources.

    """
    cache = cache or cache_folder()
    key = _key(folder, file, expression, architecture)
    if not _is_ours(cache):
        return _compile(folder, file, expression, architecture)
    path = cache / f"{key}.kernel"
    cubin = _read(path)
    if cubin is None:
        with _locked(cache, key):
            cubin = _read(path)
            if cubin is None:
                cubin = _compile(folder, file, expression, architecture)
                _write(path, cubin, f"{file} {expression}")
    return cubin


@cache
def kernel_here(file: str, expression: str, architecture: str) -> Cubin:
    """The same as `compile_kernel` with its defaults, once a process."""
    return compile_kernel(file, expression, architecture)


def compile_all(kernels: Iterable[tuple[str, str]], architecture: str) -> None:
    """Compile kernels, file and expression of each, on all cores: one after the other, a model's take five seconds.

    Workers that share a cache share the work: each kernel is compiled by the first that comes to it.
    """
    with ThreadPoolExecutor(available_cores(), "broadsheet-compile") as pool:
        for _ in pool.map(lambda kernel: kernel_here(*kernel, architecture), kernels):
            pass


def cache_folder() -> Path:
    """$BROADSHEET_CACHE_DIR, or `broadsheet` in the user's cache folder."""
    given = os.environ.get("BROADSHEET_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "broadsheet"


def resources(log: str) -> Resources:
    """Parse ptxas's report (`-v`) in a compiler's log; its format is undocumented, the same from CUDA 12 to 13."""

    def largest(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    spills = largest(r"(\d+) bytes spill stores") + largest(r"(\d+) bytes spill loads")
    warnings = tuple(line.strip() for line in log.splitlines() if re.search(r"warning|Potential|ignored", line, re.I))
    return Resources(
        largest(r"Used (\d+) registers"),
        largest(r"(\d+) bytes stack frame"),
        spills,
        largest(r"(\d+) bytes smem"),
        warnings,
    )


def _compile(folder: Path, file: str, expression: str, architecture: str) -> Cubin:
    try:
        with _importing:  # imported by two threads at once, it would be incomplete in both
            from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise UsageError(f"CUDA kernels are compiled with cuda-core: {install('cuda13')} ({error})") from error
    options = ProgramOptions(arch=architecture, name=file, include_path=[str(folder)], **_options(architecture))
    log = io.StringIO()
    try:
        program = Program((folder / file).read_text(), "c++", options)
        built = program.compile("cubin", name_expressions=(expression,), logs=log)
    except Exception as error:  # cuda.core's classes are its own private ones
        raise BroadsheetError(f"{file}: {expression} does not compile for {architecture}:\n{error}") from error
    return Cubin(bytes(built.code), built.symbol_mapping[expression].decode(), log.getvalue())


def _options(architecture: str) -> dict[str, Any]:
    """The options that determine the code, apart from its source. SHARED_LIMIT: for common/launch.cuh.

    From the driver's own cache NVRTC would return a cubin without ptxas's report.
    """
    limit = ("SHARED_LIMIT", str(shared_limit(architecture)))
    return {"std": "c++17", "ptxas_options": ["-v"], "define_macro": [limit], "no_cache": True}


def _key(folder: Path, file: str, expression: str, architecture: str) -> str:
    digest = hashlib.sha256(
        json.dumps([file, expression, architecture, _options(architecture), compiler_name()]).encode()
    )
    seen: set[str] = set()
    waiting = [file]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            text = (folder / name).read_text()
            digest.update(f"{name}\0{text}\0".encode())
            waiting += _INCLUDE.findall(text)
    return digest.hexdigest()[:32]


@lru_cache
def compiler_name() -> str:
    """E.g. "NVRTC 13.0.88", which with the architecture determines the machine code. Raises UsageError without NVRTC.

    `nvrtcVersion` leaves out the last number, so that is taken from the first lines of what the compiler writes.
    """
    try:
        from cuda.bindings import nvrtc

        def call(function: Any, *arguments: Any) -> Any:
            status, *values = function(*arguments)
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise RuntimeError(status.name)
            return values[0] if values else None

        program = call(nvrtc.nvrtcCreateProgram, b"", b"version.cu", 0, [], [])
        call(nvrtc.nvrtcCompileProgram, program, 0, [])
        text = bytes(call(nvrtc.nvrtcGetPTXSize, program))
        call(nvrtc.nvrtcGetPTX, program, text)
        call(nvrtc.nvrtcDestroyProgram, program)
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"NVRTC, the CUDA compiler, is missing: {install('cuda13')} ({error})") from error
    version = re.search(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)", text)
    if version is None:
        raise BroadsheetError(f"NVRTC does not tell its version: please report this ({text[:200]!r})")
    return f"NVRTC {version[1].decode()}"


def _is_ours(cache: Path) -> bool:
    """Whether the cache, which is created where it is missing, is this user's and nobody else may write to it."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = cache.stat()
    except OSError as error:
        raise _no_cache(cache, error) from error
    if _only_we_write(about):
        return True
    whose = "is another user's" if about.st_uid != os.geteuid() else "can be written by other users (chmod go-w)"
    warnings.warn(
        f"the kernel cache {cache} is not used, since it {whose}: each process compiles its kernels. Mend that, or set "
        "BROADSHEET_CACHE_DIR to a folder of your own",
        RuntimeWarning,
        stacklevel=3,
    )
    return False


def _only_we_write(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _no_cache(cache: Path, error: OSError) -> UsageError:
    return UsageError(f"the kernel cache {cache} cannot be written ({error}): set BROADSHEET_CACHE_DIR")


@contextmanager
def _locked(cache: Path, key: str) -> Iterator[None]:
    """One process of this machine at a time; the lock is released when the process that holds it ends."""
    try:
        with open(cache / f"{key}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise _no_cache(cache, error) from error


def _read(path: Path) -> Cubin | None:
    """A kernel of the cache; None where it is missing, damaged, or not written by this user."""
    try:
        with open(path, "rb") as file:
            data = file.read() if _only_we_write(os.fstat(file.fileno())) else b""
    except OSError:
        return None
    digest, _, rest = data.partition(b"\n")
    if digest != hashlib.sha256(rest).hexdigest().encode():
        return None
    about, _, code = rest.partition(b"\n")
    fields = json.loads(about)
    return Cubin(code, fields["symbol"], fields["log"])


def _write(path: Path, cubin: Cubin, kernel: str) -> None:
    """Write under another name, fsync and rename: a reader, on any machine, sees the whole file or none."""
    about = {"kernel": kernel, "symbol": cubin.symbol, "log": cubin.log}
    rest = json.dumps(about).encode() + b"\n" + cubin.code
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # of mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
