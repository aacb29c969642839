"""A Dask worker preload with engines that only sleep. A process has several, each in place of a GPU.

The variable BROADSHEET_STUB_SLOTS is their number. `settle` sets how long a chunk takes on a running worker. All other
code is that of the product.
"""

from __future__ import annotations

import os
import time
from threading import Semaphore

from distributed import Worker

from benchmarks.stand_in import StandIn
from broadsheet.pipeline.engine.base import ALONE, Predictions
from broadsheet.pipeline.labelling.engines import ENGINES
from broadsheet.pipeline.telemetry.spans import span

SLOTS = "BROADSHEET_STUB_SLOTS"

_seconds = 0.0


class Sleeper(StandIn):
    """An engine that labels all texts as class 0 after some time."""

    def classify(self, texts, top_k=1, all_scores=False, spans=None, each_kernel=False, turn=ALONE) -> Predictions:
        """Label all texts as class 0, after the time that `settle` has set.

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
    """Replace the engines. Dask calls this function when the worker starts."""
    ENGINES.computing = Semaphore(int(os.environ[SLOTS]))  # in a real worker one engine computes at a time
    ENGINES.open_engine = Sleeper
