"""ModernBERT and its relatives, gte and DeBERTa on a GPU: kernels against the specification in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import encoder_folders
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from torch_folders import TEXTS, change, classifier, sentences

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.encoder import OnCpu
from broadsheet.pipeline.engine.open import open_engine, opened, vectors, why_no_gpu
from broadsheet.pipeline.labelling.scored import Scoring, score
from broadsheet.pipeline.model import encoder_folder
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.telemetry.spans import Span

pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("transformers", reason="transformers is not installed (extra torch)")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}"),
    pytest.mark.filterwarnings("ignore"),
]

HALF = 2e-3
"""The tolerance that docs/encoders.md promises in 16 bits."""

SHAPES: dict[str, dict[str, Any]] = {
    "heads of 64": {
        "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 384, "local_attention": 128,
        "num_hidden_layers": 4, "global_attn_every_n_layers": 3,
    },
    "nothing of it is a tile": {
        "hidden_size": 120, "num_attention_heads": 3, "intermediate_size": 200, "local_attention": 11,
        "hidden_activation": "relu", "classifier_pooling": "mean",
    },
    "a window of 100, and the tanh approximation": {
        "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 640, "local_attention": 200,
        "hidden_activation": "gelu_new",
    },
    "each token by itself": {"hidden_size": 64, "num_attention_heads": 1, "local_attention": 1},
    "gte": {"family": "gte", "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 384},
    "gte, nothing of it is a tile": {
        "family": "gte", "hidden_size": 120, "num_attention_heads": 3, "intermediate_size": 200, "hidden_act": "relu",
    },
    "DeBERTa-v3": {
        "family": "deberta-v2", "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 384,
        "num_hidden_layers": 3, "position_buckets": 256, "pooler_hidden_size": 256,
    },
    "DeBERTa, nothing of it is a tile": {
        "family": "deberta-v2", "hidden_size": 120, "num_attention_heads": 3, "intermediate_size": 200,
        "position_buckets": 32, "max_relative_positions": 200, "share_att_key": False, "pooler_hidden_size": 120,
    },
    "with biases": {
        "hidden_size": 128, "num_attention_heads": 2, "attention_bias": True, "mlp_bias": True, "norm_bias": True,
        "classifier_bias": True, "local_attention": 64,
    },
}  # fmt: skip


def made(folder: Path, **shape: Any) -> Model:
    """Return a model of up to 1,024 tokens.

    Its weights are large enough for scores to differ, and small enough for 16 bits to hold the sums.
    """
    import transformers

    family = shape.pop("family", "modernbert")
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    classifier(folder, family, max_position_embeddings=1024, **shape)
    change(folder / "tokenizer_config.json", model_max_length=1024)
    rng, tensors = np.random.default_rng(1), load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        tensors[name] = tensor * 0.5 if tensor.ndim > 1 else tensor + rng.normal(0, 0.1, tensor.shape).astype("f4")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return load_model(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("made")
    models: dict[str, Model] = {}

    def of(name: str) -> Model:
        if name not in models:
            models[name] = made(folder / str(len(models)), **SHAPES[name])
        return models[name]

    return of


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts with every number of tokens near the edges of tiles and windows, with few tokens, and with more than are
    read.
    """
    words = [" ferry", " late", " harbour", " oil", " cup", " é", " 漢字", " the"]
    rng = np.random.default_rng(5)
    sizes = [0, 1, 2, 30, 62, 63, 64, 65, 126, 127, 128, 129, 190, 191, 192, 193, 255, 256, 257, 381, 700, 2000]
    return [*TEXTS, *("".join(rng.choice(words, size)) for size in sizes)]


def given_texts(texts: list[str]) -> Texts:
    return Texts.of([text.encode() for text in texts])


def on_gpu(model: Model, generation: str, precision: str, rows: int | None = None) -> Any:
    import cupy as cp

    from broadsheet.pipeline.kernels.encoder import DeviceEncoder
    from broadsheet.pipeline.kernels.ops import operations

    if generation == "sm90" and not cp.cuda.Device().compute_capability.startswith("9"):
        pytest.skip("needs a GPU of compute capability 9")
    assert isinstance(model.encoder, Encoder)
    return DeviceEncoder(model.encoder, operations(generation, precision, cp.cuda.Device()), rows)


@pytest.mark.parametrize(("generation", "precision"), [("sm90", "fp16"), ("sm90", "bf16"), ("sm80", "fp16")])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_vectors_are_those_of_numpy(
    name: str, generation: str, precision: str, model: Callable[[str], Model], texts: list[str]
) -> None:
    of, given = model(name), given_texts(texts)
    assert isinstance(of.encoder, Encoder)
    with closing(OnCpu(of.encoder, 4)) as cpu:
        for is_logits in (True, False):
            want, is_cut = cpu.of_texts(given, is_logits, None)
            found, cut = on_gpu(of, generation, precision).compute(given.data, given.offsets, is_logits)
            # Each layer rounds to a unit of 2e-3, or 8e-3 in bf16, for values of about the size that a norm returns.
            off = np.abs(found - want).max() / want.std()
            assert off < (0.2 if precision == "bf16" else 0.025)
            assert np.array_equal(cut, is_cut)
            assert cut.any()


@pytest.mark.parametrize("name", SHAPES)
def test_scores_are_within_the_promise_and_labels_equal(
    name: str, model: Callable[[str], Model], texts: list[str]
) -> None:
    of, given = model(name), given_texts(texts)
    with closing(open_engine(of, "cuda")) as gpu, closing(open_engine(of, "cpu")) as cpu:
        assert gpu.backend.kernels != "torch"
        found, want = gpu.classify(given, all_scores=True), cpu.classify(given, all_scores=True)
    assert found.all_scores is not None
    assert want.all_scores is not None
    np.testing.assert_allclose(found.all_scores, want.all_scores, atol=HALF)
    first, second = np.sort(want.all_scores, axis=1)[:, -1:-3:-1].T
    is_clear = first - second > 2 * HALF
    assert is_clear.sum() > len(texts) // 2
    np.testing.assert_array_equal(found.labels[is_clear], want.labels[is_clear])


