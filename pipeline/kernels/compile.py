"""CUDA sources to cubins with NVRTC, through a cache on disk. It needs no GPU: any architecture is built anywhere."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import BroadsheetError, UsageError
from pipeline.kernels.tiles import shared_limit

FOLDER = Path(__file__).resolve().parent
_importing = threading.Lock()
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel. path: of its cubin. symbol: its name there. log: the compiler's, with ptxas's report."""

    path: Path
    symbol: str
    log: str


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of a kernel: 32-bit registers a thread, and bytes of local and static shared memory."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]


def compile_kernel(
    file: str, expression: str, architecture: str, cache: Path | None = None, folder: Path = FOLDER
) -> Cubin:
    """Compile the template instance `expression` of `file` for `architecture` ("sm_90a"), or find it in the cache.

    folder holds the sources. The cache key covers the source, everything it includes, the options and the version of
    the compiler. Processes that need the same kernel at once wait for the first. Raises BroadsheetError with the
    compiler's log where it does not compile, UsageError where NVRTC is missing or the cache cannot be written.
    """
    cache = cache or cache_folder()
    key = _key(folder, file, expression, architecture)
    path, about = cache / f"{key}.cubin", cache / f"{key}.json"
    if not path.exists():
        with _locked(cache, key):
            if not path.exists():
                code, symbol, log = _compile(folder, file, expression, architecture)
                _write(about, json.dumps({"symbol": symbol, "log": log, "kernel": f"{file} {expression}"}).encode())
                _write(path, code)  # last: where it exists, both are complete
    found = json.loads(about.read_text())
    return Cubin(path, found["symbol"], found["log"])


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


def _compile(folder: Path, file: str, expression: str, architecture: str) -> tuple[bytes, str, str]:
    try:
        with _importing:  # imported by two threads at once, it would be incomplete in both
            from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise UsageError(f"CUDA kernels are compiled with cuda-core: install broadsheet[cuda13] ({error})") from error
    options = ProgramOptions(arch=architecture, name=file, include_path=[str(folder)], **_options(architecture))
    log = io.StringIO()
    try:
        program = Program((folder / file).read_text(), "c++", options)
        built = program.compile("cubin", name_expressions=(expression,), logs=log)
    except Exception as error:  # cuda.core's classes are its own private ones
        raise BroadsheetError(f"{file}: {expression} does not compile for {architecture}:\n{error}") from error
    return bytes(built.code), built.symbol_mapping[expression].decode(), log.getvalue()


def _options(architecture: str) -> dict[str, Any]:
    """The options that determine the code, apart from its source. SHARED_LIMIT: for common/launch.cuh."""
    limit = ("SHARED_LIMIT", str(shared_limit(architecture)))
    return {"std": "c++17", "ptxas_options": ["-v"], "define_macro": [limit]}


def _key(folder: Path, file: str, expression: str, architecture: str) -> str:
    digest = hashlib.sha256(json.dumps([file, expression, architecture, _options(architecture), _compiler()]).encode())
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
def _compiler() -> list[int]:
    """NVRTC's version."""
    try:
        from cuda.bindings import nvrtc

        return [int(part) for part in nvrtc.nvrtcVersion()]
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"NVRTC, the CUDA compiler, is missing: install broadsheet[cuda13] ({error})") from error


def compiler_name() -> str:
    """E.g. "NVRTC 13.0", which with the architecture determines the machine code. Raises UsageError without NVRTC."""
    _, major, minor = _compiler()
    return f"NVRTC {major}.{minor}"


@contextmanager
def _locked(cache: Path, key: str) -> Iterator[None]:
    """One process of this machine at a time; the lock is released when the process that holds it ends."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / f"{key}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise UsageError(f"the kernel cache {cache} cannot be written ({error}): set BROADSHEET_CACHE_DIR") from error


def _write(path: Path, data: bytes) -> None:
    """Write under another name and rename: a reader, on any machine, sees the whole file or none."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)  # a cache may be shared
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
