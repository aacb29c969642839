"""Measure the shipped model on the test rows of AG News, with its network asked about all texts, some, and none.

    python -m benchmarks.shipped --articles-csv test.csv --train-csv train.csv \
        --output benchmarks/results/shipped.json

The record has:

- what `broadsheet evaluate` prints
- for several shares of rows, those that the n-grams are least sure about, which the network scores: the accuracy, and
  the share of labels that equal those of the whole model
- the calibration error of the network alone, without a temperature, and with the one that fits the held-out rows best
- the accuracy of scikit-learn's TF-IDF of words and pairs of words with a linear SVM, trained on all training rows
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from benchmarks.record import about, parser, write
from broadsheet.pipeline import evaluate
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.evaluation.rows import hold_out, numbered
from broadsheet.pipeline.measures.reliability import reliability
from broadsheet.pipeline.model.cascade import margins
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.scores import fitted, log_scores, probabilities

_COLUMNS = ("topic", "title", "body")
_SHARES = (0.05, 0.1, 0.25)
_PRECISION = 0.95
_HELD_OUT = 0.02  # share of the training rows


def texts_and_classes(path: Path) -> tuple[list[bytes], NDArray[np.int64]]:
    """Read the articles of a file, and the number of the class of each, from 0."""
    table = pa_csv.read_csv(path, read_options=pa_csv.ReadOptions(column_names=_COLUMNS))
    pairs = zip(table["title"].to_pylist(), table["body"].to_pylist(), strict=True)
    texts = [f"{title} {body}".strip().encode() for title, body in pairs]
    return texts, table["topic"].to_numpy() - 1


def scores_of(model: Model, texts: list[bytes]) -> NDArray[np.float64]:
    """Return the scores of all classes, [N, classes]."""
    with closing(open_engine(model, device="cpu")) as engine:
        found = engine.classify(Texts.of(texts), all_scores=True).all_scores
    assert found is not None
    return found.astype(np.float64)


def network_alone(model: Model, texts: list[bytes], truth: NDArray[np.int64], train_csv: Path) -> dict[str, float]:
    """Measure the accuracy and the calibration error of the network, as it was before the model got n-grams."""
    # Fit the temperature to the rows that its training held out.
    known, classes = texts_and_classes(train_csv)
    held = hold_out(classes, _HELD_OUT, numbered(pa.array(known)))[1]
    alone = replace(model, ngrams=None, cascade=None, temperature=1.0)
    factor = model.card["ngrams"]["network's factor"]
    of_held = [known[row] for row in held]
    logits, to_fit = (log_scores(scores_of(alone, some)) / factor for some in (texts, of_held))
    temperature = fitted(to_fit, classes[held]) or 1.0
    # Measure on the test rows.
    found = {"accuracy": float((logits.argmax(axis=1) == truth).mean()), "temperature": temperature}
    for name, divisor in (("calibration_error_before", 1.0), ("calibration_error", temperature)):
        scores = probabilities(logits, divisor)
        found[name] = reliability(scores.max(axis=1), scores.argmax(axis=1) == truth).expected_error
    return found


def by_scikit_learn(texts: list[bytes], truth: NDArray[np.int64], train_csv: Path) -> float:
    """Return the accuracy of TF-IDF of words and pairs of words with a linear SVM."""
    known, classes = texts_and_classes(train_csv)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC(C=0.3))
    return float((model.fit(known, classes).predict(texts) == truth).mean())


def main() -> None:
    """Measure the model, its network alone, and scikit-learn's."""
    command = parser(__doc__, articles=True)
    command.add_argument("--train-csv", type=Path, required=True, help="the rows that it was trained on")
    options = command.parse_args()
    # Evaluate the model.
    columns: Any = {"columns": _COLUMNS, "text_column": _COLUMNS[1:], "label_column": _COLUMNS[0]}
    measured = {
        network: evaluate(
            options.model, options.articles_csv, network=network, precision_target=_PRECISION, mistakes=0, device="cpu",
            **columns,
        ).to_dict()
        for network in ("uncertain", "all", "none")
    }  # fmt: skip
    # Ask the network about several shares of the rows.
    texts, truth = texts_and_classes(options.articles_csv)
    model = load_model(options.model)
    alone, whole = (scores_of(model.asking(network), texts) for network in ("none", "all"))
    of_both = alone.argmax(axis=1), whole.argmax(axis=1)
    least_sure = np.argsort(margins(log_scores(alone, model.asking("none").temperature).astype(np.float32), None))
    shares = []
    for share in _SHARES:
        needs_network = np.zeros(len(truth), np.bool_)
        needs_network[least_sure[: round(share * len(truth))]] = True
        labels = np.where(needs_network, of_both[1], of_both[0])
        figures = {"accuracy": float((labels == truth).mean()), "agreement": float((labels == of_both[1]).mean())}
        shares.append({"share": share, **figures})
    recorded = ("rows", "accuracy", "accuracy_interval", "calibration_error", "calibration_error_before", "thresholds")
    runs = {network: {name: found[name] for name in recorded} for network, found in measured.items()}
    # Measure the network alone, and scikit-learn's model.
    networks = measured["uncertain"]["networks"]
    others = {
        "network_alone": network_alone(model, texts, truth, options.train_csv),
        "scikit_learn": by_scikit_learn(texts, truth, options.train_csv),
    }
    write({"about": about(options), "networks": networks, "shares": shares, **runs, **others}, options.output)


if __name__ == "__main__":
    main()