@pytest.mark.parametrize("generation", ["sm90", "sm80"])
@pytest.mark.parametrize("name", ["heads of 64", "gte", "DeBERTa-v3"])
def test_no_bit_depends_on_other_texts(
    name: str, generation: str, model: Callable[[str], Model], texts: list[str]
) -> None:
    of = model(name)
    device, many = on_gpu(of, generation, "fp16"), texts * 40  # several groups that become tokens together
    whole, _ = device.compute(*buffers(many), True)
    order = np.random.default_rng(0).permutation(len(many))[: len(many) // 3]
    part, _ = device.compute(*buffers([many[row] for row in order]), True)
    assert np.array_equal(part.view(np.uint32), whole[order].view(np.uint32))
    few_rows, _ = on_gpu(of, generation, "fp16", 1024).compute(*buffers(many), True)
    assert np.array_equal(few_rows.view(np.uint32), whole.view(np.uint32))
    for row in (0, len(texts) - 1, len(texts) - 2, len(texts) - 9):
        alone, _ = device.compute(*buffers([many[row]]), True)
        assert np.array_equal(alone[0].view(np.uint32), whole[row].view(np.uint32))


def test_gte_with_tokens_of_bert_reads_bytes_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("transformers.models.gte", reason="needs transformers 5.24")
    of = load_model(encoder_folders.classifier(tmp_path / "folder", "gte"))
    given = given_texts(encoder_folders.TEXTS * 30)
    with closing(open_engine(of, "cuda")) as gpu, closing(open_engine(of, "cpu")) as cpu:
        assert gpu.reads_gpu_texts
        found, want = gpu.classify(given, all_scores=True), cpu.classify(given, all_scores=True)
    assert found.all_scores is not None
    assert want.all_scores is not None
    # This model's weights are larger than those of a trained model, so rounding is compared with the spread of scores.
    assert np.abs(found.all_scores - want.all_scores).max() / want.all_scores.std() < 0.025
    np.testing.assert_array_equal(found.truncated, want.truncated)


def test_encoders_of_one_vocabulary_share_the_tokens(tmp_path: Path, texts: list[str]) -> None:
    models = [made(tmp_path / f"{layers}", num_hidden_layers=layers) for layers in (2, 3)]
    alone = [passed([model], texts)[0][0] for model in models]
    together, steps = passed(models, texts)
    assert steps["tokens"] == 1
    for own, found in zip(alone, together, strict=True):
        np.testing.assert_array_equal(own, found)


def test_a_window_hides_what_lies_beyond_it(tmp_path: Path) -> None:
    """In a long text, the first token's vector does not depend on tokens beyond both layers' windows, as in NumPy."""
    shape = {"layer_types": ["sliding_attention"] * 2, "local_attention": 128, "hidden_size": 128}
    device = on_gpu(made(tmp_path / "folder", **shape), "sm80", "fp16")
    words = [" ferry"] * 300
    near, far = [*words], [*words]
    near[10], far[290] = " oil", " oil"  # a word is a few tokens
    same, with_near, with_far = (device.compute(*buffers(["".join(some)]), True)[0] for some in (words, near, far))
    assert not np.array_equal(same, with_near)
    assert np.array_equal(same.view(np.uint32), with_far.view(np.uint32))


def test_an_overflow_costs_its_text_alone(model: Callable[[str], Model]) -> None:
    of = model("heads of 64")
    encoder = of.encoder
    assert isinstance(encoder, Encoder)
    rare = int(encoder.tokens_of(*buffers("é"))[0][1])
    weights = {name: tensor.copy() for name, tensor in encoder.weights.items()}
    weights["embedding"][rare] = 0
    weights["embedding"][rare, 0] = 6e4  # alone, the value is 16 after the norm, and 1e5 after the first product
    weights["norm.weight"][:] = 1
    weights["0.queries"][0, : encoder.width] = 9e3
    with closing(open_engine(replace(of, encoder=replace(encoder, weights=weights)), "cuda")) as engine:
        found = engine.classify(given_texts(["a ferry", "é", "the oil"]))
    assert found.overflowed.tolist() == [False, True, False]


def test_vectors_of_sentence_transformers(tmp_path: Path) -> None:
    folder = sentences(tmp_path / "folder", "modernbert", "mean", ("Normalize",))
    (encoder, *_), _ = encoder_folder.read(folder, "it")
    given = given_texts(TEXTS)
    found = vectors(encoder, given.data, given.offsets, "cuda")
    np.testing.assert_allclose(found, vectors(encoder, given.data, given.offsets, "cpu"), atol=HALF)


def passed(models: list[Model], texts: list[str]) -> tuple[list[Any], dict[str, int]]:
    """Return each model's scores of the texts, computed in one pass, and how often each step was done."""
    spans: list[Span] = []
    with opened(models, "cuda") as engines:
        wanted = [Scoring(all_scores=True) for _ in models]
        found = score(given_texts(texts), engines, wanted, spans, each_kernel=True)
    names = [span.name for span in spans]
    return [one.all_scores for one in found], {name: names.count(name) for name in names}


def buffers(texts: list[str] | str) -> tuple[Any, Any]:
    given = given_texts([texts] if isinstance(texts, str) else texts)
    return given.data, given.offsets
