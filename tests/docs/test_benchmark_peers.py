"""The networks that benchmarks time beside ours are the same network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.charcnn import Model

torch = pytest.importorskip("torch")

from benchmarks.peers import measure, torch_peer, torch_text  # noqa: E402

ARTICLES = 6
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def ids(small_model: Model) -> NDArray[np.uint8]:
    """Symbols, unknown characters and padding in all places, one empty article, and one of unknown characters."""
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, len(small_model.alphabet) + 2, (ARTICLES, small_model.length)).astype(np.uint8)
    drawn[0] = small_model.alphabet.padding
    drawn[1] = small_model.alphabet.unknown
    drawn[2, 40:] = small_model.alphabet.padding
    return drawn


@pytest.fixture(scope="module")
def truth(small_model: Model, ids: NDArray[np.uint8]) -> NDArray[np.float32]:
    return reference.forward(ids, reference.prepare(small_model))


def relative_error(found: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("network", ["eager", "dense", "table"])
def test_torch_networks_agree_with_the_reference(
    network: str, small_model: Model, ids: NDArray[np.uint8], truth: NDArray[np.float32]
) -> None:
    if network == "eager":
        built = torch_peer.eager(small_model, torch.float32)
    else:
        block1 = {"dense": torch_peer.DenseBlock1, "table": torch_peer.TableBlock1}[network]
        built = torch_peer.ChannelsLast(small_model, block1, torch.float32)
    with torch.no_grad():
        logits = built.eval()(torch.from_numpy(ids)).numpy()
    assert relative_error(logits, truth) < TOLERANCE


def test_frames_for_short_text_give_the_text_frame(small_model: Model, ids: NDArray[np.uint8]) -> None:
    """Each article is in the smallest frame that holds it, and a pass puts each result in its place."""
    model = replace(small_model, frame="text")
    truth = reference.forward(ids, reference.prepare(model))
    frames = {size or model.length: torch_text.TextFrame(model, size, torch.float32) for size in (9, 27, None)}
    peer = torch_text.peer("", frames, model, torch.from_numpy(ids), 2)
    peer.run()
    assert relative_error(peer.logits(), truth) < TOLERANCE
    short = torch.from_numpy(ids).clone()
    short[:, 25:] = model.alphabet.padding
    truth = reference.forward(short.numpy(), reference.prepare(model))
    with torch.no_grad():
        assert relative_error(frames[27](short).numpy(), truth) < TOLERANCE


def test_a_pass_covers_every_article_and_keeps_the_order(
    small_model: Model, ids: NDArray[np.uint8], truth: NDArray[np.float32]
) -> None:
    peer = measure.build("eager-fp32", small_model, torch.from_numpy(ids), batch=2)
    peer.run()
    assert relative_error(peer.logits(), truth) < TOLERANCE
    with pytest.raises(ValueError, match="does not divide"):
        measure.build("eager-fp32", small_model, torch.from_numpy(ids), batch=4)
