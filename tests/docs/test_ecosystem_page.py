"""The code of docs/ecosystem.md, run as it is printed."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import PROGRAMS
from pages import blocks

import broadsheet
from broadsheet.pipeline.model.several import load_models

PAGE = "ecosystem.md"
TEXTS = {
    "World": "Ministers met again to discuss the border of the two countries.",
    "Sports": "The home team won the cup final after extra time.",
    "Business": "Oil prices fell as traders weighed new supply.",
    "Sci/Tech": "A probe sent back its first images of the far side of the moon.",
}
ROWS = [
    {"body": text, "year": year, "url": f"{topic} {year}"} for year in (2023, 2024) for topic, text in TEXTS.items()
]
NOT_HERE = {"Text on a GPU"}  # needs cudf


def run(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the block under a heading in a folder with the files that it reads. Return what the block defines."""
    monkeypatch.chdir(folder)
    (folder / "news").mkdir()
    pd.DataFrame(ROWS).to_parquet("news/a.parquet")
    articles = [{"text": f"{text} {i}", "topic": topic, "label": i} for i in range(6) for topic, text in TEXTS.items()]
    pd.DataFrame(articles).to_csv("articles.csv", index=False)
    (shipped,) = load_models(["ag-news"]).loaded
    shipped.save(folder / "news.safetensors")
    (code,) = blocks(PAGE, "python")[heading]
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_every_block_of_the_page_is_run_here() -> None:
    tested = {"Lazy Dask", "ONNX", "scikit-learn", "DuckDB", "Polars", "Hugging Face"}
    assert blocks(PAGE, "python").keys() == tested | NOT_HERE


@pytest.mark.slow
def test_lazy_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask.dataframe")
    run("Lazy Dask", tmp_path, monkeypatch)
    assert pd.read_parquet("sports")["url"].tolist() == ["Sports 2024"]


@pytest.mark.slow
def test_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    (command,) = blocks(PAGE, "sh")["ONNX"]
    env = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=env, check=True)
    names = run("ONNX", tmp_path, monkeypatch)
    with broadsheet.load("ag-news", network="all") as classifier:
        expected = classifier.predict_proba(["Stocks fell on Monday."])
    assert abs(names["scores"] - expected).max() < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    names = run("scikit-learn", tmp_path, monkeypatch)
    assert names["search"].best_score_ > 0.5
    with broadsheet.load(tmp_path / "topics.safetensors") as classifier:
        assert set(classifier.classes) == {*TEXTS}


def test_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run("DuckDB", tmp_path, monkeypatch)
    assert dict(names["topics"].fetchall()) == dict.fromkeys(TEXTS, 2)
    rows = names["rows"].fetchall()
    assert Counter(url.partition(" ")[0] == label for url, label, *_ in rows) == {True: len(ROWS)}


def test_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run("Polars", tmp_path, monkeypatch)
    assert names["sports"]["url"].to_list() == ["Sports 2023", "Sports 2024"]


def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    rows = list(run("Hugging Face", tmp_path, monkeypatch)["labelled"])
    assert [row["label"] for row in rows] == [i for i in range(6) for _ in TEXTS]
    assert all(row["label_found"] == row["topic"] for row in rows)
