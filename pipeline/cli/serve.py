"""The command `serve`, which labels the texts of requests over HTTP."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from ..errors import UsageError, install
from ..options import ENGINE
from ..report.console import say
from .flags import in_panel, keywords, with_options

_NEEDED = ("starlette", "uvicorn", "uvloop", "httptools", "prometheus_client")
_LEAST_TOKEN = 16
_MODELS = "A shipped model, or NAME=PATH for a file; may be repeated, the default first.  [default: ag-news]"
_CERTIFICATE = "Serve HTTPS with this certificate: a PEM file with its chain."
_KEY = "Key of the certificate: a PEM file, if the key is not in the same one."
_QUEUE = "Largest number of texts that may wait; the server refuses requests beyond it."
_PORT = "Port to listen at; 0: any free one, which the log names."
_ENGINES = "Compute on the workers of a Dask cluster: local, cuda, slurm, or a scheduler's address."
_ORIGIN = "Let web pages of this origin call the server; may be repeated; * for all."
_PROCESSES = "Processes that read and answer requests.  [default: 1 on a CPU; else half the cores, at most 8]"
_TARGET = "Refuse a request that cannot be answered in this time.  [default: 20, on a CPU 100]"
_cluster, _security, _limit, _log = (partial(in_panel, panel) for panel in ("Cluster", "Security", "Limits", "Log"))


@with_options(ENGINE)
def command(
    model: Annotated[list[str] | None, typer.Option(metavar="NAME[=PATH]", help=_MODELS)] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help=_PORT)] = 8000,
    target_ms: Annotated[float | None, _limit("MS", _TARGET, min=1)] = None,
    token_file: Annotated[Path | None, _security("FILE", "File with a token that every request must send.")] = None,
    admin_token_file: Annotated[Path | None, _security("FILE", "The same, for requests that reload models.")] = None,
    cluster: Annotated[str | None, _cluster("WHERE", _ENGINES)] = None,
    scheduler_file: Annotated[Path | None, _cluster("FILE", "The same, with the file of a running scheduler.")] = None,
    insecure: Annotated[bool, _security("", "Let other machines send requests without a token.", "--insecure")] = False,
    tls_certificate: Annotated[Path | None, _security("FILE", _CERTIFICATE)] = None,
    tls_key: Annotated[Path | None, _security("FILE", _KEY)] = None,
    allow_origin: Annotated[list[str] | None, _security("ORIGIN", _ORIGIN)] = None,
    http_processes: Annotated[int | None, _limit("N", _PROCESSES, min=1, max=64, show_default=False)] = None,
    drain_s: Annotated[float, _limit("S", "Seconds after SIGTERM to finish the answers.", min=1)] = 30.0,
    max_queue: Annotated[int, _limit("TEXTS", _QUEUE, min=1)] = 100_000,
    max_texts: Annotated[int, _limit("N", "Largest number of texts in a request.", min=1)] = 10_000,
    max_body_mb: Annotated[int, _limit("MB", "Largest size of a request, in megabytes.", min=1, max=1024)] = 32,
    max_connections: Annotated[int, _limit("N", "Largest number of open connections.", min=1)] = 1024,
    head_s: Annotated[float, _limit("S", "Seconds in which the headers of a request must arrive.", min=0.1)] = 10.0,
    body_s: Annotated[float, _limit("S", "Seconds in which the body of a request must arrive.", min=0.1)] = 60.0,
    idle_s: Annotated[int, _limit("S", "Seconds after which an idle connection is closed.", min=1)] = 75,
    log_format: Annotated[str, _log("text|json", "Format of the log, which goes to stderr.")] = "text",
    log_requests: Annotated[bool, _log("", "Log a line for each request.", "--log-requests/--no-log-requests")] = True,
    log_texts: Annotated[bool, _log("", "Also log the texts of requests.", "--log-texts")] = False,
    **flags: Any,
) -> None:
    """Answer requests for labels over HTTP, until SIGTERM or Ctrl-C.

    The log, on stderr, says at which address the server listens. Open it in a browser to label a text. /docs describes
    all requests, /metrics has figures for Prometheus. SIGHUP makes the server load the files of its models again.

    Exit codes: 0: the server has answered all requests. 1: an error. 2: wrong usage.
    """
    # Refuse missing packages and options that contradict each other.
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {missing[0]}: {install('serve')}")
    from ...cluster.client import connect, is_loopback
    from ...cluster.heartbeat import QuietEnd
    from ...cluster.protocol import count_gpus
    from ...cluster.workers import register
    from ..serve.server import serve
    from ..serve.settings import Settings

    if cluster and scheduler_file:
        raise UsageError("give --cluster or --scheduler-file, and not both")
    if log_format not in ("text", "json"):
        raise UsageError(f"--log-format {log_format}: choose text or json")
    if tls_key and not tls_certificate:
        raise UsageError("--tls-key goes with --tls-certificate")

    # Let other machines in only with a token, or if the user insists.
    token = None if token_file is None else _token(token_file)
    if not is_loopback(host):
        if token is None and not insecure:
            raise UsageError(
                f"--host {host} can be reached from other machines: give --token-file FILE, or --insecure to let "
                "everyone ask"
            )
        if token is None:
            say(f"broadsheet: warning: whoever can reach {host} may ask: there is no token (--insecure)", error=True)
        elif tls_certificate is None:
            say("broadsheet: warning: without --tls-certificate, token and texts can be read on the way", error=True)

    # Serve, with engines on this machine or on a cluster.
    limits: dict[str, Any] = {"max_queue": max_queue, "max_texts": max_texts, "max_connections": max_connections}
    limits |= {"drain_s": drain_s, "head_s": head_s, "body_s": body_s, "idle_s": idle_s}
    settings = Settings(
        _models(model or ["ag-news"]),
        host,
        port,
        **keywords(flags, ENGINE),
        **limits,
        target_s=None if target_ms is None else target_ms / 1000,
        max_body_bytes=max_body_mb << 20,
        token=token,
        admin_token=None if admin_token_file is None else _token(admin_token_file),
        certificate=None if tls_certificate is None else str(tls_certificate),
        key=None if tls_key is None else str(tls_key),
        allow_origins=_origins(allow_origin or []),
        http_processes=http_processes,
        log_json=log_format == "json",
        log_requests=log_requests,
        log_texts=log_texts,
    )
    if cluster is None and scheduler_file is None:
        serve(settings, 0 if settings.device == "cpu" else count_gpus())
        return
    with connect(cluster or "local", scheduler_file=scheduler_file) as client:
        register(client, QuietEnd())
        serve(settings, 0, client)


def _origins(given: list[str]) -> tuple[str, ...]:
    """Return the origins of pages that may call the server. Raises UsageError for a text that is not an origin."""
    for origin in given:
        parts = urlsplit(origin)
        if origin != "*" and (parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}"):
            raise UsageError(f"--allow-origin {origin!r}: give an origin such as https://app.example.com, or *")
    return tuple(given)


def _models(given: list[str]) -> dict[str, str]:
    """Return the sources of the models by name. Raises UsageError for a wrong or repeated name."""
    sources: dict[str, str] = {}
    for argument in given:
        name, _, source = argument.partition("=")
        if not name or not name.isprintable():
            raise UsageError(f"--model {argument}: give NAME=PATH")
        if name in sources:
            raise UsageError(f"--model {argument}: another model has that name")
        sources[name] = source or name
    return sources


def _token(file: Path) -> str:
    """Return the token in a file, without white space at its ends. Raises UsageError for a file without a token."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: no token can be read from it: {error}") from error
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"{file}: a token is one word of at least {_LEAST_TOKEN} letters, digits and signs: "
            f"openssl rand -hex 32 > {file}"
        )
    return token
