"""Serve the model with Triton: python -m benchmarks.serve.triton_app PORT MODEL DEVICE BATCH WAIT_MS

PyTriton binds the model to Triton as a Python function. For Triton, each text of a request is a row, so BATCH counts
texts here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.serve.peer_model import SIZES, model_of


def main() -> None:
    """Bind the model to Triton, and serve."""
    port, name, device, batch_size, wait = sys.argv[1:]
    label = model_of(name, device)

    @batch
    def infer(text: Any) -> dict[str, Any]:
        results = label([row[0].decode() for row in text])
        labels = np.array([[class_name.encode()] for class_name, _ in results], object)
        return {"label": labels, "score": np.array([[score] for _, score in results], np.float32)}

    others = {"grpc_port": int(port) + 1, "metrics_port": int(port) + 2, "http_address": "127.0.0.1"}
    with Triton(config=TritonConfig(http_port=int(port), **others)) as server:
        server.bind(
            model_name="model",
            infer_func=infer,
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="label", dtype=bytes, shape=(1,)), Tensor(name="score", dtype=np.float32, shape=(1,))],
            config=ModelConfig(
                max_batch_size=max(int(batch_size), SIZES[-2]),
                batcher=DynamicBatcher(max_queue_delay_microseconds=round(1000 * float(wait))),
            ),
        )
        server.serve()


if __name__ == "__main__":
    main()
