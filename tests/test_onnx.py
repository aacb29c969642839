"""Models for other programs: ONNX, run by ONNX Runtime, and PyTorch modules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from conftest import CommandHere

import pipeline
from pipeline.errors import BroadsheetError
from pipeline.model.charcnn import Model

TEXTS = ["Stocks fell on Monday as oil rose.", "", "é漢 " * 60, b"raw \xff bytes", "x" * 200]


@pytest.fixture(scope="module", params=["text", "dense"])
def framed(request: pytest.FixtureRequest, small_model: Model) -> Model:
    return replace(small_model, frame=request.param, temperature=0.8)


def scores_by_us(model: Model) -> np.ndarray:
    with pipeline.load(model, device="cpu") as classifier:
        return classifier.predict_proba([t if isinstance(t, str) else t.decode("latin-1") for t in TEXTS])


def test_a_torch_module_gives_our_scores(framed: Model) -> None:
    module = pipeline.torch_module(framed)
    assert not module.training
    assert set(module.state_dict()) == set(framed.tensors)
    texts = [t if isinstance(t, str) else t.decode("latin-1") for t in TEXTS]
    ids = torch.from_numpy(pipeline.onnx_inputs(framed, texts)["ids"])
    with torch.inference_mode():
        found = module(ids)
    assert np.allclose(found.numpy(), scores_by_us(framed), atol=1e-5)
    assert torch.equal(torch.softmax(module.logits(ids) / 0.8, 1), found)


def test_an_exported_model_gives_our_scores_in_onnx_runtime(
    small_model: Model, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    small_model = replace(small_model, temperature=0.8)
    small_model_file, target = tmp_path / "small.safetensors", tmp_path / "small.onnx"
    small_model.save(small_model_file)
    code, said = broadsheet_here("export", small_model_file, target)
    assert code == 0, said
    assert "1,000 texts" in said
    about = {entry.key: json.loads(entry.value) for entry in onnx.load(target).metadata_props}
    assert about["classes"] == list(small_model.classes)
    assert about["digest"] == small_model.digest
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    texts = [t if isinstance(t, str) else t.decode("latin-1") for t in TEXTS]
    (scores,) = session.run(["scores"], pipeline.onnx_inputs(small_model_file, texts))
    assert np.allclose(scores, scores_by_us(small_model), atol=1e-5)
    # By hand, as a program in another language would make the ids.
    symbols = {symbol: number for number, symbol in reversed([*enumerate(about["alphabet"])])}
    lowered = TEXTS[0].lower()
    ids = np.full((1, about["length"]), len(about["alphabet"]) + 1, np.uint8)
    ids[0, : len(lowered)] = [symbols.get(character, len(about["alphabet"])) for character in lowered]
    assert np.array_equal(session.run(["scores"], {"ids": ids})[0][0], scores[0])
    code, said = broadsheet_here("export", small_model_file, target)
    assert code == 2
    assert "--overwrite" in said


def test_a_graph_that_differs_is_not_written(small_model: Model, tmp_path: Path) -> None:
    """A weight so large that fp32 overflows: neither scores are numbers, so nothing was verified."""
    tensors = {**small_model.tensors, "fc3.weight": np.full_like(small_model.tensors["fc3.weight"], 3e38)}
    with pytest.raises(BroadsheetError, match="nothing is written"):
        pipeline.export_onnx(replace(small_model, tensors=tensors), tmp_path / "bad.onnx")
    assert not any(tmp_path.iterdir())
