"""Plain text: an article a line; an empty line is an empty article."""

from __future__ import annotations

from ..read.records import Split, split_lines
from .record_format import RecordFormat


class Text(RecordFormat):
    name = "text"
    suffixes = (".txt",)

    def split(self, buffer: bytes, final: bool) -> Split:
        """Its lines."""
        return split_lines(buffer, final, self.limits)
