"""Encoders that PyTorch computes: they give the scores and vectors of the original libraries, alone and in any batch,
and can do all that other models can.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandHere, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import read_table
from torch_folders import (
    CORPUS,
    FAMILIES,
    TEXTS,
    body,
    by_sentence_transformers,
    by_transformers,
    change,
    classified,
    classifier,
    sentences,
)

from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.open import open_engine, vectors
from broadsheet.pipeline.engine.torch_encoder import PADDED
from broadsheet.pipeline.errors import ModelError, UsageError, install
from broadsheet.pipeline.model import encoder_folder
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import carried, load_model, taken

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("transformers", reason="transformers is not installed (extra torch)")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra torch)")
pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

TOLERANCE = 1e-5
"""The tolerance that docs/encoders.md promises in fp32."""

QUICK = ("deberta-v2", "modernbert", "xlm-roberta")
"""The families that `make test` covers; the others are slow tests."""

EACH_FAMILY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]

WITHOUT_PYTORCH = """
import sys
missing = sys.argv.pop(1)
class Missing:
    def find_spec(self, name, *of):
        if name == missing:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from broadsheet.pipeline.cli import main
main()
"""


def as_texts(texts: list[str]) -> Texts:
    return Texts.of([text.encode() for text in texts])


def scores_of(engine: Engine, texts: list[str]) -> Any:
    return engine.classify(as_texts(texts), all_scores=True).all_scores


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_scores_of_each_family_are_those_of_the_pipeline_of_transformers(tmp_path: Path, family: str) -> None:
    folder = classifier(tmp_path / "folder", family)
    model = load_model(folder)
    expected = by_transformers(folder, TEXTS)
    found = classified(model, TEXTS)
    wanted = np.array([[scores[name] for name in model.classes] for scores in expected])
    np.testing.assert_allclose(found.all_scores, wanted, atol=TOLERANCE)
    assert [model.classes[label] for label in found.labels[:, 0]] == [max(one, key=one.get) for one in expected]
    assert np.ptp(wanted, axis=0).max() > 0.05  # the texts differ in their scores
    assert found.truncated[TEXTS.index("the ferry " * 60)]
    assert not found.truncated[TEXTS.index("a")]
    again = classified(Model.from_bytes(model.to_bytes()), TEXTS[::-1])
    np.testing.assert_allclose(again.all_scores[::-1], found.all_scores, atol=TOLERANCE)
    alone = np.concatenate([classified(model, [text]).all_scores for text in TEXTS[::5]])
    np.testing.assert_allclose(alone, found.all_scores[::5], atol=TOLERANCE)


@pytest.fixture(scope="module", params=["deberta", "fnet", "gpt2", "modernbert", "xlm-roberta"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines for families with and without padding. All their scores depend on every token."""
    folder = classifier(tmp_path_factory.mktemp("it") / "folder", request.param)
    made = open_engine(load_model(folder), "cpu", threads=1)
    yield made
    made.close()


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.sampled_from(CORPUS) | st.text(max_size=90), min_size=2, max_size=24), st.randoms())
def test_a_score_depends_on_its_text_alone(engine: Engine, texts: list[str], random: Any) -> None:
    """The other texts of a batch, their lengths, and the position in the batch change nothing."""
    together = scores_of(engine, texts)
    order = random.sample(range(len(texts)), len(texts))
    shuffled = scores_of(engine, [texts[row] for row in order])
    np.testing.assert_allclose(shuffled, together[order], atol=TOLERANCE)
    row = order[0]
    np.testing.assert_allclose(scores_of(engine, [texts[row]]), together[row : row + 1], atol=TOLERANCE)


