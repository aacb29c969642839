"""What this process has done since it started, as numbers that only grow: for Prometheus."""

from __future__ import annotations

from collections import Counter
from threading import Lock

HELP = {
    "rows_read": "Rows read",
    "rows_written": "Rows labelled and written, or returned",
    "rows_filtered": "Rows labelled and left out by --where",
    "rows_quarantined": "Rows that have no label",
    "chunks": "Chunks committed, or returned",
    "text_bytes": "Bytes of text labelled",
    "written_bytes": "Bytes of files committed",
    "engines_loaded": "Models loaded",
    "engines_evicted": "Models closed to make room for another",
}
"""Every count, by name, with what it counts."""


class Counts:
    """seconds: by activity, as `telemetry.activity` names them. A repeated chunk counts again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = dict.fromkeys(HELP, 0)
        self._seconds: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Count more of each of these."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def spend(self, seconds: dict[str, float]) -> None:
        """Add time by activity."""
        with self._lock:
            self._seconds.update(seconds)

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    @property
    def seconds(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)


COUNTS = Counts()
"""Those of this process."""
