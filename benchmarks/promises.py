"""Check the promise of `--precision-target`: fit thresholds on some labelled rows, and measure them on 20,000 others.

    python -m benchmarks.promises --articles-csv train.csv --output benchmarks/results/promises.json

A model of n-grams trains on 3,000 rows of AG News, and labels all other rows once. Each draw takes some of them as the
labelled rows on which a threshold is fitted, and 20,000 others to measure its precision. The comparison is the
threshold that has the wanted precision on the labelled rows themselves, without a confidence bound.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from benchmarks.record import about, parser, write
from broadsheet.pipeline import classify
from broadsheet.pipeline.measures.thresholds import threshold
from broadsheet.pipeline.train import train

_LEARNED, _OTHERS = 3_000, 20_000
_LABELLED = (300, 1_000, 5_000)
_TARGETS = (0.9, 0.95)


def scored(articles: Path, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Train the model. Returns the scores of all rows outside its training, and whether their labels are right."""
    table = pa_csv.read_csv(articles, read_options=pa_csv.ReadOptions(column_names=["topic", "title", "body"]))
    table = table.take(np.random.default_rng(0).permutation(len(table)))
    pa_csv.write_csv(table.slice(0, _LEARNED), folder / "learned.csv")
    pa_csv.write_csv(table.slice(_LEARNED), folder / "others.csv")
    columns: Any = {"text_column": ["title", "body"], "label_column": "topic"}
    model = train(folder / "learned.csv", **columns, device="cpu").model
    labels = pa.table(classify(folder / "others.csv", model=model, device="cpu", **columns).to_pandas())
    return labels["score"].to_numpy(), np.equal(labels["label"], labels["truth"])


def without_bound(scores: NDArray[np.float32], right: NDArray[np.bool_], target: float) -> float:
    """Return the lowest score above which these labels have the precision, or nan if there is none."""
    order = np.argsort(-scores, kind="stable")
    good = np.flatnonzero(np.cumsum(right[order]) >= target * np.arange(1, len(order) + 1))
    return float(scores[order[good[-1]]]) if len(good) else float("nan")


def main() -> None:
    """Draw rows for each target and number of labelled rows, and measure both thresholds."""
    command = parser(__doc__, articles=True)
    command.add_argument("--draws", type=int, default=200)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scores, right = scored(options.articles_csv, Path(name))
    # Fit and measure both thresholds in each draw.
    rng, runs = np.random.default_rng(1), []
    for target in _TARGETS:
        for count in _LABELLED:
            made: dict[str, list[tuple[float, float]]] = {"bound": [], "without": []}
            for _ in range(options.draws):
                drawn = rng.permutation(len(scores))
                labelled, others = drawn[:count], drawn[count : count + _OTHERS]
                found = threshold(scores[labelled], right[labelled], target).score
                alone = without_bound(scores[labelled], right[labelled], target)
                for way, least in (("bound", found), ("without", alone)):
                    is_above = scores[others] >= least
                    if is_above.any():
                        made[way].append((float(right[others][is_above].mean()), float(is_above.mean())))
            runs.append(
                {"target": target, "rows": count, **{way: _figures(shares, target) for way, shares in made.items()}}
            )
    draws = {"draws": options.draws, "learned": _LEARNED, "others": _OTHERS, "accuracy": float(right.mean())}
    write({"about": about(options), **draws, "runs": runs}, options.output)


def _figures(made: list[tuple[float, float]], target: float) -> dict[str, Any]:
    """Return how many thresholds were found, how many of them have the precision, and the share of rows above them."""
    precise = sum(precision >= target for precision, _ in made)
    coverage = float(np.mean([share for _, share in made])) if made else None
    return {"found": len(made), "kept": precise, "coverage": coverage}


if __name__ == "__main__":
    main()
