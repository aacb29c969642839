"""The CUDA engine with a `LadderNetwork`, and articles as one-hot columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import cupy as cp
import cupyx
import numpy as np
from numpy.typing import NDArray

from benchmarks.articles import Articles
from benchmarks.ladder.network import LadderNetwork
from benchmarks.ladder.switches import Setting
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.cuda import Batch, CudaEngine
from broadsheet.pipeline.kernels.memory_plan import units_by_length
from broadsheet.pipeline.kernels.network import Wanted
from broadsheet.pipeline.kernels.slots import Slot
from broadsheet.pipeline.model import quantised, reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model

_BUILT_AT_ONCE = 256


@dataclass(frozen=True)
class Columns(Articles):
    """Articles with their one-hot columns, fp32 [N, symbols, length], which the engine sends in place of the text."""

    columns: NDArray[np.float32] = field(kw_only=True)

    def part(self, first: int, last: int) -> Columns:
        """Return the articles from index `first` up to `last`, without copying them."""
        return Columns(self.data, self.offsets[first : last + 1], columns=self.columns[first:last])


def one_hot(articles: Articles, model: Model, page_locked: bool) -> Columns:
    """Build the input of the parent program on the host: 284 KB per article for 70 symbols and 1,014 characters."""
    shape = (len(articles), len(model.alphabet), model.length)
    columns = cupyx.zeros_pinned(shape, np.float32) if page_locked else np.zeros(shape, np.float32)
    for first in range(0, len(articles), _BUILT_AT_ONCE):
        last = min(first + _BUILT_AT_ONCE, len(articles))
        ids = encode(articles.data, articles.offsets[first : last + 1], model.alphabet, model.length).ids
        article, position = np.nonzero(ids < len(model.alphabet))
        columns[first + article, ids[article, position], position] = 1
    return Columns(articles.data, articles.offsets, columns=columns)


class LadderEngine(CudaEngine):
    """The product's engine, with what a setting turns off."""

    def __init__(self, model: Model, setting: Setting, batch: int, device: int = 0) -> None:
        super().__init__(model, setting.precision, setting.generation, batch=1, device=device)
        with self.device:
            self.network.close()
            weights = reference.prepare(model)
            integers = quantised.prepare(weights, quantised.scales_of(model)) if setting.eight_bits else None
            self.network = LadderNetwork(setting, weights, integers, model.alphabet, model.length, self.device)
            self._units = units_by_length(model.layers, "dense" if self.network.whole else model.frame)
            self._allocate(batch)

    def _is_small(self, texts: Texts) -> bool:
        """Return False, so that there are no CUDA graphs: the replaced kernels are launched one by one."""
        return False

    def _start(self, slot: Slot, texts: Texts, batch: Batch, wanted: Wanted, keep: cp.ndarray | None) -> None:
        """Start a batch of texts or of one-hot columns.

        Parameters
        ----------
        slot, texts, batch, wanted, keep
            As `CudaEngine._start` takes them.

        """
        if isinstance(texts, Columns):
            self.network.start_columns(slot, texts.columns[batch.first : batch.last], wanted)
        else:
            super()._start(slot, texts, batch, wanted, keep)


def labels_of(engine: CudaEngine, articles: Articles, chunk: int) -> NDArray[np.int32]:
    """Return the best label of each article. The engine gets `chunk` articles at a time."""
    return np.concatenate([engine.classify(part).labels[:, 0] for part in articles.chunks(chunk)])
