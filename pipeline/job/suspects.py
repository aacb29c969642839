"""Which chunks may be killing workers, and which are not worth another worker."""

from __future__ import annotations

from ..source.inputs import Source
from ..source.plan.plan import Unit


class Suspects:
    """Chunks, groups and runs that were lost with their workers again and again, though perhaps because of a neighbour.

    They are to be run alone. One bad chunk of a file that is read from many places says little about the next, so other
    suspects of its file are given up only after two in a row.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._causes: dict[str, str] = {}
        self._last_killer: Source | None = None

    def ran_alone(self, source: Source, killed: bool) -> None:
        """Note how it went."""
        file, before = _file(source), self._last_killer
        self._last_killer = source if killed else None
        if killed and file is not None and before is not None and _file(before) == file:
            self._causes.setdefault(file, source.name)

    def cause(self, source: Source) -> str | None:
        """Why a suspect is not worth another worker; None if it is."""
        file = _file(source)
        if file is None or file not in self._causes:
            return None
        return f"{self._causes[file]}, of {file} as well, kills every worker that takes it"


def _file(source: Source) -> str | None:
    """The file of a chunk, if it is all from one that has no row groups."""
    if not isinstance(source, Unit):
        return None
    files = {fragment.file.path for fragment in source.fragments if fragment.group < 0}
    return files.pop() if len(files) == 1 else None
