"""Works out where the ranges of a file that is read in parts begin, from what the ranges before them report."""

from __future__ import annotations

from dataclasses import replace

from ..source.plan.plan import Range, RangeEnd, Start


class ClientStarts:
    """The starts of ranges that the client of a job knows, by number. For a range without a start, it knows the reason.

    A task guesses where the first record of its part begins, and reads from there. The guess is right if the part
    before it ends there. Otherwise the task receives the start and reads again.
    """

    def __init__(self) -> None:
        self._parts: dict[int, Range] = {}
        self._known: dict[int, Start | str] = {}
        self._read: dict[int, RangeEnd] = {}

    @property
    def is_used(self) -> bool:
        """Whether a file has been read in parts."""
        return bool(self._read)

    def with_start(self, range_: Range) -> Range:
        """Return a range that is about to be read, with its start if that is known."""
        if range_.is_numbered:
            return range_
        self._parts[range_.number] = range_
        if range_.start is not None:
            self._known[range_.number] = range_.start
        start = self._known.get(range_.number)
        return replace(range_, start=start) if isinstance(start, Start) else range_

    def is_awaited(self, range_: Range) -> bool:
        """Whether the range after this one is to begin where this one ends."""
        return not (range_.is_numbered or range_.is_last or range_.number + 1 in self._known)

    def is_misread(self, range_: Range) -> bool:
        """Whether a range was read from another place than its start."""
        start, end = self._known.get(range_.number), self._read.get(range_.number)
        return isinstance(start, Start) and end is not None and range_.part_number > 0 and end.begin != start.byte

    def read(self, end: RangeEnd) -> dict[int, Start | str]:
        """Note the end of a range that was read. Return its start, and the starts that follow from it."""
        number = end.number
        self._read[number] = end
        known = {number: self._known[number]} if number in self._known else {}
        # Go on from range to range, as long as each was read from its start: the next begins where it ended.
        while (end := self._read.get(number, end)).number == number and self.is_awaited(self._parts[number]):
            start = self._known.get(number) if self._parts[number].part_number else Start(0, end.begin or 0)
            if not isinstance(start, Start) or end.begin != start.byte or end.after is None:
                break
            number += 1
            known[number] = self._known[number] = Start(start.row + (end.files[0][1] or 0), end.after)
        return known

    def fail(self, range_: Range, reason: str) -> dict[int, Start | str]:
        """Note that a range, and so the later ones of its file, cannot be read. Return why the next has no start."""
        if not self.is_awaited(range_):
            return {}
        before = self._known.get(range_.number)
        why = f"its rows have no numbers: what is before it was not read ({reason})"
        why = before if isinstance(before, str) else why
        self._known[range_.number + 1] = why
        return {range_.number + 1: why}
