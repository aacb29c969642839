"""A Dask worker preload that replaces the engine by a stand-in, to measure everything else.

DASK_DISTRIBUTED__WORKER__PRELOAD=benchmarks/stand_in.py broadsheet classify …

The environment variable STAND_IN_WORKERS says how many workers are on the host, if several.
"""

import os
import time

import numpy as np
from distributed import Worker

from broadsheet.cluster.plugin import read_for_a_gpu
from broadsheet.pipeline.engine.base import ALONE, Backend, Predictions
from broadsheet.pipeline.job.worker import read_in_processes
from broadsheet.pipeline.labelling.engines import ENGINES

WORKERS = "STAND_IN_WORKERS"


class StandIn:
    """An engine that labels all texts as class 0 at once.

    Parameters
    ----------
    model, device, precision, threads, kernels
        As `open_engine` takes them.

    """

    def __init__(self, model, device, precision, threads, kernels) -> None:
        self.model = model
        self.backend = Backend("cpu", "stand-in", "none", "fp32")
        self.device_name, self.memory_ready = "cpu", time.time()
        self.reads_gpu_texts = False

    def classify(self, texts, top_k=1, all_scores=False, spans=None, each_kernel=False, turn=ALONE) -> Predictions:
        """Label all texts as class 0.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, turn
            As `Engine.classify` takes them.

        """
        count, classes = len(texts.offsets) - 1, len(self.model.classes)
        with turn:
            scores = np.ones((count, classes), np.float32) / classes
        nothing = np.zeros(count, np.int64)
        labels = np.zeros((count, top_k), np.int32)
        return Predictions(labels, scores[:, :top_k], scores if all_scores else None, nothing, nothing > 0, nothing)

    def close(self) -> None:
        pass


def dask_setup(worker: Worker) -> None:
    """Replace the engine. Only Dask calls this function, when a worker starts; importing this file changes nothing."""
    ENGINES.open_engine = StandIn
    read_for_a_gpu(int(os.environ.get(WORKERS, "1")), lambda count: read_in_processes(count, count))  # as for a GPU
