"""Which chunks may be killing workers, and which are not worth another worker."""

from __future__ import annotations

from pipeline.source.inputs import Source
from pipeline.source.plan import Unit

_Place = tuple[str, int]
"""A file and a row group in it, -1 for a format without any."""


class Suspects:
    """Chunks that were lost with their workers again and again, though perhaps because of a neighbour.

    A row group is decoded as a whole, so if one chunk of it is a suspect, the others are held until it has run alone.
    If that kills the worker, they are not tried. In a format without row groups one bad chunk says little about the
    next, so there other suspects of its file are given up only after two in a row.

    chunks: to be run alone. held: chunks that were never suspects themselves.
    """

    def __init__(self) -> None:
        self.chunks: list[Source] = []
        self.held: list[Source] = []
        self._row_groups: set[_Place] = set()
        self._causes: dict[_Place, str] = {}
        self._last_killer: Source | None = None

    def add(self, source: Source) -> None:
        """Suspect a chunk, and its row group."""
        self.chunks.append(source)
        place = _place(source)
        if place is not None and place[1] >= 0:
            self._row_groups.add(place)

    def include(self, source: Source) -> bool:
        """Whether a chunk is of a suspect's row group."""
        return bool(self._row_groups) and _place(source) in self._row_groups

    def hold(self, source: Source) -> bool:
        """Hold a chunk if it is of a suspect's row group."""
        if self.include(source):
            self.held.append(source)
            return True
        return False

    def ran_alone(self, source: Source, killed: bool) -> None:
        """Note how it went."""
        place, before = _place(source), self._last_killer
        self._last_killer = source if killed else None
        if killed and place is not None and (place[1] >= 0 or (before is not None and _place(before) == place)):
            self._causes.setdefault(place, source.name)

    def cause(self, source: Source) -> str | None:
        """Why a chunk is not worth another worker; None if it is."""
        place = _place(source)
        if place is None or place not in self._causes:
            return None
        of = f"row group {place[1]} of {place[0]}" if place[1] >= 0 else place[0]
        return f"{self._causes[place]}, of {of} as well, kills every worker that takes it"


def _place(source: Source) -> _Place | None:
    """Where a chunk is read, if it is all from one place."""
    if not isinstance(source, Unit):
        return None
    places = {(fragment.file.path, fragment.group) for fragment in source.fragments}
    return places.pop() if len(places) == 1 else None
