"""Text to measure with: random, of the length of news articles, the same in every run."""

from __future__ import annotations

import numpy as np

from ...engine.base import Texts
from ...model.charcnn import Model


def sample(model: Model, articles: int) -> Texts:
    """Random text, its lengths spread like AG News's (normal, 236 ± 67 characters), the same in every run."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(236, 67, articles), 20, model.length).astype(np.int64)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz .,-", np.uint8)
    return Texts(rng.choice(letters, int(lengths.sum())), np.concatenate([[0], np.cumsum(lengths)]))
