"""The limits on sizes in reading and planning."""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_ROWS = {"cpu": 128, "cuda": 131_072}
"""The default number of rows in a chunk, for a network in the dense frame. They take a second on a CPU and 0.04 s on a
GPU.
"""

MOST_CHUNK_ROWS = {"cpu": 32_768, "cuda": 262_144}
"""The default number of rows in a chunk for faster models."""

_ROWS_AT_COST_1 = 525
"""How many rows of cost 1 a chunk has on a CPU, before the number becomes a power of two.

A thread of a CPU labels some 470 such rows per second, if they are ordinary texts. When a process is killed, its chunk
must be labelled again, which should take 30 s at most: long texts cost 3.5 times as much, and a network that is asked
about some texts may be asked about all.
"""

_FEWEST = 8
"""The smallest number of rows in a chunk on a CPU, for the slowest encoders."""

_QUICK = 0.5
"""With a model that costs less, a GPU labels 131,072 rows in some 13 ms, which is too short beside the work between two
chunks.
"""


def chunk_rows(device: str, cost: float) -> int:
    """Return the default number of rows in a chunk of a job, a power of two. cost: the cost of a row (see `Models`)."""
    fewest_rows, most_rows = CHUNK_ROWS[device], MOST_CHUNK_ROWS[device]
    if device != "cpu":
        return most_rows if is_quick(cost) else fewest_rows
    return max(_FEWEST, min(most_rows, 1 << int(_ROWS_AT_COST_1 / cost).bit_length() - 1))


def is_quick(cost: float) -> bool:
    """Whether models are so fast that a GPU waits for Python between chunks. cost: the cost of a row (see `Models`)."""
    return cost < _QUICK


@dataclass(frozen=True)
class Limits:
    """Limits on sizes, in bytes.

    Attributes
    ----------
    field_bytes : int
        The longest field or line that is read. An unclosed quote would make a longer one.
    block_bytes : int
        The block that is read in one go from a stream, and parsed by one thread. In a block that large, little of the
        work holds the GIL.
    chunk_bytes : int
        The largest part of a chunk's records that is in memory (`Selection.most_held`), so that long articles do not
        make the chunk large.
    guess_bytes : int
        The bytes that are searched for the first record of a part of a file.
    part_bytes : int
        The part of a table that one thread parses, while other threads parse the parts after it.
    parsed_bytes : int
        The part of a CSV file that is parsed in one go, so that it fits into the caches of a core.

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
