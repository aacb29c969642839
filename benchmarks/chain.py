"""A chain of n-grams and a fine-tuned encoder beside the encoder alone: labels that stay the same, and rates.

    python -m benchmarks.chain SETS/ag_news --encoder all-MiniLM-L6-v2 --output benchmarks/results/chain.json

The encoder is fine-tuned on half of the training rows. The texts of the other half, without their labels, teach the
n-grams, and say where the encoder has to be asked. The test rows say how many labels of the chain are the encoder's. An
engine computes the test texts, repeated, from bytes in host memory; each rate is the median of five turns that
alternate. For other shares of the test rows, the record also says how many labels would be the encoder's if the chain
asked about this share: the rows for which the n-grams' two highest scores are closest.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.accuracy import Labels, read
from benchmarks.record import RESULTS, about, parser, write
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.train import train
from broadsheet.pipeline.train.teachers import SoftLabels

TURNS = 5
REPEATED = 10
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def trained(texts: list[str], labels: Labels, encoder: str, device: str, seed: int) -> tuple[Model, Model]:
    """Return the encoder, fine-tuned on half of the rows, and the chain from the texts of the other half.

    Parameters
    ----------
    texts, labels
        The rows.
    encoder : str
        A folder of sentence-transformers.
    device : str
        "cpu" or "cuda".
    seed : int
        The seed of the halves and of all that learns.

    """
    order = np.random.default_rng(seed).permutation(len(texts))
    first, second = (np.sort(half) for half in np.array_split(order, 2))
    rows = pa.table({"text": [texts[row] for row in first], "label": labels[first]})
    fine_tuned = {"encoder": encoder, "fine_tune": True, "device": device, "seed": seed}
    teacher = train(rows, text_column="text", label_column="label", **fine_tuned).model
    unlabelled = pa.table({"text": [texts[row] for row in second]})
    taught = SoftLabels(models=(teacher,), device=device)
    chain = train(unlabelled, text_column="text", soft_labels=taught, keep_teacher=True, device="cpu", seed=seed).model
    return teacher, chain


def labels_kept(chain: Model, texts: Texts, labels: Any, device: str) -> dict[str, float]:
    """Return the share of labels that are the encoder's, for each of SHARES of texts that the encoder is asked about.

    Parameters
    ----------
    chain : Model
        The chain. Its n-grams alone label the other texts.
    texts : Texts
        The test texts.
    labels : array of str
        The encoder's labels.
    device : str
        "cpu" or "cuda".

    """
    alone = chain.asking("none")
    with closing(open_engine(alone, device)) as engine:
        found = engine.classify(texts, all_scores=True)
    highest = np.sort(found.all_scores, axis=1)
    closest_first = np.argsort(highest[:, -1] - highest[:, -2], kind="stable")
    is_same = (np.array(chain.classes)[found.labels[:, 0]] == labels)[closest_first]
    return {f"{share}": float(1 - (~is_same[round(share * len(texts)) :]).sum() / len(texts)) for share in SHARES}


def compared(teacher: Model, chain: Model, texts: list[str], truth: Labels, device: str) -> dict[str, Any]:
    """Return labels and rates of both.

    Parameters
    ----------
    teacher, chain : Model
        The encoder, and the chain that asks it.
    texts, truth
        The test rows.
    device : str
        "cpu" or "cuda".

    """
    once = Texts.of([text.encode() for text in texts])
    many = Texts.of([text.encode() for text in texts] * (REPEATED if device == "cuda" else 1))
    names = np.array(teacher.classes)
    with closing(open_engine(teacher, device)) as encoder, closing(open_engine(chain, device)) as both:
        own, found = encoder.classify(once), both.classify(once)
        seconds: dict[str, list[float]] = {"encoder": [], "chain": []}
        for _ in range(TURNS):
            for name, engine in (("encoder", encoder), ("chain", both)):
                began = time.perf_counter()
                engine.classify(many)
                seconds[name].append(time.perf_counter() - began)
    labels_of_encoder = names[own.labels[:, 0]]
    labels_of_chain = np.array(chain.classes)[found.labels[:, 0]]
    rates = {f"{name}_texts_a_second": len(many) / median(turns) for name, turns in seconds.items()}
    return {
        "encoder_accuracy": float((labels_of_encoder == truth).mean()),
        "chain_accuracy": float((labels_of_chain == truth).mean()),
        "same_labels": float((labels_of_encoder == labels_of_chain).mean()),
        "asked": found.asked / len(once),
        "same_labels_by_share_asked": labels_kept(chain, once, labels_of_encoder, device),
        "tested": len(once),
        **rates,
    }


def main() -> None:
    command = parser(__doc__, RESULTS / "chain.json")
    command.add_argument("folder", type=Path, help="folder with train.csv and test.csv")
    command.add_argument("--encoder", required=True, help="folder of a sentence-transformers model")
    command.add_argument("--seeds", type=int, nargs="+", default=[0])
    command.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options = command.parse_args()
    texts, labels = read(options.folder / "train.csv")
    tested, truth = read(options.folder / "test.csv")
    result: dict[str, Any] = {"about": about(options), "set": options.folder.name, "rows": len(texts), "runs": []}
    for seed in options.seeds:
        models = trained(texts, labels, options.encoder, options.device, seed)
        result["runs"].append({"seed": seed, **compared(*models, tested, truth, options.device)})
        write(result, options.output)
        print(result["runs"][-1], flush=True)


if __name__ == "__main__":
    main()
