"""The check, once all chunks are done, that each input file is still the one that was listed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice

from ...errors import InputChanged
from ...processes.threads import available_cores, threads
from ...storage.buckets import is_bucket, split_bucket
from ...storage.names import is_url
from ...storage.objects import State, objects_below
from ..formats.base import InputFile
from ..plan.plan import Plan
from .opening import check_unchanged

_AT_ONCE = 32
"""Requests for what a file is now: each takes time rather than work on a remote file system."""

_FILES_A_CALL = 64

_MANY, _LOOKED_AT = 100, 100
"""So many files in a folder of a bucket are looked up in its listing, a thousand in a request; among so many objects
for each, so that there are never many more requests than files.
"""

_Changed = list[tuple[str, str]]
"""Locations of files, each with the reason."""


def changed_chunks(plan: Plan) -> list[tuple[str, str]]:
    """The chunks of files that have changed, committed or not, each with the reason; those of a group as one name."""
    files = list({file.location: file for file in plan.files}.values())  # an archive once for all its members
    remote = any(is_url(file.location) for file in files)
    with threads(_AT_ONCE if remote else available_cores()) as pool:
        calls = _remote(files) if remote else _local(files)
        found = dict(chain.from_iterable(pool.map(lambda call: call(), calls)))
    if not found:
        return []
    return [
        (f"part-{group.number:06d}-*", file.path + found[file.location])
        for group in plan.groups
        for file in group.files
        if file.location in found
    ]


def _local(files: Sequence[InputFile]) -> Iterator[Callable[[], _Changed]]:
    for at in range(0, len(files), _FILES_A_CALL):
        yield partial(_changed, files[at : at + _FILES_A_CALL])


def _remote(files: Sequence[InputFile]) -> Iterator[Callable[[], _Changed]]:
    folders = defaultdict[str, list[InputFile]](list)
    for file in files:
        folders[file.location.rpartition("/")[0]].append(file)
    for folder, inside in folders.items():
        if len(inside) >= _MANY and is_bucket(folder):
            yield partial(_changed_in_folder, inside)
        else:
            for file in inside:
                yield partial(_changed, [file])


def _changed(files: Sequence[InputFile]) -> _Changed:
    found = []
    for file in files:
        try:
            check_unchanged(file)
        except InputChanged as error:
            found.append((file.location, error.message.removeprefix(file.path)))
    return found


def _changed_in_folder(files: Sequence[InputFile]) -> _Changed:
    """The same of the files in a folder of a bucket: only what its listing does not show as it was is asked for."""
    keys = [split_bucket(file.location) for file in files]
    wanted = {key: State(file.size, file.modified) for file, (_, key) in zip(files, keys, strict=True)}
    (bucket, one), endpoint = keys[0], files[0].endpoint
    same = set()
    with suppress(OSError):
        for key, now in islice(objects_below(bucket, one.rpartition("/")[0], endpoint), _LOOKED_AT * len(files)):
            if key in wanted and not now.differs(wanted[key]):
                same.add(key)
    return _changed([file for file, (_, key) in zip(files, keys, strict=True) if key not in same])
