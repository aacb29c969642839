"""python -m benchmarks.serve.ray_app PORT MODEL DEVICE BATCH WAIT_MS: the model behind Ray Serve."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.serve.peer_model import model_of

port, name, device, most, wait = sys.argv[1:]


@serve.deployment(max_ongoing_requests=1000)
class Labels:
    def __init__(self) -> None:
        self.label = model_of(name, device)

    @serve.batch(max_batch_size=int(most), batch_wait_timeout_s=float(wait) / 1000)
    async def batched(self, inputs: list[list[str]]) -> list[list[tuple[str, float]]]:
        found = iter(self.label([text for texts in inputs for text in texts]))
        return [[next(found) for _ in texts] for texts in inputs]

    async def __call__(self, request: Request) -> dict[str, Any]:
        found = await self.batched((await request.json())["texts"])
        return {"results": [{"label": label, "score": score} for label, score in found]}


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False, num_gpus=int(device == "cuda"))
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)}, logging_config=quiet)
    options = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
    serve.run(Labels.options(ray_actor_options=options).bind(), route_prefix="/classify")
    signal.pause()
