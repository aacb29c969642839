"""Cross-validate a classifier on labelled articles with scikit-learn. Without a GPU it has n-grams only.

python examples/sklearn_scores.py examples/articles.csv
"""

import csv
import sys

from sklearn.model_selection import cross_val_score

from broadsheet.sklearn import TextClassifier


def main(source: str, **settings: object) -> list[float]:
    """Return the accuracy of each of two folds. settings: parameters of the classifier."""
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classifier = TextClassifier(random_state=0, **settings)
    texts = [f"{row['title']} {row['text']}" for row in rows]
    return cross_val_score(classifier, texts, [row["category"] for row in rows], cv=2).tolist()


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
