"""Measure how many wrong labels `train --suspects` finds, and how much rows that `next` chooses improve a model.

    python -m benchmarks.labels SETS --trial suspects --rows 3000 --seeds 0 1 2 3 4
    python -m benchmarks.labels SETS --trial next --rows 300 1000 --seeds 0 1 2 3 4

SETS has a folder for each data set, with train.csv and test.csv, whose columns are text and label. A seed draws the
training rows. Figures in the output file are not measured again, so you can call the command again to add more.

`suspects` gives 2 % of the rows another label, drawn at random. It counts how many of these rows are among the first
that `train --suspects` lists: as many as there are wrong labels, twice as many, and two and a half times as many. The
comparison is TF-IDF of words and pairs of words with logistic regression: cross-validation gives each row the
probability of its own label, and rows with the lowest probabilities come first.

`next` trains a model, lets `broadsheet next` choose 100 of up to 5,000 other rows, and trains again with their labels.
The comparison is a model trained with 100 more rows drawn at random. Both are evaluated on up to 6,000 test rows. Only
`--vectors` adds word vectors.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline

from benchmarks.accuracy import MOST_TESTED, Labels, read
from benchmarks.record import about, parser, write
from broadsheet.pipeline import next_rows
from broadsheet.pipeline.classifier import load
from broadsheet.pipeline.train import Trained, train

WRONG, AMONG = 0.02, (1.0, 2.0, 2.5)
POOL, CHOSEN = 5_000, 100


def fitted(texts: list[str], labels: Labels, vectors: str | None, **options: Any) -> Trained:
    """Train a model on texts. options: other options of `train`."""
    table = pa.table({"text": texts, "label": labels.tolist()})
    return train(table, label_column="label", device="cpu", vectors=vectors, **options)


def planted(labels: Labels, seed: int) -> tuple[Labels, NDArray[np.int64]]:
    """Replace 2 % of the labels by wrong ones. Returns the labels, and the indices of the wrong ones."""
    rng = np.random.default_rng(seed)
    wrong = rng.choice(len(labels), round(WRONG * len(labels)) + 1, replace=False)
    given, names = labels.copy(), np.unique(labels)
    for row in wrong:
        given[row] = rng.choice(names[names != labels[row]])
    return given, wrong


def by_scikit_learn(texts: list[str], labels: Labels) -> NDArray[np.int64]:
    """Return the rows, sorted by the cross-validated probability of their own label, lowest first."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000))
    scores = cross_val_predict(model, texts, labels, cv=5, method="predict_proba")
    return np.argsort(scores[np.arange(len(labels)), np.searchsorted(np.unique(labels), labels)], kind="stable")


def suspects(texts: list[str], labels: Labels, seed: int, vectors: str | None) -> dict[str, Any]:
    """Count the wrong labels among the first rows of each list."""
    given, wrong = planted(labels, seed)
    found = fitted(texts, given, vectors, suspects=True).suspects
    assert found is not None
    figures: dict[str, Any] = {"wrong": len(wrong), "listed": found.num_rows}
    for name, rows in (("ours", found["row"].to_numpy()), ("scikit-learn", by_scikit_learn(texts, given))):
        for times in AMONG:
            first = round(times * len(wrong))
            figures[f"{name}, first {first}"] = int(np.isin(rows[:first], wrong).sum())
    return figures


def share_right(trained: Trained, texts: list[str], truth: Labels) -> float:
    """Return the accuracy of a model in percent."""
    with load(trained.model, device="cpu") as classifier:
        return round(100 * float((np.array(classifier.predict(texts)) == truth).mean()), 2)


def chosen_rows(folder: Path, rows: int, seed: int, vectors: str | None) -> dict[str, Any]:
    """Return the accuracy before and after training with more rows: chosen by `next`, or at random."""
    texts, labels = read(folder / "train.csv")
    tested, truth = read(folder / "test.csv")
    tested, truth = tested[:MOST_TESTED], truth[:MOST_TESTED]
    order = np.random.default_rng(seed).permutation(len(labels))
    ours, pool = order[:rows], order[rows : rows + POOL]
    first = fitted([texts[i] for i in ours], labels[ours], vectors)
    chosen = next_rows(first.model, pa.table({"text": [texts[i] for i in pool]}), count=CHOSEN, device="cpu")
    figures: dict[str, Any] = {"before": share_right(first, tested, truth)}
    for name, more in (("next", pool[chosen["row"].to_numpy()]), ("random", pool[:CHOSEN])):
        both = np.concatenate([ours, more])
        figures[name] = share_right(fitted([texts[i] for i in both], labels[both], vectors), tested, truth)
    return figures


def measured(folder: Path, case: dict[str, Any], vectors: str | None) -> dict[str, Any]:
    """Measure a case: a data set, a number of rows, a seed and a trial."""
    if case["trial"] == "next":
        return case | chosen_rows(folder, case["rows"], case["seed"], vectors)
    texts, labels = read(folder / "train.csv")
    drawn = np.random.default_rng(case["seed"]).permutation(len(labels))[: case["rows"]]
    return case | suspects([texts[i] for i in drawn], labels[drawn], case["seed"], vectors)


def main() -> None:
    """Measure all cases that the output file lacks."""
    command = parser(__doc__)
    command.add_argument("sets", type=Path, help="folder with a folder for each set")
    command.add_argument("--trial", choices=("suspects", "next"), required=True)
    command.add_argument("--rows", type=int, nargs="+", default=[3000], help="labelled rows")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="that draw them")
    command.add_argument("--vectors", help="word vectors, such as wordllama")
    options = command.parse_args()
    # Read the figures of earlier calls.
    folders = sorted(path.parent for path in options.sets.glob("*/train.csv"))
    goes_on = options.output and options.output.exists()
    found: list[dict[str, Any]] = json.loads(options.output.read_text())["runs"] if goes_on else []
    there = {(run["set"], run["rows"], run["seed"]) for run in found if run["trial"] == options.trial}
    record = {"about": about(options, vectors=options.vectors or "none"), "runs": found}
    # Measure the other cases, and write the file after each one.
    for folder, rows, seed in itertools.product(folders, options.rows, options.seeds):
        if (folder.name, rows, seed) not in there:
            case = {"set": folder.name, "rows": rows, "seed": seed, "trial": options.trial}
            found.append(measured(folder, case, options.vectors))
            print(found[-1], flush=True)
            if options.output:
                write(record, options.output)
    if not options.output:
        write(record, None)


if __name__ == "__main__":
    main()
