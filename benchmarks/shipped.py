"""How good the shipped model is on AG News's test rows, with its network asked about all texts, some and none.

    python -m benchmarks.shipped --articles-csv test.csv --output benchmarks/results/shipped.json

Recorded is what `broadsheet evaluate` prints; and of a network that is asked about a share of the rows, those of whose
label n-grams are least sure, how many labels are right, and how many are those of the whole model.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from benchmarks.record import about, parser, write
from broadsheet.pipeline import evaluate
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.cascade import margins
from broadsheet.pipeline.model.charcnn import Model, load_model
from broadsheet.pipeline.model.scores import log_scores

_COLUMNS = ("topic", "title", "body")
_SHARES = (0.05, 0.1, 0.25)
_PRECISION = 0.95


def texts_and_classes(path: Path) -> tuple[Texts, NDArray[np.int64]]:
    """The articles of a file, and the number of the class of each, from 0."""
    table = pa_csv.read_csv(path, read_options=pa_csv.ReadOptions(column_names=_COLUMNS))
    pairs = zip(table["title"].to_pylist(), table["body"].to_pylist(), strict=True)
    texts = [f"{title} {body}".strip().encode() for title, body in pairs]
    return Texts.of(texts), table["topic"].to_numpy() - 1


def scores_of(model: Model, texts: Texts) -> NDArray[np.float64]:
    """The scores of all classes, [N, classes]."""
    with closing(open_engine(model, device="cpu")) as engine:
        found = engine.classify(texts, all_scores=True).all_scores
    assert found is not None
    return found.astype(np.float64)


def main() -> None:
    options = parser(__doc__, articles=True).parse_args()
    columns: Any = {"columns": _COLUMNS, "text_column": _COLUMNS[1:], "label_column": _COLUMNS[0]}
    measured = {
        network: evaluate(
            options.model, options.articles_csv, network=network, precision_target=_PRECISION, mistakes=0, device="cpu",
            **columns,
        ).to_dict()
        for network in ("uncertain", "all", "none")
    }  # fmt: skip
    texts, truth = texts_and_classes(options.articles_csv)
    model = load_model(options.model)
    alone, whole = (scores_of(model.asking(network), texts) for network in ("none", "all"))
    of_both = alone.argmax(axis=1), whole.argmax(axis=1)
    least_sure = np.argsort(margins(log_scores(alone, model.asking("none").temperature).astype(np.float32), None))
    shares = []
    for share in _SHARES:
        asked = np.zeros(len(truth), np.bool_)
        asked[least_sure[: round(share * len(truth))]] = True
        labels = np.where(asked, of_both[1], of_both[0])
        figures = {"accuracy": float((labels == truth).mean()), "agreement": float((labels == of_both[1]).mean())}
        shares.append({"share": share, **figures})
    kept = ("rows", "accuracy", "accuracy_interval", "calibration_error", "calibration_error_before", "thresholds")
    runs = {network: {name: found[name] for name in kept} for network, found in measured.items()}
    networks = measured["uncertain"]["networks"]
    write({"about": about(options), "networks": networks, "shares": shares, **runs}, options.output)


if __name__ == "__main__":
    main()
