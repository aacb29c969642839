"""The engines of models that other libraries use. They are found by the model's name, and loaded once in a process.

A Dask graph or a database holds a `Resident`: a name and a digest, never weights.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dask
from distributed import Worker, WorkerPlugin, default_client

from ..engine.base import Engine
from ..errors import BroadsheetError, ModelError
from ..labelling.engines import ENGINES
from ..model.charcnn import Model
from ..model.loading import load_model
from ..model.model_file import HUB, SHIPPED
from ..processes.threads import WORKERS_PER_HOST, available_cores, share_of_cores


@dataclass(frozen=True)
class Resident:
    """A model by name, and the way to compute it.

    Attributes
    ----------
    name : str
        The name of a shipped model, the path of a file, or the name of a `Model` that was given.
    digest : str
        The digest of the model.
    device, precision, kernels : str
        As in `open_engine`.
    network : str
        The texts about which a model with n-grams asks its network, as in `Model.asking`.

    """

    name: str
    digest: str
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    network: str = "uncertain"

    @property
    def key(self) -> str:
        return f"resident-{self.digest[:16]}-{self.device}-{self.precision}-{self.kernels}"

    def load(self) -> Engine:
        """Open an engine.

        Raises BroadsheetError if the model cannot be loaded here or is a different one, and the errors of
        `open_engine`.
        """
        return ENGINES.open_engine(self.model(), self.device, self.precision, _threads(), self.kernels)

    def model(self) -> Model:
        """Return the model. Raises BroadsheetError if it cannot be loaded in this process, or is a different one."""
        if self.digest in _GIVEN:
            return _GIVEN[self.digest]
        try:
            model = load_model(self.name).asking(self.network)
        except ModelError as error:
            raise BroadsheetError(
                f"a worker cannot load the model: {error.message}. Give the path of a file that each worker can read"
            ) from error
        if model.digest != self.digest:
            raise BroadsheetError(f"{self.name} is another model on this worker, or was replaced: label again")
        return model


@contextmanager
def in_use(models: Sequence[Resident]) -> Iterator[list[Engine]]:
    """Yield the engines of these models in this process, for one thread at a time. They are loaded at the first call.

    Raises the errors of `Resident.load`.
    """
    with _LOADING:
        for model in models:
            if model.key not in _HELD:
                ENGINES.offer(model.key, model.load)
                _HELD.add(model.key)
    with ENGINES.use([model.key for model in models]) as held, ENGINES.computing:
        yield [engine for engine, _ in held]


_LOADING = threading.Lock()
_HELD: set[str] = set()
"""The keys of the models whose engines this module has offered."""
_GIVEN: dict[str, Model] = {}
"""Models that were given as a `Model`, by digest, since their names may lead to no file."""


def resident(
    model: str | Path | Model,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    network: str = "uncertain",
) -> tuple[Resident, Model]:
    """Return a model by name, and the model. A model that was given as a `Model` is kept in this process.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    device, precision, kernels, network : str
        As in `Resident`.

    """
    loaded = load_model(model).asking(network)
    if isinstance(model, Model):
        hold(loaded)
    is_file = not isinstance(model, Model) and str(model) not in SHIPPED and not str(model).startswith(HUB)
    name = os.path.abspath(str(model)) if is_file else loaded.name
    return Resident(name, loaded.digest, device, precision, kernels, network), loaded


def hold(model: Model) -> None:
    """Keep a model in this process, where a `Resident` finds it by its digest."""
    _GIVEN[model.digest] = model


class ModelPlugin(WorkerPlugin):  # type: ignore[misc]
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


def release() -> None:
    """Release the engines and models of this process. A later call loads them again."""
    with _LOADING:
        for key in _HELD:
            ENGINES.withdraw(key)
        _HELD.clear()
        _GIVEN.clear()


def _threads() -> int:
    """Return the number of cores for a CPU engine: those of this Dask worker, if this process is one."""
    from distributed.worker import get_worker

    workers = dask.config.get(WORKERS_PER_HOST, None)
    if workers is not None:
        return share_of_cores(workers)
    try:
        return min(int(get_worker().state.nthreads), available_cores())
    except ValueError:
        return available_cores()
