"""The interface of the readers that find the records in a block of a file, and the rows that they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..kernels.json_keys import MOST_COLUMNS, JsonKeys, json_keys
from ..source.formats.csv import Csv, Tsv
from ..source.formats.jsonl import Jsonl
from ..source.formats.record_format import TEXT_COLUMN, RecordFormat, Text
from ..source.read.ring import RawBlock
from ..source.rows.chunk import Chunk, Selection
from ..source.rows.format import Format


class BlockRows(NamedTuple):
    """The rows of a block.

    Attributes
    ----------
    chunk : Chunk
        The rows.
    sizes : ndarray
        int64 [N], the bytes of each record.
    odd : int
        The number of odd records, which the host has read.

    """

    chunk: Chunk
    sizes: NDArray[np.int64]
    odd: int = 0


class BlockReader(Protocol):
    """Reads the blocks of one file."""

    def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
        """Return the rows of a block, or the reason why the host must read it, a key of `telemetry.read_by.BY_HOST`.

        Parameters
        ----------
        block : RawBlock
            The block.
        held : memoryview
            The bytes of the block.
        row : int
            The number of the block's first record.

        """


OpenBlocks = Callable[[Format, str, Selection], BlockReader]
"""Returns a reader for the blocks of a file, by its format, its path, and the columns that the job uses."""


def keys_of(selection: Selection) -> JsonKeys | None:
    """Return the keys of JSON objects that hold the columns that the job uses, or None if a GPU cannot
    look for them.
    """
    return json_keys(selection.columns, selection.text, [*selection.needed], selection.keep_all)


def can_read(form: Format, selection: Selection) -> bool:
    """Whether a GPU can find the values of these columns in files of a format."""
    if len(selection.preparations) > len(selection.byte_steps) or len(selection.columns) > MOST_COLUMNS:
        return False
    if selection.join:
        return False
    kind = type(form)  # a subclass may find other records
    if not isinstance(form, RecordFormat) or kind not in (Jsonl, Csv, Tsv, Text) or not form.is_read_on_gpu:
        return False
    if kind is Jsonl:
        return keys_of(selection) is not None
    return kind is not Text or selection.text == (TEXT_COLUMN,)
