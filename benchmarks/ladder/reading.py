"""From a CSV file to labels: read first and then classified, or read ahead by threads while the GPU is busy."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from benchmarks.articles import Articles
from pipeline.engine.base import Engine
from pipeline.labelling.scored import texts_of
from pipeline.source.chunk import Chunk, Selection
from pipeline.source.inputs import identify, open_input
from pipeline.source.plan.plan import Unit
from pipeline.source.read.read import read_unit

THREADS = 4
"""That read, as a worker of the product has at least."""


class FromFile:
    """`articles`, `copies` times, in a CSV file in `folder`, planned in chunks of `chunk_rows`; that is not timed."""

    def __init__(self, articles: Articles, copies: int, chunk_rows: int, folder: Path, engine: Engine) -> None:
        path = folder / "articles.csv"
        offsets, data = pa.py_buffer(articles.offsets), pa.py_buffer(articles.data)
        table = pa.table({"text": pa.LargeStringArray.from_buffers(len(articles), offsets, data)})
        with pa_csv.CSVWriter(path, table.schema) as file:
            for _ in range(copies):
                file.write_table(table)
        self._engine = engine
        model = engine.model
        source = identify(str(path), len(model.alphabet), model.length, whole_hash=False, by_content=False)
        planned = open_input(source, Selection(("text",)), chunk_rows)
        self._selection = planned.selection
        self._units = [unit for unit in planned.chunks(()) if isinstance(unit, Unit)]
        self.rows = sum(unit.rows for unit in self._units)

    def _read(self, unit: Unit) -> Chunk:
        return read_unit(unit, self._selection)

    def first(self) -> NDArray[np.int32]:
        """Labels; one thread that reads a chunk, then classifies it."""
        return np.concatenate([self._engine.classify(texts_of(self._read(unit))).labels[:, 0] for unit in self._units])

    def ahead(self) -> NDArray[np.int32]:
        """Labels; threads read the next chunks while this one classifies."""
        labels = []
        waiting = iter(self._units)
        with ThreadPoolExecutor(THREADS) as pool:
            running: deque[Future[Chunk]] = deque()
            while True:
                while len(running) <= THREADS and (unit := next(waiting, None)) is not None:
                    running.append(pool.submit(self._read, unit))
                if not running:
                    return np.concatenate(labels)
                labels.append(self._engine.classify(texts_of(running.popleft().result())).labels[:, 0])
