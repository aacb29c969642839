"""The weights that come with the package: their frame and their card (test_classify.py has their accuracy)."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT

from pipeline import load_model
from pipeline.model import reference
from pipeline.model.alphabet import encode
from pipeline.train.network import CharCNN, predict
from pipeline.train.recipe import WITH_SPACE, Recipe

torch = pytest.importorskip("torch")

TRAIN_SHA256 = "87191dd121ce6695b9bcae6cd65f6230abcbee432b94d3c8d0da7aaede2bbb8f"


def test_frame_and_card() -> None:
    model = load_model("ag-news")
    assert (model.frame, model.length, len(model.alphabet), model.dtype) == ("text", 1014, 70, "float16")
    assert model.alphabet.symbols == WITH_SPACE
    assert model.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert (ROOT / "pipeline" / "weights" / "ag_news.safetensors").stat().st_size <= 40_000_000
    card = model.card
    assert model.scales is not None
    assert card["calibrated on"] == {"rows": 2048, "files": ["train.csv"]}
    assert card["data"]["files"] == [{"name": "train.csv", "sha256": TRAIN_SHA256}]
    assert card["data"]["rows"] == 48_800
    assert card["recipe"].items() <= Recipe().to_dict().items()  # later settings are not among them
    assert card["test"]["rows"] == 7_600
    assert card["test"]["accuracy"] >= 0.921


def test_pytorch_and_the_reference_agree() -> None:
    model = load_model("ag-news")
    texts = [
        b"Stocks fell on Monday as oil rose to a record.",
        b"",
        "Zürich \U0001f600 won 3-1".encode(),
        bytes(range(256)) * 8,
        b"The probe entered orbit around the moon. " * 30,
    ]
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in texts])]).astype(np.int64)
    ids = encode(np.frombuffer(b"".join(texts), np.uint8), offsets, model.alphabet, model.length).ids
    network = CharCNN(model.layers, model.frame)
    network.load_tensors(model.tensors)
    by_torch = predict(network, torch.from_numpy(ids)).numpy()
    assert np.abs(by_torch - reference.forward(ids, reference.prepare(model))).max() < 1e-5