@pytest.mark.parametrize("family", QUICK)
# Every type of problem, and one class, for which transformers chooses another function.
@pytest.mark.parametrize(
    ("problem", "classes"),
    [("multi_label_classification", 4), ("multi_label_classification", 1), ("regression", 1), (None, 1), (None, 2)],
)
def test_each_kind_of_head_gives_what_transformers_gives(
    tmp_path: Path, family: str, problem: str | None, classes: int
) -> None:
    folder = classifier(tmp_path / "folder", family, classes, problem_type=problem)
    model, expected = load_model(folder), by_transformers(folder, TEXTS)
    found = classified(model, TEXTS)
    assert (model.levels is not None) == (problem == "regression")
    assert model.is_multi_label == (problem == "multi_label_classification" or (problem, classes) == (None, 1))
    if model.levels is not None:
        numbers = np.array([one["class 0"] for one in expected])
        np.testing.assert_allclose(found.scores[:, 0], numbers, atol=TOLERANCE, rtol=TOLERANCE)
        assert found.labels[:, 0].tolist() == np.rint(np.clip(numbers, 0, 5)).tolist()
    else:
        wanted = np.array([[one[name] for name in model.classes] for one in expected])
        np.testing.assert_allclose(found.all_scores, wanted, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("family", "pooling", "more", "settings"),
    [
        ("modernbert", "cls", ("Normalize",), {}),
        ("xlm-roberta", ("mean", "max"), ("Dense",), {"truncate_dim": 16}),
        ("deberta-v2", "weightedmean", ("LayerNorm",), {}),
        ("gte", "lasttoken", (), {"prompts": {"q": "find: "}, "default_prompt_name": "q"}),
        pytest.param("fnet", "mean_sqrt_len_tokens", (), {}, marks=pytest.mark.slow),
        pytest.param("gpt2", "lasttoken", ("Dense", "Normalize"), {}, marks=pytest.mark.slow),
        pytest.param("t5", "mean", (), {}, marks=pytest.mark.slow),
    ],
)
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, family: str, pooling: Any, more: tuple[str, ...], settings: dict[str, Any]
) -> None:
    folder = sentences(tmp_path / "folder", family, pooling, more, **settings)
    (encoder, classes, *_), _ = encoder_folder.read(folder, "it")
    texts = as_texts(TEXTS)
    assert classes == ()
    found = vectors(encoder, texts.data, texts.offsets, "cpu")
    np.testing.assert_allclose(found, by_sentence_transformers(folder, TEXTS), atol=TOLERANCE)
    at_last = vectors(encoder, texts.data, texts.offsets[-2:], "cpu")
    np.testing.assert_allclose(at_last, found[-1:], atol=TOLERANCE)


def test_a_folder_without_modules_gives_the_mean_of_its_tokens(tmp_path: Path) -> None:
    folder = body(tmp_path / "folder", "modernbert")
    (encoder, *_), _ = encoder_folder.read(folder, "it")
    texts = as_texts(TEXTS)
    expected = by_sentence_transformers(folder, TEXTS)
    np.testing.assert_allclose(vectors(encoder, texts.data, texts.offsets, "cpu"), expected, atol=TOLERANCE)


def test_texts_are_made_lower_case_where_sentence_transformers_does(tmp_path: Path) -> None:
    folder = sentences(tmp_path / "folder", "roberta")
    change(folder / "sentence_bert_config.json", do_lower_case=True, max_seq_length=20)
    (encoder, *_), _ = encoder_folder.read(folder, "it")
    texts = as_texts(TEXTS)
    assert encoder.settings.most_tokens == 20
    expected = by_sentence_transformers(folder, TEXTS)
    np.testing.assert_allclose(vectors(encoder, texts.data, texts.offsets, "cpu"), expected, atol=TOLERANCE)


def test_families_with_padding_are_tested() -> None:
    tested = {*FAMILIES}
    as_bert = {"distilbert", "ernie", "data2vec-text", "roformer", "jina_embeddings_v3"}
    assert {*PADDED} <= tested | as_bert


