"""Accuracy with few labelled rows, compared with TF-IDF and a tuned linear model of scikit-learn on the same rows.

    python -m benchmarks.accuracy SETS --rows 500 2000 --seeds 0 1 2 --output benchmarks/results/accuracy.json

SETS has a folder for each data set, with train.csv and test.csv, whose columns are text and label. A seed draws the
training rows. Each trained model is evaluated once, on up to 6,000 test rows. "Ours" is the model that `train` makes by
default on a CPU. There are two models of scikit-learn: TF-IDF of words and pairs of words with logistic regression, and
a linear SVM with TF-IDF of words, characters or both, whichever is best by cross-validation. All models choose their
regularisation strength by cross-validation. Figures in the output file are not measured again, so you can call the
command again to add more.

`--trial peers` compares ours, with and without pretrained word vectors (those of the package wordllama), with these
models and with fastText (the package fasttext-community). With `--encoder FOLDER`, a sentence-transformers model, it
adds SetFit and model2vec (packages of these names, best on a GPU), and ours with the encoder as a teacher, which labels
up to 6,000 other training rows that are given without their labels.

`--trial vectors` compares word vectors: those of wordllama, and those joined with static vectors of the tokens of
`--encoder FOLDER`. It distils the static vectors first, and records the seconds that this takes.

`--trial network` compares n-grams alone, the network alone, and both; it needs a GPU. `--trial fits` lets ours and
scikit-learn use all cores, and ours a GPU, with one epoch of the network; it records wall-clock seconds.

Two trials have worse rows. `--trial noise` gives 10 % of the training rows a wrong label. `--trial imbalance` draws
only a tenth of the training rows of every other class; it records macro-F1 as well as accuracy, and also tries balanced
weights, in ours and in scikit-learn. `--trial fasttext` has `fasttext supervised` in place of scikit-learn, once with
its defaults and once with settings that cross-validation chooses.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.svm import LinearSVC

from benchmarks.record import about, parser, write
from broadsheet.pipeline.classifier import load
from broadsheet.pipeline.train import train
from broadsheet.pipeline.train.static import static_folder
from broadsheet.pipeline.train.teachers import SoftLabels

MOST_TESTED = 6000
_TAUGHT, _UNLABELLED = "ours, taught", 6000
_PAIRS, _ROWS_SEEN = 20_000, 8_000_000
NOISE, SHARE_OF_RARE = 0.1, 0.1
Labels = NDArray[np.str_]


def read(path: Path) -> tuple[list[str], Labels]:
    """Return the texts and the labels of a CSV file."""
    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    return [text for text, _ in rows], np.array([label for _, label in rows])


def ours(
    texts: list[str], labels: Labels, tested: list[str], device: str = "cpu", vectors: str | None = None, **options: Any
) -> Labels:
    """Train a model of ours, and return its labels for the rows of `tested`.

    Parameters
    ----------
    texts : list of str
        The rows to train on.
    labels : array of str
        Their labels.
    tested : list of str
        The rows to label.
    device : str
        The device that trains and labels.
    vectors : str, optional
        The word vectors that `train` uses.
    **options
        Other options of `train`.

    """
    table = pa.table({"text": texts, "label": labels})
    model = train(table, text_column="text", label_column="label", device=device, vectors=vectors, **options).model
    return np.array(load(model, device=device).predict(tested))


def with_network(texts: list[str], labels: Labels, tested: list[str], ngrams: int | None = None) -> Labels:
    """Return the labels by the network, trained on a GPU for 80 epochs, the default.

    With more than 100,000 rows it trains for fewer epochs, so that it sees 8 million rows in all.
    """
    epochs = f"epochs={max(1, min(80, _ROWS_SEEN // len(texts)))}"
    return ours(texts, labels, tested, "cuda", settings=(epochs,), ngrams=ngrams, keep_network=True)


def words(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    """Return the labels by logistic regression with TF-IDF of words and pairs of words."""
    made = Pipeline([("of", _words()), ("model", LogisticRegression(max_iter=300))])
    return _tuned(made, {"model__C": [1, 10, 100]}, texts, labels, tested)


def words_or_characters(
    texts: list[str], labels: Labels, tested: list[str], balanced: bool = False, jobs: int = 1
) -> Labels:
    """Return the labels by a linear SVM on words, on characters or on both, whichever is best by cross-validation.

    Parameters
    ----------
    texts, labels, tested
        As in `ours`.
    balanced : bool
        Whether to weight classes by their numbers of rows, and to choose by macro-F1.
    jobs : int
        How many processes search.

    """
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    both = FeatureUnion([("words", _words()), ("letters", letters)])
    made = Pipeline([("of", both), ("model", LinearSVC(class_weight="balanced" if balanced else None))])
    grid = {"of": [_words(), letters, both], "model__C": [0.03, 0.1, 0.3, 1, 3]}
    return _tuned(made, grid, texts, labels, tested, "f1_macro" if balanced else "accuracy", jobs)


def _words() -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)


def _tuned(
    made: Pipeline,
    grid: dict[str, Any],
    texts: list[str],
    labels: Labels,
    tested: list[str],
    by: str = "accuracy",
    jobs: int = 1,
) -> Labels:
    """Return the labels by the model of a grid that is best by cross-validation on three folds.

    Parameters
    ----------
    made : Pipeline
        The model.
    grid : dict of str to list
        The values to try for each of its parameters.
    texts, labels, tested
        As in `ours`.
    by : str
        The score by which the best model is chosen.
    jobs : int
        How many processes search.

    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # about classes with fewer rows than folds
        predicted: Labels = GridSearchCV(made, grid, cv=3, scoring=by, n_jobs=jobs).fit(texts, labels).predict(tested)
    return predicted


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _with_marks_apart(text: str) -> str:
    return " ".join(re.findall(r"\w+|[^\w\s]", text.lower()))


