"""Encoders on a GPU: kernels and engines against the specification in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from encoders import HOSTILE, PARTS, drawn
from fasttext_models import branch, model_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.encoder import OnCpu
from broadsheet.pipeline.engine.open import open_engine, opened, why_no_gpu
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.labelling.scored import Scoring, score
from broadsheet.pipeline.model.cascade import Cascade
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.telemetry.spans import Span

pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]

SHAPES: dict[str, dict[str, Any]] = {
    "heads of 32": {"width": 64, "heads": 2, "inner": 128},
    "heads of 64": {"width": 256, "heads": 4, "inner": 512, "activation": "gelu_new"},
    "nothing of it is a tile": {"width": 120, "heads": 3, "inner": 200, "activation": "relu"},
    "wide": {"width": 1024, "heads": 16, "inner": 4096},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("drawn")
    made = {name: load_model(drawn(folder / name, **shape)) for name, shape in SHAPES.items()}
    return made.__getitem__


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts as long as a block of attention computes, one token shorter and one longer; empty texts, and many in
    between.
    """
    sizes = [0, 1, 2, 61, 62, 63, 125, 126, 127, 128, 189, 190, 191, 509, 510, 511, 900, *range(3, 60)]
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice(PARTS[:12], size)) if size % 2 else "a " * size for size in sizes]


def given_texts(texts: list[str]) -> Texts:
    return Texts.of([text.encode() for text in texts])


def on_gpu(model: Model, generation: str, precision: str) -> Any:
    import cupy as cp

    from broadsheet.pipeline.kernels.encoder import DeviceEncoder
    from broadsheet.pipeline.kernels.ops import operations

    assert model.encoder is not None
    return DeviceEncoder(model.encoder, operations(generation, precision, cp.cuda.Device()))


def reads(model: Model, most: int) -> Model:
    """Return the model with another number of tokens that it reads of a text."""
    encoder = model.encoder
    assert encoder is not None
    weights = {**encoder.weights, "places": encoder.weights["places"][:most]}
    return replace(
        model, encoder=replace(encoder, settings=structs.replace(encoder.settings, most_tokens=most), weights=weights)
    )


@pytest.fixture(scope="module", params=[3, 9, 512])
def tokens(request: pytest.FixtureRequest, model: Callable[[str], Model]) -> tuple[Encoder, Any]:
    """The specification and the kernel, with the number of tokens that both read of a text."""
    of = reads(model("heads of 32"), request.param)
    assert of.encoder is not None
    return of.encoder, on_gpu(of, "sm80", "fp16")


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn_texts=st.lists(HOSTILE, min_size=1, max_size=8))
def test_tokens_are_those_of_numpy(tokens: tuple[Encoder, Any], drawn_texts: list[str]) -> None:
    encoder, device = tokens
    in_parts = " ".join(drawn_texts) * 60  # a long text whose parts have a thread each
    texts = given_texts([*drawn_texts, "".join(drawn_texts), in_parts])
    want = encoder.tokens_of(texts.data, texts.offsets)
    found = device.tokens(texts.data, texts.offsets)
    found.counts_ready.synchronize()
    ids, rooms = found.ids.get().tolist(), found.rooms.get().tolist()
    own = [ids[at : at + count] for at, count in zip(rooms, found.counts.tolist(), strict=True)]
    assert own == [want.ids[a:b].tolist() for a, b in pairwise(want.ends.tolist())]
    assert np.array_equal(device.compute(texts.data, texts.offsets, True)[1], want.is_cut)


@pytest.mark.parametrize(("generation", "precision"), [("sm90", "fp16"), ("sm90", "bf16"), ("sm80", "fp16")])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_vectors_are_those_of_numpy(
    name: str, generation: str, precision: str, model: Callable[[str], Model], texts: list[str]
) -> None:
    skip_unless_runs(generation)
    of, given = model(name), given_texts(texts)
    assert of.encoder is not None
    with closing(OnCpu(of.encoder, 4)) as cpu:
        for is_logits in (True, False):
            want, is_cut = cpu.of_texts(given, is_logits, None)
            found, cut = on_gpu(of, generation, precision).compute(given.data, given.offsets, is_logits)
            # Each layer rounds to a unit of 2e-3, or 8e-3 in bf16, for values of about the size that a norm returns.
            off = np.abs(found - want).max() / want.std()
            assert off < (0.2 if precision == "bf16" else 0.025)
            assert np.array_equal(cut, is_cut)


