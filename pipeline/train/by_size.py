"""What is trained by default, from the number of rows and classes and the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..errors import UsageError
from ..model.ngrams import BITS, MOST_READ, MOST_TABLE_BYTES, Kinds
from .data import Texts
from .recipe import Recipe

_TABLE_BYTES = 32 << 20
_MOST_BITS = 20
_MOST_TEXTS = 0.95  # so many are read to their end
_FEW_ROWS = 5_000
_FEW = Recipe(
    batch_size=32,
    learning_rate=2e-4,
    dropout=0.2,
    input_dropout=0.1,
    dropped_words=0.05,
    random_characters=0.02,
    erased_spans=1,
)
_MANY_ROWS = 20_000  # with which 4 and 5 characters say as much as 2 to 5, in half the time (docs/kernels.md)


def is_alone(recipe: Recipe | None, ngrams: int | None, device: str) -> bool:
    """Whether n-grams are fitted alone: where there is no GPU, and nobody asked for the network."""
    without_gpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return recipe is None and ngrams != 0 and without_gpu


def recipe_for(rows: int, settings: Sequence[str] = ()) -> Recipe:
    """The recipe for so many rows, with `NAME=VALUE` settings changed.

    Few rows say little in a step: at the rate, dropout and augmentation of many, noise moves the network more than what
    it could learn (docs/training.md). With smaller batches an epoch has more steps.
    """
    return (_FEW if rows < _FEW_ROWS else Recipe()).with_settings(list(settings))


def ngram_bits(buckets: int | None, classes: int) -> int | None:
    """The bits of a bucket's number, for so many buckets: None for a default by the classes. None for no branch.

    Raises UsageError for a number that is no power of two, or out of range.
    """
    row = 2 * (classes + 1)
    if buckets is None:
        return min(_MOST_BITS, (_TABLE_BYTES // row).bit_length() - 1)
    if buckets == 0:
        return None
    bits = buckets.bit_length() - 1
    if buckets != 1 << bits or not BITS[0] <= bits <= BITS[1]:
        raise UsageError(
            f"{buckets} buckets for n-grams: give a power of two from {1 << BITS[0]} to {1 << BITS[1]:,}, or 0"
        )
    if buckets * row > MOST_TABLE_BYTES:
        most = 1 << ((MOST_TABLE_BYTES // row).bit_length() - 1)
        raise UsageError(f"{buckets:,} buckets for n-grams are too many for {classes} classes: at most {most:,}")
    return bits


def kinds_for(text: Texts, length: int) -> Kinds:
    """Words, pairs of words, and 2 to 5 characters (of many rows 4 and 5), in as many characters as most texts have, or
    the network reads.
    """
    continues = (text.data & 0xC0) == 0x80
    before = np.concatenate([[0], np.cumsum(~continues)])
    characters = np.diff(before[text.offsets])
    most = int(np.quantile(characters, _MOST_TEXTS)) if len(characters) else 0
    lowest = 2 if len(characters) < _MANY_ROWS else 4
    return Kinds(2, (lowest, 5), min(max(length, most), MOST_READ))
