"""A model's card names the columns that it learned from, and `evaluate`, `calibrate` and `next` use them."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import Command
from training import articles

from broadsheet.pipeline import UsageError, evaluate, next_rows


def test_a_model_that_was_trained_here_needs_no_columns_to_be_named(
    broadsheet_in_process: Command, tmp_path: Path
) -> None:
    rows, test, model = tmp_path / "rows.csv", tmp_path / "test.csv", tmp_path / "m.safetensors"
    for file, seed in ((rows, 0), (test, 1)):
        table = articles(120, seed=seed)
        pa_csv.write_csv(table.rename_columns(["words", "topic"]), file)
    how = ["--device", "cpu", "--vectors", "none", "--ngrams", str(1 << 12)]
    made = broadsheet_in_process(
        "train", str(rows), "--text-column", "words", "--label-column", "topic", "-o", str(model), *how
    )
    assert made.returncode == 0, made.stderr
    judged = broadsheet_in_process("evaluate", str(model), str(test), "--device", "cpu")
    assert judged.returncode == 0, judged.stderr
    assert "columns: text words; label topic" in judged.stderr
    named = ["--text-column", "words", "--label-column", "topic"]
    assert broadsheet_in_process("evaluate", str(model), str(test), *named, "--device", "cpu").stdout == judged.stdout
    in_python = evaluate(model, test, text_column="words", label_column="topic", device="cpu")
    assert evaluate(model, test, device="cpu").to_dict() == in_python.to_dict()
    with pytest.raises(UsageError, match="label_column= names the column with the true class: the card of ag-news"):
        evaluate("ag-news", test, device="cpu")
    fitted, doubtful = tmp_path / "fitted.safetensors", tmp_path / "doubtful.csv"
    labels = table.column(1).to_pylist()
    some_wrong = [labels[row - 1] if row % 5 == 0 else label for row, label in enumerate(labels)]
    pa_csv.write_csv(pa.table({"words": table.column(0), "topic": some_wrong}), doubtful)
    given = ["calibrate", str(model), str(doubtful), "-o", str(fitted), "--device", "cpu", "--overwrite"]
    of_card = broadsheet_in_process(*given)
    assert (of_card.returncode, "columns: text words; label topic" in of_card.stderr) == (0, True), of_card.stderr
    assert broadsheet_in_process(*given, *named).stdout == of_card.stdout
    assert next_rows(model, test, count=3, device="cpu").num_rows == 3
    chosen = tmp_path / "next.csv"
    found = broadsheet_in_process("next", str(model), str(test), "--count", "3", "-o", str(chosen), "--device", "cpu")
    assert found.returncode == 0, found.stderr
    assert len(list(csv.DictReader(chosen.open()))) == 3
    shipped = broadsheet_in_process("evaluate", "ag-news", str(test), "--device", "cpu")
    assert (shipped.returncode, "--label-column names the column" in shipped.stderr) == (2, True)