class FastText:
    """`fasttext supervised`, on lower-cased text.

    Parameters
    ----------
    lr : float
        The learning rate.
    epoch : int
        Passes over the rows.
    words : int
        The number of words of the longest n-gram.
    subwords : bool
        Whether to use subwords of 3 to 5 characters.
    buckets : int
        The number of buckets to which n-grams are hashed.
    line : callable
        Turns a text into the line that fastText reads.

    """

    def __init__(
        self, lr: float = 0.1, epoch: int = 5, words: int = 1, subwords: bool = False, buckets: int = 50_000,
        line: Callable[[str], str] = _plain,
    ) -> None:  # fmt: skip
        self.settings, self.line = {"lr": lr, "epoch": epoch, "wordNgrams": words, "bucket": buckets}, line
        self.settings |= {"minn": 3 * subwords, "maxn": 5 * subwords, "thread": 1, "seed": 0, "verbose": 0}

    def fit(self, texts: list[str], labels: Labels) -> None:
        import fasttext

        self._names, numbers = np.unique(labels, return_inverse=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.writelines(f"__label__{i} {self.line(text)}\n" for i, text in zip(numbers, texts, strict=True))
            file.flush()
            self._model = fasttext.train_supervised(file.name, **self.settings)

    def predict(self, texts: list[str]) -> Labels:
        numbers = self._model.predict([self.line(text) for text in texts])[0]
        return self._names[[int(label[0].removeprefix("__label__")) for label in numbers]]


def fasttext_as_it_is(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    """Return the labels by fastText with its defaults."""
    made = FastText()
    made.fit(texts, labels)
    return made.predict(tested)


def fasttext_tuned(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    """Return the labels by fastText with the settings that are best by cross-validation on three folds."""
    grid = {"lr": [0.3, 1.0], "epoch": [50], "words": [1, 2], "subwords": [False, True]}
    grids = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(texts, labels))

    def score(settings: dict[str, Any]) -> float:
        right = 0.0
        for fit, rest in folds:
            made = FastText(**settings)
            made.fit([texts[i] for i in fit], labels[fit])
            right += float((made.predict([texts[i] for i in rest]) == labels[rest]).mean())
        return right

    made = FastText(**max(grids, key=score))
    made.fit(texts, labels)
    return made.predict(tested)


def fasttext_for_few(texts: list[str], labels: Labels, tested: list[str]) -> Labels:
    """Return the labels by fastText with words and pairs of words, and with the 50 epochs that few rows need."""
    made = FastText(0.5, 50, 2, buckets=200_000, line=_with_marks_apart)
    made.fit(texts, labels)
    return made.predict(tested)


def setfit(texts: list[str], labels: Labels, tested: list[str], encoder: str) -> Labels:
    """Return the labels by SetFit: the encoder, fine-tuned on up to 20,000 pairs of rows.

    SetFit's authors draw as many pairs from 500 rows.
    """
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    names, numbers = np.unique(labels, return_inverse=True)
    model = SetFitModel.from_pretrained(encoder)
    rounds = max(1, min(20, _PAIRS // (2 * len(texts))))
    arguments = TrainingArguments(batch_size=16, num_epochs=1, num_iterations=rounds, seed=0, report_to="none")
    Trainer(model, arguments, train_dataset=Dataset.from_dict({"text": texts, "label": numbers.tolist()})).train()
    return names[np.asarray(model.predict(tested), np.int64)]


def model2vec(texts: list[str], labels: Labels, tested: list[str], encoder: str) -> Labels:
    """Return the labels by the classifier of Model2Vec, on static vectors that Model2Vec distils from the encoder."""
    from model2vec.train import StaticModelForClassification

    model = StaticModelForClassification.from_static_model(model=_static(encoder))
    return np.asarray(model.fit(texts, labels.tolist()).predict(tested))


def distilled(encoder: str, cache: str) -> float:
    """Distil the static vectors of an encoder's tokens into a cache folder, and return the processor seconds."""
    os.environ["BROADSHEET_CACHE_DIR"] = cache
    began = time.process_time()
    static_folder(Path(encoder), "cpu", lambda folder: None, lambda finished, count: None)
    return round(time.process_time() - began, 1)


def taught(texts: list[str], labels: Labels, tested: list[str], encoder: str, unlabelled: list[str]) -> Labels:
    """Return the labels by a model of ours, with an encoder as its teacher, which also labels unlabelled rows.

    Parameters
    ----------
    texts, labels, tested
        As in `ours`.
    encoder : str
        The sentence encoder.
    unlabelled : list of str
        Texts without a label.

    """
    text = pa.table({"text": unlabelled})
    return ours(texts, labels, tested, soft_labels=SoftLabels(models=(encoder,), unlabelled=text))


@cache
def _static(encoder: str) -> Any:
    from model2vec.distill import distill

    return distill(encoder, device="cpu")


PEERS = {"ours, vectors": partial(ours, vectors="wordllama"), "fastText": fasttext_for_few}
WITH_ENCODER = "ours, vectors of an encoder too"
WAYS = {"ours": ours, "words": words, "words or characters": words_or_characters}
BALANCED = {
    "ours, balanced": partial(ours, balanced=True),
    "words or characters, balanced": partial(words_or_characters, balanced=True),
}
OF_FASTTEXT = {"ours": ours, "fastText": fasttext_as_it_is, "fastText, tuned": fasttext_tuned}
OF_ENCODER: dict[str, Callable[..., Labels]] = {_TAUGHT: taught, "SetFit": setfit, "model2vec": model2vec}
TRIALS: dict[str, dict[str, Callable[..., Labels]]] = {"": WAYS, "peers": WAYS | PEERS, "fasttext": OF_FASTTEXT}
OF_NETWORK = {"n-grams": ours, "network": partial(with_network, ngrams=0), "both": with_network}
ALL_CORES = {
    "ours": ours,
    "ours, GPU": partial(ours, device="cuda", settings=("epochs=1",)),
    "words or characters": partial(words_or_characters, jobs=-1),
}
TRIALS |= {"vectors": {"ours, vectors": partial(ours, vectors="wordllama")}}
TRIALS |= {"network": OF_NETWORK, "fits": ALL_CORES, "noise": WAYS, "imbalance": WAYS | BALANCED}


def drawn(labels: Labels, rows: int, seed: int, trial: str) -> tuple[NDArray[np.int64], Labels]:
    """Draw the rows to train on.

    Returns their indices and their labels. Some labels are wrong in the trial "noise".
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    if trial == "imbalance":
        rare = np.isin(labels, np.unique(labels)[1::2])
        order = order[~rare[order] | (rng.random(len(order)) < SHARE_OF_RARE)]
    chosen = order[:rows]
    given = labels[chosen].copy()
    if trial == "noise":
        for row in np.flatnonzero(rng.random(len(given)) < NOISE):
            given[row] = rng.choice(np.setdiff1d(labels[chosen], given[row]))
    return chosen, given


def measure(folder: Path, run: dict[str, Any], ways: list[str]) -> None:
    """Train and evaluate some of the models of `TRIALS`, and add their figures to a run."""
    # Draw the training rows, and choose test rows whose class is among theirs.
    texts, labels = read(folder / "train.csv")
    tested, truth = read(folder / "test.csv")
    chosen, given = drawn(labels, run["rows"], run["seed"], run["trial"])
    known = np.flatnonzero(np.isin(truth, labels[chosen]))[:MOST_TESTED]
    of_test = [tested[row] for row in known]
    run |= {"tested": len(known), "classes": len(np.unique(labels[chosen]))}
    # Train each model, and evaluate it.
    rest = np.setdiff1d(np.arange(len(texts)), chosen)[:_UNLABELLED]
    for name in ways:
        more = {"unlabelled": [texts[row] for row in rest]} if name == _TAUGHT else {}
        clock = time.perf_counter if run["trial"] == "fits" else time.process_time
        began = clock()
        predicted = TRIALS[run["trial"]][name]([texts[row] for row in chosen], given, of_test, **more)
        run[name] = round(float((predicted == truth[known]).mean()) * 100, 2)
        run[f"{name}, s"] = round(clock() - began, 1)
        if run["trial"] == "imbalance":
            run[f"{name}, F1"] = round(float(f1_score(truth[known], predicted, average="macro")) * 100, 2)


def main() -> None:
    """Measure each set, number of rows and seed, except the figures that the output file already has."""
    command = parser(__doc__)
    command.add_argument("sets", type=Path, help="folder with a folder for each set")
    command.add_argument("--rows", type=int, nargs="+", default=[500, 2000, 5000, 20000], help="to train on")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="that draw them")
    command.add_argument("--trial", choices=list(TRIALS), default="")
    command.add_argument("--encoder", help="folder of a sentence-transformers model, for more peers")
    options = command.parse_args()
    # Read the figures of earlier calls.
    goes_on = options.output and options.output.exists()
    runs: list[dict[str, Any]] = json.loads(options.output.read_text())["runs"] if goes_on else []
    there = {(run["set"], run["rows"], run["seed"], run["trial"]): run for run in runs}
    with ExitStack() as stack:
        # Add the models that need the encoder.
        more: dict[str, Any] = {}
        if options.encoder:
            TRIALS["peers"] |= {name: partial(way, encoder=options.encoder) for name, way in OF_ENCODER.items()}
            TRIALS["vectors"] |= {WITH_ENCODER: partial(ours, vectors=f"wordllama,{options.encoder}")}
        if options.encoder and options.trial == "vectors":
            more["distilling, s"] = distilled(options.encoder, stack.enter_context(tempfile.TemporaryDirectory()))
        # Measure what is missing, and write the file after each run.
        record = {"about": about(options, **more), "runs": runs}
        folders = sorted(path.parent for path in options.sets.glob("*/train.csv"))
        for rows, seed, folder in itertools.product(options.rows, options.seeds, folders):
            case = {"set": folder.name, "rows": rows, "seed": seed, "trial": options.trial}
            run = there.get(tuple(case.values()), case)
            ways = [way for way in TRIALS[options.trial] if way not in run]
            if ways and len(read(folder / "train.csv")[0]) >= rows:
                measure(folder, run, ways)
                runs += [run] if run is case else []
                print(run, flush=True)
                if options.output:
                    write(record, options.output)
    if not options.output:
        write(record, None)


if __name__ == "__main__":
    main()
