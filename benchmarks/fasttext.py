"""Compare Broadsheet on models of fastText with the original library, on all cores of the same machine.

    python -m benchmarks.fasttext --lid lid.176.ftz --articles-csv test.csv --output out.json

Broadsheet is measured from texts in host memory to labels there, on a GPU if there is one. Two threads share the
engine, as in a job: one begins a chunk while the other waits for its labels. The original library, if it is installed,
has one process for each core, and its input in memory.

The models are lid.176 (176 languages, subwords), and a model of two classes with pairs of words and two million
buckets, with random weights and the words of the articles. The texts are those of AG News, and documents of 3.5 KB.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from benchmarks.articles import Articles, ag_news, of_length
from benchmarks.record import about, parser, seconds_of, write
from broadsheet.pipeline.engine.base import Predictions
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.fasttext import FastText, Reader
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.processes.threads import available_cores

CHUNK = {"cuda": 131_072, "cpu": 2048}
BUCKETS, DIM = 2_000_000, 100
LABELS = (b"__label__low", b"__label__high")
DOCUMENT = 3500
SECONDS = 3.0
"""The seconds that each process of the original library runs for a figure."""


def two_classes(articles: Articles, path: Path) -> None:
    """Write a model in fastText's format, with random weights and the commonest words of some articles."""
    # Choose the words.
    text = articles.data[: articles.offsets[min(len(articles), 20_000)]].tobytes()
    words = [word for word, _ in Counter(text.split()).most_common(100_000) if not word.startswith(b"__label__")]
    rng = np.random.default_rng(0)
    entries = [(b"</s>", 0), *((word, 0) for word in words if word != b"</s>"), *((label, 1) for label in LABELS)]
    known = len(entries) - len(LABELS)
    # Write the header, the dictionary and both matrices.
    with open(path, "wb") as file:
        file.write(np.array([793_712_314, 12, DIM, 5, 5, 1, 5, 2, 3, 3, BUCKETS, 0, 0, 100], "<i4").tobytes())
        file.write(np.array([1e-4], "<f8").tobytes())
        file.write(
            np.array([len(entries), known, len(LABELS)], "<i4").tobytes() + np.array([10**6, -1], "<i8").tobytes()
        )
        for word, kind in entries:
            file.write(word + b"\0" + np.int64(10).tobytes() + bytes([kind]))
        for rows in (known + BUCKETS, len(LABELS)):
            file.write(b"\0" + np.array([rows, DIM], "<i8").tobytes())
            for first in range(0, rows, 100_000):
                file.write(rng.standard_normal((min(100_000, rows - first), DIM), np.float32).tobytes())


def rows_of(model: Model, articles: Articles) -> float:
    """Return how many rows of the table a text uses, as the mean over 500 texts."""
    assert isinstance(model.ngrams, FastText)
    some = articles.part(0, 500)
    return sum(len(rows) for rows, _ in Reader(model.ngrams).rows(some.data, some.offsets)) / len(some)


def measured(model: Model, articles: Articles, precision: str, repeats: int) -> dict[str, Any]:
    """Measure a model on an engine: its rates, the time of each kernel, and its first labels."""
    with closing(open_engine(model, precision=precision)) as engine:
        chunks = list(articles.chunks(CHUNK[engine.backend.device]))
        turn = Lock()

        def label(chunk: Articles) -> Predictions:
            return engine.classify(chunk, turn=turn)

        def run() -> None:
            with ThreadPoolExecutor(2) as threads:
                for _ in threads.map(label, chunks):
                    pass

        # Warm up, and measure the rates.
        run()
        rates = sorted(len(articles) / seconds for seconds in seconds_of(run, repeats))
        # Measure each kernel.
        spans: list[Any] = []
        for chunk in chunks[:2]:
            engine.classify(chunk, spans=spans, each_kernel=True)
        kernels: Counter[str] = Counter()
        for span in spans:
            kernels[span.name] += span.end - span.start
        # Describe the results.
        texts = sum(map(len, chunks[:2]))
        labels = engine.classify(articles.part(0, min(len(articles), 2000))).labels[:, 0]
        return {
            "backend": str(engine.backend),
            "texts_per_second": rates[len(rates) // 2],
            "lowest": rates[0],
            "highest": rates[-1],
            "nanoseconds_a_text": {name: seconds / texts * 1e9 for name, seconds in kernels.items()},
            "labels": [model.classes[i] for i in labels],
        }


def _original(file: str, texts: list[str], seconds: float) -> tuple[int, list[str]]:
    """Label texts with the original library for some seconds, in a process of its own.

    Returns how many texts it labelled, and the labels of the first 2,000 texts.
    """
    import fasttext

    loaded = fasttext.load_model(file)
    first = [label[0].removeprefix("__label__") for label in loaded.predict(texts[:2000])[0]]
    until, labelled = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        loaded.predict(texts[:200])
        texts = texts[200:] + texts[:200]
        labelled += 200
    return labelled, first


def original(file: Path, articles: Articles) -> dict[str, Any]:
    """Measure the original library with one process for each core."""
    some = articles.part(0, min(len(articles), 4000))
    raw = some.data.tobytes()
    bounds = zip(some.offsets[:-1], some.offsets[1:], strict=True)
    texts = [raw[a:b].decode(errors="replace").replace("\n", " ") for a, b in bounds]
    cores = available_cores()
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        counts = pool.starmap(_original, [(str(file), texts, SECONDS)] * cores)
    return {"backend": f"fastText, {cores} processes", "texts_per_second": sum(n for n, _ in counts) / SECONDS,
            "labels": counts[0][1]}  # fmt: skip


def main() -> None:
    """Measure both models on both kinds of texts."""
    command = parser(__doc__, articles=True)
    command.add_argument("--lid", type=Path, required=True, help="the file lid.176.ftz")
    command.add_argument("--articles", type=int, default=1_048_576)
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--precisions", nargs="*", default=["auto", "fp32"])
    options = command.parse_args()
    short = ag_news(options.articles_csv, options.articles)
    inputs = {"AG News": short, f"{DOCUMENT:,} bytes": of_length(short, DOCUMENT, max(len(short) // 8, 1))}
    result: dict[str, Any] = {"about": about(options), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.bin"
        two_classes(short, pairs)
        for name, file in (("lid.176", options.lid), ("2 classes, pairs of words", pairs)):
            model = load_model(file)
            for text, articles in inputs.items():
                said = {"model": name, "text": text, "rows_a_text": rows_of(model, articles)}
                rows = [measured(model, articles, precision, options.repeats) for precision in options.precisions]
                if importlib.util.find_spec("fasttext"):
                    rows.append(original(file, articles))
                # Compare the labels of each with those of the first.
                for row in rows:
                    labels = np.array(row.pop("labels")[:2000])
                    row["agreement"] = float(np.mean(labels == np.array(rows[0].get("first", labels))))
                    rows[0].setdefault("first", labels)
                    print(f"{name} {text:>12} {row['backend']:>30} {row['texts_per_second']:14,.0f}/s", flush=True)
                rows[0].pop("first")
                result["rows"] += [{**said, **row} for row in rows]
    write(result, options.output)


if __name__ == "__main__":
    main()
