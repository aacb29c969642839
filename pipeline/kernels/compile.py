"""Compiles CUDA sources to cubins with NVRTC, through a cache on disk.

This needs no GPU: any machine can compile for any architecture. A file of the cache holds one kernel: the sha256 of the
rest of the file, a line of JSON about the kernel, and its cubin. This code runs on the GPU, so a cache that other users
may write to is not used, and a kernel whose file is damaged is compiled again.
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
        The name of the kernel in the cubin.
    log : str
        The output of the compiler, with the report of ptxas.

    """

    code: bytes
    symbol: str
    log: str


@dataclass(frozen=True)
class Resources:
    """What ptxas reports about a kernel.

    Attributes
    ----------
    registers : int
        The number of 32-bit registers per thread.
    stack_bytes : int
        The size of a thread's stack frame, in bytes.
    spill_bytes : int
        The bytes of registers that a thread spills: stores to local memory plus loads.
    shared_bytes : int
        The static shared memory of a block, in bytes.
    warnings : tuple of str
        The lines of the log that may be warnings.

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
    need the same kernel at the same time wait for the first of them. Raises BroadsheetError with the compiler's log if
    the kernel does not compile, and UsageError if NVRTC is missing or the cache cannot be written.

    Parameters
    ----------
    file : str
        The source, relative to `folder`.
    expression : str
        The template instance, in C++.
    architecture : str
        The target, such as "sm_90a".
    cache : Path, optional
        The folder of the cache, by default `cache_folder`.
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
    """Call `compile_kernel` with its defaults, and remember the result in this process."""
    return compile_kernel(file, expression, architecture)


def compile_all(kernels: Iterable[tuple[str, str]], architecture: str) -> None:
    """Compile kernels on all cores. kernels: the file and the expression of each.

    On one core, the kernels of a model take five seconds. Workers that share a cache share the work: the first worker
    that needs a kernel compiles it.
    """
    with ThreadPoolExecutor(available_cores(), "broadsheet-compile") as pool:
        for _ in pool.map(lambda kernel: kernel_here(*kernel, architecture), kernels):
            pass


def cache_folder() -> Path:
    """Return $BROADSHEET_CACHE_DIR, or `broadsheet` in the user's cache folder."""
    given = os.environ.get("BROADSHEET_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "broadsheet"


def resources(log: str) -> Resources:
    """Parse the report of ptxas (`-v`) in a compiler's log. Its format is undocumented, and equal in CUDA 12 and 13."""

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
        with _importing:  # if two threads import it at once, both see an incomplete module
            from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise UsageError(f"CUDA kernels are compiled with cuda-core: {install('cuda13')} ({error})") from error
    options = ProgramOptions(arch=architecture, name=file, include_path=[str(folder)], **_options(architecture))
    log = io.StringIO()
    try:
        program = Program((folder / file).read_text(), "c++", options)
        built = program.compile("cubin", name_expressions=(expression,), logs=log)
    except Exception as error:  # the exception classes of cuda.core are private
        raise BroadsheetError(f"{file}: {expression} does not compile for {architecture}:\n{error}") from error
    return Cubin(bytes(built.code), built.symbol_mapping[expression].decode(), log.getvalue())


def _options(architecture: str) -> dict[str, Any]:
    """Return the options that determine the code, apart from its source.

    common/launch.cuh reads SHARED_LIMIT. The cache of the driver is off, since NVRTC would return its cubins without
    the report of ptxas.
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
    """Return the name and version of the compiler, such as "NVRTC 13.0.88". Raises UsageError if NVRTC is missing.

    The version and the architecture determine the machine code. `nvrtcVersion` leaves out the last number, so this
    function compiles an empty program and reads the number from the first lines of its PTX.
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
    """Create the cache if it is missing. Return whether it belongs to this user and nobody else may write to it."""
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
    """Let one process of this machine at a time compile a kernel. The lock ends with the process that holds it."""
    try:
        with open(cache / f"{key}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise _no_cache(cache, error) from error


def _read(path: Path) -> Cubin | None:
    """Return a kernel of the cache, or None if it is missing, damaged, or not written by this user."""
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
    """Write a kernel under another name, fsync and rename. So readers on any machine see the whole file or no file."""
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
