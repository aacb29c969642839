"""Compare our kernels with what users would use instead, in one run on one GPU.

    python -m benchmarks.gpu --articles-csv test.csv --output out.json

For each kernel generation and precision, ours is measured in two ways: from UTF-8 text on the GPU to labels there, and
end to end, from Arrow buffers in host memory. Peers (see benchmarks/peers) are measured from ids on the GPU, so that
they need not read UTF-8, to labels there. Every figure is the median of ten warm passes over all articles.

The record also has the ceilings of the GPU itself, the time of each of our kernels, and three of our precisions in both
frames, also on texts that fill the frame. A peer computes the dense frame, or the text's frame if its name says so. Its
labels are compared with ours in the same frame.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from typing import Any

import cupy as cp
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.articles import Articles, ag_news, of_length
from benchmarks.peers.ceilings import ceilings
from benchmarks.peers.measure import KINDS, measure
from benchmarks.record import about, parser, seconds_of, write
from broadsheet.pipeline.engine.cuda import CudaEngine
from broadsheet.pipeline.kernels import memory_plan
from broadsheet.pipeline.kernels.batch_arrays import DeviceTexts
from broadsheet.pipeline.kernels.storage import STORAGE
from broadsheet.pipeline.kernels.work import computed_rows, kernels_of
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import FRAMES
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.telemetry.spans import Span

OURS = (
    ("sm90", "fp16"), ("sm90", "bf16"), ("sm90", "int8"), ("sm90", "fp32"),
    ("sm80", "fp16"), ("sm80", "bf16"), ("sm80", "int8"), ("sm80", "fp32"), ("simt", "fp32"),
)  # fmt: skip
IN_BOTH_FRAMES = (("sm90", "fp16"), ("sm90", "int8"), ("sm90", "fp32"))
REFERENCE = ("simt", "fp32")
CHUNK = 131_072  # as the product has on a GPU
REPEATS = 10
FULL = (1_100, 5_000)
"""The bytes of texts that fill the frame."""


class OnDevice:
    """The text of all articles on the GPU. `run` labels it there, batch by batch, without a copy."""

    def __init__(self, engine: CudaEngine, articles: Articles) -> None:
        self._network, self._articles = engine.network, articles
        self._batches = [batch for batch in engine.batches(articles) if batch.given is None]
        count = len(articles)
        self._data, self._offsets = cp.asarray(articles.data), cp.asarray(articles.offsets)
        self._counts = cp.asarray([batch.last - batch.first for batch in self._batches], np.int32)
        self.labels = cp.empty((count, 1), cp.int32)
        self._best = cp.empty((count, 1), cp.float32)

    def run(self) -> None:
        """Label all articles once, and wait for the labels."""
        network, slot = self._network, self._network.slots[0]
        whole = slot.batch(1)
        with network.compute:
            for number, (first, last, units, *_) in enumerate(self._batches):
                at = self._articles.offsets
                texts = DeviceTexts(
                    self._data[at[first] : at[last]], self._offsets[first : last + 1], self._counts[number : number + 1]
                )
                batch = whole.first(last - first, 0)
                scored = batch.scored._replace(labels=self.labels[first:last], best=self._best[first:last])
                network.label_texts(batch._replace(texts=texts, scored=scored), units, has_long=False)
        network.compute.synchronize()


def kernel_table(engine: CudaEngine, articles: Articles, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Return the median seconds of each copy and kernel of a full batch, by events, and the TFLOP/s of products."""
    # Time the copies and kernels of the largest batch.
    first, last, *_ = max(engine.batches(articles), key=lambda batch: batch.units)
    batch = articles.part(first, last)
    computed = computed_rows(engine.model, batch)
    times: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        spans: list[Span] = []
        engine.classify(batch, spans=spans, each_kernel=True)
        for span in spans:
            times.setdefault(span.name, []).append(span.seconds)
    # Compute the rates of products.
    layers = {layer.name: layer for layer in engine.model.layers}
    rows = []
    for name, timings in times.items():
        seconds = statistics.median(timings[1:])
        product = name in layers and not layers[name].is_lookup
        flop = computed.get(name, len(batch)) / layers[name].rows_out * layers[name].flop if product else 0
        rows.append({"kernel": name, "seconds": seconds, "nanoseconds_an_article": seconds / len(batch) * 1e9}
                    | ({"tflops": flop / seconds / 1e12} if product else {}))  # fmt: skip
    return rows


def product_flop(model: Model, articles: Articles) -> float:
    """Return the mean FLOP of an article in the blocks that are products. Block 1 is a look-up, and does not count."""
    works = {work.name: work.flop for work in kernels_of(model, articles, STORAGE["sm80"]["fp16"])}
    return sum(works[layer.name] for layer in model.layers[1:]) / len(articles)


