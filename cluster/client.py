"""Connects to a cluster: on this machine, at a running scheduler, or in Slurm jobs."""

from __future__ import annotations

import json
import logging
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from distributed import Client
from distributed.comm.core import CommClosedError
from distributed.security import Security

from ..pipeline.errors import BroadsheetError, UsageError, printable
from .local import cluster_here, cpu_cluster, cuda_cluster, nsys_cluster
from .private import LINK, TOKEN
from .protocol import choose, count_gpus
from .settings import LOST_WORKER, NO_SCHEDULER, await_workers, default_scheduler, no_workers_seconds, with_settings
from .tls import load_certificates
from .workers import scheduler_answers

TLS_FOLDER = "tls"
"""The folder of a job's certificates, next to its scheduler file."""

_EXPOSED = "this cluster listens on {address} without TLS: {who} can run code as you"
_LOOK_SECONDS = 10
"""Within this time a user hears that there is no scheduler at an address."""

_LENGTH = struct.Struct("<Q")
"""The bytes with which a scheduler's first message begins: its length."""

_LONGEST_MESSAGE = 1 << 20
"""The largest length that such a message may have, in bytes. It has some hundred."""

_USERS, _NETWORK = "any user of this host", "anyone who can reach it"


def _to_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


@contextmanager
def connect(
    where: str = "local",
    *,
    workers: int | None = None,
    processes: bool = True,
    scheduler_file: str | Path | None = None,
    protocol: str = "auto",
    tls: bool | None = None,
    nsys: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[Client]:
    """Connect to a Dask cluster, and start it first unless it already runs.

    This is a context manager. At the end of the block it closes the client, and stops everything that was started for
    it. Clusters on this machine listen on loopback only, and their processes talk TLS with certificates of their own.

    Parameters
    ----------
    where : str
        "local" (processes on this machine's CPU), "cuda" (workers on its GPUs), "slurm" (workers in Slurm jobs,
        configured by `site.yaml`), or the address of a running scheduler.
    workers : int, optional
        The number of workers of a cluster on this machine. Default: one for each GPU, or one for every four cores. Two
        workers may share a GPU: with eight cores for each GPU, a fast model then labels more texts per second. For
        "slurm", the largest number of nodes.
    processes : bool
        If False, one CPU worker runs in this process. It starts at once, and a script needs no
        ``if __name__ == "__main__":`` guard.
    scheduler_file : str or Path, optional
        The scheduler file of a running scheduler, instead of `where`. Certificates in a folder `tls` next to it are
        used.
    protocol : str
        "auto", "tcp" or "ucx", for a cluster that is started here.
    tls : bool, optional
        Encrypt the traffic of a cluster that is started here, and admit only processes that hold the certificate made
        for it. Default: True, except with "ucx", which has no TLS. If False, every user of a host that the cluster
        listens on, and on a network everyone who can reach it, can run code as you.
    nsys : str or Path, optional
        Run the workers of a cluster on this machine under Nsight Systems, which writes its report to this folder.
    say : callable, optional
        Called with each line that a user should see, for example which protocol was chosen. Default: print to stderr.

    Yields
    ------
    distributed.Client
        A client with at least one worker.

    Raises
    ------
    UsageError
        If an option is not available or contradicts another, or no scheduler answers.
    BroadsheetError
        If no worker joins within `distributed.scheduler.no-workers-timeout` (60 s), or the scheduler is lost.

    Examples
    --------
    >>> with connect("local", workers=2) as client:
    ...     report = broadsheet.classify("news/*.parquet", "out/", client=client)

    """
    # Choose the cluster: under Nsight Systems, one that runs already, or a new one.
    say = say or _to_stderr
    context: AbstractContextManager[Client]
    if nsys is not None:
        if scheduler_file is not None or where not in ("local", "cuda") or protocol == "ucx":
            raise UsageError(
                "nsys goes with a local cluster only, over TCP: put `nsys profile` before your own workers"
            )
        context = nsys_cluster(where, workers, nsys, choose(protocol, 1, tls)[0])
    elif scheduler_file is not None:
        context = _existing(str(scheduler_file), Path(scheduler_file), None, say)
    else:
        context = _started(where, workers, processes, protocol, tls, say)
    # Say which of the two was lost, if the connection to a worker or to the scheduler breaks.
    with context as client:
        address = client.scheduler.address
        _warn_if_exposed(address, say)
        try:
            yield client
        except OSError as error:
            if client.status == "running" and not isinstance(error, CommClosedError):
                raise
            if scheduler_answers(client):
                raise BroadsheetError(LOST_WORKER.format(error)) from error
            raise BroadsheetError(NO_SCHEDULER.format(address)) from error


def nearest(device: str = "auto") -> str:
    """Choose the kind of cluster for a command that names none.

    Parameters
    ----------
    device : str
        "auto", "cuda" or "cpu", as in `classify`.

    Returns
    -------
    str
        "cuda" if there are GPUs and dask-cuda, unless `device` is "cpu"; else "local".

    """
    return "cuda" if device != "cpu" and count_gpus() else "local"


def _started(
    where: str,
    workers: int | None,
    processes: bool,
    protocol: str,
    tls: bool | None,
    say: Callable[[str], None],
) -> AbstractContextManager[Client]:
    """Return a client of a cluster that is started for the block, or of one that already runs.

    Parameters
    ----------
    where, workers, processes, protocol, tls, say
        As in `connect`.

    Raises
    ------
    UsageError
        As in `connect`.

    """
    if where == "local" and not processes:
        if workers is not None or protocol != "auto" or tls is not None:
            raise UsageError("a worker within this process has no connection: leave out workers, protocol and tls")
        return cluster_here()
    if where in ("local", "cuda"):
        chosen, line = choose(protocol, hosts=1, tls=tls)
        if protocol != "auto" or tls is not None:  # the choice within one machine needs no line
            say(line)
        return cuda_cluster(chosen, workers) if where == "cuda" else cpu_cluster(chosen, workers)
    if where == "slurm":
        from .slurm.elastic import slurm_cluster

        return slurm_cluster(workers, protocol, tls, say)
    if workers is not None or protocol != "auto" or tls is not None:
        raise UsageError(f"workers, protocol and TLS of the cluster at {where} were chosen when it was started")
    return _existing(where, None, where, say)


@contextmanager
def _existing(name: str, file: Path | None, address: str | None, say: Callable[[str], None]) -> Iterator[Client]:
    """Yield a client of a scheduler that runs already. Its address is given, or in a scheduler file."""
    # Find the address and the certificates.
    wait = no_workers_seconds()
    security = None
    if file is not None:
        address = _address_in(file)
        if address.startswith("tls://") and (file.parent / TLS_FOLDER).exists():
            security = load_certificates(file.parent / TLS_FOLDER)
    # Connect, and wait for the first worker.
    with ExitStack() as stack:
        stack.enter_context(default_scheduler())
        try:
            security = security or Security()
            _check_for_scheduler(name, str(address), security, say)
            client = Client(address, security=security)
        except (OSError, ValueError, TimeoutError, TypeError) as error:
            raise UsageError(f"no Dask scheduler answers at {name}: {error}") from error
        for logger in map(logging.getLogger, ("distributed.client", "tornado.application")):
            omitted = _OmitLostConnections()
            logger.addFilter(omitted)
            stack.callback(logger.removeFilter, omitted)
        stack.enter_context(client)
        try:
            await_workers(client, 1, f"no worker has joined the scheduler {name} within {wait:.0f} s")
        except OSError as error:
            raise BroadsheetError(NO_SCHEDULER.format(name)) from error
        with with_settings(_dashboard_of(client)):
            yield client


def _dashboard_of(client: Client) -> dict[str, str]:
    """Return the settings with which this process finds the dashboard of a scheduler, whose link may have a token."""

    # A nested function is pickled by value, so that it also runs on a scheduler that cannot import this module.
    def read(token: str = TOKEN, link: str = LINK) -> dict[str, str]:
        import dask

        return {link: dask.config.get(link)} if dask.config.get(token, None) else {}

    return dict(client.run_on_scheduler(read))


class _OmitLostConnections(logging.Filter):
    """Drops messages about a lost connection, which this module reports itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        lost = record.exc_info and isinstance(record.exc_info[1], CommClosedError)
        return not lost and record.name != "distributed.client"


def _warn_if_exposed(address: str, say: Callable[[str], None]) -> None:
    """Warn about a scheduler that listens without TLS, even on loopback, which other users of the host can reach."""
    parts = urlsplit(address)
    if parts.scheme in ("tcp", "ucx", "ucxx") and parts.hostname:
        who = _USERS if parts.scheme == "tcp" and is_loopback(parts.hostname) else _NETWORK  # UCX uses every interface
        say(_EXPOSED.format(address=f"{parts.hostname}:{parts.port}", who=who))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_for_scheduler(name: str, address: str, security: Security, say: Callable[[str], None]) -> None:
    """Raise UsageError if something other than a Dask scheduler is at an address, where Dask would wait for a message.

    A scheduler speaks first. If the address is silent, an HTTP request tells whether something else is there. If that
    is not answered either, a busy scheduler may be there, and Dask waits for it as long as its settings say.
    """
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    context = security.get_connection_args("client").get("ssl_context") if parts.scheme == "tls" else None
    if parts.scheme not in ("tcp", "tls") or (parts.scheme == "tls") != (context is not None) or not parts.port:
        return  # UCX, which plain sockets cannot ask; or no port or no certificates, which Dask refuses at once
    try:
        plain = socket.create_connection((parts.hostname, parts.port), _LOOK_SECONDS / 2)
        with context.wrap_socket(plain) if context else plain as there:
            if not (said := _first_bytes(there)):
                there.sendall(b"GET / HTTP/1.0\r\n\r\n")
                said = _first_bytes(there)
    except OSError as error:  # includes ssl.SSLError
        raise UsageError(f"no Dask scheduler answers at {name}: {error}") from error
    if not said:
        say(f"{name} takes connections but says nothing yet: waiting for a Dask scheduler")
    elif said[:2] == b"\x15\x03":  # an alert of TLS, of any version
        raise UsageError(f"{name} speaks TLS: give tls:// in the address, or the scheduler's file")
    elif len(said) < _LENGTH.size or _LENGTH.unpack_from(said)[0] > _LONGEST_MESSAGE:
        raise UsageError(f"what answers at {name} is no Dask scheduler: it says {said[:40]!r}")


def _first_bytes(there: socket.socket) -> bytes:
    """Return the first bytes that the other side sends; none if it sends nothing in time, or closes the connection."""
    there.settimeout(_LOOK_SECONDS / 4)
    try:
        return there.recv(64)
    except TimeoutError:
        return b""


def _address_in(file: Path) -> str:
    """Return the address in a scheduler's file. Wait up to `_LOOK_SECONDS` until the scheduler has written the file.

    Raises UsageError if it does not.
    """
    deadline = time.monotonic() + _LOOK_SECONDS
    while True:
        try:
            return str(json.loads(file.read_bytes())["address"])
        except FileNotFoundError:
            problem = f"no scheduler has written {file} within {_LOOK_SECONDS} s"
        except (ValueError, KeyError):  # the file is half written
            problem = f"{file} is not a scheduler's file"
        if time.monotonic() > deadline:
            raise UsageError(problem)
        time.sleep(0.2)
