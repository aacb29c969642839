"""Serve the model with LitServe: python -m benchmarks.serve.litserve_app PORT MODEL DEVICE BATCH WAIT_MS"""

from __future__ import annotations

import sys
from typing import Any

import litserve

from benchmarks.serve.peer_model import model_of


class Api(litserve.LitAPI):
    """The model as LitServe calls it: requests are lists of texts, which it joins to a batch."""

    def __init__(self, name: str, device: str, **options: Any) -> None:
        super().__init__(**options)
        self.chosen = name, device

    def setup(self, device: str) -> None:
        self.label = model_of(*self.chosen)

    def decode_request(self, request):  # without an annotation, which LitServe would use as the schema of the query
        texts: list[str] = request["texts"]
        return texts

    def batch(self, inputs: list[list[str]]) -> list[list[str]]:
        return inputs

    def predict(self, inputs: list[list[str]]) -> list[list[tuple[str, float]]]:
        results = iter(self.label([text for texts in inputs for text in texts]))
        return [[next(results) for _ in texts] for texts in inputs]

    def unbatch(self, output: list[list[tuple[str, float]]]) -> list[list[tuple[str, float]]]:
        return output

    def encode_response(self, output: list[tuple[str, float]]) -> dict[str, Any]:
        return {"results": [{"label": label, "score": score} for label, score in output]}


if __name__ == "__main__":
    port, name, device, batch_size, wait = sys.argv[1:]
    api = Api(name, device, max_batch_size=int(batch_size), batch_timeout=float(wait) / 1000, api_path="/classify")
    server = litserve.LitServer(api, accelerator="cuda" if device == "cuda" else "cpu", devices=1)
    of_http = 4 if device == "cuda" else 1  # with one process, HTTP would be the limit on a GPU
    server.run(
        host="127.0.0.1", port=int(port), generate_client_file=False, num_api_servers=of_http, log_level="warning"
    )
