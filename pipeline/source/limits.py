"""The sizes that reading and planning keep to."""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_ROWS = {"cpu": 128, "cuda": 131_072}
"""Rows in a chunk by default, of a network in the dense frame: a second of a CPU, 0.04 s of a GPU."""

MOST_CHUNK_ROWS = {"cpu": 32_768, "cuda": 262_144}
"""Where a model is faster."""

_ROWS_AT_COST_1 = 525
"""A CPU labels some 470 such rows a second and thread, if they are ordinary texts. A kill costs a chunk, and that
should be 30 s at most: long texts cost 3.5 times as much, and a network that is asked about some may be asked about
all.
"""

_FEWEST = 8
"""Rows in a chunk on a CPU, of the slowest encoders."""

_QUICK = 0.5
"""Of a model that costs less a GPU labels 131,072 rows in some 13 ms: too few beside the way from chunk to chunk."""


def chunk_rows(device: str, cost: float) -> int:
    """Rows in a chunk of a job by default: a power of two. cost: of a row, as of `Models`."""
    least, most = CHUNK_ROWS[device], MOST_CHUNK_ROWS[device]
    if device != "cpu":
        return most if is_quick(cost) else least
    return max(_FEWEST, min(most, 1 << int(_ROWS_AT_COST_1 / cost).bit_length() - 1))


def is_quick(cost: float) -> bool:
    """Whether models are so fast that a GPU waits for Python between chunks. cost: of a row, as of `Models`."""
    return cost < _QUICK


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes.

    Attributes
    ----------
    field_bytes : int
        The longest field or line that is read; an unclosed quote would make a longer one.
    block_bytes : int
        Read at once from a stream, and parsed by one thread: of a block that large, what holds the GIL is a small part.
    chunk_bytes : int
        The most that is held of a chunk's records (`Selection.most_held`), so that long articles do not make it large.
    guess_bytes : int
        Searched for the first record of a part of a file.
    part_bytes : int
        Of a table, what one thread parses, while others parse what comes after it.
    parsed_bytes : int
        Of CSV, what is parsed at once in the caches of a core.

    """

    field_bytes: int = 16 << 20
    block_bytes: int = 8 << 20
    chunk_bytes: int = 64 << 20
    guess_bytes: int = 1 << 20
    part_bytes: int = 16 << 20
    parsed_bytes: int = 256 << 10

    @property
    def long_line(self) -> str:
        return f"a line is longer than {self.field_bytes >> 20} MiB"

    @property
    def long_text(self) -> str:
        return f"the text is longer than {self.field_bytes >> 20} MiB"


LIMITS = Limits()
