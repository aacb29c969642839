"""AG News text as a benchmark's input: repeated to any number of articles, in a shuffled order."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Articles:
    """data: uint8, UTF-8. offsets: int64 [N + 1]. As the two buffers of an Arrow string column."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    ids: None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, first: int, last: int) -> Articles:
        return Articles(self.data, self.offsets[first : last + 1])


def ag_news(file: Path, count: int, seed: int = 0) -> Articles:
    """`count` articles of an AG News CSV (class, title, description), each as title and description with a space."""
    with open(file, newline="", encoding="utf-8") as rows:
        texts = [f"{title} {text}".strip().encode() for _, title, text in csv.reader(rows)]
    order = np.random.default_rng(seed).permutation(np.resize(np.arange(len(texts)), count))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum([len(texts[i]) for i in order], out=offsets[1:])
    return Articles(np.frombuffer(b"".join(texts[i] for i in order), np.uint8), offsets)
