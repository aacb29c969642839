"""The rows to label next: those on which the model is unsure, and among these some that represent the others."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import Command
from training import LENGTH, TOPICS, articles

from broadsheet.pipeline import next_rows
from broadsheet.pipeline.curation.next_rows import representatives
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.train import train


@pytest.fixture(scope="module")
def model() -> Model:
    options = {"device": "cpu", "length": LENGTH, "ngrams": 1 << 12, "vectors": None}
    return train(articles(150), text_column="text", label_column="kind", **options).model


def test_rows_that_stand_for_all_are_those_of_the_largest_sum() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 3)).astype(np.float32)
    likeness = np.maximum(points @ points.T, 0)
    chosen = representatives(likeness, 6)
    nearest = np.zeros(40)
    for row in chosen:  # the plain greedy algorithm
        gains = np.maximum(likeness - nearest[:, None], 0).sum(axis=0)
        assert gains[row] == pytest.approx(gains.max(), rel=1e-5)
        nearest = np.maximum(nearest, likeness[row])
    assert sorted(representatives(likeness, 99)) == [*range(40)]


def test_unsure_rows_come_first_and_none_twice(model: Model) -> None:
    sure = articles(200, seed=1)["text"].to_pylist()
    mixed = [" ".join([*TOPICS["sport"].split(), *TOPICS["money"].split(), word]) for word in ("red", "blue", "green")]
    rows = pa.table({"text": [*sure, *mixed, *mixed, "  "], "key": [f"k{i}" for i in range(207)]})
    found = next_rows(model, rows, count=3, id_column="key", device="cpu")
    assert found.column_names == ["file", "row", "key", "label", "score", "decision", "text", "text_key"]
    assert len({*found["text"].to_pylist()}) == 3
    many = next_rows(model, rows, count=500, device="cpu")
    assert len(many) == len({*sure, *mixed})
    few = next_rows(model, pa.table({"text": [*sure[:50], *mixed]}), count=1, device="cpu")
    assert few["score"][0].as_py() < 0.9


def test_rows_with_a_label_or_a_decision_are_left_out(
    model: Model, broadsheet_in_process: Command, tmp_path: Path
) -> None:
    """The command writes the file, and `train` then learns from it."""
    table = articles(60, seed=2)
    kinds = [kind if i % 2 else None for i, kind in enumerate(table["kind"].to_pylist())]
    rows, saved, chosen = tmp_path / "rows.csv", tmp_path / "m.safetensors", tmp_path / "next.csv"
    pa_csv.write_csv(pa.table({"text": table["text"], "kind": kinds}), rows)
    model.save(saved)
    command = ["next", str(saved), str(rows), "--label-column", "kind", "--count", "10", "--device", "cpu", "-o"]
    made = broadsheet_in_process(*command, str(chosen))
    assert made.returncode == 0, made.stderr
    first = list(csv.DictReader(chosen.open()))
    assert [int(row["row"]) % 2 for row in first] == [0] * 10
    for row in first:
        row["decision"] = table["kind"][int(row["row"])].as_py()
    with chosen.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*first[0]])
        writer.writeheader()
        writer.writerows(first)
    second = tmp_path / "more.csv"
    made = broadsheet_in_process(*command, str(second), "--corrections", str(chosen))
    assert made.returncode == 0, made.stderr
    assert not {row["row"] for row in csv.DictReader(second.open())} & {row["row"] for row in first}
    options = {"device": "cpu", "length": LENGTH, "ngrams": 1 << 12, "vectors": None}
    trained = train(articles(60, seed=3), text_column="text", label_column="kind", corrections=chosen, **options)
    assert trained.model.card["data"]["rows"] == 70


def test_what_cannot_be_chosen_is_refused(model: Model) -> None:
    table = articles(20)
    with pytest.raises(UsageError, match="there is no row to label"):
        next_rows(model, table, label_column="kind")
    with pytest.raises(UsageError, match="0 rows cannot be chosen"):
        next_rows(model, table, count=0)
    with pytest.raises(UsageError, match="'label' is one of the names"):
        next_rows(model, table, id_column="label")
