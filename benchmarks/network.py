"""Compare a model whose network scores all texts, some texts, and no texts, in one run.

    python -m benchmarks.network --articles-csv test.csv --output out.json

It measures end to end, from Arrow buffers in host memory to labels there, on a GPU if there is one. Two threads share
the engine, as in a job: one begins a chunk while the other waits for its labels. The texts are those of AG News, and
texts that fill the frame. The "worst case" has a margin that no text reaches, so that the network scores all texts
after the n-grams. With each rate, the record has the share of texts that the network scored, and the share of labels
that equal those of the model with its network asked about all texts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from benchmarks.articles import Articles, ag_news, of_length
from benchmarks.record import about, parser, seconds_of, write
from broadsheet.pipeline.engine.base import Predictions
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.cascade import ASKS
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model

CHUNK = {"cuda": 131_072, "cpu": 512}
LARGEST = 1e30


def measured(model: Model, articles: Articles, precision: str, repeats: int) -> dict[str, Any]:
    """Measure the rates of a model, and return them with the labels of the last pass."""
    with closing(open_engine(model, precision=precision)) as engine:
        chunks = list(articles.chunks(CHUNK[engine.backend.device]))
        parts = []
        turn = Lock()

        def label(chunk: Articles) -> Predictions:
            return engine.classify(chunk, turn=turn)

        def run() -> None:
            with ThreadPoolExecutor(2) as threads:
                parts[:] = threads.map(label, chunks)

        # Warm up, and measure.
        run()
        rates = sorted(len(articles) / seconds for seconds in seconds_of(run, repeats))
        return {
            "backend": str(engine.backend),
            "articles_per_second": rates[len(rates) // 2],
            "lowest": rates[0],
            "highest": rates[-1],
            "asked": sum(part.asked for part in parts) / len(articles),
            "labels": np.concatenate([part.labels[:, 0] for part in parts]),
        }


def main() -> None:
    """Measure each precision, text and choice of texts."""
    command = parser(__doc__, articles=True)
    command.add_argument("--articles", type=int, default=1_048_576)
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--precisions", nargs="*", default=["fp16", "int8"])
    options = command.parse_args()
    model, articles = load_model(options.model), ag_news(options.articles_csv, options.articles)
    assert model.cascade is not None, "give a model with a margin: broadsheet calibrate"
    result: dict[str, Any] = {"about": about(options), "rows": []}
    # Measure each choice of texts, and compare its labels with those of the whole model.
    worst = replace(model, cascade=type(model.cascade)(LARGEST, 1.0, 1.0, model.cascade.bias))
    for precision in options.precisions:
        for text, given in (("AG News", articles), ("1,100 characters", of_length(articles, 1100, len(articles) // 4))):
            models = {name: model.asking(name) for name in reversed(ASKS)} | {"worst case": worst}
            rows = {name: measured(asking, given, precision, options.repeats) for name, asking in models.items()}
            whole = rows["all"]["labels"]
            for name, row in rows.items():
                row["agreement"] = float((row.pop("labels") == whole).mean())
                result["rows"].append({"network": name, "text": text, "precision": precision, **row})
                print(
                    f"{precision} {text:>16} {name:>10} {row['articles_per_second']:12,.0f}/s "
                    f"({row['lowest']:,.0f} to {row['highest']:,.0f}), asked {row['asked']:.2%}, "
                    f"agree {row['agreement']:.3%}",
                    flush=True,
                )
    write(result, options.output)


if __name__ == "__main__":
    main()
