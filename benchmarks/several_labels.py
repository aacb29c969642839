"""Compare a model with several labels per text with TF-IDF and a logistic regression for each class, on the same rows.

    python -m benchmarks.several_labels --articles-csv test.csv --output benchmarks/results/several_labels.json

Every other text is an article of AG News. The others are two joined articles, with the topics of both. A model of
n-grams without word vectors trains on 400 texts, and labels 1,000 others. A seed shuffles the articles. For
scikit-learn, the result is that of the best of three regularisation strengths on the 1,000 texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier

from benchmarks.record import about, parser, write
from broadsheet.pipeline.evaluation.evaluate import evaluate_labels
from broadsheet.pipeline.train import train

LEARNED, LABELLED = 400, 1_000
STRENGTHS = (1, 10, 100)


def texts_of(articles: Path, seed: int) -> pa.Table:
    """Make the texts, with their topics."""
    table = pa_csv.read_csv(articles, read_options=pa_csv.ReadOptions(column_names=["topic", "title", "body"]))
    order = np.random.default_rng(seed).permutation(table.num_rows)
    rows = iter(table.take(pa.array(order)).to_pylist())
    texts, topics = [], []
    for number in range(LEARNED + LABELLED):
        parts = [next(rows) for _ in range(1 + number % 2)]
        texts.append(" ".join(f"{part['title']} {part['body']}".strip() for part in parts))
        topics.append(sorted({str(part["topic"]) for part in parts}))
    return pa.table({"text": texts, "topics": topics})


def run(articles: Path, seed: int) -> dict[str, Any]:
    """Train and evaluate both models on one draw."""
    table = texts_of(articles, seed)
    rows, test = table.slice(0, LEARNED), table.slice(LEARNED)
    options: dict[str, Any] = {"label_column": "topics", "device": "cpu"}
    model = train(rows, multi_label=True, vectors=None, **options).model
    counts = evaluate_labels(model, test, **options).counts
    truth, wanted = (
        [[name in names for name in model.classes] for names in t["topics"].to_pylist()] for t in (test, rows)
    )
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    found, others = words.fit_transform(rows["text"].to_pylist()), words.transform(test["text"].to_pylist())
    theirs = [OneVsRestClassifier(LogisticRegression(C=c)).fit(found, wanted).predict(others) for c in STRENGTHS]
    return {
        "seed": seed,
        "micro F1": counts.micro_f1,
        "scikit-learn, micro F1": max(f1_score(truth, given, average="micro") for given in theirs),
    }


def main() -> None:
    command = parser(__doc__, articles=True)
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="that shuffle the articles")
    options = command.parse_args()
    runs = [run(options.articles_csv, seed) for seed in options.seeds]
    write({"about": about(options), "runs": runs}, options.output)


if __name__ == "__main__":
    main()
