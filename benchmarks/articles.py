"""Articles for benchmarks: the texts of AG News, repeated and shuffled, or random ones with lengths like theirs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.model.charcnn import Model


class Articles(Texts):
    """Texts that can be cut into parts."""

    def part(self, first: int, last: int) -> Articles:
        """Return the articles from index `first` up to `last`, without copying them."""
        return Articles(self.data, self.offsets[first : last + 1])

    def chunks(self, rows: int) -> Iterator[Articles]:
        """Yield parts of `rows` articles. The last part may have fewer."""
        return (self.part(first, min(first + rows, len(self))) for first in range(0, len(self), rows))


def ag_news_texts(file: Path) -> list[str]:
    """Return the articles of an AG News CSV (class, title, description), each as title, space and description."""
    with open(file, newline="", encoding="utf-8") as rows:
        return [f"{title} {text}".strip() for _, title, text in csv.reader(rows)]


def ag_news(file: Path, count: int, seed: int = 0) -> Articles:
    """Return `count` articles of an AG News CSV, repeated and shuffled."""
    texts = [text.encode() for text in ag_news_texts(file)]
    order = np.random.default_rng(seed).permutation(np.resize(np.arange(len(texts)), count))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum([len(texts[i]) for i in order], out=offsets[1:])
    return Articles(np.frombuffer(b"".join(texts[i] for i in order), np.uint8), offsets)


def of_length(articles: Articles, size: int, count: int) -> Articles:
    """Return `count` articles of `size` bytes each, cut from the joined texts of `articles`."""
    data = np.resize(articles.data, size * count)
    return Articles(data, np.arange(count + 1, dtype=np.int64) * size)


def random_ids(model: Model, count: int) -> NDArray[np.uint8]:
    """Return random encoded articles, uint8 [count, length], with lengths distributed like AG News's."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, len(model.alphabet) + 1, (count, model.length)).astype(np.uint8)
    lengths = np.clip(rng.normal(236, 67, count), 20, model.length).astype(int)
    ids[np.arange(model.length) >= lengths[:, None]] = model.alphabet.padding
    return ids


def encoded(ids: NDArray[np.uint8]) -> Articles:
    """Wrap encoded articles, uint8 [N, length], in the form that an engine takes."""
    return Articles(np.empty(0, np.uint8), np.zeros(len(ids) + 1, np.int64), ids)
