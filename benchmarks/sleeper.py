"""A Dask worker preload: engines that only sleep, several in a process, each standing in for a GPU.

BROADSHEET_STUB_SLOTS says how many. `settle` sets on a running worker how long a chunk takes; everything else is the
product's own.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from distributed import Worker

from benchmarks.stand_in import StandIn
from broadsheet.cluster.settings import GPU_EXECUTOR
from broadsheet.pipeline.engine.base import ALONE, Predictions
from broadsheet.pipeline.labelling.engines import ENGINES
from broadsheet.pipeline.telemetry.spans import span

SLOTS = "BROADSHEET_STUB_SLOTS"

_seconds = 0.0


class Sleeper(StandIn):
    """Labels everything class 0 after a while."""

    def classify(self, texts, top_k=1, all_scores=False, spans=None, each_kernel=False, turn=ALONE) -> Predictions:
        """Label all texts class 0 after a while.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, turn
            As `Engine.classify` takes them.

        """
        with turn, span("kernels", spans, "compute", self.device_name):
            time.sleep(_seconds)
        return super().classify(texts, top_k, all_scores)


def settle(seconds: float) -> None:
    """Set how long a chunk takes from now on."""
    global _seconds
    _seconds = seconds


def dask_setup(worker: Worker) -> None:
    """Called by Dask when the worker starts."""
    worker.executors[GPU_EXECUTOR] = ThreadPoolExecutor(int(os.environ[SLOTS]), "broadsheet-gpu")
    ENGINES.computing = nullcontext()  # one engine at a time computes in a real worker, here all sleep at once
    ENGINES.open_engine = Sleeper
