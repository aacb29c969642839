"""bentoml serve benchmarks.serve.bento_app:Labels: the model behind BentoML, with adaptive batching.

The environment has MODEL, DEVICE, BATCH and WAIT_MS: BentoML's `max_latency_ms`, which bounds how long a request may
take in all, and refuses those that it expects to take longer.
"""

from __future__ import annotations

import os
from typing import Any

import bentoml

from benchmarks.serve.peer_model import model_of

_RESOURCES = {"gpu": 1} if os.environ["DEVICE"] == "cuda" else {"cpu": "2"}
_LATENCY_MS = max(1, int(float(os.environ["WAIT_MS"])))


@bentoml.service(workers=1, resources=_RESOURCES, traffic={"timeout": 30, "max_concurrency": 1000})
class Labels:
    def __init__(self) -> None:
        self.label = model_of(os.environ["MODEL"], os.environ["DEVICE"])

    @bentoml.api(batchable=True, max_batch_size=int(os.environ["BATCH"]), max_latency_ms=_LATENCY_MS)
    def classify(self, texts: list[str]) -> list[dict[str, Any]]:
        return [{"label": label, "score": score} for label, score in self.label(texts)]
