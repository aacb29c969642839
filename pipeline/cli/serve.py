"""broadsheet serve: labels on request, over HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..report.console import say
from .flags import Device, Kernels, Precision, in_panel

_NEEDED = ("starlette", "uvicorn", "uvloop", "httptools", "prometheus_client")
_LEAST_TOKEN = 16


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PATH]",
            help="A shipped model, or a file under a name; repeat for several. The first is the default.  "
            "[default: ag-news]",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free, which the log names.")
    ] = 8000,
    target_ms: Annotated[
        float | None,
        in_panel(
            "Limits",
            metavar="MS",
            min=1,
            help="A request that could not be answered in this time is refused.  [default: 20, on a CPU 100]",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    token_file: Annotated[
        Path | None, in_panel("Security", metavar="FILE", help="Clients must show the token in it.", show_default=False)
    ] = None,
    admin_token_file: Annotated[
        Path | None,
        in_panel("Security", metavar="FILE", help="Who shows this one may reload models.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        in_panel(
            "Cluster",
            metavar="WHERE",
            help="An engine on each worker of a Dask cluster: local, cuda, slurm, or a scheduler's address.",
            show_default=False,
        ),
    ] = None,
    scheduler_file: Annotated[
        Path | None, in_panel("Cluster", metavar="FILE", help="The same, of a running scheduler.", show_default=False)
    ] = None,
    insecure: Annotated[
        bool, in_panel("Security", "--insecure", help="Listen beyond this machine without a token: everyone may ask.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, in_panel("Security", metavar="FILE", help="PEM, with its chain: serve HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None,
        in_panel("Security", metavar="FILE", help="PEM, if it is not in the same file.", show_default=False),
    ] = None,
    http_processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=64,
            help="That read requests and write answers.  [default: 1 on a CPU, else half the cores, 8 at most]",
            show_default=False,
        ),
    ] = None,
    drain_s: Annotated[
        float, in_panel("Limits", metavar="S", min=1, help="At SIGTERM: for answering the requests that there are.")
    ] = 30.0,
    max_queue: Annotated[int, in_panel("Limits", metavar="TEXTS", min=1, help="That may wait.")] = 100_000,
    max_texts: Annotated[int, in_panel("Limits", metavar="N", min=1, help="In one request.")] = 10_000,
    max_body_mb: Annotated[int, in_panel("Limits", metavar="MB", min=1, max=1024, help="Of one request.")] = 32,
    max_connections: Annotated[int, in_panel("Limits", metavar="N", min=1, help="At a time.")] = 1024,
    head_s: Annotated[
        float, in_panel("Limits", metavar="S", min=0.1, help="In which a request's head must come.")
    ] = 10.0,
    body_s: Annotated[float, in_panel("Limits", metavar="S", min=0.1, help="In which its body must come.")] = 60.0,
    idle_s: Annotated[
        int, in_panel("Limits", metavar="S", min=1, help="After which an idle connection is closed.")
    ] = 60,
    log_format: Annotated[str, in_panel("Log", metavar="text|json", help="Of the log, on stderr.")] = "text",
    log_requests: Annotated[
        bool, in_panel("Log", "--log-requests/--no-log-requests", help="A line for each request.")
    ] = True,
    log_texts: Annotated[bool, in_panel("Log", "--log-texts", help="With the texts themselves.")] = False,
) -> None:
    """Answer requests for labels over HTTP, until SIGTERM or Ctrl-C.

    The log, on stderr, says where it listens. At that address: a page to try a text, /docs, /metrics. SIGHUP loads the
    models' files again. Exit code 0: all requests were answered. 2: wrong usage. 1: any other error.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {missing[0]}: pip install 'broadsheet[serve]'")
    from ...cluster.client import connect, is_loopback
    from ...cluster.protocol import count_gpus
    from ..serve.server import serve
    from ..serve.settings import Settings

    if cluster and scheduler_file:
        raise UsageError("--cluster and --scheduler-file exclude each other")
    if log_format not in ("text", "json"):
        raise UsageError(f"--log-format {log_format}: choose text or json")
    if tls_key and not tls_certificate:
        raise UsageError("--tls-key goes with --tls-certificate")
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
    settings = Settings(
        models=_models(model or ["ag-news"]),
        host=host,
        port=port,
        device=device,
        precision=precision,
        kernels=kernels,
        target_s=None if target_ms is None else target_ms / 1000,
        drain_s=drain_s,
        max_queue=max_queue,
        max_texts=max_texts,
        max_body_bytes=max_body_mb << 20,
        max_connections=max_connections,
        head_s=head_s,
        body_s=body_s,
        idle_s=idle_s,
        token=token,
        admin_token=None if admin_token_file is None else _token(admin_token_file),
        certificate=None if tls_certificate is None else str(tls_certificate),
        key=None if tls_key is None else str(tls_key),
        http_processes=http_processes,
        log_json=log_format == "json",
        log_requests=log_requests,
        log_texts=log_texts,
    )
    if cluster is None and scheduler_file is None:
        serve(settings, 0 if device == "cpu" else count_gpus())
        return
    with connect(cluster or "local", scheduler_file=scheduler_file) as client:
        serve(settings, 0, client)


def _models(given: list[str]) -> dict[str, str]:
    """The sources of the models by name."""
    found: dict[str, str] = {}
    for each in given:
        name, _, source = each.partition("=")
        if not name or not name.isprintable():
            raise UsageError(f"--model {each}: give NAME=PATH")
        if name in found:
            raise UsageError(f"--model {each}: another model has that name")
        found[name] = source or name
    return found


def _token(file: Path) -> str:
    """What a token file holds, but for white space at its ends."""
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