def end_to_end(engine: CudaEngine, articles: Articles, repeats: int) -> list[float]:
    """Return the seconds of each pass, from host memory to labels there."""
    chunks = list(articles.chunks(CHUNK))
    engine.classify(chunks[0])
    return seconds_of(lambda: [engine.classify(chunk) for chunk in chunks], repeats)


def ours(kernels: str, precision: str, model: Model, articles: Articles, repeats: int) -> dict[str, Any]:
    """Measure our engine, from device memory and from host memory.

    Parameters
    ----------
    kernels, precision : str
        The kernel generation and the precision of the engine.
    model : Model
        The model.
    articles : Articles
        The articles to label.
    repeats : int
        The number of measured passes.

    """
    # Measure from device memory, from host memory, and each kernel.
    engine = CudaEngine(model, precision, kernels)
    device = OnDevice(engine, articles)
    device.run()
    on_device = seconds_of(device.run, repeats)
    labels = device.labels.get()
    del device
    from_host = end_to_end(engine, articles, repeats)
    table = kernel_table(engine, articles)
    batch, backend = engine.batch, str(engine.backend)
    engine.close()
    # Describe the rates.
    rate = len(articles) / statistics.median(on_device)
    host_rate = len(articles) / statistics.median(from_host)
    return {
        "name": backend,
        "kernels": kernels,
        "precision": precision,
        "batch": batch,
        "articles_per_second": rate,
        "end_to_end_articles_per_second": host_rate,
        "tflops": rate * product_flop(model, articles) / 1e12,
        "seconds": on_device,
        "end_to_end_seconds": from_host,
        "planned_bytes": memory_plan.planned_bytes(engine.network.plan(batch)),
        "kernels_of_a_batch": table,
        "labels": labels[:, 0],
    }


def both_frames(model: Model, articles: Articles, repeats: int) -> list[dict[str, Any]]:
    """Measure some of our precisions end to end in both frames, on these articles and on texts that fill the frame."""
    works = {"these": articles} | {f"{size:,} bytes": of_length(articles, size, CHUNK) for size in FULL}
    rows = []
    for frame, (kernels, precision) in itertools.product(FRAMES, IN_BOTH_FRAMES):
        engine = CudaEngine(replace(model, frame=frame), precision, kernels)
        for name, work in works.items():
            seconds = end_to_end(engine, work, repeats)
            rate = len(work) / statistics.median(seconds)
            about_it = {"frame": frame, "kernels": kernels, "precision": precision, "texts": name}
            rows.append({**about_it, "end_to_end_articles_per_second": rate, "seconds": seconds})
        engine.close()
    return rows


def reference_labels(model: Model, articles: Articles) -> NDArray[np.int32]:
    """Return the labels by the plain fp32 kernels."""
    kernels, precision = REFERENCE
    engine = CudaEngine(model, precision, kernels)
    labels = np.concatenate([engine.classify(chunk).labels[:, 0] for chunk in articles.chunks(CHUNK)])
    engine.close()
    return labels


def main() -> None:
    """Measure ours, the ceilings and the peers, and compare all labels with those of the plain fp32 kernels."""
    command = parser(__doc__, articles=True)
    command.add_argument("--articles", type=int, default=262_144)
    command.add_argument("--repeats", type=int, default=REPEATS)
    command.add_argument("--peers", nargs="*", default=list(KINDS))
    options = command.parse_args()
    model, articles = load_model(options.model).asking("all"), ag_news(options.articles_csv, options.articles)
    result: dict[str, Any] = {
        "about": about(options, cuda=cp.cuda.runtime.runtimeGetVersion()),
        "articles": len(articles),
        "mean_bytes": len(articles.data) / len(articles),
        "product_mflop": product_flop(model, articles) / 1e6,
        "repeats": options.repeats,
    }
    # Measure ours, and compare the labels.
    result["ours"] = [ours(*stack, model, articles, options.repeats) for stack in OURS]
    for row in result["ours"]:
        print(row["name"], row["articles_per_second"], row["end_to_end_articles_per_second"], flush=True)
    result["both_frames"] = both_frames(model, articles, options.repeats)
    exact = {frame: reference_labels(replace(model, frame=frame), articles) for frame in FRAMES}
    for row in result["ours"]:
        row["labels_unlike_fp32"] = int((row.pop("labels") != exact[model.frame]).sum())
    # Measure the ceilings and the peers, with the memory of our engines free.
    cp.get_default_memory_pool().free_all_blocks()
    result["ceilings"] = ceilings()
    result["peers"] = []
    ids = torch.from_numpy(encode(articles.data, articles.offsets, model.alphabet, model.length).ids).cuda()
    for row, logits in measure(options.peers, model, ids, options.repeats):
        if logits is not None:
            row["labels_unlike_fp32"] = int((logits.argmax(axis=1) != exact[row["frame"]]).sum())
        result["peers"].append(row)
        if options.output:  # after each peer, in case the next one crashes the process
            write(result, options.output)
    write(result, options.output)


if __name__ == "__main__":
    main()
