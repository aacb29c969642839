"""Encoders that PyTorch computes on a GPU, and RoBERTa's relatives in our kernels, whose tokens the host makes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandHere, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_folders import CORPUS, TEXTS, classified, classifier, sentences

from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.open import open_engine, vectors, why_no_gpu
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model import encoder_folder
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_model

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("transformers", "5.24", reason="transformers of the extra torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch has no CUDA"),
    pytest.mark.filterwarnings("ignore"),
]

HALF = 2e-3
"""The tolerance that docs/encoders.md promises in 16 bits."""

PADDED = ["<pad>", "a <pad> b", "<pad><pad> the ferry <pad>is late", "the ferry " * 60 + "<pad>"]


def as_texts(texts: list[str]) -> Texts:
    return Texts.of([text.encode() for text in texts])


def scores_of(engine: Engine, texts: list[str]) -> Any:
    return engine.classify(as_texts(texts), all_scores=True).all_scores


@pytest.mark.parametrize("family", ["albert", "deberta", "electra", "gpt2", "nomic_bert", "t5"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", HALF), ("bf16", 2e-2)])
def test_pytorch_gives_on_a_gpu_what_it_gives_on_a_cpu(
    tmp_path: Path, family: str, precision: str, tolerance: float
) -> None:
    model = load_model(classifier(tmp_path / "folder", family))
    with closing(open_engine(model, "cuda", precision)) as engine:
        assert (engine.backend.device, engine.backend.kernels) == ("cuda", "torch")
        assert engine.device_name.startswith("cuda:")
        found = engine.classify(as_texts(TEXTS), all_scores=True)
    expected = classified(model, TEXTS)
    np.testing.assert_allclose(found.all_scores, expected.all_scores, atol=tolerance)
    assert found.truncated.tolist() == expected.truncated.tolist()
    assert found.n_chars.tolist() == expected.n_chars.tolist()


def test_fnet_is_computed_in_32_bits(tmp_path: Path) -> None:
    model = load_model(classifier(tmp_path / "folder", "fnet"))
    with closing(open_engine(model, "cuda")) as engine:
        assert engine.backend.precision == "fp32"
        found = scores_of(engine, TEXTS)
    np.testing.assert_allclose(found, classified(model, TEXTS).all_scores, atol=1e-5)
    with pytest.raises(UsageError, match="fnet is computed in fp32 alone"):
        open_engine(model, "cuda", "fp16")


@pytest.fixture(scope="module", params=["deberta", "nomic_bert", "xlm-roberta"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines, of which PyTorch computes the last, because of its activation."""
    folder = classifier(tmp_path_factory.mktemp("it") / "folder", request.param)
    with closing(open_engine(load_model(folder), "cuda")) as made:
        assert made.backend.precision == "fp16"
        yield made


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.sampled_from(CORPUS) | st.text(max_size=90), min_size=2, max_size=24), st.randoms())
def test_a_score_depends_on_its_text_alone(engine: Engine, texts: list[str], random: Any) -> None:
    together = scores_of(engine, texts)
    order = random.sample(range(len(texts)), len(texts))
    np.testing.assert_allclose(scores_of(engine, [texts[row] for row in order]), together[order], atol=HALF)
    row = order[0]
    np.testing.assert_allclose(scores_of(engine, [texts[row]]), together[row : row + 1], atol=HALF)


def test_texts_that_overflow_in_16_bits_are_computed_in_32(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = classifier(tmp_path / "folder", "electra")
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.dense.weight"] *= 1e6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_model(folder)
    with closing(open_engine(model, "cuda", "fp16")) as engine:
        found = scores_of(engine, TEXTS)
    np.testing.assert_allclose(found, classified(model, TEXTS).all_scores, atol=1e-3)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert"])
def test_our_kernels_give_what_numpy_gives_for_robertas_kin(tmp_path: Path, family: str) -> None:
    model = load_model(classifier(tmp_path / "folder", family, hidden_act="gelu"))
    assert isinstance(model.encoder, Encoder)
    texts = (TEXTS + PADDED) * 50
    with closing(open_engine(model, "cuda")) as engine:
        assert engine.backend.kernels != "torch"
        assert not engine.reads_gpu_texts
        found = engine.classify(as_texts(texts), all_scores=True)
        alone = engine.classify(as_texts(texts[-3:-2]), all_scores=True)
    expected = classified(model, texts)
    np.testing.assert_allclose(found.all_scores, expected.all_scores, atol=HALF)
    np.testing.assert_array_equal(alone.all_scores, found.all_scores[-3:-2])  # in our own kernels, the bits are equal
    assert found.truncated.tolist() == expected.truncated.tolist()


def test_vectors_on_a_gpu(tmp_path: Path) -> None:
    for family, activation in (("electra", {}), ("xlm-roberta", {"hidden_act": "gelu"})):
        folder = sentences(tmp_path / family, family, "mean", ("Normalize",))
        if activation:
            about = (folder / "config.json").read_text().replace('"silu"', '"gelu"')
            (folder / "config.json").write_text(about)
        (encoder, *_), _ = encoder_folder.read(folder, "it")
        texts = as_texts(TEXTS)
        found = vectors(encoder, texts.data, texts.offsets, "cuda")
        np.testing.assert_allclose(found, vectors(encoder, texts.data, texts.offsets, "cpu"), atol=HALF)


def test_a_job_on_a_gpu_and_its_resume(
    tmp_path: Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = classifier(Path("folder"), "electra")
    Path("in.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in CORPUS * 20))
    job = ("classify", "in.csv", "--text-column", "text", "-o", "out", "--model", folder, "--device", "cuda")
    code, said = broadsheet_here(*job)
    assert code == 0, said
    code, said = broadsheet_here(*job, "--resume")
    assert code == 0, said
    assert '"torch"' in Path("out/_manifest.json").read_text()
    code, said = broadsheet_here(*job, "--overwrite", "--precision", "int8")
    assert code == 2
    assert "computed by PyTorch, in fp32, fp16 or bf16" in " ".join(said.split())


def test_int8_is_refused(tmp_path: Path) -> None:
    model = replace(load_model(classifier(tmp_path / "folder", "electra")), name="it")
    with pytest.raises(UsageError, match="fp32, fp16 or bf16"):
        open_engine(model, "cuda", "int8")
