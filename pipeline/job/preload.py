"""Imports the modules that workers need into the process from which a command forks its workers.

If an import raised an error here, that process would end, and Dask would wait for its workers for ever. So errors are
ignored here: each worker imports the module again, and Dask reports why the worker ended.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path

_MODULES = [
    f"broadsheet.{name}"
    for name in ("pipeline.source.read.reader_process", "__main__", "cluster.plugin", "pipeline.job.range_tasks")
] + ["distributed.nanny"]  # the first spares pandas
if Path("/proc/driver/nvidia").exists():
    _MODULES.append("broadsheet.pipeline.engine.cuda")  # with CuPy, which begins with CUDA only where it is first used

for _name in _MODULES:
    with suppress(Exception):
        import_module(_name)
