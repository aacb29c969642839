"""The rows with the highest scores among very many, overall or in each group of them: a query by DuckDB, which spills
to disk. Of rows with the same score the earlier in the input is better.
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
    """How the rows of a job were chosen from those of another. rows: SHA-256 of that job's manifest. top, count: which
    share or number of the rows, by the scores in column `by`; of each value of column `per` where it is given. where:
    of the rows that it is true for. columns: those that are written; None for all. with_input: whether with all
    columns of the input.
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
    """The share that the user gives as "10%" or 0.1. Raises UsageError, which also says `more`."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", str(top).strip())
    share = Fraction(match[1]) / (100 if match[2] else 1) if match else Fraction(-1)
    if not 0 <= share <= 1:
        raise UsageError(f"--top is {top!r}, it must be a share such as 10% or 0.1{more}")
    return share


@dataclass(frozen=True)
class Amount:
    """How many rows are wanted of each group: a share of its rows, rounded up, or a number. None: all of them."""

    share: Fraction | None = None
    count: int | None = None

    @classmethod
    def of(cls, top: str | float | None, count: int | None) -> Amount:
        """As the user gives it: a share such as "10%" or 0.1, or a number of rows. Raises UsageError."""
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
        """How many of so many rows are chosen."""
        if self.share is not None:
            return ceil(self.share * available)
        return available if self.count is None else min(self.count, available)


@dataclass(frozen=True)
class Cut:
    """What is chosen of one group of rows.

    Attributes
    ----------
    rows : int
        Its rows.
    chosen : int
        How many of them are chosen.
    score : float or None
        The lowest score among the chosen; None where none is.

    """

    rows: int
    chosen: int
    score: float | None


@dataclass(frozen=True)
class Best:
    """The chosen rows of a `ranking`. cuts: by the number of the group."""

    database: DuckDBPyConnection
    cuts: dict[int, Cut]

    def between(self, first: int, end: int) -> NDArray[np.int64]:
        """Those of the rows from `first` to `end` that are chosen, counted from `first`, in order."""
        query = f"SELECT place - {first} AS place FROM best WHERE place >= {first} AND place < {end} ORDER BY place"
        return np.asarray(self.database.sql(query).fetchnumpy()["place"])


@contextmanager
def ranking(rows: Iterable[pa.Table], amount: Amount, memory: int | None = None) -> Iterator[Best]:
    """The best rows of each group. rows: with `place`, the number of each in the input, `score`, and `part`, the number
    of its group. memory: bytes for them, a quarter of the available by default; the others are on disk. Raises
    OutputError where there is no room for these, UsageError without DuckDB.
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

    DuckDB works in the calling thread too, where it does not always look for signals, and in place of what a signal's
    handler raised it raises an error of its own. So the query runs in a thread, and this one waits for it.
    """
    with ThreadPoolExecutor(1, "broadsheet-query") as threads:
        running = threads.submit(database.execute, query)
        try:
            return running.result()
        except BaseException:
            database.interrupt()
            raise


@contextmanager
def rows_on_disk(done: str, memory: int | None = None) -> Iterator[DuckDBPyConnection]:
    """A database of its own for very many rows.

    Parameters
    ----------
    done : str
        What it is for, for messages.
    memory : int, optional
        As of `ranking`.

    Raises
    ------
    UsageError
        Without DuckDB.
    OutputError
        Where there is no room.

    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(f"{done} by DuckDB ({error}): {install('select')}") from error
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
