"""Training for tests: rows of three topics, and a run that takes a few seconds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from broadsheet.pipeline.train import Recipe, train

torch = pytest.importorskip("torch")

STILL = {"dropped_words": 0.0, "random_characters": 0.0, "erased_spans": 0, "shift": 0, "cut": 0}
QUICK = Recipe(epochs=4, batch_size=32, learning_rate=2e-3, dropout=0.0, input_dropout=0.0, warmup=0.2, **STILL)
TOPICS = {
    "money": "stock bank profit market oil",
    "space": "orbit launch moon comet probe",
    "sport": "goal coach league match team",
}
LENGTH = 123  # of the shortest possible network


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread. Its threads spin while they wait, which is many times slower on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def articles(count: int, seed: int = 0) -> pa.Table:
    """Return rows whose words belong to one of three topics."""
    rng = random.Random(seed)
    kinds = [rng.choice(list(TOPICS)) for _ in range(count)]
    texts = [" ".join(rng.choices(TOPICS[kind].split(), k=14)) for kind in kinds]
    return pa.table({"text": texts, "kind": kinds})


def quick_train(table: pa.Table, recipe: Recipe = QUICK, **options: object):
    options = {"hold_out_share": 0.2, "ngrams": 0, "device": "cpu", "length": LENGTH, **options}
    return train(table, text_column="text", label_column="kind", recipe=recipe, **options)


LIKE = 5e-3
"""The relative tolerance between losses. cuDNN computes fp32 in TF32, and two runs were up to 0.002 apart."""
