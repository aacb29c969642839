"""Checks a cluster before a long job. Each check gives a verdict, what it found, and a remedy."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cloudpickle
import numpy as np
from distributed import Client, wait

from ..pipeline.model.loading import load_model
from . import probes
from .client import is_loopback
from .plugin import start_engines
from .settings import WORKERS_ON_A_GPU

OK, WARNING, FAILURE = "ok", "warning", "FAILURE"
_TRANSFER_BYTES = 64 << 20
_MOST_SECONDS_APART = 1.0


cloudpickle.register_pickle_by_value(probes)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check : str
        The subject of the check.
    verdict : str
        OK, WARNING or FAILURE.
    found : str
        The observation.
    remedy : str
        What to do; empty if nothing is needed.

    """

    check: str
    verdict: str
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def examine(client: Client, output: Path | None = None, device: str = "auto") -> Iterator[Finding]:
    """Check a running cluster, and yield each finding as soon as it is known.

    `output` is a folder that workers share.
    """
    ours = probes.about_process()
    workers = client.run(probes.about_process)
    scheduler = client.run_on_scheduler(probes.about_process)
    if not workers:
        yield Finding("workers", FAILURE, "none", "start workers, then ask again")
        return
    hosts = Counter(about["host"] for about in workers.values())
    yield Finding("workers", OK, f"{len(workers)} on {len(hosts)} host{'s' if len(hosts) > 1 else ''}")
    everyone = {"this process": ours, "the scheduler": scheduler, **workers}
    yield _versions(everyone)
    yield _sources(everyone)
    yield from _gpus(client.run(probes.about_gpu, workers=list(workers)), workers)  # others may have joined since
    yield _kernels(client, device)
    yield _interfaces(client, list(workers))
    yield from _transfers(client)
    yield from _listening(client)
    if output is not None:
        yield _output(client, output.absolute())
    yield _clocks(client, list(workers))


def _versions(everyone: dict[str, dict[str, Any]]) -> Finding:
    ours = everyone["this process"]["versions"]
    for name, about in everyone.items():
        for package, version in about["versions"].items():
            if version != ours[package]:
                difference = f"{package} is {ours[package]} here, {version} on {name}"
                return Finding("versions", FAILURE, difference, "install the same on every host (environment.yml)")
    shown = ", ".join(f"{name} {ours[name]}" for name in ("broadsheet", "python", "dask", "distributed", "numpy"))
    return Finding("versions", OK, f"the same everywhere: {shown}")


def _sources(everyone: dict[str, dict[str, Any]]) -> Finding:
    ours, our_digest = everyone["this process"]["source"]
    for name, about in everyone.items():
        folder, digest = about["source"]
        if digest != our_digest:
            difference = f"{name} imports broadsheet from {folder}, which differs from {ours} here"
            remedy = "rename your own folder of that name, or install the same broadsheet there"
            return Finding("imports", FAILURE, difference, remedy)
    return Finding("imports", OK, "every process imports this broadsheet")


