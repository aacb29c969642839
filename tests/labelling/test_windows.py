"""Long texts in windows: each is a text of its own, and the text's scores are those of its windows together."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import CommandHere, random_model
from distributed import Client

import pipeline
from pipeline import UsageError, classify, label, verify
from pipeline.model.charcnn import Model

LENGTH, MOST, OVERLAP = 123, 4, 40
STEP = LENGTH - OVERLAP
REACH = (MOST - 1) * STEP + LENGTH
SIZES = (0, 1, LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + STEP, LENGTH + STEP + 1, REACH, REACH + 1, 5 * REACH)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Of every size at which something changes, with letters of one to four bytes, known and unknown."""
    rng = random.Random(7)
    plain = "abcdefghij ,.XYZ"
    return ["".join(rng.choices(plain + "éß€漢🙂" * (i % 2), k=size)) for i in range(2) for size in SIZES]


@pytest.fixture(scope="module")
def long_file(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
    return path


def windows_of(text: str) -> list[str]:
    """As the page on output says it."""
    text = text[:REACH]
    if len(text) <= LENGTH:
        return [text]
    count = 1 + -(-(len(text) - LENGTH) // STEP)
    return [*(text[i * STEP : i * STEP + LENGTH] for i in range(count - 1)), text[-LENGTH:]]


@pytest.mark.parametrize("score", ["mean", "best"])
def test_scores_are_those_of_the_windows_together(
    texts: list[str], long_file: Path, small_model: Model, client: Client, score: str
) -> None:
    with pipeline.load(small_model, device="cpu") as classifier:
        of_windows = [classifier.predict_proba(windows_of(text)) for text in texts]
    options = {"model": small_model, "client": client, "device": "cpu", "scores": True, "top_k": 2}
    options |= {"windows": MOST, "overlap": OVERLAP, "window_score": score}
    found = classify(long_file, chunk_size=7, **options).to_arrow()
    expected = []
    for scores in of_windows:
        best = scores[np.argmax(scores.max(axis=1))]
        expected.append(best if score == "best" else (scores.astype(np.float64).sum(axis=0) / len(scores)))
    every = np.stack([found[f"score_{name}"].to_numpy() for name in small_model.classes], axis=1)
    assert np.array_equal(every, np.array(expected, np.float32))
    assert found["score"].to_pylist() == every.max(axis=1).tolist()
    assert found["label"].to_pylist() == [small_model.classes[i] for i in every.argmax(axis=1)]
    assert found["n_windows"].to_pylist() == [len(windows_of(text)) for text in texts]
    assert found["n_chars"].to_pylist() == [len(text) for text in texts]
    assert found["truncated"].to_pylist() == [len(text) > REACH for text in texts]
    known = {*small_model.alphabet.symbols, *small_model.alphabet.symbols.upper()}
    assert found["unknown_chars"].to_pylist() == [sum(c not in known for c in text[:REACH]) for text in texts]
    alone = [classify([text], **options).to_arrow()["score"].to_pylist()[0] for text in texts[-3:]]
    assert alone == found["score"].to_pylist()[-3:]  # whatever its neighbours are
    plain = classify(long_file, **{**options, "windows": None, "overlap": 0, "window_score": "mean"}).to_arrow()
    short = [len(text) <= LENGTH for text in texts]
    for column in plain.column_names[2:]:
        assert plain[column].filter(short).equals(found[column].filter(short)), column
    assert "n_windows" not in plain.column_names


def test_a_folder_with_windows_is_checked_and_resumed_with_the_same_ones(
    long_file: Path, small_model_file: Path, client: Client, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    out = tmp_path / "out"
    flags = ["--windows", MOST, "--overlap", OVERLAP, "--where", "n_windows > 1", "--model", small_model_file]
    code, said = broadsheet_here("classify", long_file, "-o", out, *flags, "--device", "cpu", "--quiet")
    assert code == 0, said
    assert verify(out, input=True).rows_written == 12
    with pytest.raises(UsageError, match="add overlap=40 in place of overlap=41"):
        classify(
            long_file, out, model=small_model_file, client=client, device="cpu", where="n_windows > 1",
            windows=MOST, overlap=OVERLAP + 1, resume=True,
        )  # fmt: skip
    code, said = broadsheet_here("classify", long_file, "-o", tmp_path / "no", "--overlap", 9)
    assert code == 2
    assert "--overlap and --window-score go with --windows" in said
    with pytest.raises(UsageError, match="below the 123 characters"):
        classify(long_file, model=small_model_file, windows=2, overlap=LENGTH)


def test_each_of_several_models_has_its_own_windows(small_model_file: Path, tmp_path: Path) -> None:
    random_model(seed=5, length=200).save(tmp_path / "longer.safetensors")
    frame = pa.table({"text": ["x" * 200, "y" * 124]})
    both = [small_model_file, tmp_path / "longer.safetensors"]
    found = label(frame, model=both, windows=9, device="cpu")
    assert found["small_n_windows"].to_pylist() == [2, 2]
    assert found["longer_n_windows"].to_pylist() == [1, 1]
