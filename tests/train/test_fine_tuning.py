"""Fine-tuning: an encoder learns the rows on a CPU; its file, used without PyTorch; seeds, Ctrl-C and messages."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from conftest import CommandHere
from encoders import drawn
from safetensors.numpy import load_file, save_file
from torch_folders import TEXTS, change, classified, classifier, sentences

from broadsheet import pipeline
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import vectors
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_encoder, load_model
from broadsheet.pipeline.model.torch_encoder import TorchEncoder
from broadsheet.pipeline.train import Epoch, Note, Step, Trained, train

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("tokenizers", reason="tokenizers is not installed (extra pieces)")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra torch)")
pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

WITHOUT_PYTORCH = """
import sys
class Missing:
    def find_spec(self, name, *of):
        if name in ("torch", "transformers", "sentence_transformers"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from broadsheet.pipeline.cli import main
main()
"""


CHARACTERS = [chr(0x4E00 + i) for i in range(100)], [chr(0x4E00 + i) for i in range(100, 200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of BERT's kind that pools by the mean. Its random weights are small, as in a new encoder."""
    made = drawn(tmp_path_factory.mktemp("encoder") / "folder", width=32, heads=2, inner=64, most=32)
    tensors = load_file(made / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "embeddings" not in name:
            tensors[name] = tensor * np.float32(0.2)
    save_file(tensors, made / "model.safetensors")
    change(made / "config.json", architectures=["BertModel"])
    return made


def rows(count: int, seed: int = 0) -> pa.Table:
    """Return rows in which each of 200 characters stands for one of two classes: more than a head sees in 32 random
    values.
    """
    rng = random.Random(seed)
    texts, kinds = [], []
    for _ in range(count):
        kind = rng.choice(("ab", "ba"))
        own, other = CHARACTERS if kind == "ab" else CHARACTERS[::-1]
        texts.append(" ".join(rng.sample([*rng.choices(own, k=6), rng.choice(other)], 7)))
        kinds.append(kind)
    worth = [4.0 if kind == "ab" else 1.0 for kind in kinds]
    return pa.table({"text": texts, "kind": kinds, "worth": worth, "kinds": [[kind] for kind in kinds]})


def tuned(table: pa.Table, encoder: Path, **options: Any) -> Trained:
    given = {"label_column": "kind", "text_column": "text", "device": "cpu", "fine_tune": True, **options}
    return train(table, encoder=encoder, **given)


def right(model: Model, table: pa.Table) -> float:
    found = classified(model, table["text"].to_pylist())
    return float(np.mean([model.classes[i] for i in found.labels[:, 0]] == np.array(table["kind"].to_pylist())))


def as_texts(texts: list[str]) -> Texts:
    return Texts.of([text.encode() for text in texts])


@pytest.mark.parametrize(
    "family", ["drawn", "xlm-roberta", "roberta", "modernbert", "gte", "deberta-v2", "electra", "fnet"]
)
def test_what_learns_is_what_our_engine_computes(tmp_path: Path, folder: Path, family: str) -> None:
    from broadsheet.pipeline.train.tunable import tunable

    if family == "drawn":
        encoder = load_encoder(folder)
    elif family == "modernbert":
        encoder = load_encoder(classifier(tmp_path / "it", family, num_hidden_layers=3))
    elif family == "electra":
        encoder = load_encoder(sentences(tmp_path / "it", family, "mean", ("Dense", "Normalize")))
    else:
        encoder = load_encoder(classifier(tmp_path / "it", family, hidden_act="gelu"))
    texts = TEXTS + (["a <pad> b"] if family == "roberta" else [])
    own = as_texts(texts)
    expected = vectors(encoder, own.data, own.offsets, "cpu")
    module = tunable(encoder).eval()
    most = encoder.settings.most_tokens
    given: list[Any]
    if isinstance(encoder, Encoder):
        tokens = encoder.tokens.of_texts(own.data, own.offsets, most)
        given = np.split(tokens.ids, tokens.ends[1:-1])
    else:
        given = encoder.tokens.encoded(texts, most)
    with torch.inference_mode():
        found = module(given).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    same = module.learned()
    np.testing.assert_allclose(vectors(same, own.data, own.offsets, "cpu"), expected, atol=1e-5)


def test_it_learns_what_a_head_alone_cannot(folder: Path) -> None:
    table, test = rows(2500), rows(300, seed=1)
    frozen = right(train(table, encoder=folder, label_column="kind", device="cpu").model, test)
    told: list[Any] = []
    found = tuned(table, folder, settings=("epochs=4", "learning_rate=2e-3"), tell=told.append)
    assert right(found.model, test) > max(frozen + 0.1, 0.9)
    # Which epoch was chosen, and how good each one was
    about = found.model.card["fine-tuning"]
    shares = [epoch.accuracy for epoch in found.history]
    assert len(found.history) == 4
    assert about["epoch"] == 1 + int(np.argmax(shares))
    assert found.model.card["data"]["held_out_rows"] == 250
    steps = [what for what in told if isinstance(what, Step)]
    assert len(steps) == 4 * steps[0].steps == 4 * -(-2250 // 32)
    assert all(what.loss is not None for what in steps)
    notes = [what.text for what in told if isinstance(what, Note)]
    assert any("without --fine-tune, vectors for a head take about" in note for note in notes)
    assert any(f"is that of epoch {about['epoch']}, the best on 250 held-out rows" in note for note in notes)
    assert found.history[-1].loss < found.history[0].loss
    assert isinstance(found.history[0], Epoch)


def test_few_rows_are_learned_twice_and_measured_once(folder: Path) -> None:
    table = rows(400)
    told: list[Any] = []
    found = tuned(table, folder, settings=("epochs=3", "learning_rate=2e-3"), tell=told.append)
    steps = [what for what in told if isinstance(what, Step)]
    assert len(steps) == 3 * -(-360 // 32) + 3 * -(-400 // 32)
    assert [what.number for what in told if isinstance(what, Epoch)] == [1, 2, 3, 4, 5, 6]
    card = found.model.card
    assert (card["data"]["held_out_rows"], card["fine-tuning"]["epoch"]) == (40, 3)
    assert found.model.learned is not None
    assert found.model.learned.about.rows == 400


def test_seeds_reproduce(folder: Path) -> None:
    table, settings = rows(120), ("epochs=2", "learning_rate=1e-3")
    digests = [tuned(table, folder, settings=settings, seed=seed).model.digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "options", [{"multi_label": True, "label_column": "kinds"}, {"target_column": "worth", "label_column": ()}]
)
def test_several_labels_and_numbers_are_learned_too(folder: Path, options: dict[str, Any]) -> None:
    table, test = rows(800), rows(200, seed=1)
    model = tuned(table, folder, settings=("epochs=6", "learning_rate=2e-3"), **options).model
    found = classified(model, test["text"].to_pylist())
    truth = np.array(test["kind"].to_pylist()) == "ab"
    says = found.scores[:, 0] > 2.5 if model.levels else found.all_scores[:, 0] > 0.5
    assert np.mean(says == truth) > 0.85


def test_an_encoder_of_pytorch_learns_too(tmp_path: Path) -> None:
    folder = sentences(tmp_path / "folder", "roberta")  # PyTorch computes it, because of its activation
    table = rows(300)
    model = tuned(table, folder, settings=("epochs=3", "learning_rate=3e-3")).model
    assert isinstance(model.encoder, TorchEncoder)
    before, after = load_encoder(folder), model.encoder
    assert isinstance(before, TorchEncoder)
    assert after.settings == before.settings
    assert after.files["model.safetensors"].tobytes() != before.files["model.safetensors"].tobytes()
    assert right(Model.from_bytes(model.to_bytes()), table) > 0.6


def test_the_file_needs_no_pytorch_and_is_a_teacher(
    folder: Path, tmp_path: Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pa_csv.write_csv(rows(300).select(["text", "kind"]), "rows.csv")
    command = ["train", "rows.csv", "--label-column", "kind", "--encoder", folder, "--device", "cpu"]
    tuning = ("--fine-tune", "--epochs", 3, "--learning-rate", 2e-3)
    code, said = broadsheet_here(*command, *tuning, "-o", "it.safetensors")
    assert code == 0, said
    words = " ".join(said.split())
    assert "an epoch takes about" in words
    assert "6 epochs" in words  # few rows take more epochs
    assert "epoch 6/6 loss" in words
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH, "classify", "rows.csv", "--text-column", "text", "--model",
         "it.safetensors", "--device", "cpu", "-o", "out"], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pa_csv.write_csv(rows(1000, seed=2).select(["text"]), "more.csv")
    code, said = broadsheet_here(
        "train", "--teacher", "it.safetensors", "--unlabelled", "more.csv", "--text-column", "text", "--keep-teacher",
        "--top", "30%", "--top-of", "ab", "--recall", "0.5", "-o", "chain.safetensors", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, said
    chain = load_model("chain.safetensors")
    assert chain.encoder is not None
    assert chain.cascade is not None


def test_ctrl_c_leaves_the_best_so_far(folder: Path, tmp_path: Path) -> None:
    pa_csv.write_csv(rows(2500).select(["text", "kind"]), tmp_path / "rows.csv")
    command = [sys.executable, "-m", "broadsheet", "train", "rows.csv", "--label-column", "kind", "--device", "cpu"]
    command += ["--encoder", str(folder), "--fine-tune", "--epochs", "200", "--learning-rate", "1e-3"]
    process = subprocess.Popen([*command, "-o", "it.safetensors"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("epoch   2/200"):
            process.send_signal(signal.SIGINT)
            break
    said += process.stderr.read()
    assert process.wait(120) == 0, said
    words = " ".join(said.split())
    assert "interrupted: the model has the encoder of epoch" in words
    model = pipeline.load(tmp_path / "it.safetensors", device="cpu")
    assert model.predict([" ".join(CHARACTERS[0][:5])])[0] in ("ab", "ba")
    assert load_model(tmp_path / "it.safetensors").card["fine-tuning"]["epoch"] >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": None}, "fine.tune(=True)? is of an encoder"),
        ({"settings": ("dropout=0.5",)}, "no setting 'dropout': choose one of epochs, batch_size, learning_rate"),
        ({"settings": ("epochs=0",)}, "epochs is 0, it must be above 0"),
        ({"settings": ("epochs=many",)}, "epochs is 'many', it must be an integer"),
        ({"hold_out_share": 0.0}, "0 held-out rows cannot choose how long"),
        ({"gpus": 2}, "no options for several GPUs"),
    ],
)
def test_what_cannot_be_is_told(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(rows(60), **{"encoder": folder, "fine_tune": True, "label_column": "kind", "device": "cpu"} | options)


def test_without_pytorch_the_message_names_it(folder: Path, tmp_path: Path) -> None:
    pa_csv.write_csv(rows(60).select(["text", "kind"]), tmp_path / "rows.csv")
    command = ["train", "rows.csv", "--label-column", "kind", "--encoder", str(folder), "--fine-tune", "-o", "it"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH, *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "fine-tuning needs PyTorch" in done.stderr
