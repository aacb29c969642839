"""The check, once all chunks are done, that each input file is still the one that was planned."""

from __future__ import annotations

from collections import defaultdict

from pipeline.errors import InputChanged
from pipeline.source.formats.base import InputFile, Stream
from pipeline.source.opening import check_unchanged
from pipeline.source.plan import Plan
from pipeline.threads import available_cores, threads


def changed_chunks(plan: Plan) -> list[tuple[str, str]]:
    """The chunks of files that have changed, committed or not, each with the reason.

    A streamed file's chunks have one name for all. A changed file without a chunk stands here by its path.
    """

    def why(file: InputFile) -> str | None:
        try:
            check_unchanged(file)
        except InputChanged as error:
            return error.message
        return None

    with threads(available_cores()) as pool:
        reasons = {file.path: message for file, message in zip(plan.files, pool.map(why, plan.files), strict=True)}
    chunks: dict[str, list[str]] = defaultdict(list)
    for unit in plan.units:
        if isinstance(unit, Stream):
            chunks[unit.file.path].append(f"part-{unit.number:06d}-*")
        else:
            for path in {fragment.file.path for fragment in unit.fragments}:
                chunks[path].append(unit.name)
    return [(name, message) for path, message in reasons.items() if message for name in chunks[path] or [path]]
