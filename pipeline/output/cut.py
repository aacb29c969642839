"""The exact score above which the best share, or number, of very many rows lies, overall or in each group of them.

Scores are counted by the upper half of their bits, and those of the bin in which the cut lies by the lower half: two
passes over the rows, and memory for the bins alone. Of rows with the same score the earlier in the input is better.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import UsageError


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


_HALF, _SIGN = 16, np.uint32(1 << 31)
_LOWER = (1 << _HALF) - 1
_FEW_GROUPS = 16
_NAN = float("nan")  # the group of all, which are equal to nothing but this very object
_MOST_COUNTED = 1 << 20
"""Counts that wait to be added up."""


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
        found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", str(top).strip())
        share = Fraction(found[1]) / (100 if found[2] else 1) if found else Fraction(-1)
        if not 0 <= share <= 1:
            raise UsageError(f"--top is {top!r}, it must be a share such as 10% or 0.1; --count takes a number of rows")
        return cls(share)

    @property
    def is_all(self) -> bool:
        return self.share is None and self.count is None

    def rows(self, available: int) -> int:
        """How many of so many rows are chosen."""
        if self.share is not None:
            return ceil(self.share * available)
        return available if self.count is None else min(self.count, available)


@dataclass(frozen=True)
class Ranked:
    """The rows of a chunk that may be chosen, [N], in input order. places: in the chunk. keys: uint32, in the order of
    the scores. groups: the number of each one's group in `names`.
    """

    places: NDArray[np.int32]
    keys: NDArray[np.uint32]
    groups: NDArray[np.int32]
    names: tuple[Any, ...]

    def of_rows(self, of_groups: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """What stands for each group, for each row; with one group [1]."""
        return of_groups if len(self.names) == 1 else of_groups[self.groups]


def ranked(places: NDArray[np.int32], scores: NDArray[np.float32], groups: pa.Array | None) -> Ranked:
    """Rows with scores, none of them null or NaN. groups: what each is grouped by; None for one group."""
    bits = (scores + np.float32(0)).view(np.uint32)  # which makes of -0.0 the same as 0.0
    keys = np.where(bits >> 31, ~bits, bits | _SIGN) if np.any(scores < 0) else bits | _SIGN
    if groups is None:
        return Ranked(places, keys, np.zeros(len(keys), np.int32), ("",))
    groups = pc.add(groups, pa.scalar(0, groups.type)) if pa.types.is_floating(groups.type) else groups  # as above
    coded = groups.dictionary_encode(null_encoding="encode")
    names = tuple(_NAN if name != name else name for name in coded.dictionary.to_pylist())
    return Ranked(places, keys, coded.indices.to_numpy(), names)


@dataclass(frozen=True)
class Cut:
    """Of one group: its rows, how many of them are chosen, the lowest chosen score as a key, and how many rows have
    exactly this score and how many of these are chosen, which come first in the input.
    """

    rows: int
    chosen: int
    key: int = (1 << 32) - 1
    ties: int = 0
    chosen_ties: int = 0

    @property
    def score(self) -> float | None:
        """The lowest score that is chosen; None where no row is."""
        if not self.chosen:
            return None
        bits = self.key ^ (1 << 31) if self.key >> 31 else ~self.key & 0xFFFFFFFF
        return float(np.array([bits], np.uint32).view(np.float32)[0])


class _Counts:
    """Rows by group and a key of 16 bits."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        """Of each group."""
        self._keys = [np.empty(0, np.int64)]
        self._rows = [np.empty(0, np.int64)]

    def add(self, chunk: Ranked, keys: NDArray[np.uint32]) -> None:
        """Count rows. keys: one of each row of the chunk."""
        known = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in chunk.names], np.int64)
        if len(known) < _FEW_GROUPS:  # without sorting
            both = keys if len(known) == 1 else chunk.groups.astype(np.int64) << _HALF | keys
            counts = np.bincount(both, minlength=1)
            here = np.flatnonzero(counts)
            found, rows = known[here >> _HALF] << _HALF | here & _LOWER, counts[here]
        else:
            found, rows = np.unique(known[chunk.groups] << _HALF | keys, return_counts=True)
        self._keys.append(found)
        self._rows.append(rows)
        if sum(map(len, self._keys[1:])) > _MOST_COUNTED:
            self._add_up()

    def _add_up(self) -> None:
        keys, where = np.unique(np.concatenate(self._keys), return_inverse=True)
        rows = np.zeros(len(keys), np.int64)
        np.add.at(rows, where, np.concatenate(self._rows))
        self._keys, self._rows = [keys], [rows]

    def of_groups(self) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.int64]]]:
        """Each group with its keys, the highest first, and the rows of each."""
        self._add_up()
        keys, rows = self._keys[0], self._rows[0]
        for name, number in self.numbers.items():
            first, end = np.searchsorted(keys, [number << _HALF, (number + 1) << _HALF])
            yield name, (keys[first:end] & _LOWER)[::-1], rows[first:end][::-1]


def find_cuts(chunks: Callable[[], Iterable[Ranked]], amount: Amount) -> dict[Any, Cut]:
    """The cut of each group. chunks: the rows, once for each of two passes."""
    upper = _Counts()
    for chunk in chunks():
        upper.add(chunk, chunk.keys >> np.uint32(_HALF))
    cuts: dict[Any, Cut] = {}
    above: dict[Any, int] = {}
    for name, keys, rows in upper.of_groups():
        total = int(rows.sum())
        cuts[name] = Cut(total, wanted := amount.rows(total))
        if wanted:
            at = int(np.searchsorted(np.cumsum(rows), wanted))
            cuts[name] = replace(cuts[name], key=int(keys[at]) << _HALF)
            above[name] = int(rows[:at].sum())
    lower = _Counts()
    for chunk in chunks():
        edges = np.array([cuts[name].key >> _HALF for name in chunk.names], np.uint32)
        at_edge = (chunk.keys >> np.uint32(_HALF)) == chunk.of_rows(edges)
        here = replace(chunk, groups=chunk.groups[at_edge])
        lower.add(here, chunk.keys[at_edge] & np.uint32(_LOWER))
    for name, keys, rows in lower.of_groups():
        if name in above:
            cut, passed = cuts[name], above[name] + np.cumsum(rows)
            at = int(np.searchsorted(passed, cut.chosen))
            chosen = cut.chosen - int(passed[at] - rows[at])
            cuts[name] = replace(cut, key=cut.key | int(keys[at]), ties=int(rows[at]), chosen_ties=chosen)
    return cuts


def ties_before(chunks: Iterable[Ranked], cuts: dict[Any, Cut]) -> Iterator[dict[Any, int]]:
    """For each chunk, how many rows before it have exactly the score of a cut, of its groups where that matters."""
    passed = {name: 0 for name, cut in cuts.items() if cut.chosen_ties < cut.ties}
    for chunk in chunks:
        yield {name: passed[name] for name in chunk.names if name in passed}
        for number, name in enumerate(chunk.names if passed else ()):
            if name in passed:
                passed[name] += int(np.sum(chunk.keys[chunk.groups == number] == cuts[name].key))


def chosen(chunk: Ranked, cuts: dict[Any, Cut], before: dict[Any, int]) -> NDArray[np.int32]:
    """The places of the chosen rows of a chunk. before: as `ties_before` has it."""
    lowest = np.array([cuts[name].key for name in chunk.names], np.uint32)
    taken = chunk.keys >= chunk.of_rows(lowest)
    for number, name in enumerate(chunk.names):
        cut = cuts[name]
        if not cut.chosen:
            taken &= chunk.groups != number
        elif cut.chosen_ties < cut.ties:
            ties = np.flatnonzero((chunk.groups == number) & (chunk.keys == cut.key))
            taken[ties[max(0, cut.chosen_ties - before.get(name, 0)) :]] = False
    return chunk.places[taken]
