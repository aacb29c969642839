"""Which texts a model has learned: a compact set of hashes in its file, by which rows are recognised.

A figure that is measured on rows that a model has learned says how well it remembers them. The name of a file does not
tell: rows may come in another format, in another order, or only some of them. So a hash of each text is kept: of its
first characters, as many as the model reads, in lower case, in Unicode's form NFKC, without white space.

Of very many texts only some hashes are kept: those that are small. Whether a hash is small does not depend on the other
rows, so that any part of the training data is recognised by the share of its rows whose hashes are small (Broder, "On
the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import ModelError

if TYPE_CHECKING:
    import pyarrow as pa

TENSOR = "learned.hashes"

_BITS = 64
_SPACES = b" \t\n\r\v\f"
_MOST_KEPT = 1 << 17
"""Hashes in a file, at most: one MiB. From half as many on they are kept, however many rows a model has learned."""

MOST_HASH_BYTES = _MOST_KEPT * _BITS // 8


class About(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model file says of its hashes.

    Attributes
    ----------
    rows : int
        How many rows the model has learned.
    halvings : int
        How often the range of the hashes was halved: kept are those below 2^(64 - halvings).
    reads : int
        Characters of a text that its hash covers.
    sha256 : str
        Of the hashes, as the file has them.

    """

    rows: Annotated[int, Meta(ge=0)]
    halvings: Annotated[int, Meta(ge=0, lt=_BITS)]
    reads: Annotated[int, Meta(ge=1)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class LookedUp(NamedTuple):
    """Which of N texts are known to be learned, or not to be.

    Attributes
    ----------
    checked : bool [N]
        Those whose hashes are small enough to be kept: all, unless the model has learned very many rows.
    learned : bool [N]
        Those of them that the model has learned.

    """

    checked: NDArray[np.bool_]
    learned: NDArray[np.bool_]

    @property
    def is_other(self) -> NDArray[np.bool_]:
        """Which of them the model is known not to have learned, [N]."""
        return self.checked & ~self.learned

    def of(self, rows: NDArray[np.bool_]) -> LookedUp:
        """What is known of the texts where `rows`, bool [N], is true."""
        return LookedUp(self.checked[rows], self.learned[rows])


@dataclass(frozen=True)
class LearnedRows:
    """The hashes of the texts that a model has learned.

    Attributes
    ----------
    hashes : uint64 [K]
        Those that are kept, each once, ascending.
    rows : int
        How many rows the model has learned.
    halvings : int
        Kept are the hashes below 2^(64 - halvings).
    reads : int
        Characters of a text that its hash covers.

    """

    hashes: NDArray[np.uint64] = field(repr=False)
    rows: int
    halvings: int
    reads: int

    @classmethod
    def of(cls, texts: pa.LargeStringArray, reads: int, most: int = _MOST_KEPT) -> LearnedRows:
        """Those of N texts.

        Parameters
        ----------
        texts : pyarrow.LargeStringArray
            The texts, [N].
        reads : int
            How many characters of each the model reads.
        most : int
            How many hashes are kept, at most.

        """
        hashes, is_text = _hashes(texts, reads)
        hashes, halvings = np.unique(hashes[is_text]), 0
        while len(hashes) > most:
            halvings += 1
            hashes = hashes[: np.searchsorted(hashes, np.uint64(1 << (_BITS - halvings)))]
        return cls(hashes, len(texts), halvings, reads)

    @classmethod
    def of_file(cls, about: About, tensors: dict[str, NDArray[Any]], name: str) -> LearnedRows:
        """Take the hashes of a model file out of its tensors. Raises ModelError if they are damaged."""
        hashes = tensors.pop(TENSOR, np.empty(0))
        if hashes.dtype != np.uint64 or hashes.ndim != 1 or _sha256(hashes) != about.sha256:
            raise ModelError(f"{name}: the hashes of the rows that it has learned are damaged: copy the file again")
        return cls(hashes, about.rows, about.halvings, about.reads)

    @property
    def about(self) -> About:
        """What a model file says of them."""
        return About(self.rows, self.halvings, self.reads, _sha256(self.hashes))

    def look_up(self, texts: pa.LargeStringArray) -> LookedUp:
        """Which of N texts the model has learned. texts: [N], at least as much of each as was hashed."""
        hashes, is_text = _hashes(texts, self.reads)
        checked = (hashes >> np.uint64(_BITS - self.halvings)) == 0 if self.halvings else np.ones(len(hashes), np.bool_)
        place = np.minimum(np.searchsorted(self.hashes, hashes), max(len(self.hashes) - 1, 0))
        learned = self.hashes[place] == hashes if len(self.hashes) else np.zeros(len(hashes), np.bool_)
        return LookedUp(checked, checked & is_text & learned)


def _hashes(texts: pa.LargeStringArray, reads: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """A hash of each of N texts, and which of them are more than white space."""
    import pyarrow as pa  # both take time to load
    import pyarrow.compute as pc

    plain = pc.utf8_lower(pc.utf8_normalize(pc.utf8_slice_codeunits(texts, 0, reads), form="NFKC"))
    solid = [text.translate(None, _SPACES) for text in plain.cast(pa.large_binary()).to_pylist()]
    digests = b"".join(hashlib.blake2b(text, digest_size=_BITS // 8).digest() for text in solid)
    return np.frombuffer(digests, "<u8"), np.array([bool(text) for text in solid], np.bool_)


def _sha256(hashes: NDArray[np.uint64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(hashes, "<u8").tobytes()).hexdigest()
