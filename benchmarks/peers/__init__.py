"""What users would pick instead of our kernels, each behind one face, to be timed on the same GPU in the same run.

    ids = torch.from_numpy(encoded.ids).cuda()  # uint8 [N, length]; torch.from_dlpack takes a CuPy array
    peer = build("compiled-table", load_model("ag-news"), ids)
    peer.run()                                  # the first pass compiles and tunes
    rate = len(ids) / statistics.median(event_seconds(peer.run))
    logits = peer.logits()                      # float32 [N, classes] of the last pass
    del peer
    release()                                   # before the next one is built

A pass starts from ids on the GPU, so a peer is spared the reading of UTF-8. It ends with a label and a probability
for each article.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.model.charcnn import Model


@dataclass(frozen=True)
class Peer:
    """A network that is built, and the articles it is to label.

    batch: articles in each call of the network; it divides their number.
    run: one pass over all articles. It returns when the GPU is done, so a host clock measures it as well as events do.
    logits: float32 [N, classes] of the last pass.
    """

    name: str
    batch: int
    run: Callable[[], None]
    logits: Callable[[], NDArray[np.float32]]


class Kind(NamedTuple):
    """A peer that `build` knows: what it is in words, and its best batch on an H200."""

    name: str
    batch: int


KINDS = {
    "eager-fp32": Kind("PyTorch eager, fp32 without TF32", 4096),
    "eager-fp16": Kind("PyTorch eager, fp16", 4096),
    "compiled-dense": Kind("torch.compile max-autotune, channels-last fp16, block 1 dense", 8192),
    "compiled-table": Kind("torch.compile max-autotune, channels-last fp16, block 1 as seven table rows", 8192),
    "jax-dense": Kind("JAX jit, channels-last fp16, block 1 dense", 8192),
    "jax-table": Kind("JAX jit, channels-last fp16, block 1 as seven table rows", 8192),
}


def build(kind: str, model: Model, ids: torch.Tensor, batch: int | None = None) -> Peer:
    """The peer of this kind for encoded articles, uint8 [N, length], on the device where they lie.

    Nothing is compiled before its first pass. Raises ValueError where the batch does not divide N.
    """
    name, usual = KINDS[kind]
    batch = min(batch or usual, len(ids))
    if len(ids) % batch:
        raise ValueError(f"a batch of {batch:,} does not divide {len(ids):,} articles")
    library, _, variant = kind.partition("-")
    if library == "jax":
        from benchmarks.peers import jax_peer

        return jax_peer.peer(name, model, ids, batch, variant)
    from benchmarks.peers import torch_peer

    forward = torch_peer.network(kind, model, ids.device)
    return torch_peer.peer(name, forward, ids, batch, len(model.classes))


def event_seconds(work: Callable[[], object], repeats: int = 10) -> list[float]:
    """Seconds of each of `repeats` calls, by CUDA events on the current stream; nothing is warmed up here."""
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return times


def release() -> None:
    """Give back what dropped peers held: compiled code, the memory of CUDA graphs, cached blocks."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
