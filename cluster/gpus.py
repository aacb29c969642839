"""Workers on the GPUs of this machine, of which two may share a GPU."""

from __future__ import annotations

from typing import Any

import pynvml
from dask_cuda import LocalCUDACluster

from ..pipeline.processes.threads import available_cores
from .settings import WORKERS_ON_A_GPU

_CORES_OF_A_WORKER = 4
"""Cores for each of two workers that share a GPU, at least: with fewer, reading is what both wait for."""

_MEMORY_OF_A_GPU = 32 << 30
"""Bytes of a GPU that two workers share, at least. Each holds the model and its batches."""


class SharedGpus(LocalCUDACluster):
    """A worker on each GPU, and where there are more workers than GPUs, a second one on the first GPUs."""

    def new_worker_spec(self) -> dict[Any, dict[str, Any]]:
        """What Dask starts the next worker from, by the worker's name."""
        gpus, number = self.cuda_visible_devices, len(self.worker_spec)
        if number < len(gpus):
            first: dict[Any, dict[str, Any]] = super().new_worker_spec()
            return first
        gpu = gpus[number - len(gpus)]
        spec = self.worker_spec[gpu]
        return {f"{gpu}-second": {**spec, "options": {**spec["options"]}}}


def can_be_shared(gpus: int) -> bool:
    """Whether two workers fit on each of this machine's GPUs: there are cores and memory for both, and the driver lets
    several processes use a GPU. gpus: how many there are.
    """
    if available_cores() < WORKERS_ON_A_GPU * _CORES_OF_A_WORKER * gpus:
        return False
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return all(
        pynvml.nvmlDeviceGetMemoryInfo(handle).total >= _MEMORY_OF_A_GPU
        and pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
        for handle in handles
    )