def _gpus(gpus: dict[str, dict[str, Any] | None], workers: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    # Without GPUs, report only the cores.
    with_gpu = {address: gpu for address, gpu in gpus.items() if gpu is not None}
    if not with_gpu:
        yield Finding("GPUs", OK, "none: the workers compute on CPU cores")
        cores = {len(about["cores"]) for about in workers.values()}
        yield Finding("CPU cores", OK, f"{' or '.join(map(str, sorted(cores)))} for each worker process")
        return
    # Report whether all workers have GPUs of one kind, and how many workers share one.
    without = sorted(set(gpus) - set(with_gpu))
    on_each = Counter((workers[address]["host"], gpu["uuid"]) for address, gpu in with_gpu.items())
    crowded = [host for (host, _), count in on_each.items() if count > WORKERS_ON_A_GPU]
    kinds = Counter(
        f"{g['name']} (sm_{g['capability'].replace('.', '')}, driver {g['driver']})" for g in with_gpu.values()
    )
    if without:
        remedy = "start workers with `dask cuda worker`, which gives each a GPU"
        yield Finding("GPUs", FAILURE, f"{without[0]} has none, others have", remedy)
    elif crowded:
        remedy = "start `dask cuda worker` once on each host, or twice where the model is fast"
        yield Finding("GPUs", FAILURE, f"more than two workers of {crowded[0]} share a GPU", remedy)
    elif len({gpu["capability"] for gpu in with_gpu.values()}) > 1:
        yield Finding("GPUs", FAILURE, f"of different kinds: {', '.join(kinds)}", "use one kind, or --allow-mixed")
    else:
        each = "one worker a GPU" if len(on_each) == len(with_gpu) else "two workers share a GPU"
        yield Finding("GPUs", OK, f"{each}: " + ", ".join(f"{n} × {kind}" for kind, n in kinds.items()))
    # Report whether workers run on the cores near their GPUs.
    far = [
        a for a, gpu in with_gpu.items() if gpu["cores_near"] and not set(workers[a]["cores"]) <= set(gpu["cores_near"])
    ]
    if far:
        remedy = "let dask-cuda pin it (it does, unless Slurm gave the job other cores: --cpu-bind=none)"
        yield Finding("CPU cores", WARNING, f"{far[0]} may run on cores far from its GPU", remedy)
    else:
        yield Finding("CPU cores", OK, "each worker on the cores near its GPU")


def _kernels(client: Client, device: str) -> Finding:
    try:
        _, backend = start_engines(client, load_model("ag-news"), device, "auto")
    except Exception as error:  # of any kind: Dask raises here what a worker with another `broadsheet` raises
        return Finding("kernels", FAILURE, str(error), "see the logs of the workers")
    return Finding("kernels", OK, str(backend))


def _interfaces(client: Client, addresses: list[str]) -> Finding:
    names = {a: client.run(probes.interface_of, a, workers=[a])[a] for a in addresses}
    kinds = Counter(names.values())
    shown = ", ".join(f"{name}: {n} worker{'s' if n > 1 else ''}" for name, n in kinds.items())
    if len({name.partition(" ")[0] for name in kinds}) > 1:
        return Finding("interface", WARNING, shown, "name one for all: `interface` in site.yaml, or --interface")
    return Finding("interface", OK, shown)


def _transfers(client: Client) -> Iterator[Finding]:
    """Time the transfer of an array from one worker to another, and list UCX's transports if it is used."""
    addresses = list(client.scheduler_info(n_workers=-1)["workers"])
    if not addresses:
        yield Finding("transfer", WARNING, "no worker is there", "start some, and run this again")
        return
    protocol = urlsplit(addresses[0]).scheme
    if protocol == "ucx":
        names = {name for transports in client.run(probes.ucx_transports).values() for name in transports} - {"self"}
        yield Finding("UCX transports", OK, ", ".join(sorted(names)))
    if len(addresses) < 2:
        yield Finding(f"transfer, {protocol}", OK, "one worker: nothing to send")
        return
    device = protocol == "ucx" and all(gpu is not None for gpu in client.run(probes.about_gpu).values())
    seconds = min(_transfer(client, *_far_apart(addresses), device) for _ in range(3))
    what = "from GPU to GPU" if device else "from worker to worker"
    rate = _TRANSFER_BYTES / seconds / 1e9
    measured = f"{_TRANSFER_BYTES >> 20} MiB {what} in {1000 * seconds:.0f} ms, {rate:.2f} GB/s"
    remedy = "" if rate > 0.1 else "slower than a network of 1 Gbit/s: is `interface` in site.yaml the fast network?"
    yield Finding(f"transfer, {protocol}", WARNING if remedy else OK, measured, remedy)


def _far_apart(addresses: list[str]) -> tuple[str, str]:
    """Return two workers, on different hosts if possible."""
    other = [a for a in addresses if urlsplit(a).hostname != urlsplit(addresses[0]).hostname]
    return addresses[0], (other or addresses[1:])[0]


def _transfer(client: Client, source: str, target: str, device: bool) -> float:
    """Return the seconds that it takes to send an array from the worker `source` to the worker `target`."""
    # Send copies, which pickle cannot refer to by name: a worker may have a different `cluster`.
    make_bytes, size_of = cloudpickle.loads(cloudpickle.dumps((probes.make_bytes, probes.size_of)))
    array = client.submit(make_bytes, _TRANSFER_BYTES, device, workers=[source], pure=False)
    # The first task on the target only takes the function there, before the clock runs.
    wait([array, client.submit(size_of, np.zeros(1, np.uint8), workers=[target], pure=False)])
    began = time.perf_counter()
    client.submit(size_of, array, workers=[target], pure=False).result(timeout=60)
    return time.perf_counter() - began


def _listening(client: Client) -> Iterator[Finding]:
    address = client.scheduler.address
    parts = urlsplit(address)
    if parts.scheme in ("inproc", "tls"):
        secured = {"tls": "mutual, by certificate"}.get(parts.scheme, "not needed: within this process")
        yield Finding("TLS", OK, secured)
    else:
        who = "any user of this host" if is_loopback(parts.hostname or "") else f"anyone who reaches {address}"
        remedy = "let Broadsheet start it with TLS (its default, over TCP), or give your own scheduler certificates"
        yield Finding("TLS", WARNING, f"none: {who} can run code as you", remedy)
    ports = client.run_on_scheduler(probes.listeners)
    dashboard = client.scheduler_info(n_workers=0)["services"].get("dashboard")
    where = ports.get(dashboard, "")
    addresses = f"scheduler {address}, dashboard {f'{where}:{dashboard}' if where else 'off'}"
    if where and not is_loopback(where):
        remedy = "it has no login: --dashboard-address 127.0.0.1:8787, and a tunnel"
        yield Finding("listening", WARNING, addresses, remedy)
    else:
        yield Finding("listening", OK, addresses)


def _output(client: Client, folder: Path) -> Finding:
    name, text = f".doctor-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        seen = client.run(probes.read_and_answer, str(folder), name, on_error="return")
        answers = list(folder.glob(f"{name}.*"))
    except OSError as error:
        return Finding("output folder", FAILURE, str(error), "choose a folder that can be written")
    finally:
        for file in folder.glob(f"{name}*"):
            file.unlink()
    blind = [address for address, answer in seen.items() if answer != text]
    remedy = "use a folder on a file system that all hosts share, at the same path"
    if blind:
        return Finding("output folder", FAILURE, f"{blind[0]} does not see the files in {folder} that are here", remedy)
    if not answers:
        return Finding("output folder", FAILURE, f"files that workers write to {folder} do not appear here", remedy)
    return Finding("output folder", OK, f"all {len(seen)} workers read and write {folder}")


def _clocks(client: Client, addresses: list[str]) -> Finding:
    apart = {}
    for address in addresses:
        before = time.time()
        there = client.run(time.time, workers=[address])[address]
        apart[address] = there - (before + time.time()) / 2
    worst = max(apart, key=lambda address: abs(apart[address]))
    apart_most = f"at most {abs(apart[worst]):.3f} s from this host's"
    if abs(apart[worst]) > _MOST_SECONDS_APART:
        return Finding("clocks", WARNING, f"{worst} is {apart[worst]:+.1f} s off", "start chrony or ntpd on that host")
    return Finding("clocks", OK, apart_most)
