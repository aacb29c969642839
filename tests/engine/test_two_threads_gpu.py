"""Chunks one after the other on a GPU, each begun by a thread of its own before the last one's labels are there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock

import numpy as np
import pytest

pytest.importorskip("cupy")

from pipeline import load_model
from pipeline.engine.base import Predictions, Texts
from pipeline.engine.cuda import CudaEngine
from pipeline.telemetry.spans import Span

pytestmark = pytest.mark.gpu


def chunks(count: int, articles: int) -> list[Texts]:
    """Articles of 0 to 1,500 characters, some few chunks of a few, which are one graph."""
    draw = np.random.default_rng(0)
    words = [f"word{number} " for number in range(500)]
    found = []
    for number in range(count):
        many = articles if number % 4 else 5
        of_each = draw.integers(0, 150, many)
        drawn = draw.integers(0, len(words), (many, 150))
        texts = ["".join(words[i] for i in row[:size]) for row, size in zip(drawn, of_each, strict=True)]
        found.append(Texts.of([text.encode() for text in texts]))
    return found


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_chunks_of_several_threads_keep_their_bits_and_leave_no_gap(precision: str) -> None:
    engine, turn = CudaEngine(load_model(), precision, batch=2048), Lock()
    texts = chunks(24, 9000)
    alone = [engine.classify(each, 2, all_scores=True) for each in texts]
    spans: list[list[Span]] = [[] for _ in texts]
    handed_over: dict[int, bool] = {}

    def label(number: int) -> Predictions:
        handed = []

        def hand_over() -> None:
            handed.append(True)
            turn.release()

        turn.acquire()
        try:
            return engine.classify(texts[number], 2, True, spans[number], False, hand_over)
        finally:
            handed_over[number] = bool(handed)
            if not handed:
                turn.release()

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(label, range(len(texts))))
    for one, other in zip(alone, together, strict=True):
        for name in ("labels", "scores", "all_scores", "n_chars", "truncated", "unknown_chars"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert one.saturated == other.saturated
    several = [number for number, each in enumerate(spans) if len(each) > 3]  # chunks of more than one graph
    assert all(handed_over[number] for number in several)  # while results are on their way: the next one is copied in
    kernels = sorted((span.start, span.end) for number in several for span in spans[number] if span.name == "kernels")
    # Each call may compare the clocks of host and GPU anew, to some tenths of a millisecond.
    assert all(after[0] > before[1] - 5e-4 for before, after in pairwise(kernels))
    engine.close()
