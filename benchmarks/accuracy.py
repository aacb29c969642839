"""Accuracy with few labelled rows, beside TF-IDF with a tuned linear model from scikit-learn on the same rows.

    python -m benchmarks.accuracy SETS --rows 500 2000 --seeds 0 1 2 --output benchmarks/results/accuracy.json

SETS has a folder for each set, with train.csv and test.csv, of columns text and label. A seed draws the training rows;
what is trained is evaluated on up to 6,000 test rows, once. Ours is what `train` gives by default on a CPU. Beside it
stand two of scikit-learn: TF-IDF of words and pairs with logistic regression, and the best by cross-validation of
words, characters, or both, with a linear SVM. All choose their strength by cross-validation. Measured runs are kept, so
that the command can be called again for more.
"""

from __future__ import annotations

import csv
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.svm import LinearSVC

from benchmarks.record import about, parser, write
from pipeline.classifier import load
from pipeline.train import train

MOST_TESTED = 6000
Labels = NDArray[np.str_]


def read(path: Path) -> tuple[list[str], Labels]:
    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    return [text for text, _ in rows], np.array([label for _, label in rows])


def ours(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    table = pa.table({"text": texts, "label": labels})
    model = train(table, text_column="text", label_column="label", device="cpu").model
    return np.array(load(model, device="cpu").predict(tested))


def words(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    made = Pipeline([("of", _words()), ("model", LogisticRegression(max_iter=300))])
    return _tuned(made, {"model__C": [1, 10, 100]}, texts, labels, tested)


def words_or_characters(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    both = FeatureUnion([("words", _words()), ("letters", letters)])
    made = Pipeline([("of", both), ("model", LinearSVC())])
    grid = {"of": [_words(), letters, both], "model__C": [0.03, 0.1, 0.3, 1, 3]}
    return _tuned(made, grid, texts, labels, tested)


def _words() -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)


def _tuned(made: Pipeline, grid: dict[str, Any], texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # of classes with fewer rows than folds
        found: Labels = GridSearchCV(made, grid, cv=3).fit(texts, labels).predict(tested)
    return found


WAYS = {"ours": ours, "words": words, "words or characters": words_or_characters}


def measure(folder: Path, rows: int, seed: int) -> dict[str, Any]:
    texts, labels = read(folder / "train.csv")
    tested, truth = read(folder / "test.csv")
    chosen = np.random.default_rng(seed).permutation(len(texts))[:rows]
    known = np.flatnonzero(np.isin(truth, labels[chosen]))[:MOST_TESTED]
    of_test = [tested[row] for row in known]
    result: dict[str, Any] = {"set": folder.name, "rows": rows, "seed": seed, "tested": len(known)}
    result["classes"] = len(np.unique(labels[chosen]))
    for name, way in WAYS.items():
        began = time.process_time()
        right = way([texts[row] for row in chosen], labels[chosen], of_test) == truth[known]
        result[name] = round(float(right.mean()) * 100, 2)
        result[f"{name}, s"] = round(time.process_time() - began, 1)
    return result


def main() -> None:
    command = parser(__doc__)
    command.add_argument("sets", type=Path, help="folder with a folder for each set")
    command.add_argument("--rows", type=int, nargs="+", default=[500, 2000, 5000, 20000], help="to train on")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="that draw them")
    command.add_argument("--only", nargs="+", help="names of sets")
    options = command.parse_args()
    kept = options.output and options.output.exists()
    runs: list[dict[str, Any]] = json.loads(options.output.read_text())["runs"] if kept else []
    there = {(run["set"], run["rows"], run["seed"]) for run in runs}
    for rows in options.rows:
        for folder in sorted(path.parent for path in options.sets.glob("*/train.csv")):
            enough = len(read(folder / "train.csv")[0]) >= rows
            for seed in options.seeds if enough and folder.name in (options.only or [folder.name]) else ():
                if (folder.name, rows, seed) not in there:
                    runs.append(measure(folder, rows, seed))
                    print(runs[-1], flush=True)
                    if options.output:
                        write({"about": about(options), "runs": runs}, options.output)
    if not options.output:
        write({"about": about(options), "runs": runs}, None)


if __name__ == "__main__":
    main()
