"""The check, once all chunks are done, that each input file is still the one that was listed."""

from __future__ import annotations

from collections.abc import Sequence
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

    def changed(files: Sequence[InputFile]) -> list[tuple[str, str]]:
        found = []
        for file in files:
            try:
                check_unchanged(file)
            except InputChanged as error:
                found.append((file.location, error.message.removeprefix(file.path)))
        return found

    files = list({file.location: file for file in plan.files}.values())  # an archive once for all its members
    remote = any(is_url(file.location) for file in files)
    size = 1 if remote else _FILES_A_CALL
    calls = [files[at : at + size] for at in range(0, len(files), size)]
    with threads(_AT_ONCE if remote else available_cores()) as pool:
        found = dict(chain.from_iterable(pool.map(changed, calls)))
    if not found:
        return []
    return [
        (f"part-{group.number:06d}-*", file.path + found[file.location])
        for group in plan.groups
        for file in group.files
        if file.location in found
    ]
