"""Some rows of a chunk: the first of an input, where the user has set a limit, or those between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..chunk import Chunk


def first_chunks(chunks: Iterable[Chunk], rows: int | None) -> Iterator[Chunk]:
    """The chunks of one file or table up to its first `rows` rows, quarantined ones included; None: all.

    What comes after them is not read.
    """
    left = rows
    for chunk in chunks:
        if left is None or chunk.rows_read <= left:
            yield chunk
        else:
            yield rows_between(chunk, 0, rows or 0)
        left = None if left is None else left - chunk.rows_read
        if left is not None and left <= 0:
            return


def first_rows(chunk: Chunk, count: int) -> Chunk:
    """The first rows of a chunk, quarantined ones included, whichever files they are from."""
    if chunk.rows_read <= count:
        return chunk
    of_bad = len(chunk.rows) + np.arange(len(chunk.quarantine))
    places = pa.concat_tables([chunk.rows.select(["file", "row"]), chunk.quarantine.select(["file", "row"])])
    files = places.column("file").unique()
    table = pa.table([pc.index_in(places.column("file"), files), places.column("row")], ["file", "row"])
    order = pc.sort_indices(table, [("file", "ascending"), ("row", "ascending")]).to_numpy()[:count]
    good = np.isin(np.arange(len(chunk.rows)), order)
    return _chosen(chunk, good, np.isin(of_bad, order))


def rows_between(chunk: Chunk, first: int, last: int) -> Chunk:
    """The rows of a chunk of one file that have numbers from `first` to before `last`."""
    return _chosen(chunk, _between(chunk.rows, first, last), _between(chunk.quarantine, first, last))


def _chosen(chunk: Chunk, good: NDArray[np.bool_], bad: NDArray[np.bool_]) -> Chunk:
    """Some of its rows, and of those in its quarantine."""
    mask = pa.array(good)
    return replace(
        chunk,
        text=chunk.text.filter(mask),
        rows=chunk.rows.filter(mask),
        quarantine=chunk.quarantine.filter(pa.array(bad)),
        ids=None if chunk.ids is None else chunk.ids[good],
        truth=None if chunk.truth is None else chunk.truth[good],
        n_chars=None if chunk.n_chars is None else chunk.n_chars[good],
        bad=None if chunk.bad is None else chunk.bad.filter(pa.array(bad)),
    )


def _between(table: pa.Table, first: int, last: int) -> NDArray[np.bool_]:
    numbers = table.column("row").to_numpy()
    found: NDArray[np.bool_] = (numbers >= first) & (numbers < last)
    return found
