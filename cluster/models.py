"""A model in memory, for the workers of a cluster: by a plugin, so that it never enters a graph."""

from __future__ import annotations

from distributed import Worker, WorkerPlugin, default_client

from ..pipeline.ecosystem.resident import hold
from ..pipeline.model.charcnn import Model


class ModelPlugin(WorkerPlugin):
    """Gives a model to each worker, also to those that join later."""

    def __init__(self, model: Model) -> None:
        self.name = f"broadsheet-model-{model.digest[:16]}"
        self._model, self._called = model.to_bytes(), model.name

    def setup(self, worker: Worker) -> None:
        hold(Model.from_bytes(self._model, self._called))


def share(model: Model) -> None:
    """Give a model to the workers of the current client, if there is one."""
    try:
        client = default_client()
    except ValueError:
        return
    client.register_plugin(ModelPlugin(model))
