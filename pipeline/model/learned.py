"""The texts that a model has learned, as a compact set of hashes in its file, by which rows are recognised.

A figure that is measured on rows that a model has learned only says how well the model remembers them. The name of a
file does not show that: the same rows may come in another format, in another order, or in part. So the model keeps a
hash of each text: of the characters that the model reads, in lower case, in Unicode's form NFKC, without white space.

A model that has learned very many texts keeps only the small hashes. Whether a hash is small does not depend on other
rows, so any part of the training data is recognised by those of its rows whose hashes are small (Broder, "On the
resemblance and containment of documents", 1997).
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
_MOST_HASHES = 1 << 17
"""The largest number of hashes in a file, which take one MiB. A model that has learned more distinct texts keeps about
half of this number, or more.
"""

MOST_HASH_BYTES = _MOST_HASHES * _BITS // 8


class About(Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of a model file about its hashes.

    Attributes
    ----------
    rows : int
        How many rows the model has learned.
    halvings : int
        How often the range of the hashes was halved. The file has the hashes below 2^(64 - halvings).
    reads : int
        How many characters of a text its hash covers.
    sha256 : str
        The sha256 of the hashes in the file.

    """

    rows: Annotated[int, Meta(ge=0)]
    halvings: Annotated[int, Meta(ge=0, lt=_BITS)]
    reads: Annotated[int, Meta(ge=1)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class LookedUp(NamedTuple):
    """The result of a look-up of N texts: which of them the model has learned.

    Attributes
    ----------
    checked : bool [N]
        Whether the look-up can tell, because the hash is small enough: always, unless the model has learned very many
        rows.
    learned : bool [N]
        Whether the text was checked and the model has learned it.

    """

    checked: NDArray[np.bool_]
    learned: NDArray[np.bool_]

    @property
    def is_other(self) -> NDArray[np.bool_]:
        """Whether each text was checked and the model has not learned it, [N]."""
        return self.checked & ~self.learned

    def of(self, rows: NDArray[np.bool_]) -> LookedUp:
        """Return the result for the texts where `rows`, bool [N], is true."""
        return LookedUp(self.checked[rows], self.learned[rows])


@dataclass(frozen=True)
class LearnedRows:
    """The hashes of the texts that a model has learned.

    Attributes
    ----------
    hashes : uint64 [K]
        The hashes below 2^(64 - halvings), each once, ascending.
    rows : int
        How many rows the model has learned.
    halvings : int
        How often the range of the hashes was halved.
    reads : int
        How many characters of a text its hash covers.

    """

    hashes: NDArray[np.uint64] = field(repr=False)
    rows: int
    halvings: int
    reads: int

    @classmethod
    def of(cls, texts: pa.LargeStringArray, reads: int, most_hashes: int = _MOST_HASHES) -> LearnedRows:
        """Hash N texts that a model learns.

        Parameters
        ----------
        texts : pyarrow.LargeStringArray
            The texts, [N].
        reads : int
            How many characters of each text the model reads.
        most_hashes : int
            The largest number of hashes to keep.

        """
        hashes, is_text = _hashes(texts, reads)
        hashes, halvings = np.unique(hashes[is_text]), 0
        while len(hashes) > most_hashes:
            halvings += 1
            hashes = hashes[: np.searchsorted(hashes, np.uint64(1 << (_BITS - halvings)))]
        return cls(hashes, len(texts), halvings, reads)

    @classmethod
    def of_file(cls, about: About, tensors: dict[str, NDArray[Any]], name: str) -> LearnedRows:
        """Return the hashes of a model file, and remove them from `tensors`. Raises ModelError if they are damaged."""
        hashes = tensors.pop(TENSOR, np.empty(0))
        if hashes.dtype != np.uint64 or hashes.ndim != 1 or _sha256(hashes) != about.sha256:
            raise ModelError(f"{name}: the hashes of the rows that it has learned are damaged: copy the file again")
        return cls(hashes, about.rows, about.halvings, about.reads)

    @property
    def about(self) -> About:
        """The metadata of a model file about these hashes."""
        return About(self.rows, self.halvings, self.reads, _sha256(self.hashes))

    def look_up(self, texts: pa.LargeStringArray) -> LookedUp:
        """Find out which of N texts the model has learned.

        texts: [N], with at least the first `reads` characters of each text.
        """
        hashes, is_text = _hashes(texts, self.reads)
        checked = (hashes >> np.uint64(_BITS - self.halvings)) == 0 if self.halvings else np.ones(len(hashes), np.bool_)
        place = np.minimum(np.searchsorted(self.hashes, hashes), max(len(self.hashes) - 1, 0))
        learned = self.hashes[place] == hashes if len(self.hashes) else np.zeros(len(hashes), np.bool_)
        return LookedUp(checked, checked & is_text & learned)


def _hashes(texts: pa.LargeStringArray, reads: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return a hash of each of N texts, [N], and whether the text is more than white space, bool [N]."""
    import pyarrow as pa  # imported late, since PyArrow takes time to load
    import pyarrow.compute as pc

    plain = pc.utf8_lower(pc.utf8_normalize(pc.utf8_slice_codeunits(texts, 0, reads), form="NFKC"))
    solid = [text.translate(None, _SPACES) for text in plain.cast(pa.large_binary()).to_pylist()]
    digests = b"".join(hashlib.blake2b(text, digest_size=_BITS // 8).digest() for text in solid)
    return np.frombuffer(digests, "<u8"), np.array([bool(text) for text in solid], np.bool_)


def _sha256(hashes: NDArray[np.uint64]) -> str:
    """Return the sha256 of the hashes in little-endian bytes."""
    return hashlib.sha256(np.ascontiguousarray(hashes, "<u8").tobytes()).hexdigest()
