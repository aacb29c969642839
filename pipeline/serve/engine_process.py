"""An engine in its own process, so that a failure of the device ends only this process.

`local_engines.py` starts it.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pickle import PickleBuffer

import numpy as np

from ..engine.base import Engine, Texts
from ..engine.open import open_engine
from ..errors import BroadsheetError
from ..model.charcnn import Model
from ..processes.child import parent_of
from ..processes.messages import Closed, packed, receive, send, unpacked
from .engines import Classified, Classify, Failed, Load, Loaded, Ready, Unload, measure
from .requests import to_rows


def load(request: Load) -> tuple[Engine, Ready]:
    """Open an engine and warm it up: kernels are loaded, memory is allocated, batches are measured."""
    model = Model.from_bytes(request.model, request.name)
    choice = request.choice
    engine = open_engine(model, choice.device, choice.precision, request.threads, choice.kernels)
    try:
        engine.classify(Texts.of([b"x"]))
        points = measure(engine, choice.longest)
    except BaseException:
        engine.close()
        raise
    return engine, Ready(engine.backend, engine.device_name, points, engine.batch)


def serve(connection: socket.socket) -> None:
    """Answer until the other end is closed, or the device fails."""
    engines: dict[str, Engine] = {}
    sending = threading.Lock()

    def answer(message: Loaded | Classified | Failed) -> None:
        frames = packed(message)
        with sending:
            send(connection, frames)

    def load_beside(request: Load) -> None:
        try:
            engines[request.key], ready = load(request)
        except BroadsheetError as error:
            answer(Failed(request.key, error))
        except Exception as error:  # the device's libraries may raise anything
            answer(Failed(request.key, BroadsheetError(f"the model cannot be loaded: {type(error).__name__}: {error}")))
        else:
            gc.freeze()
            answer(Loaded(request.key, ready))

    while True:
        message = unpacked(receive(connection))
        if isinstance(message, Load):  # other batches are computed meanwhile
            threading.Thread(target=load_beside, args=(message,), daemon=True).start()
        elif isinstance(message, Unload):
            engines.pop(message.key).close()
        else:
            _answer(message, engines[message.key], answer)


def _answer(request: Classify, engine: Engine, answer: Callable[[Classified | Failed], None]) -> None:
    """Answer with the predictions of a batch. After an error, answer `Failed` and raise it, which ends the process."""
    began = time.perf_counter()
    try:
        data, offsets, n_chars = request.texts
        counts = np.frombuffer(n_chars, np.int64)
        texts = Texts(np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64), n_chars=counts)
        predictions = engine.classify(texts, request.top_k, all_scores=True)
    except Exception as error:
        told = error if isinstance(error, BroadsheetError) else BroadsheetError(f"{type(error).__name__}: {error}")
        answer(Failed("", told))
        raise
    seconds = time.perf_counter() - began
    classes, top_k = len(engine.model.classes), predictions.labels.shape[1]
    answer(Classified(request.number, PickleBuffer(to_rows(predictions).data), classes, top_k, seconds))


def main() -> None:
    """Run until the server closes its end.

    Signals are ignored: only the server acts on those of a terminal or a batch system.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(Closed):
        serve(parent_of(sys.argv[1]))


if __name__ == "__main__":
    main()
