"""Encoders compared with transformers and sentence-transformers, and their folders and files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandHere
from encoders import logits, minilm, needs_minilm, saved
from pyarrow.parquet import read_table
from scipy.special import expit, softmax
from texts import TEXTS

from broadsheet.pipeline.ecosystem.push import model_card
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine, vectors
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model import encoder_file, encoder_folder
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import carried, load_model, taken

pytestmark = needs_minilm


def texts() -> list[str]:
    return [*TEXTS[::3], "", "a", "é" * 2000, "word " * 700, "漢字 [SEP] \x00 😀"]


def classified(model: Model, given: list[str], threads: int = 2) -> Any:
    engine = open_engine(model, "cpu", threads=threads)
    try:
        return engine.classify(Texts.of([text.encode() for text in given]), top_k=2, all_scores=True)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("kind", "classes", "config"),
    [
        ("bert", 3, {}),
        ("bert", 4, {"problem_type": "multi_label_classification", "hidden_act": "gelu_new"}),
        ("bert", 1, {"problem_type": "regression", "max_position_embeddings": 40}),
        ("distilbert", 5, {"half": True, "activation": "relu"}),
    ],
)
def test_scores_are_those_of_transformers(tmp_path: Path, kind: str, classes: int, config: dict[str, Any]) -> None:
    folder = saved(tmp_path / "folder", kind, classes, **config)
    if "max_position_embeddings" in config:  # transformers' own tokenizer does not know this limit
        about = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(about | {"model_max_length": 40}))
    expected = logits(folder, texts())
    model = load_model(folder)
    found = classified(model, texts())
    if classes == 1:
        assert model.levels is not None
        np.testing.assert_allclose(found.scores[:, 0], expected[:, 0], atol=1e-5)
        assert expected.min() < 0  # a score may be negative, although no label is
        assert found.labels[:, 0].tolist() == np.rint(np.clip(expected[:, 0], 0, 5)).tolist()
    else:
        of = expit if model.is_multi_label else lambda one: softmax(one, axis=1)
        np.testing.assert_allclose(found.all_scores, of(expected), atol=1e-5)
        assert found.labels[:, 0].tolist() == expected.argmax(axis=1).tolist()
        assert model.classes == tuple(f"class {i}" for i in range(classes))
    assert np.ptp(expected, axis=0).max() > 0.1  # the texts differ in their scores
    assert found.n_chars.tolist() == [*map(len, texts())]
    assert found.truncated.tolist()[-2]
    assert not found.truncated[1]
    again = classified(Model.from_bytes(model.to_bytes()), texts()[::-1], threads=1)
    np.testing.assert_array_equal(again.scores[::-1], found.scores)  # whatever other texts are in the batch


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer, models

    library = SentenceTransformer(str(minilm()))
    library.append(models.Dense(384, 24))
    library.save(str(tmp_path / "more"))
    for folder, encoder in ((minilm(), SentenceTransformer(str(minilm()))), (tmp_path / "more", library)):
        ours, classes, *_ = encoder_file.read(folder, "it")
        assert classes == ()
        data = Texts.of([text.encode() for text in texts()])
        ids, ends, _ = ours.tokens_of(data.data, data.offsets)
        np.testing.assert_allclose(ours.vectors(ids, ends), encoder.encode(texts()), atol=2e-6)


def changed(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("positions", "position_embedding_type is 'relative_key'"),
        ("module", "a module 'sentence_transformers.models.Asym'"),
        ("foreign module", "a module 'mine.Dense'"),
        ("unknown", "config.json has the key 'surprise'"),
        ("setfit", "model_head.pkl, which can run any code"),
        ("shards", "is damaged"),
        ("integers", "'classifier.bias' in I64"),
        ("pickle", "no model.safetensors"),
        ("weight", "lacks the tensor 'classifier.bias'"),
        ("short", "model.safetensors is damaged"),
        ("config", "config.json is no JSON"),
        ("types", "hold other values than usual"),
        ("both", "a classifier and modules"),
        ("headless", "train a head on them"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, what: str, message: str, broadsheet_here: CommandHere
) -> None:
    folder = tmp_path / "folder"
    if what in ("module", "foreign module", "headless", "setfit"):
        shutil.copytree(minilm(), folder)
    else:
        saved(folder)
    match what:
        case "positions":
            changed(folder, "config.json", position_embedding_type="relative_key")
        case "unknown":
            changed(folder, "config.json", surprise=1)
        case "types":
            changed(folder, "config.json", num_hidden_layers="many")
        case "setfit":
            (folder / "model_head.pkl").write_bytes(b"anything")
        case "shards":
            (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
            (folder / "model.safetensors.index.json").write_text("{}")
        case "module" | "foreign module":
            about = json.loads((folder / "modules.json").read_text())
            about[2]["type"] = "sentence_transformers.models.Asym" if what == "module" else "mine.Dense"
            (folder / "modules.json").write_text(json.dumps(about))
        case "both":
            shutil.copy(minilm() / "modules.json", folder)
        case "pickle":
            (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        case "weight" | "integers":
            from safetensors.numpy import load_file, save_file

            tensors = load_file(folder / "model.safetensors")
            bias = tensors.pop("classifier.bias")
            tensors |= {"classifier.bias": bias.astype(np.int64)} if what == "integers" else {}
            save_file(tensors, folder / "model.safetensors")
        case "short":
            data = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
        case "config":
            (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=message):
        load_model(folder)
    code, said = broadsheet_here("convert", folder, tmp_path / "out.safetensors")
    assert code != 0
    assert str(folder) in said.replace("\n", "")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("what", ["activation", "normalizer", "added token"])
def test_scores_of_what_only_the_libraries_know_are_theirs(tmp_path: Path, what: str) -> None:
    """PyTorch computes an activation that our layers lack, and `tokenizers` makes tokens before our own layers."""
    folder = saved(tmp_path / "folder", **({"hidden_act": "swish"} if what == "activation" else {}))
    if what == "normalizer":
        changed(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
        changed(folder, "tokenizer.json", normalizer={"type": "Lowercase"})
    elif what == "added token":
        about = json.loads((folder / "tokenizer_config.json").read_text())
        token = {"content": "oil", "lstrip": False, "rstrip": False, "normalized": True, "single_word": True}
        decoder = about.get("added_tokens_decoder", {}) | {"3514": token | {"special": False}}
        changed(folder, "tokenizer_config.json", added_tokens_decoder=decoder)
    model = load_model(folder)
    assert model.encoder is not None
    assert model.encoder.runs_in == ("PyTorch" if what == "activation" else "own kernels")
    np.testing.assert_allclose(
        classified(model, texts()).all_scores, softmax(logits(folder, texts()), axis=1), atol=1e-5
    )


@pytest.mark.parametrize("what", ["pooling", "poolings", "prompt"])
def test_vectors_that_our_kernels_do_not_compute_are_pytorchs(tmp_path: Path, what: str) -> None:
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "folder"
    shutil.copytree(minilm(), folder)
    if what == "pooling":
        changed(folder, "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True)
    elif what == "poolings":
        (folder / "1_Pooling/config.json").write_text(
            json.dumps({"embedding_dimension": 384, "pooling_mode": ["cls", "mean"]})
        )
    else:
        values = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
        changed(folder, "config_sentence_transformers.json", **values)
    (encoder, *_), card = encoder_folder.read(folder, "it")
    assert card[encoder_folder.CARD].startswith("PyTorch, since ")
    data = Texts.of([text.encode() for text in texts()])
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts())
    np.testing.assert_allclose(vectors(encoder, data.data, data.offsets, "cpu"), expected, atol=1e-5)


def test_a_folder_with_an_old_vocabulary_is_the_same_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "folder")
    model = load_model(folder)
    (folder / "tokenizer.json").unlink()
    shutil.copy(minilm() / "vocab.txt", folder)
    assert load_model(folder).digest == model.digest


def test_in_everything_else_it_is_a_model_like_any_other(
    tmp_path: Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, file = saved(Path("folder")), Path("it.safetensors")
    number = saved(Path("number"), "distilbert", 1, problem_type="regression")

    def said(code: int, *command: object) -> str:
        found, output = broadsheet_here(*command)
        assert found == code, output
        return " ".join(output.split())

    said(0, "convert", folder, file)
    digest = load_model(folder).digest
    assert load_model(file).digest == digest
    for one in (folder, file):
        shown = said(0, "inspect", one)
        assert "2 layers of 64 values and 2 heads, gelu" in shown
        assert digest in shown
        assert "n-grams" not in shown
    assert json.loads(said(0, "inspect", file, "--json"))["encoder"]["most"] == 512
    Path("in.csv").write_text("text\n" + "".join(f"{text}\n" for text in ("word " * 600, "oil fell", "a b")))
    job = "classify", "in.csv", "--text-column", "text", "-o"
    said(0, *job, "out", "--model", folder, "--device", "cpu")
    assert "1 of 1 chunk done before" in said(0, *job, "out", "--model", file, "--device", "cpu", "--resume")
    assert "cannot resume" in said(2, *job, "out", "--model", number, "--device", "cpu", "--resume")
    assert "are longer than the model reads" in said(0, *job, "out2", "--model", file, "--device", "cpu", "--dry-run")
    said(0, *job, "out3", "--model", file, "--model", number, "--device", "cpu", "--where", "number_score < 9")
    rows = read_table("out3/parts").to_pylist()
    alone = read_table("out/parts").to_pylist()
    assert [(row["it_label"], row["it_score"]) for row in rows] == [(row["label"], row["score"]) for row in alone]
    assert "the first 512 tokens of a text" in model_card(load_model(file), "user/it")
    for words, command in (
        ("export the folder that it is from with optimum-cli", ("convert", file, "it.onnx")),
        ("profiles are of networks", ("profile", "--model", file, "--device", "cpu")),
        (
            "has no int8 so far",
            ("calibrate", file, "in.csv", "--int8", "-o", "no.safetensors"),
        ),
        ("params.bin holds a character-level network", ("convert", file, "it.bin")),
        ("leave out --memory", ("inspect", file, "--memory")),
        ("Use --device cpu", (*job, "no", "--model", file, "--device", "cuda")),
        ("leave out --precision", (*job, "no", "--model", file, "--device", "cpu", "--precision", "fp16")),
    ):
        code, output = broadsheet_here(*command)
        assert (code != 0, words in " ".join(output.split())) == (True, True), output


def test_processes_of_this_machine_get_the_name_of_a_file(tmp_path: Path) -> None:
    folder, file = saved(tmp_path / "folder"), tmp_path / "it.safetensors"
    load_model(folder).save(file)
    model = load_model(file)
    assert len(carried(model)) < 1000
    renamed = replace(model, classes=model.classes[::-1])  # the model differs from the one in the file
    for one in (model, renamed, load_model(folder)):
        assert taken(carried(one)).digest == one.digest


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    data = bytearray(load_model(saved(tmp_path / "folder")).to_bytes())
    data[-5] ^= 1
    with pytest.raises(ModelError):
        Model.from_bytes(bytes(data))
