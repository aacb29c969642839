"""Workers on the GPUs of this machine. Two workers may share a GPU."""

from __future__ import annotations

from typing import Any

import pynvml
from dask_cuda import LocalCUDACluster

from ..pipeline.processes.threads import available_cores
from .settings import WORKERS_ON_A_GPU

_CORES_OF_A_WORKER = 4
"""The fewest cores for each of two workers that share a GPU: with fewer, both would wait for reading."""

_MEMORY_OF_A_GPU = 32 << 30
"""The smallest memory, in bytes, of a GPU that two workers share. Each holds the model and its batches."""


class SharedGpus(LocalCUDACluster):
    """A worker on each GPU. If there are more workers than GPUs, the first GPUs have a second one."""

    def new_worker_spec(self) -> dict[Any, dict[str, Any]]:
        """Return the specification from which Dask starts the next worker, by the worker's name."""
        gpus, number = self.cuda_visible_devices, len(self.worker_spec)
        if number < len(gpus):
            first: dict[Any, dict[str, Any]] = super().new_worker_spec()
            return first
        gpu = gpus[number - len(gpus)]
        spec = self.worker_spec[gpu]
        return {f"{gpu}-second": {**spec, "options": {**spec["options"]}}}


def can_be_shared(gpus: int) -> bool:
    """Return whether two workers fit on each of this machine's GPUs, whose number is `gpus`.

    They do if there are cores and memory for both, and the driver lets several processes use a GPU.
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