# Our kernels know the second family, but read only one file.
@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_weights_in_several_files_and_in_bf16_are_read(tmp_path: Path, family: str) -> None:
    import transformers

    folder = classifier(tmp_path / "folder", family)
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    model = load_model(folder)
    found = classified(model, TEXTS).all_scores
    wanted = [[one[name] for name in model.classes] for one in by_transformers(folder, TEXTS)]
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("code", "it brings code of its own"),
        ("family", "has no models of the kind 'surprise'"),
        ("adapter", "merge_and_unload"),
        ("quantised", "its weights are quantised"),
        ("cross", "a CrossEncoder, which scores pairs"),
        ("pickle", "has no model.safetensors: save it with safetensors"),
        ("short", "model.safetensors is damaged"),
        ("weight", "lack 'classifier.out_proj.bias', which would be drawn at random"),
        ("sizes", "transformers does not load this electra"),
        ("tokens", "save the folder again after resize_token_embeddings"),
        ("no tokenizer", "transformers does not load its tokenizer"),
        ("numbers", "its problem_type is 'regression' with 3 outputs"),
        ("types", "num_attention_heads"),
    ],
)
def test_what_neither_computes_is_refused_by_name(
    tmp_path: Path, what: str, message: str, broadsheet_here: CommandHere
) -> None:
    folder = classifier(tmp_path / "folder", "electra")
    weights = folder / "model.safetensors"
    match what:
        case "code":
            change(folder / "config.json", model_type="new", auto_map={"AutoConfig": "configuration.NewConfig"})
            (folder / "configuration.py").write_text("raise SystemExit('code of the folder has run')")
        case "family":
            change(folder / "config.json", model_type="surprise")
        case "adapter":
            (folder / "adapter_config.json").write_text("{}")
        case "quantised":
            change(folder / "config.json", quantization_config={"quant_method": "bitsandbytes"})
        case "cross":
            change(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.Sigmoid"})
        case "pickle":
            weights.rename(folder / "pytorch_model.bin")
        case "short":
            weights.write_bytes(weights.read_bytes()[:5000])
        case "weight":
            from safetensors.numpy import load_file, save_file

            tensors = load_file(weights)
            del tensors["classifier.out_proj.bias"]
            save_file(tensors, weights)
        case "sizes":
            change(folder / "config.json", hidden_size=64)
        case "tokens":
            change(folder / "config.json", vocab_size=100)
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "numbers":
            change(folder / "config.json", problem_type="regression")
        case "types":
            change(folder / "config.json", num_attention_heads="many")
    with pytest.raises(ModelError, match=message):
        open_engine(load_model(folder), "cpu").close()
    code, said = broadsheet_here("classify", *_input(tmp_path), "-o", tmp_path / "out", "--model", folder)
    assert code != 0
    assert "Traceback" not in said


def _input(folder: Path) -> tuple[object, ...]:
    (folder / "in.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in CORPUS))
    return folder / "in.csv", "--text-column", "text", "--device", "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(("module", "package"), [("torch", "PyTorch"), ("transformers", "transformers")])
def test_without_a_package_the_message_says_which_and_why(tmp_path: Path, module: str, package: str) -> None:
    folder = classifier(tmp_path / "folder", "electra")
    command = [sys.executable, "-c", WITHOUT_PYTORCH, module]
    done = subprocess.run([*command, "inspect", str(folder)], capture_output=True, text=True, timeout=120)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    for words in ("of the kind 'electra'", f"{package} is not installed: {install('torch')}"):
        assert words in said
    load_model(folder).save(tmp_path / "it.safetensors")  # loading needs no PyTorch, but computing does
    done = subprocess.run([*command, "inspect", str(tmp_path / "it.safetensors")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job = [*command, "classify", *map(str, _input(tmp_path)), "-o", str(tmp_path / "out")]
    done = subprocess.run([*job, "--model", str(tmp_path / "it.safetensors")], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{module} is not installed: {install('torch')}" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_in_everything_else_it_is_a_model_like_any_other(
    tmp_path: Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, file = classifier(Path("folder"), "nomic_bert"), Path("it.safetensors")
    number = classifier(Path("number"), "xlm-roberta", 1, problem_type="regression")

    def said(code: int, *command: object) -> str:
        found, output = broadsheet_here(*command)
        assert found == code, output
        return " ".join(output.split())

    said(0, "convert", folder, file)
    shutil.copytree(folder, "copy")
    digest = load_model(folder).digest
    assert load_model(file).digest == load_model("copy").digest == digest
    assert taken(carried(load_model(file))).digest == digest
    for one in (folder, file):
        shown = said(0, "inspect", one)
        assert "nomic_bert, of 32 values" in shown
        assert "runs in PyTorch, on a GPU and on a CPU" in shown
        assert "it is of the kind 'nomic_bert'" in shown
        assert digest in shown
    assert json.loads(said(0, "inspect", file, "--json"))["encoder"]["runs_in"] == "PyTorch"
    lines = [*CORPUS, "the ferry is late " * 200] * 3
    Path("in.jsonl").write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(lines)))
    job = ("classify", "in.jsonl", "--text-column", "text", "--keep", "id", "--device", "cpu")
    said(0, *job, "-o", "out", "--model", folder, "--chunk-size", 7)
    assert "chunks done before" in said(0, *job, "-o", "out", "--model", file, "--chunk-size", 7, "--resume")
    assert "cannot resume" in said(2, *job, "-o", "out", "--model", number, "--chunk-size", 7, "--resume")
    assert "torch" in Path("out/_manifest.json").read_text()  # the bits depend on its version
    assert "are longer than the model reads" in said(0, *job, "-o", "no", "--model", file, "--dry-run")
    said(0, *job, "-o", "two", "--model", file, "--model", number, "--where", "number_score < 99")
    rows, both = (read_table(f"{out}/parts").sort_by("id").to_pylist() for out in ("out", "two"))
    assert [row["label"] for row in rows] == [row["it_label"] for row in both]
    np.testing.assert_allclose([r["score"] for r in rows], [r["it_score"] for r in both], atol=TOLERANCE)
    said(0, *job, "-o", "windows", "--model", file, "--windows", "first+last")
    windows = read_table("windows/parts").sort_by("id").to_pylist()
    assert {row["n_windows"] for row in windows} == {1, 2}
    said(0, "select", "out", "-o", "best", "--where", "score >= 0.4")
    assert "no int8 so far" in said(2, "calibrate", file, "in.jsonl", "--int8", "-o", "no.safetensors")
    assert "leave out --precision and --kernels" in said(2, *job, "-o", "no", "--model", file, "--kernels", "sm90")
    assert "leave out --precision" in said(2, *job, "-o", "no", "--model", file, "--precision", "fp16")


def test_windows_hold_all_words_of_long_texts(tmp_path: Path) -> None:
    """The texts are of every script. Windows follow one another, and none has more tokens than the model reads."""
    for family in QUICK:
        tokens = load_model(classifier(tmp_path / family, family)).encoder.tokens
        for text in TEXTS:
            begins, counts = tokens.words_of(text)
            assert int(counts.sum()) == len(tokens.library.encode(text, add_special_tokens=False).ids)
            assert (np.diff(begins) > 0).all()
            assert counts.max(initial=0) <= 64


@pytest.mark.slow
def test_a_head_is_fitted_to_vectors_and_makes_a_chain(
    tmp_path: Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = sentences(Path("folder"), "xlm-roberta")
    lines = [("ferry harbour late", "ships"), ("stocks oil prices", "money"), ("striker cup final", "sport")]
    rows = "".join(f"{words} {i % 7},{label}\n" for i in range(80) for words, label in lines)
    Path("rows.csv").write_text("text,label\n" + rows)
    code, said = broadsheet_here(
        "train", "rows.csv", "--text-column", "text", "--label-column", "label", "--encoder", folder, "-o",
        "it.safetensors",
    )  # fmt: skip
    assert code == 0, said
    model = load_model("it.safetensors")
    assert model.classes == ("money", "ships", "sport")
    found = classified(model, [words for words, _ in lines])
    assert [model.classes[label] for label in found.labels[:, 0]] == ["ships", "money", "sport"]
    with pytest.raises(UsageError, match="gives vectors and no labels"):
        load_model(folder)
    more = "".join(f"{words} {i}\n" for i in range(250) for words, _ in lines)
    Path("more.csv").write_text(f"text\n{more}")
    code, said = broadsheet_here(
        "train", "--teacher", "it.safetensors", "--unlabelled", "more.csv", "--text-column", "text", "--keep-teacher",
        "--top", "30%", "--top-of", "ships", "--recall", "0.5", "-o", "chain.safetensors", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, said
    chain = load_model("chain.safetensors")
    assert chain.ngrams is not None
    assert chain.encoder is not None
    agree = classified(chain, [words for words, _ in lines]).labels == found.labels
    assert agree.all()
