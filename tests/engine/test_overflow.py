"""A model that overflows: every article on which it overflows is reported, and gets no label."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import exact
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from distributed import Client
from gpu import LIMITS, WHOLE_STACKS, opened_for, random_texts
from overflowing import enlarged, grown

from broadsheet.pipeline import classify, verify
from broadsheet.pipeline.cli.evaluate import command
from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.open import open_engine, why_no_gpu
from broadsheet.pipeline.errors import SourceError, UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model

torch = pytest.importorskip("torch")

GPU = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]
LARGEST = {"fp32": 3e38, "bf16": 3e38, "fp16": 6e4}
# The least values that are rounded to infinity.
LARGEST_VALUE = {"fp32": 3.403e38, "bf16": 3.396e38, "fp16": 65_520}

Opened = Callable[[Model], Engine]


def on_cpu(model: Model) -> Engine:
    return open_engine(model, "cpu")


def on_gpu(kernels: str, precision: str) -> Opened:
    return partial(opened_for, kernels=kernels, precision=precision)


on_each_backend = pytest.mark.parametrize(
    ("opened", "precision"),
    [
        pytest.param(on_cpu, "fp32", id="cpu"),
        *(pytest.param(on_gpu(*stack), stack[1], id="-".join(stack), marks=GPU) for stack in WHOLE_STACKS),
    ],
)


def sums_of_block_2(model: Model, rows: np.ndarray) -> np.ndarray:
    """Return block 2's sums before bias, ReLU and pool, in float64, from rows [N, rows, channels] of block 1."""
    weight = torch.tensor(np.asarray(model.tensors["conv2.weight"], np.float64))
    return torch.nn.functional.conv1d(torch.tensor(rows).transpose(1, 2), weight).numpy()