@pytest.mark.parametrize("generation", ["sm90", "sm80"])
def test_no_bit_depends_on_other_texts(generation: str, model: Callable[[str], Model], texts: list[str]) -> None:
    skip_unless_runs(generation)
    device = on_gpu(model("heads of 64"), generation, "fp16")
    given = given_texts(texts * 40)  # several groups
    whole, _ = device.compute(given.data, given.offsets, True)
    order = np.random.default_rng(0).permutation(len(given))[: len(given) // 3]
    some = given_texts([(texts * 40)[i] for i in order])
    part, _ = device.compute(some.data, some.offsets, True)
    assert np.array_equal(part.view(np.uint32), whole[order].view(np.uint32))
    assert np.array_equal(whole[: len(texts)].view(np.uint32), whole[-len(texts) :].view(np.uint32))


def test_a_model_and_a_chain_label_as_on_a_cpu(model: Callable[[str], Model], texts: list[str]) -> None:
    alone, given = model("heads of 64"), given_texts(texts * 3)
    chain = replace(
        model_of(branch(3, 2, (2, 3), 500)), encoder=alone.encoder, cascade=Cascade(0.2, 0.5, 0.99, (0.0,) * 3)
    )
    for of in (alone, chain):
        with closing(open_engine(of, "cuda")) as gpu, closing(open_engine(of, "cpu")) as cpu:
            assert gpu.device_name.startswith("cuda:")
            found, want = gpu.classify(given, all_scores=True), cpu.classify(given, all_scores=True)
            np.testing.assert_allclose(found.all_scores, want.all_scores, atol=0.02)
            assert np.mean(found.labels == want.labels) > 0.97
            assert np.array_equal(found.n_chars, want.n_chars)
            assert np.array_equal(found.truncated, want.truncated)
            assert found.asked == want.asked
            assert (of is alone) or 0 < found.asked < len(given)
            assert gpu.classify(given_texts([])).labels.shape == (0, 1)


def test_an_overflow_costs_its_text_alone(model: Callable[[str], Model]) -> None:
    of = model("heads of 32")
    assert of.encoder is not None
    rare = int(of.encoder.tokens_of(*buffers("\u4e10")).ids[1])
    weights = {**of.encoder.weights, "embedding": of.encoder.weights["embedding"].copy()}
    weights["embedding"][rare] = 0
    weights["embedding"][rare, 0] = 6e4  # alone, the value is 8 after the norm, and 7e4 after the first product
    weights["norm.weight"] = np.ones_like(weights["norm.weight"])
    weights["0.queries"] = weights["0.queries"].copy()
    weights["0.queries"][0, : of.encoder.width] = 9e3
    with closing(open_engine(replace(of, encoder=replace(of.encoder, weights=weights)), "cuda")) as engine:
        assert engine.classify(given_texts(["a", "a \u4e10", "the"])).overflowed.tolist() == [False, True, False]


def test_what_the_kernels_do_not_compute_is_refused(model: Callable[[str], Model], tmp_path: Path) -> None:
    wide = load_model(drawn(tmp_path / "it", 160, 2, 64))
    for of, precision, kernels in (
        (wide, "auto", "auto"),
        (model("wide"), "fp32", "auto"),
        (model("wide"), "int8", "auto"),
        (model("wide"), "auto", "simt"),
    ):
        with pytest.raises(UsageError, match=r"Add device=.cpu|not in"):
            open_engine(of, "cuda", precision, kernels=kernels)


def buffers(text: str) -> tuple[Any, Any]:
    return given_texts([text]).data, given_texts([text]).offsets


def skip_unless_runs(generation: str) -> None:
    import cupy as cp

    if generation == "sm90" and not cp.cuda.Device().compute_capability.startswith("9"):
        pytest.skip("needs a GPU of compute capability 9")


def test_heads_of_one_trunk_are_computed_in_one_pass(model: Callable[[str], Model], texts: list[str]) -> None:
    """Each head gives the bits that it gives alone, and the layers are computed once for all heads."""
    first = model("heads of 32")
    assert isinstance(first.encoder, Encoder)
    weights = {**first.encoder.weights, "last": np.ascontiguousarray(first.encoder.weights["last"][::-1])}
    second = replace(first, encoder=replace(first.encoder, weights=weights), name="second")

    def passed(models: list[Model]) -> tuple[list[np.ndarray], int]:
        spans: list[Span] = []
        with opened(models, "cuda") as engines:
            wanted = [Scoring(all_scores=True) for _ in models]
            found = score(given_texts(texts), engines, wanted, spans, each_kernel=True)
        return [one.all_scores for one in found], sum(span.name == "embedding" for span in spans)

    alone = [passed([one]) for one in (first, second)]
    together, steps = passed([first, second])
    assert steps == alone[0][1] > 0
    for (own, _), found in zip(alone, together, strict=True):
        np.testing.assert_array_equal(own[0], found)
    assert not np.array_equal(together[0], together[1])
