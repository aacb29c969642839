"""What an update of a folder has found: how the input differs from what was labelled before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_NAMED = 3


@dataclass(frozen=True)
class Growth:
    """The files of the input, against those that were labelled before.

    Attributes
    ----------
    new : int
        Files that this update labels.
    before : int
        Files that were labelled before it.
    changed : tuple of str
        Files that have another size, time of modification or hash than when they were labelled. They are not labelled
        again.
    gone : tuple of str
        Files that are not there any more; their labels stay.
    later : int
        New files that came since the update or job that is continued began. They are left to the next update.

    """

    new: int
    before: int
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    later: int = 0

    def __str__(self) -> str:
        if self.later and not self.new:
            return ""
        new = _count(self.new, "new file") if self.new else "nothing new"
        return f"{new}; {_count(self.before, 'file')} labelled before"

    @property
    def lines(self) -> list[str]:
        """A line about what has changed, and one about what is gone."""
        found = []
        if self.changed:
            verb, their = ("has", "its") if len(self.changed) == 1 else ("have", "their")
            found.append(
                f"{_count(len(self.changed), 'file')} {verb} changed since {their} rows were labelled; {their} labels "
                f"are the old ones: {_first(self.changed)}. To label all files anew, start again with --overwrite"
            )
        if self.gone:
            verb, their = ("is", "its") if len(self.gone) == 1 else ("are", "their")
            found.append(f"{_count(len(self.gone), 'file')} {verb} gone; {their} labels stay: {_first(self.gone)}")
        if self.later:
            verb, them = ("is", "it") if self.later == 1 else ("are", "them")
            found.append(f"{_count(self.later, 'file')} {verb} new since this began: --update labels {them}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _first(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
