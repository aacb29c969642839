"""Measures the peers: what users would use instead of our kernels, on the same GPU in the same run.

A pass starts from ids on the GPU, so that a peer need not read UTF-8. It ends with a label and a probability for each
article.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import torch_peer, torch_text
from benchmarks.peers.peer import Peer
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import Frame


class Kind(NamedTuple):
    """A peer that `build` can make.

    Attributes
    ----------
    name : str
        The description.
    batch : int
        The best batch on an H200.
    frame : str
        The frame that it computes.

    """

    name: str
    batch: int
    frame: Frame = "dense"


KINDS = {
    "eager-fp32": Kind("PyTorch eager, fp32 without TF32", 4096),
    "eager-fp16": Kind("PyTorch eager, fp16", 4096),
    "compiled-dense": Kind("torch.compile max-autotune, channels-last fp16, block 1 dense", 8192),
    "compiled-table": Kind("torch.compile max-autotune, channels-last fp16, block 1 as seven table rows", 8192),
    "compiled-text": Kind(
        "torch.compile max-autotune, the same of the text, sorted by length, in four frames", 8192, "text"
    ),
}


def build(kind: str, model: Model, ids: torch.Tensor, batch: int | None = None) -> Peer:
    """Return a peer for encoded articles, uint8 [N, length], on the device of these ids.

    The first pass compiles it. Raises ValueError if the batch does not divide N.
    """
    name, usual, _ = KINDS[kind]
    batch = min(batch or usual, len(ids))
    if len(ids) % batch:
        raise ValueError(f"a batch of {batch:,} does not divide {len(ids):,} articles")
    if kind == "compiled-text":
        return torch_text.peer(name, torch_text.compiled(model, ids.device), model, ids, batch)
    forward = torch_peer.network(kind, model, ids.device)
    return torch_peer.peer(name, forward, ids, batch, len(model.classes))


def event_seconds(work: Callable[[], object], repeats: int = 10) -> list[float]:
    """Call `work` `repeats` times, and return the seconds of each call by CUDA events. It does not warm up.

    The events are on the current stream.
    """
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return times


def measure(
    kinds: Iterable[str], model: Model, ids: torch.Tensor, repeats: int, batch: int | None = None
) -> Iterator[tuple[dict[str, Any], NDArray[np.float32] | None]]:
    """Measure each peer, and yield its record and its logits, float32 [N, classes].

    The record of a peer that fails has its error, and the logits are None.

    Parameters
    ----------
    kinds : iterable of str
        Keys of KINDS.
    model : Model
        The model.
    ids : tensor, uint8 [N, length]
        Encoded articles, on the device that computes.
    repeats : int
        The number of measured passes.
    batch : int, optional
        The number of articles in a batch; by default the best one.

    """
    for kind in kinds:
        name, usual, frame = KINDS[kind]
        record: dict[str, Any] = {"name": name, "kind": kind, "frame": frame, "batch": batch or usual}
        logits = peer = None
        # Warm up, and measure.
        try:
            began = time.perf_counter()
            peer = build(kind, model, ids, batch)
            peer.run()  # compiles and tunes
            record["first_pass_seconds"] = time.perf_counter() - began
            peer.run()
            record["seconds"] = event_seconds(peer.run, repeats)
            record["articles_per_second"] = len(ids) / statistics.median(record["seconds"])
            logits = peer.logits()
        except Exception as error:  # the other peers go on
            record["error"] = f"{type(error).__name__}: {error}"[:2000]
        print(kind, record.get("error") or f"{record['articles_per_second']:,.0f} articles/s", flush=True)
        del peer
        release()
        yield record, logits


def release() -> None:
    """Free what deleted peers have used: compiled code, the memory of CUDA graphs, cached blocks."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
