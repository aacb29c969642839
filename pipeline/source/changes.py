"""The check, once all chunks are done, that each input file is still the one that was listed."""

from __future__ import annotations

from itertools import chain

from pipeline.errors import InputChanged
from pipeline.source.formats.base import InputFile
from pipeline.source.names import is_url
from pipeline.source.opening import check_unchanged
from pipeline.source.plan import Plan
from pipeline.threads import available_cores, threads

_AT_ONCE = 32
"""Requests for what a file is now: each takes time rather than work on a remote file system."""

_FILES_A_CALL = 64


def changed_chunks(plan: Plan) -> list[tuple[str, str]]:
    """The chunks of files that have changed, committed or not, each with the reason; those of a group as one name."""

    def changed(files: tuple[InputFile, ...]) -> list[tuple[InputFile, str]]:
        found = []
        for file in files:
            try:
                check_unchanged(file)
            except InputChanged as error:
                found.append((file, error.message))
        return found

    remote = any(is_url(file.location) for file in plan.files[:1])
    size = 1 if remote else _FILES_A_CALL
    calls = [plan.files[at : at + size] for at in range(0, len(plan.files), size)]
    with threads(_AT_ONCE if remote else available_cores()) as pool:
        found = {id(file): message for file, message in chain.from_iterable(pool.map(changed, calls))}
    if not found:
        return []
    return [
        (f"part-{group.number:06d}-*", found[id(file)])
        for group in plan.groups
        for file in group.files
        if id(file) in found
    ]