# With mixed signs, sums become infinite, or NaN where infinities of both signs meet. With negative signs, ReLU and pool
# would turn them into zeros. With "squares", only the squares in a norm are infinite, which would leave only its beta.
@on_each_backend
@pytest.mark.parametrize(
    ("tensor", "signs"),
    [
        *((f"conv{block}.weight", "mixed") for block in range(1, 7)),
        ("conv1.weight", "squares"),
        ("conv6.weight", "squares"),
        ("norm1.weight", "mixed"),
        ("norm6.weight", "mixed"),
        ("fc1.weight", "mixed"),
        ("fc2.weight", "mixed"),
        ("fc1.weight", "positive"),
        ("fc3.weight", "positive"),
        ("conv2.weight", "negative"),
        ("fc1.weight", "negative"),
        ("fc3.weight", "negative"),
    ],
)
def test_an_overflow_in_any_block_takes_the_label(
    opened: Opened, precision: str, tensor: str, signs: str, small_model: Model
) -> None:
    largest = LARGEST[precision]
    if tensor in ("conv1.weight", "fc3.weight"):
        largest = 3e38  # these weights and their sums are never stored in 16 bits
    if signs == "squares":
        largest = min(largest, 1e21)
    if precision == "fp16" and tensor != "fc3.weight" and signs == "negative":
        pytest.skip("below zero nothing is stored, and sums of fp16 products do not overflow fp32")
    engine = opened(grown(small_model, tensor, largest, signs))
    texts = Texts.of([text for text in random_texts(5, 60) if len(text) > 20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy would warn in every thread and block
        found = engine.classify(texts, top_k=2, all_scores=True)
    engine.close()
    assert found.overflowed.all()
    assert np.isnan(found.scores).all()
    assert np.isnan(found.all_scores).all()
    assert (found.labels == reference.NO_LABEL).all()


@pytest.mark.slow
@on_each_backend
def test_the_same_function_loses_what_overflows_and_nothing_else(
    opened: Opened, precision: str, small_model: Model
) -> None:
    """Block 2's values are larger, and block 3's weights smaller. ReLU and pool used to hide the overflow."""
    articles = random_texts(3, 256)
    texts = Texts.of(articles)
    ids = encode(texts.data, texts.offsets, small_model.alphabet, small_model.length).ids
    model = enlarged(small_model, 13 if precision == "fp16" else 125)
    blocks = exact.blocks(model, ids)
    stored = blocks["conv2"].max(axis=(1, 2)) / LARGEST_VALUE[precision]
    summed = np.abs(sums_of_block_2(model, blocks["conv1"])).max(axis=(1, 2)) / LARGEST_VALUE["fp32"]
    engine = opened(model)
    found = engine.classify(texts, all_scores=True)
    kept = np.flatnonzero(~found.overflowed)
    again = engine.classify(Texts.of([articles[i] for i in kept]), all_scores=True)
    engine.close()
    assert 10 < len(kept) < 250
    assert found.overflowed[stored > (1.1 if precision == "bf16" else 1.02)].all()
    # In fp32 and bf16 the sums themselves overflow, including those that ReLU would turn into zeros.
    assert not found.overflowed[(stored < 0.98) & (summed < 0.7)].any()
    # A neighbour that overflows changes no bit, and the remaining scores are right.
    assert np.array_equal(found.all_scores[kept], again.all_scores)
    true = reference.softmax(blocks["fc3"].astype(np.float32))[kept]
    assert np.abs(again.all_scores - true).max() < 10 * LIMITS[precision]
    if precision == "fp32":
        plain = opened(small_model)
        assert np.array_equal(plain.classify(texts, all_scores=True).all_scores[kept], found.all_scores[kept])
        plain.close()


@pytest.mark.parametrize("stack", [pytest.param(s, id="-".join(s), marks=GPU) for s in WHOLE_STACKS if s[1] == "fp16"])
def test_a_block_that_fits_bf16_only_has_no_labels_in_fp16(stack: tuple[str, str], model: Model) -> None:
    """With conv2 x 1e5 and conv3 / 1e5, all articles used to get finite scores, some of them wrong."""
    factor = np.float32(1e5)
    changed = {name: model.tensors[name] * factor for name in ("conv2.weight", "conv2.bias")}
    changed["conv3.weight"] = model.tensors["conv3.weight"] / factor
    larger = replace(model, tensors={**model.tensors, **changed})
    texts = Texts.of([text for text in random_texts(9, 600) if len(text) > 20][:256])
    engine = on_gpu(*stack)(larger)
    assert engine.classify(texts).overflowed.all()
    engine.close()
    plain, other = open_engine(model, "cuda", "fp32"), on_gpu(stack[0], "bf16")(larger)
    expected, found = plain.classify(texts, 2), other.classify(texts)
    plain.close(), other.close()
    assert not found.overflowed.any()
    clear = expected.scores[:, 0] - expected.scores[:, 1] > 0.2
    assert np.array_equal(found.labels[clear, 0], expected.labels[clear, 0])


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    texts = [text.decode() for text in random_texts(3, 200)]
    return pa.table({"id": range(200), "text": texts, "truth": [f"class {i % 4}" for i in range(200)]})


@pytest.fixture(scope="module")
def large(small_model: Model) -> Model:
    """A model whose block 2 overflows fp32 on some articles."""
    return enlarged(small_model, 125)


def test_rows_that_overflow_are_quarantined_and_no_other(
    client: Client, small_model: Model, large: Model, rows: pa.Table, tmp_path: Path
) -> None:
    pq.write_table(rows, tmp_path / "in.parquet")
    options = {"client": client, "device": "cpu", "id_column": "id", "label_column": "truth", "top_k": 2}
    options["chunk_size"] = 50
    plain = classify(rows, model=small_model, **options).to_arrow()
    report = classify(tmp_path / "in.parquet", tmp_path / "out", model=large, **options)
    verify(tmp_path / "out")
    lines = [line for file in sorted((tmp_path / "out" / "_quarantine").iterdir()) for line in file.open()]
    lost = [json.loads(line) for line in lines]
    numbers = [row["row"] for row in lost]
    assert 10 < len(lost) < 190
    assert report.rows_written == 200 - len(lost)
    assert report.confusion.rows == 200 - len(lost)
    assert {row["reason"] for row in lost} == {"the model overflows in fp32 on this text"}
    for row in lost:
        read = rows["text"][row["row"]].as_py()[: small_model.length]
        assert read.encode()[:256].decode(errors="ignore") in row["head"]
    written = pq.ParquetDataset(tmp_path / "out" / "parts").read().sort_by("row")
    kept = plain.filter(pa.array(~np.isin(np.arange(200), numbers)))
    for column in ("row", "id", "label", "score", "top_labels", "top_scores", "n_chars"):
        assert written[column].to_pylist() == kept[column].to_pylist(), column
    assert written["truth"].to_pylist() == rows["truth"].filter(pa.array(~np.isin(np.arange(200), numbers))).to_pylist()
    memory = classify(rows, model=large, **options).to_arrow()
    assert memory["id"].to_pylist() == rows["id"].to_pylist()
    assert [row for row, why in enumerate(memory["reason"].to_pylist()) if why] == sorted(numbers)
    assert memory["label"].is_null().to_pylist() == memory["reason"].is_valid().to_pylist()
    with pytest.raises(SourceError, match=r"row \d+: the model overflows in fp32 on this text \(strict=True stop"):
        classify(rows, model=large, strict=True, **options)


def test_a_job_on_whose_every_row_the_model_overflows_stops(
    client: Client, small_model: Model, rows: pa.Table, tmp_path: Path
) -> None:
    broken = grown(small_model, "fc1.weight", 3e38, "positive")
    for count, chunk_size in ((200, 50), (3, 1)):
        out, options = tmp_path / f"{count}", {"client": client, "chunk_size": chunk_size, "device": "cpu"}
        with pytest.raises(UsageError, match=r"overflows in fp32 on each .* weights are damaged or too large"):
            classify(rows.slice(0, count), out, model=broken, **options)
        assert not (tmp_path / f"{count}" / "_SUCCESS").exists()
    with pytest.raises(UsageError, match="overflows in fp32"):
        evaluate(broken, rows, text_column="text", label_column="truth", device="cpu")


def test_evaluation_counts_them(
    large: Model, rows: pa.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate(large, rows, text_column="text", label_column="truth", device="cpu")
    assert 10 < result.overflowed < 190
    assert result.confusion.rows == 200 - result.overflowed
    assert result.quarantined == 0
    large.save(tmp_path / "large.safetensors")
    pa_csv.write_csv(rows, tmp_path / "rows.csv")
    command(str(tmp_path / "large.safetensors"), [str(tmp_path / "rows.csv")], "truth", device="cpu")
    assert f"{result.overflowed} rows skipped: the model overflows on them" in capsys.readouterr().out
