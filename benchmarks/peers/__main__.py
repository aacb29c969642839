"""Measure every peer on one GPU, in one run; one that fails is recorded and does not stop the rest.

    python -m benchmarks.peers --output peers.json
    python -m benchmarks.peers --ids ids.npy --peer compiled-table --batch 4096

The ids are an encoded corpus (uint8 [N, length], `pipeline.alphabet.encode`), or random text as long as AG News's. They
lie on the GPU throughout. Each peer does a first pass, which compiles and tunes, then a warm one, then the timed ones.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.cpu import random_articles
from benchmarks.peers import KINDS, build, event_seconds, release
from benchmarks.peers.ceilings import ceilings
from pipeline.model import reference
from pipeline.model.charcnn import Model, load_model

_PACKAGES = ("torch", "triton", "jax", "jaxlib", "numpy", "nvidia-cudnn-cu13", "nvidia-cublas")


def measure(
    kind: str, model: Model, ids: torch.Tensor, truth: NDArray[np.float32], batch: int | None, repeats: int
) -> dict[str, Any]:
    """Articles a second of one peer, and how far its logits are from `truth`, float32 [n, classes] of the first n."""
    began = time.perf_counter()
    peer = build(kind, model, ids, batch)
    peer.run()
    first_pass = time.perf_counter() - began
    peer.run()
    times = event_seconds(peer.run, repeats)
    logits = peer.logits()[: len(truth)]
    return {
        "peer": kind,
        "name": peer.name,
        "batch": peer.batch,
        "articles_per_second": round(len(ids) / statistics.median(times), 1),
        "seconds": times,
        "first_pass_seconds": round(first_pass, 1),
        "relative_error_of_logits": float(np.linalg.norm(logits - truth) / np.linalg.norm(truth)),
        "labels_that_differ": int((logits.argmax(1) != truth.argmax(1)).sum()),
    }


def failure(kind: str, error: Exception) -> dict[str, Any]:
    return {
        "peer": kind,
        "name": KINDS[kind].name,
        "error": f"{type(error).__name__}: {error}"[:2000],
        "where": traceback.format_tb(error.__traceback__)[-3:],
    }


def hardware() -> dict[str, Any]:
    """The GPU, its driver, the versions of what was measured, and the commit."""
    found = torch.cuda.get_device_properties(0)
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "gpu": found.name,
        "memory_bytes": found.total_memory,
        "driver": _answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "versions": versions,
        "python": platform.python_version(),
        "commit": _answer("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "date": time.strftime("%Y-%m-%d"),
    }


def _answer(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def read_ids(path: Path, model: Model, articles: int) -> NDArray[np.uint8]:
    """A file's encoded articles over and over, uint8 [articles, length]."""
    found = np.load(path, mmap_mode="r")
    if found.dtype != np.uint8 or found.shape[1:] != (model.length,):
        raise typer.BadParameter(f"{path} holds {found.dtype} {list(found.shape)}, not uint8 [N, {model.length}]")
    return found[np.arange(articles) % len(found)]


def table(runs: list[dict[str, Any]]) -> str:
    """The peers as Markdown."""
    lines = ["| peer | batch | articles a second | error of the logits | first pass |", "|---|---|---|---|---|"]
    for run in runs:
        if "error" in run:
            reason = run["error"].partition("\n")[0][:100].replace("|", "/")
            lines.append(f"| {run['name']} | | failed: {reason} | | |")
        else:
            lines.append(
                f"| {run['name']} | {run['batch']:,} | {run['articles_per_second']:,.0f} "
                f"| {run['relative_error_of_logits']:.1e} | {run['first_pass_seconds']:.0f} s |"
            )
    return "\n".join(lines)


def main(
    model: Annotated[str, typer.Option(help="A shipped model's name, or a model file.")] = "ag-news",
    ids: Annotated[Path | None, typer.Option(help="Encoded articles, uint8 [N, length], as .npy; else random.")] = None,
    articles: Annotated[int, typer.Option(help="How many; a file is repeated or cut to it.")] = 262_144,
    repeats: Annotated[int, typer.Option(help="Timed passes of each peer.")] = 10,
    peer: Annotated[list[str] | None, typer.Option(help="Only this one; may be given more than once.")] = None,
    batch: Annotated[int | None, typer.Option(help="Instead of each peer's usual one.")] = None,
    sample: Annotated[int, typer.Option(help="Articles whose logits are compared with the reference's.")] = 256,
    with_ceilings: Annotated[bool, typer.Option("--ceilings/--no-ceilings", help="Measure the GPU's own too.")] = True,
    output: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
) -> None:
    """Measure the peers; print a table, then the result as JSON."""
    unknown = sorted(set(peer or ()) - set(KINDS))
    if unknown:
        raise typer.BadParameter(f"no peer {unknown[0]!r}: there are {', '.join(KINDS)}")
    if not torch.cuda.is_available():
        raise typer.BadParameter("the peers are measured on a CUDA GPU, and PyTorch finds none here")
    loaded = load_model(model)
    host = read_ids(ids, loaded, articles) if ids else random_articles(loaded, articles)
    truth = reference.forward(host[:sample], reference.prepare(loaded))
    on_device = torch.from_numpy(host).cuda()
    result: dict[str, Any] = {"about": hardware(), "articles": articles, "repeats": repeats, "runs": []}
    if with_ceilings:
        result["ceilings"] = ceilings()
        release()
    for kind in peer or KINDS:
        try:
            run = measure(kind, loaded, on_device, truth, batch, repeats)
        except Exception as error:  # whatever ails a peer is a finding about that peer
            run = failure(kind, error)
        print(f"{kind}: {run.get('error') or run['articles_per_second']}", flush=True)
        result["runs"].append(run)
        release()
        if output:
            output.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result["runs"]))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    typer.run(main)
