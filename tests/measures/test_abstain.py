"""Rows whose score is too low have no label: in every format, in folders, in counts, and in a pipe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset
import pytest
from conftest import Command, CommandHere
from distributed import Client

import pipeline
from pipeline.errors import UsageError
from pipeline.measures.evaluate import evaluate
from pipeline.model.charcnn import Model

ROWS = pa.table(
    {
        "text": [f"article {i} about {'sport ' * (i % 5)}" for i in range(60)],
        "truth": [["class 0", "class 1", "class 2", "no such class"][i % 4] for i in range(60)],
    }
)
BELOW = 0.36


@pytest.fixture(scope="module")
def plain(client: Client, small_model: Model) -> pd.DataFrame:
    """Every label, however low its score."""
    return pipeline.classify(ROWS, model=small_model, client=client, text_column="text").to_pandas()


@pytest.fixture(scope="module")
def low(plain: pd.DataFrame) -> np.ndarray:
    """Which rows have a lower score; some have, and some have not."""
    found = (plain["score"] < BELOW).to_numpy()
    assert 5 < found.sum() < 55
    return found


@pytest.mark.parametrize("partition_by", [None, "label"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_labels_are_null_in_every_format_and_folder(
    client: Client, small_model: Model, plain: pd.DataFrame, low: np.ndarray, tmp_path: Path, kind: str,
    partition_by: str | None,
) -> None:  # fmt: skip
    options = {"text_column": "text", "abstain": BELOW, "format": kind, "partition_by": partition_by, "chunk_size": 16}
    report = pipeline.classify(ROWS, tmp_path / "out", model=small_model, client=client, **options)
    rows = report.to_pandas()
    expected = plain["label"].mask(low, None)
    assert rows.set_index("row").sort_index()["label"].fillna("").tolist() == expected.fillna("").tolist()
    totals = pipeline.verify(tmp_path / "out")
    assert (totals.rows_written, totals.unlabelled) == (60, low.sum())
    assert totals.labels == expected.value_counts().to_dict()
    assert f"60 read = {60 - low.sum()} labelled + {low.sum()} without a label + 0 quarantined" in str(report)
    parts = tmp_path / "out" / "parts"
    if partition_by:
        assert any((parts / "label=__HIVE_DEFAULT_PARTITION__").iterdir())
    if partition_by and kind == "parquet":
        assert pl.read_parquet(parts, hive_partitioning=True)["label"].null_count() == low.sum()
        by_label = pa_dataset.HivePartitioning(pa.schema([("label", pa.string())]))
        assert pd.read_parquet(tmp_path / "out", partitioning=by_label)["label"].isna().sum() == low.sum()


def test_a_resumed_job_counts_the_same(client: Client, small_model: Model, low: np.ndarray, tmp_path: Path) -> None:
    options = {"model": small_model, "client": client, "text_column": "text", "chunk_size": 16}
    first = pipeline.classify(ROWS, tmp_path / "out", abstain=BELOW, **options)
    (lost,) = (tmp_path / "out" / "_entries").glob("part-000000-0000001-*")
    lost.unlink()
    again = pipeline.classify(ROWS, tmp_path / "out", abstain=BELOW, resume=True, **options)
    assert again.run.chunks_before == 3
    assert again.tally.unlabelled == first.tally.unlabelled == low.sum()
    pipeline.verify(tmp_path / "out")
    with pytest.raises(UsageError, match=r"add abstain=0.36"):
        pipeline.classify(ROWS, tmp_path / "out", resume=True, **options)
    entry = next((tmp_path / "out" / "_entries").glob("part-000000-0000002-*"))
    said = json.loads(entry.read_text())
    said["unlabelled"] -= 1
    entry.write_text(json.dumps(said))
    with pytest.raises(pipeline.OutputError, match="do not add up"):
        pipeline.verify(tmp_path / "out")


def test_where_label_and_accuracy_know_no_label(
    client: Client, small_model: Model, plain: pd.DataFrame, low: np.ndarray
) -> None:
    options = {"model": small_model, "client": client, "text_column": "text", "abstain": BELOW}
    report = pipeline.classify(ROWS, where="label is null", truth_column="truth", **options)
    assert report.to_pandas()["row"].tolist() == np.flatnonzero(low).tolist()
    known = np.array([name != "no such class" for name in ROWS.column("truth").to_pylist()])
    right = plain["label"].to_numpy() == np.array(ROWS.column("truth").to_pylist())
    assert report.confusion is not None
    assert report.confusion.rows == (known & ~low).sum()
    assert report.confusion.correct == (right & ~low).sum()
    assert report.confusion.unlabelled.sum() == (known & low).sum()
    result = evaluate(small_model, ROWS, text_column="text", label_column="truth", abstain=BELOW)
    assert result.confusion.counts.tolist() == report.confusion.counts.tolist()
    assert result.abstained == (known & low).sum()
    frame = pipeline.label(ROWS.select(["text"]).to_pandas(), model=small_model, abstain=BELOW, client=client)
    assert frame["label"].isna().tolist() == low.tolist()
    assert frame["reason"].isna().all()
    assert np.allclose(frame["score"], plain["score"])


def test_a_pipe_writes_null_and_goes_on(
    broadsheet: Command, small_model_file: Path, plain: pd.DataFrame, low: np.ndarray, tmp_path: Path
) -> None:
    pa_csv.write_csv(ROWS, tmp_path / "rows.csv")
    arguments = ["classify", tmp_path / "rows.csv", "-o", "-", "--model", small_model_file, "--strict"]
    run = broadsheet(*arguments, "--abstain", BELOW)
    assert run.returncode == 0, run.stderr
    labels = [json.loads(line)["label"] for line in run.stdout.splitlines()]
    assert [label is None for label in labels] == low.tolist()
    assert f"{60 - low.sum()} labelled + {low.sum()} to which no label applies" in run.stderr


def test_what_is_no_score_is_refused(broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path) -> None:
    pa_csv.write_csv(ROWS, tmp_path / "rows.csv")
    for below in (0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="abstain is"):
            pipeline.Options(abstain=below)
    code, said = broadsheet_here("evaluate", small_model_file, tmp_path / "rows.csv", "--label-column", "truth",
                                 "--abstain", BELOW)  # fmt: skip
    assert code == 0
    assert "have a score below 0.36, and no label" in " ".join(said.split())
