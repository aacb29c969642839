r"""What unlabelled text is worth: one model from few labels, and from the same labels and three teachers' answers.

    python -m benchmarks.distillation --train ag_news/train.csv --test ag_news/test.csv \
        --output benchmarks/results/distillation.json

Three models, seeds 0 to 2, are trained on the first labelled rows. Their mean probabilities then label the rows of
those that are left, from which, and from the labelled ones, a single model is trained. All are evaluated once, on the
test rows, and so is the mean of the three.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from benchmarks.record import about, parser, write
from pipeline.model.alphabet import Alphabet
from pipeline.train import SoftLabels, train
from pipeline.train.recipe import WITH_SPACE, Recipe

COLUMNS = ["class", "title", "description"]
SEEDS = (0, 1, 2)


def rows_of(file: Path) -> pa.Table:
    """The articles of a CSV without a header line, shuffled, but always the same way."""
    options = pa_csv.ReadOptions(column_names=COLUMNS)
    table = pa_csv.read_csv(file, options, pa_csv.ParseOptions(newlines_in_values=True))
    return table.take(np.random.default_rng(0).permutation(len(table)))


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--train", type=Path, required=True, help="CSV: class, title, description")
    command.add_argument("--test", type=Path, required=True, help="the same, to evaluate on")
    command.add_argument("--labelled", type=int, default=12_000, help="rows whose labels are used")
    command.add_argument("--epochs", type=int, default=80)
    command.add_argument("--ngrams", type=int, help="buckets of n-grams; 0: networks alone (default: as `train`)")
    command.add_argument("--share", type=float, default=0.5, help="of what is learned of a labelled row that is soft")
    command.add_argument("--device", default="auto")
    options = command.parse_args()
    rows, test = rows_of(options.train), rows_of(options.test)
    labelled, unlabelled = rows.slice(0, options.labelled), rows.slice(options.labelled).select(COLUMNS[1:])
    common: dict[str, Any] = {
        "text_column": COLUMNS[1:],
        "label_column": COLUMNS[0],
        "recipe": Recipe(epochs=options.epochs),
        "test": test,
        "device": options.device,
        "ngrams": options.ngrams,
    }
    with tempfile.TemporaryDirectory() as folder:
        files = []
        accuracies = {}
        for seed in SEEDS:
            model = train(labelled, seed=seed, **common).model
            accuracies[f"labels alone, seed {seed}"] = model.card["test"]["accuracy"]
            files.append(Path(folder) / f"{seed}.safetensors")
            model.save(files[-1])
        ensemble = SoftLabels(models=tuple(files), device=options.device)
        taught = ensemble.read(test, tuple(COLUMNS[1:]), COLUMNS[0], Alphabet(WITH_SPACE), 1014, None, None)
        right = taught.probabilities.argmax(1) == taught.data.labels
        accuracies["the mean of the three"] = float(right.mean())
        soft = SoftLabels(models=tuple(files), unlabelled=unlabelled, share=options.share, device=options.device)
        student = train(labelled, seed=0, soft_labels=soft, **common).model
        accuracies["labels and teachers, seed 0"] = student.card["test"]["accuracy"]
    result = {
        "labelled": len(labelled),
        "unlabelled": len(unlabelled),
        "epochs": options.epochs,
        "ngrams": options.ngrams,
        "accuracies": accuracies,
    }
    write({"about": about(options), **result}, options.output)


if __name__ == "__main__":
    main()
