"""Engines on two GPUs of one process. Skipped where there are fewer."""

from __future__ import annotations

import numpy as np
import pytest
from gpu import random_texts

from pipeline.engine.base import Texts
from pipeline.engine.open import why_no_gpu
from pipeline.model.charcnn import Model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.mark.parametrize("kernels", ["simt", "sm80", "auto"])
def test_two_gpus_of_a_process_score_alike(kernels: str, model: Model) -> None:
    """Each has its own kernels, which may use more than 48 KB of shared memory on both."""
    import cupy

    from pipeline.engine.cuda import CudaEngine

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    texts = Texts.of(random_texts(3, 3000))
    first, second = (CudaEngine(model, kernels=kernels, batch=1024, device=device) for device in (0, 1))
    found = [engine.classify(texts, all_scores=True).all_scores for engine in (first, second, first)]
    for engine in (first, second):
        engine.close()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
