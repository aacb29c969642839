"""Rows that a model has learned from are recognised, whatever file they come in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import Command
from training import LENGTH, articles

from broadsheet.pipeline import calibrate, classify, evaluate, load_model
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.learned import LearnedRows
from broadsheet.pipeline.model.scores import CARD
from broadsheet.pipeline.train import train

COLUMNS = {"text_column": "text", "label_column": "kind"}


@pytest.fixture(scope="module")
def known() -> pa.Table:
    return with_mistakes(articles(300, seed=1), "known")


@pytest.fixture(scope="module")
def fresh() -> pa.Table:
    return with_mistakes(articles(300, seed=2), "new")


def with_mistakes(table: pa.Table, word: str) -> pa.Table:
    """Give every text a number of its own, and every tenth row a wrong label, so that a temperature is needed."""
    texts = [f"{text} {word}{i}" for i, text in enumerate(table["text"].to_pylist())]
    kinds = ["money" if i % 10 == 0 else kind for i, kind in enumerate(table["kind"].to_pylist())]
    return pa.table({"text": texts, "kind": kinds})


@pytest.fixture(scope="module")
def model(known: pa.Table) -> Model:
    return train(known, **COLUMNS, length=LENGTH, device="cpu", ngrams=1 << 14, vectors=None).model


@pytest.fixture(scope="module")
def model_file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learned") / "m.safetensors"
    model.save(path)
    return path


def test_a_part_of_the_training_data_in_another_format_is_recognised(
    known: pa.Table, model_file: Path, tmp_path: Path, broadsheet_in_process: Command
) -> None:
    """The rows come in another order and case, with line breaks instead of spaces, and as JSON Lines."""
    some = known.take(list(range(299, 99, -1))).to_pylist()
    lines = [json.dumps({"kind": row["kind"], "text": row["text"].upper().replace(" ", "\n ")}) for row in some]
    (tmp_path / "part.jsonl").write_text("\n".join(lines))
    result = evaluate(model_file, tmp_path / "part.jsonl", **COLUMNS)
    assert result.overlap is not None
    assert result.overlap[:3] == (200, 200, 200)
    printed = broadsheet_in_process("evaluate", model_file, tmp_path / "part.jsonl", "--label-column", "kind").stdout
    assert "rows it learned from: 200 of 200. These figures tell what the model remembers" in " ".join(printed.split())


def test_of_mixed_rows_the_figure_on_the_others_is_given(known: pa.Table, fresh: pa.Table, model_file: Path) -> None:
    both = pa.concat_tables([known.slice(0, 120), fresh])
    result, alone = evaluate(model_file, both, **COLUMNS), evaluate(model_file, fresh, **COLUMNS)
    assert alone.overlap is not None
    assert alone.overlap.learned == 0
    about = result.to_dict()["learned_rows"]
    assert (about["rows"], about["learned"], about["others"]["rows"]) == (420, 120, 300)
    assert about["others"]["accuracy"] == alone.confusion.accuracy < result.confusion.accuracy
    assert about["others"]["low"] < about["others"]["accuracy"] < about["others"]["high"]


def test_calibrate_refuses_rows_that_the_model_learned(known: pa.Table, fresh: pa.Table, model: Model) -> None:
    with pytest.raises(UsageError, match=r"has learned from 300 of 300 rows: .*held_out=0.2"):
        calibrate(model, known, **COLUMNS)
    alone = calibrate(model, fresh, **COLUMNS)
    mixed = calibrate(model, pa.concat_tables([known.slice(0, 150), fresh]), **COLUMNS)
    assert mixed.temperature == alone.temperature
    assert mixed.card[CARD] == {**alone.card[CARD], "rows left out, which it has learned from": 150}


def test_held_out_rows_are_not_learned(known: pa.Table) -> None:
    options = {"length": LENGTH, "device": "cpu", "ngrams": 1 << 14, "vectors": None, "hold_out_share": 0.4}
    made = train(known, **COLUMNS, **options).model
    assert made.learned is not None
    assert made.learned.rows == 300 - made.card["data"]["held_out_rows"]
    assert calibrate(made, known, **COLUMNS, held_out=0.4).card[CARD]["rows"] == 300 - made.learned.rows


def test_a_job_says_so_too(known: pa.Table, fresh: pa.Table, model_file: Path, tmp_path: Path) -> None:
    both = pa.concat_tables([known.slice(0, 120), fresh])
    pq.write_table(both, tmp_path / "both.parquet")
    expected = evaluate(model_file, both, **COLUMNS).to_dict()["learned_rows"]
    report = classify(
        tmp_path / "both.parquet",
        output=tmp_path / "out",
        model=model_file,
        **COLUMNS,
        chunk_size=100,
        where="score > 0",
    )
    assert report.to_dict()["models"][0]["learned_rows"] == expected
    assert "rows it learned from: 120 of 420. On the 300 other rows" in " ".join(str(report).split())
    rows = pa.concat_tables([known, fresh.slice(0, 20)])
    mostly = classify(rows, output=tmp_path / "mostly", model=model_file, **COLUMNS)
    assert "These figures tell mostly what the model remembers" in " ".join(str(mostly).split())


def test_a_pipe_says_so_too(known: pa.Table, model_file: Path, tmp_path: Path, broadsheet: Command) -> None:
    pa_csv.write_csv(known.slice(0, 30), tmp_path / "known.csv")
    arguments = ("classify", tmp_path / "known.csv", "-o", "-", "--model", model_file, "--label-column", "kind")
    assert "learned from 30 of 30 rows with a true class" in broadsheet(*arguments).stderr


def test_of_very_many_texts_the_small_hashes_are_kept(tmp_path: Path, model: Model) -> None:
    texts = pa.array([f"text number {i}" for i in range(4000)], pa.large_string())
    some = LearnedRows.of(texts, 100, most_hashes=1000)
    assert some.rows == 4000
    assert 250 < len(some.hashes) <= 1000
    found = some.look_up(pa.concat_arrays([texts.slice(0, 2000), pc.utf8_upper(texts.slice(0, 100))]))
    assert 0 < found.checked.sum() < 2100
    assert np.array_equal(found.checked, found.learned)
    assert not some.look_up(pa.array([f"another {i}" for i in range(2000)], pa.large_string())).learned.any()
    replace(model, learned=some).save(tmp_path / "m.safetensors")
    assert np.array_equal(load_model(tmp_path / "m.safetensors").learned.hashes, some.hashes)  # type: ignore[union-attr]


def test_blank_texts_are_no_learned_rows() -> None:
    learned = LearnedRows.of(pa.array(["", " \n", "a"], pa.large_string()), 10)
    assert learned.look_up(pa.array(["", "\t", "A"], pa.large_string())).learned.tolist() == [False, False, True]


def test_models_without_hashes_load_and_damaged_ones_do_not(model: Model, known: pa.Table) -> None:
    older = Model.from_bytes(replace(model, learned=None).to_bytes())
    assert older.digest == model.digest
    assert evaluate(older, known, **COLUMNS).to_dict()["learned_rows"] is None
    data = bytearray(model.to_bytes())
    assert model.learned is not None
    at = data.index(model.learned.hashes.tobytes())
    data[at] ^= 1
    with pytest.raises(ModelError, match="the hashes of the rows that it has learned are damaged"):
        Model.from_bytes(bytes(data))


def test_the_shipped_model_knows_what_it_has_learned(ag_news: Path) -> None:
    """The model's file says so, and that its test rows are others."""
    model = load_model("ag-news")
    assert model.learned is not None
    assert (model.learned.rows, model.learned.halvings) == (47_824, 0)
    names = {"column_names": ["class", "title", "description"]}
    test = pa_csv.read_csv(ag_news / "test.csv", read_options=pa_csv.ReadOptions(**names)).slice(0, 500)
    found = evaluate(
        model, test, text_column=["title", "description"], label_column="class", network="none", label_numbers_from=1
    )
    assert found.overlap is not None
    assert (found.overlap.learned, found.overlap.checked) == (0, 500)
    copy = Model.from_bytes(model.to_bytes(), "copy")
    assert (copy.digest, copy.cascade, copy.meant_for) == (model.digest, model.cascade, "English news")
