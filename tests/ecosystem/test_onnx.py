"""Models for other programs: ONNX, run by ONNX Runtime, and PyTorch modules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandHere

from broadsheet import pipeline
from broadsheet.pipeline.ecosystem.onnx import to_onnx
from broadsheet.pipeline.errors import BroadsheetError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.ngrams import Kinds, NGrams

onnx, onnxruntime, torch = map(pytest.importorskip, ("onnx", "onnxruntime", "torch"))

KINDS = Kinds(2, (3, 5), 300)
TEXTS = ["Stocks fell on Monday as oil rose.", "", "é漢 " * 60, b"raw \xff bytes", "x" * 200]


@pytest.fixture(scope="module")
def with_ngrams(small_model: Model) -> Model:
    """A model with all that a model may have: a text frame, n-grams, a temperature."""
    rng = np.random.default_rng(0)
    table = rng.integers(-1000, 1000, (256, len(small_model.classes) + 1)).astype(np.int16)
    table[:, -1] = np.maximum(table[:, -1], 0)
    scale = np.full((2, len(small_model.classes)), 1e-2, np.float32)
    return replace(small_model, frame="text", temperature=1.5, ngrams=NGrams(KINDS, table, scale))


def scores_by_us(model: Model) -> np.ndarray:
    with pipeline.load(model, device="cpu") as classifier:
        return classifier.predict_proba([t if isinstance(t, str) else t.decode("latin-1") for t in TEXTS])


@pytest.mark.parametrize("which", ["small_model", "with_ngrams"])
def test_a_torch_module_gives_our_scores(which: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(which)
    module = pipeline.torch_module(model)
    assert not module.training
    assert {name for name, _ in module.named_parameters()} == set(model.tensors)
    texts = [t if isinstance(t, str) else t.decode("latin-1") for t in TEXTS]
    given = {name: torch.from_numpy(array) for name, array in pipeline.onnx_inputs(model, texts).items()}
    with torch.inference_mode():
        found = module(**given)
        assert torch.equal(torch.softmax(module.logits(**given) / model.temperature, 1), found)
    assert np.allclose(found.numpy(), scores_by_us(model), atol=1e-5)


@pytest.mark.slow
def test_an_exported_model_gives_our_scores_in_onnx_runtime(
    with_ngrams: Model, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    file, target = tmp_path / "small.safetensors", tmp_path / "small.onnx"
    with_ngrams.save(file)
    code, said = broadsheet_here("convert", file, target)
    assert code == 0, said
    assert "1,000 texts" in said
    about = {entry.key: json.loads(entry.value) for entry in onnx.load(target).metadata_props}
    assert about["classes"] == list(with_ngrams.classes)
    assert about["digest"] == with_ngrams.digest
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    texts = [t if isinstance(t, str) else t.decode("latin-1") for t in TEXTS]
    (scores,) = session.run(["scores"], pipeline.onnx_inputs(file, texts))
    assert np.allclose(scores, scores_by_us(with_ngrams), atol=1e-5)
    code, said = broadsheet_here("convert", file, target)
    assert code == 2
    assert "--overwrite" in said


def test_a_program_in_another_language_can_make_the_ids(small_model: Model) -> None:
    data = to_onnx(small_model)
    about = {entry.key: json.loads(entry.value) for entry in onnx.load_from_string(data).metadata_props}
    symbols = {symbol: number for number, symbol in reversed([*enumerate(about["alphabet"])])}
    lowered = TEXTS[0].lower()
    ids = np.full((1, about["length"]), len(about["alphabet"]) + 1, np.uint8)
    ids[0, : len(lowered)] = [symbols.get(character, len(about["alphabet"])) for character in lowered]
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(["scores"], {"ids": ids})[0][0], scores_by_us(small_model)[0], atol=1e-5)


def test_a_graph_that_differs_is_not_written(small_model: Model, tmp_path: Path) -> None:
    """A weight is so large that fp32 overflows. Both scores are NaN, so nothing was verified."""
    tensors = {**small_model.tensors, "fc3.weight": np.full_like(small_model.tensors["fc3.weight"], 3e38)}
    with pytest.raises(BroadsheetError, match="nothing is written"):
        pipeline.export_onnx(replace(small_model, tensors=tensors), tmp_path / "bad.onnx")
    assert not any(tmp_path.iterdir())
