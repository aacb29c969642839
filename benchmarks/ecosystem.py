"""Rates of layers for other tools beside those that they stand on: lazy Dask and `classify`, text on a GPU and on the
host.

python -m benchmarks.ecosystem [--rows 4000000] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd

import pipeline
from cluster import connect
from pipeline.engine.base import Texts

WORDS = "oil stocks rose fell after the central bank raised rates while the team won its final match on monday"
PARTITION = 131_072


def articles(rows: int) -> list[str]:
    """Texts of about 240 characters, as AG News has them."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(25, 65, rows)
    words = rng.choice(WORDS.split(), int(lengths.sum()))
    ends = np.cumsum(lengths)
    return [" ".join(words[end - n : end]) for n, end in zip(lengths, ends, strict=True)]


def rate(rows: int, work: Callable[[], object]) -> float:
    """Rows a second, the best of three."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(rows / min(seconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    given = parser.parse_args()
    texts = articles(given.rows)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, connect("cuda" if given.device == "cuda" else "local") as client:
        source, label = Path(folder) / "in", {"text_column": "text", "device": given.device}
        frame = pd.DataFrame({"text": texts})
        dd.from_pandas(frame, npartitions=-(-given.rows // PARTITION)).to_parquet(source)
        read = dd.read_parquet(source)
        pipeline.classify(read.partitions[0], Path(folder) / "warm", client=client, **label)
        pipeline.label(read.partitions[0], **label).to_parquet(Path(folder) / "warm-lazy")
        found["classify, Dask DataFrame to Parquet"] = rate(
            given.rows,
            lambda: pipeline.classify(read, Path(folder) / "jobs", client=client, overwrite=True, **label),
        )
        columns = ["label", "score", "n_chars", "truncated", "unknown_chars"]
        found["lazy label, Dask DataFrame to Parquet"] = rate(
            given.rows, lambda: pipeline.label(read, **label)[columns].to_parquet(Path(folder) / "lazy")
        )
    with pipeline.load("ag-news", device=given.device) as classifier:
        held = Texts.of([text.encode() for text in texts])
        found["classifier, text on the host"] = rate(given.rows, lambda: classifier.predict_proba(held))
        if given.device == "cuda":
            import cupy

            there = Texts(cupy.asarray(held.data), held.offsets)
            found["classifier, text on the GPU"] = rate(given.rows, lambda: classifier.predict_proba(there))
    print(json.dumps({"rows": given.rows, "rows a second": found}, indent=1))


if __name__ == "__main__":
    main()
