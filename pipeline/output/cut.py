"""Finds the rows with the highest scores among very many, over all rows or in each group.

DuckDB answers the query, and spills to disk. If two rows have the same score, the one that is earlier in the input
comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import OutputError, UsageError, install
from ..processes.threads import available_cores, available_memory

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BEST = """
CREATE TABLE best AS SELECT place, score, part FROM ranked JOIN wanted USING (part)
QUALIFY row_number() OVER (PARTITION BY part ORDER BY score DESC, place) <= rows ORDER BY place
"""


class Chosen(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the rows of a job were chosen from the rows of another.

    Attributes
    ----------
    rows : str
        SHA-256 of the other job's manifest.
    by : str or None
        The column of scores.
    top, count : str or int, or None
        The share or the number of rows that were chosen.
    per : str or None
        The column by which rows are grouped: `top` and `count` then apply to each of its values.
    where : str or None
        The condition that a row had to satisfy to be chosen.
    columns : tuple of str or None
        The columns that are written; None for all.
    with_input : bool
        Whether all columns of the input are written too.

    """

    rows: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    by: str | None = None
    top: str | None = None
    count: int | None = None
    per: str | None = None
    where: str | None = None
    columns: tuple[str, ...] | None = None
    with_input: bool = False


def share_of(top: str | float, more: str = "") -> Fraction:
    """Return the share that the user gives as "10%" or 0.1. Raises UsageError, whose message ends with `more`."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", str(top).strip())
    share = Fraction(match[1]) / (100 if match[2] else 1) if match else Fraction(-1)
    if not 0 <= share <= 1:
        raise UsageError(f"--top is {top!r}, it must be a share such as 10% or 0.1{more}")
    return share


@dataclass(frozen=True)
class Amount:
    """How many rows of each group are wanted: a share of its rows, rounded up, or a number. Both None: all rows."""

    share: Fraction | None = None
    count: int | None = None

    @classmethod
    def of(cls, top: str | float | None, count: int | None) -> Amount:
        """Return the amount that the user gives: a share ("10%" or 0.1), or a number of rows. Raises UsageError."""
        if top is not None and count is not None:
            raise UsageError("--top and --count exclude each other")
        if count is not None and count < 0:
            raise UsageError(f"--count is {count}, it must not be negative")
        if top is None:
            return cls(None, count)
        return cls(share_of(top, "; --count takes a number of rows"))

    @property
    def is_all(self) -> bool:
        return self.share is None and self.count is None

    def rows(self, available: int) -> int:
        """Return the number of rows that are chosen from `available` rows."""
        if self.share is not None:
            return ceil(self.share * available)
        return available if self.count is None else min(self.count, available)


@dataclass(frozen=True)
class Cut:
    """What is chosen from one group of rows.

    Attributes
    ----------
    rows : int
        The number of rows of the group.
    chosen : int
        The number of rows that are chosen.
    score : float or None
        The lowest score among the chosen rows; None if no row is chosen.

    """

    rows: int
    chosen: int
    score: float | None


@dataclass(frozen=True)
class Best:
    """The chosen rows of a `ranking`. cuts: what is chosen from each group, by the number of the group."""

    database: DuckDBPyConnection
    cuts: dict[int, Cut]

    def between(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the chosen rows from `first` up to, but without, `end`, as sorted offsets from `first`."""
        query = f"SELECT place - {first} AS place FROM best WHERE place >= {first} AND place < {end} ORDER BY place"
        return np.asarray(self.database.sql(query).fetchnumpy()["place"])


@contextmanager
def ranking(rows: Iterable[pa.Table], amount: Amount, memory: int | None = None) -> Iterator[Best]:
    """Find the best rows of each group.

    Parameters
    ----------
    rows : iterable of pyarrow.Table
        The rows, with the columns `place` (the number of the row in the input), `score`, and `part` (the number of its
        group).
    amount : Amount
        How many rows of each group are wanted.
    memory : int, optional
        The bytes of memory that DuckDB may use. It keeps other rows on disk. Default: a quarter of what is available.

    Raises
    ------
    OutputError
        If the disk has no room for the rows.
    UsageError
        If DuckDB is not installed.

    """
    with rows_on_disk("the best rows are found", memory) as database:
        database.execute("CREATE TABLE ranked (place BIGINT, score FLOAT, part INTEGER)")
        for table in rows:
            database.from_arrow(table).insert_into("ranked")
        counted = answered(database, "SELECT part, count(*) FROM ranked GROUP BY part").fetchall()
        wanted = {part: amount.rows(count) for part, count in counted}
        columns = [pa.array(wanted.keys(), pa.int32()), pa.array(wanted.values(), pa.int64())]
        database.from_arrow(pa.table(columns, ["part", "rows"])).create("wanted")
        answered(database, _BEST)
        lowest = dict(answered(database, "SELECT part, min(score) FROM best GROUP BY part").fetchall())
        cuts = {part: Cut(count, wanted[part], lowest.get(part)) for part, count in counted}
        yield Best(database, cuts)


def answered(database: DuckDBPyConnection, query: str) -> DuckDBPyConnection:
    """Run a query that a signal can interrupt, and return its connection with the result.

    DuckDB also works in the calling thread, where it does not always look for signals. It also replaces the error that
    a signal handler raised by its own. So the query runs in another thread, and this one waits for it.
    """
    with ThreadPoolExecutor(1, "broadsheet-query") as threads:
        running = threads.submit(database.execute, query)
        try:
            return running.result()
        except BaseException:
            database.interrupt()
            raise


@contextmanager
def rows_on_disk(purpose: str, memory: int | None = None) -> Iterator[DuckDBPyConnection]:
    """Open a temporary database for very many rows.

    Parameters
    ----------
    purpose : str
        The purpose of the database as a clause, such as "scores are counted", for messages.
    memory : int, optional
        See `ranking`.

    Raises
    ------
    UsageError
        If DuckDB is not installed.
    OutputError
        If the disk has no room for the rows.

    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(f"{purpose} by DuckDB ({error}): {install('select')}") from error
    with TemporaryDirectory(prefix="broadsheet-") as folder:
        limit = f"{memory or available_memory() // 4}B"
        config = {"threads": available_cores(), "memory_limit": limit, "temp_directory": folder}
        try:
            with duckdb.connect(config=config) as database:
                database.execute("SET enable_progress_bar = false")
                yield database
        except duckdb.Error as error:
            raise OutputError(
                f"the scores cannot be ranked in {folder}: {str(error).splitlines()[0]}. Free some space there, or set "
                "TMPDIR to a folder elsewhere"
            ) from error
