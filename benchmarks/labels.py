"""How many wrong labels are found, and what labels of chosen rows are worth, with few labelled rows.

    python -m benchmarks.labels SETS --trial suspects --rows 3000 --seeds 0 1 2 3 4
    python -m benchmarks.labels SETS --trial next --rows 300 1000 --seeds 0 1 2 3 4

SETS has a folder for each set, with train.csv and test.csv, of columns text and label. A seed draws the training rows.
Measured figures are kept, so that you can call the command again for more.

`suspects` gives 2 % of the rows another label, drawn at random, and counts how many of these rows are among the first
that `train --suspects` lists: as many as have a wrong label, twice and two and a half times as many. Beside it stands
TF-IDF of words and pairs with logistic regression, cross-validated, whose rows are sorted by the probability of their
own label.

`next` trains, has 100 of up to 5,000 other rows chosen by `next`, and trains again with their labels; beside it with
100 rows drawn at random. Both are evaluated on up to 6,000 test rows. There are no word vectors but with `--vectors`.
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
    table = pa.table({"text": texts, "label": labels.tolist()})
    return train(table, label_column="label", device="cpu", vectors=vectors, **options)


def planted(labels: Labels, seed: int) -> tuple[Labels, NDArray[np.int64]]:
    """The labels with some wrong ones, and the numbers of these."""
    rng = np.random.default_rng(seed)
    wrong = rng.choice(len(labels), round(WRONG * len(labels)) + 1, replace=False)
    given, names = labels.copy(), np.unique(labels)
    for row in wrong:
        given[row] = rng.choice(names[names != labels[row]])
    return given, wrong


def by_scikit_learn(texts: list[str], labels: Labels) -> NDArray[np.int64]:
    """The rows, those first whose own label is the least probable."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000))
    scores = cross_val_predict(model, texts, labels, cv=5, method="predict_proba")
    return np.argsort(scores[np.arange(len(labels)), np.searchsorted(np.unique(labels), labels)], kind="stable")


def suspects(texts: list[str], labels: Labels, seed: int, vectors: str | None) -> dict[str, Any]:
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
    with load(trained.model, device="cpu") as classifier:
        return round(100 * float((np.array(classifier.predict(texts)) == truth).mean()), 2)


def chosen_rows(folder: Path, rows: int, seed: int, vectors: str | None) -> dict[str, Any]:
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
    """The figures of a set, a number of rows, a seed and a trial."""
    if case["trial"] == "next":
        return case | chosen_rows(folder, case["rows"], case["seed"], vectors)
    texts, labels = read(folder / "train.csv")
    drawn = np.random.default_rng(case["seed"]).permutation(len(labels))[: case["rows"]]
    return case | suspects([texts[i] for i in drawn], labels[drawn], case["seed"], vectors)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("sets", type=Path, help="folder with a folder for each set")
    command.add_argument("--trial", choices=("suspects", "next"), required=True)
    command.add_argument("--rows", type=int, nargs="+", default=[3000], help="labelled rows")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="that draw them")
    command.add_argument("--vectors", help="word vectors, such as wordllama")
    options = command.parse_args()
    folders = sorted(path.parent for path in options.sets.glob("*/train.csv"))
    goes_on = options.output and options.output.exists()
    found: list[dict[str, Any]] = json.loads(options.output.read_text())["runs"] if goes_on else []
    there = {(run["set"], run["rows"], run["seed"]) for run in found if run["trial"] == options.trial}
    record = {"about": about(options, vectors=options.vectors or "none"), "runs": found}
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
