"""Our kernels beside what users would pick instead, in one run on one GPU.

    python -m benchmarks.gpu --articles-csv test.csv --output out.json

Ours: from UTF-8 text that lies on the GPU to labels there, and end to end from Arrow buffers in host memory, for each
kernel generation and precision. Peers: from ids that lie on the GPU (they need not read UTF-8) to labels
there; see benchmarks/peers. Every figure is the median of ten passes over all articles, warm. Beside them stand the
machine's own ceilings, the time of each kernel of ours, and three of ours in both frames, also on texts that fill the
frame. A peer computes the dense frame, or the text's where its name says so, and its labels are compared with ours in
that frame.
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
CHUNK = 131_072  # the product's own on a GPU
REPEATS = 10
FULL = (1_100, 5_000)
"""The bytes of a text that fills the frame."""


class OnDevice:
    """All articles' text on the GPU; `run` takes it to labels there, batch by batch, without a copy."""

    def __init__(self, engine: CudaEngine, articles: Articles) -> None:
        self._network, self._articles = engine.network, articles
        self._batches = [batch for batch in engine.batches(articles) if batch.given is None]
        count = len(articles)
        self._data, self._offsets = cp.asarray(articles.data), cp.asarray(articles.offsets)
        self._counts = cp.asarray([batch.last - batch.first for batch in self._batches], np.int32)
        self.labels = cp.empty((count, 1), cp.int32)
        self._best = cp.empty((count, 1), cp.float32)

    def run(self) -> None:
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
    """Median seconds of each copy and kernel of one full batch, from events between them, and a product's rate."""
    first, last, *_ = max(engine.batches(articles), key=lambda batch: batch.units)
    batch = articles.part(first, last)
    computed = computed_rows(engine.model, batch)
    times: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        spans: list[Span] = []
        engine.classify(batch, spans=spans, each_kernel=True)
        for span in spans:
            times.setdefault(span.name, []).append(span.seconds)
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
    """FLOP of an article on average, in the blocks that are products: block 1 is a look-up."""
    works = {work.name: work.flop for work in kernels_of(model, articles, STORAGE["sm80"]["fp16"])}
    return sum(works[layer.name] for layer in model.layers[1:]) / len(articles)


def end_to_end(engine: CudaEngine, articles: Articles, repeats: int) -> list[float]:
    """Seconds of each pass, from host memory to labels there."""
    chunks = list(articles.chunks(CHUNK))
    engine.classify(chunks[0])
    return seconds_of(lambda: [engine.classify(chunk) for chunk in chunks], repeats)


def ours(kernels: str, precision: str, model: Model, articles: Articles, repeats: int) -> dict[str, Any]:
    """A record of our engine, with its rates from device memory and from host memory.

    Parameters
    ----------
    kernels, precision : str
        Of the engine.
    model : Model
        The model.
    articles : Articles
        What it labels.
    repeats : int
        Passes that are measured.

    """
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
    """The rates of some of OURS end to end, in both frames: on these articles, and on articles that fill the frame."""
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
    """The labels by the plain fp32 kernels."""
    kernels, precision = REFERENCE
    engine = CudaEngine(model, precision, kernels)
    labels = np.concatenate([engine.classify(chunk).labels[:, 0] for chunk in articles.chunks(CHUNK)])
    engine.close()
    return labels


def main() -> None:
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
    result["ours"] = [ours(*stack, model, articles, options.repeats) for stack in OURS]
    for row in result["ours"]:
        print(row["name"], row["articles_per_second"], row["end_to_end_articles_per_second"], flush=True)
    result["both_frames"] = both_frames(model, articles, options.repeats)
    exact = {frame: reference_labels(replace(model, frame=frame), articles) for frame in FRAMES}
    for row in result["ours"]:
        row["labels_unlike_fp32"] = int((row.pop("labels") != exact[model.frame]).sum())
    cp.get_default_memory_pool().free_all_blocks()
    result["ceilings"] = ceilings()
    result["peers"] = []
    ids = torch.from_numpy(encode(articles.data, articles.offsets, model.alphabet, model.length).ids).cuda()
    for row, logits in measure(options.peers, model, ids, options.repeats):
        if logits is not None:
            row["labels_unlike_fp32"] = int((logits.argmax(axis=1) != exact[row["frame"]]).sum())
        result["peers"].append(row)
        if options.output:  # after each, so that a peer that ends the process takes nothing with it
            write(result, options.output)
    write(result, options.output)


if __name__ == "__main__":
    main()
