"""Dask collections with their labels, computed when the user computes them."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import dask.bag
import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client

import pipeline
from pipeline import SourceError, UsageError
from pipeline.ecosystem.resident import release
from pipeline.model.charcnn import Model
from pipeline.processes.threads import available_cores

TEXTS = [f"{word} number {i}" for i in range(20) for word in ("stocks", "goal", "vote")]
TEXTS[7] = None


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame({"body": TEXTS, "year": [2020 + i % 3 for i in range(len(TEXTS))]})


def test_labels_of_a_dask_frame_are_those_of_classify(
    client: Client, frame: pd.DataFrame, small_model_file: Path, tmp_path: Path
) -> None:
    """From Parquet to Parquet on a cluster, with filters before and after; a null text keeps its row."""
    client.run(release)
    dd.from_pandas(frame, npartitions=4).to_parquet(tmp_path / "in")
    read = dd.read_parquet(tmp_path / "in", calculate_divisions=True)
    chosen = read[read.year > 2020]
    labelled = pipeline.label(chosen, text_column="body", model=small_model_file, top_k=2, scores=True, device="cpu")
    assert labelled.divisions == chosen.divisions
    graph = pickle.dumps(labelled.__dask_graph__())
    assert len(graph) < 100_000  # and not a model of megabytes
    expected = frame[frame.year > 2020]
    wanted = pipeline.label(expected, text_column="body", model=small_model_file, top_k=2, scores=True, device="cpu")
    labelled.to_parquet(tmp_path / "out")
    found = pd.read_parquet(tmp_path / "out", dtype_backend="pyarrow")
    for name in wanted.columns.drop(["top_labels", "top_scores"]):
        values = [[None if pd.isna(value) else value for value in each[name]] for each in (found, wanted)]
        assert values[0] == values[1], name
    assert [*map(list, found.top_labels.dropna())] == [*map(list, wanted.top_labels.dropna())]
    assert [*found.columns] == [*wanted.columns]
    assert found.reason.notna().sum() == expected.body.isna().sum() == 1
    computed = labelled[labelled.label == wanted.label.iloc[0]].compute()
    assert (computed.dtypes == labelled.dtypes).all()
    assert (computed.label == wanted.label.iloc[0]).all()
    assert len(computed) == (wanted.label == wanted.label.iloc[0]).sum()
    engines = client.run(_engines).values()  # a worker that was given no partition has none
    assert max(ours for ours, _, _ in engines) == 1
    most = max(1, available_cores() // len(engines))  # of one engine
    assert all(threads <= most * every for _, every, threads in engines)


def _engines() -> tuple[int, int, int]:
    """Of a worker: its engines for such labels, all engines, and the threads that compute."""
    from pipeline.labelling.engines import ENGINES

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("broadsheet-compute")]
    engines = ENGINES.engines
    return sum(key.startswith("resident") for key in engines), len(engines), len(threads)


def test_a_model_in_memory_reaches_workers_without_the_graph(client: Client, small_model: Model) -> None:
    texts = [text for text in TEXTS if text]
    given = dask.bag.from_sequence([*texts, None, 7], npartitions=3)
    labelled = pipeline.label(given, model=small_model, device="cpu")
    assert len(pickle.dumps(labelled.__dask_graph__())) < 100_000
    rows = labelled.compute()
    with pipeline.load(small_model, device="cpu") as classifier:
        assert [row["label"] for row in rows[:-2]] == classifier.predict(texts)
    assert [row["text"] for row in rows] == [*texts, None, 7]
    assert [row["reason"] for row in rows[-2:]] == ["the text is null", "the item is of type int, not a string"]


def test_what_does_not_fit_is_told_before_anything_is_computed(small_model_file: Path, frame: pd.DataFrame) -> None:
    lazy = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(UsageError, match="no column 'title'"):
        pipeline.label(lazy, text_column="title", model=small_model_file)
    with pytest.raises(UsageError, match="workers is for frames in memory"):
        pipeline.label(lazy, text_column="body", model=small_model_file, workers=2)
    with pytest.raises(UsageError, match="already"):
        pipeline.label(lazy.assign(label="mine"), text_column="body", model=small_model_file)
    strict = pipeline.label(lazy, text_column="body", model=small_model_file, strict=True, device="cpu")
    with pytest.raises(SourceError, match="row 7: the text is null"):
        strict.compute(scheduler="sync")
    pipeline.close()
