"""The settings of a server, and its log: lines of text or JSON on stderr, which hold no texts unless asked for."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import printable


@dataclass(frozen=True)
class Settings:
    """All settings but those of the cluster. `pipeline/cli/serve.py` has the defaults that a user sees, and the checks.

    Attributes
    ----------
    models : mapping of str to str
        The source of each model by its name. Requests that name no model use the first.
    host : str
        The address to listen on.
    port : int
        The port to listen on.
    device : str
        The device that computes: "auto", "cpu" or "cuda".
    precision, kernels : str
        The precision and the kernels of the engines, as in `open_engine`.
    network : str
        The texts that a model with n-grams gives to its network: "uncertain", "all" or "none".
    target_s : float or None
        The seconds that a request may take; None for 0.02 on a GPU, 0.1 on a CPU.
    drain_s : float
        The seconds after SIGTERM in which received requests are still answered.
    max_queue : int
        The number of texts that may wait.
    max_texts : int
        The largest number of texts in one request.
    max_body_bytes : int
        The largest number of bytes in one body.
    max_connections : int
        The number of connections that may be open at a time, over all processes.
    head_s, body_s : float
        The seconds within which the head and the body of a request must arrive.
    idle_s : float
        The seconds after which a connection without a request is closed.
    http_processes : int or None
        The number of HTTP processes; None to choose it by the cores.
    token : str or None
        The token that clients must show, if any.
    admin_token : str or None
        The token for reloads; without one, nobody may ask for a reload by HTTP.
    certificate, key : str or None
        Files for TLS.
    allow_origins : tuple of str
        The origins whose pages may call the server from a browser, such as "https://app.example.com"; "*" for all.
    log_json : bool
        Write the log as lines of JSON.
    log_requests : bool
        Log a line for each request.
    log_texts : bool
        Log the texts of requests too.

    """

    models: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    network: str = "uncertain"
    target_s: float | None = None
    drain_s: float = 30.0
    max_queue: int = 100_000
    max_texts: int = 10_000
    max_body_bytes: int = 32 << 20
    max_connections: int = 1024
    head_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 75.0
    http_processes: int | None = None
    token: str | None = field(default=None, repr=False)
    admin_token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None
    allow_origins: tuple[str, ...] = ()
    log_json: bool = False
    log_requests: bool = True
    log_texts: bool = False

    @property
    def default_model(self) -> str:
        return next(iter(self.models))


log = logging.getLogger("broadsheet.serve")


class _Lines(logging.Formatter):
    """Lines of a message and its fields, which a call passes as extra={"fields": {…}}."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        fields: dict[str, Any] = getattr(record, "fields", {})
        if self._as_json:
            return json.dumps({"time": when, "level": record.levelname.lower(), "message": message, **fields})
        told = "".join(f" {name}={value}" for name, value in fields.items())
        return f"{when} {record.levelname.lower()} {printable(message + told)}"


def start_log(as_json: bool) -> None:
    """Send the server's lines, and errors of all packages, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json))
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    logging.logProcesses = logging.logThreads = logging.logMultiprocessing = False  # unused, and all take time
    log.setLevel(logging.INFO)
