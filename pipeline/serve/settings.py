"""What a server is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """Everything but the cluster. `pipeline/cli/serve.py` has the defaults that a user sees, and checks.

    models: source of each model by its name; the first is the one for requests that name none. target_s: seconds that
    a request may take, or None: 0.02 on a GPU, 0.1 on a CPU. http_processes: how many, or None: by the cores. token:
    that clients must show, None for none; admin_token: for reloads, which nobody may ask for without one. certificate,
    key: files, for TLS.
    """

    models: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    target_s: float | None = None
    drain_s: float = 30.0
    max_queue: int = 100_000
    max_texts: int = 10_000
    max_body_bytes: int = 32 << 20
    max_connections: int = 1024
    head_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 60.0
    http_processes: int | None = None
    token: str | None = field(default=None, repr=False)
    admin_token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None
    log_json: bool = False
    log_requests: bool = True
    log_texts: bool = False

    @property
    def default_model(self) -> str:
        return next(iter(self.models))
