"""Word vectors: folded into the n-grams, also for words that no row has, and left out where they do not help."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import encoder_folders
import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

from broadsheet.pipeline.classifier import load
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.fasttext_file import MAGIC
from broadsheet.pipeline.model.ngrams import Kinds
from broadsheet.pipeline.train import Note, RowsDone, Trained, train
from broadsheet.pipeline.train.answers import Answers
from broadsheet.pipeline.train.branch import BranchSettings, _Fold, bags, fit_branch
from broadsheet.pipeline.train.data import TextBuffers
from broadsheet.pipeline.train.vectors import AUTO, chosen_vectors, read_vectors

tokenizers = pytest.importorskip("tokenizers")

KINDS = Kinds(2, (2, 5), 1014)
TOPICS = ("money", "space", "sport")


def word(number: int) -> str:
    """Return a word of random letters: words of one topic share nothing but their vectors."""
    return "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=7))


WORDS = [word(number) for number in range(300)]  # words of the topics alternate


def rows(count: int, words: list[str], seed: int = 0) -> pa.Table:
    rng = random.Random(seed)
    of = [rng.randrange(3) for _ in range(count)]
    texts = [" ".join(rng.choices(words[topic::3], k=8)) for topic in of]
    return pa.table({"text": texts, "kind": [TOPICS[topic] for topic in of]})


def vectors() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 20))
    return (centres[np.arange(len(WORDS)) % 3] + 0.7 * rng.normal(size=(len(WORDS), 20))).astype(np.float32)


def buffers(texts: list[str]) -> TextBuffers:
    data = [text.encode() for text in texts]
    return TextBuffers(
        np.frombuffer(b"".join(data), np.uint8), np.concatenate([[0], np.cumsum([*map(len, data)])]).astype(np.int64)
    )


def labels_of(table: pa.Table) -> np.ndarray:
    return np.array([TOPICS.index(kind) for kind in table["kind"].to_pylist()])


@pytest.fixture(autouse=True)
def wordllama(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package visible, which other tests hide."""
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same vectors in every supported format."""
    folder = tmp_path_factory.mktemp("vectors")
    numbers = [" ".join(map(str, vector)) for vector in vectors().tolist()]
    lines = [f"{word} {values}\n" for word, values in zip(WORDS, numbers, strict=True)]
    (folder / "glove.txt").write_text("".join(lines))
    (folder / "fasttext.vec").write_text(f"{len(lines)} 20\n" + "".join(line.replace("\n", " \n") for line in lines))
    save_file({"v": vectors()}, folder / "own.safetensors", {"vocabulary": json.dumps(WORDS)})
    save_file({"v": vectors()}, folder / "beside.safetensors")
    (folder / "beside.txt").write_text("\n".join(WORDS))
    static = folder / "model2vec"
    static.mkdir()
    tokens = ["[UNK]", *(word.capitalize() for word in WORDS)]  # spelled differently from the texts
    splitter = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({token: at for at, token in enumerate(tokens)}, "[UNK]")
    )
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    splitter.save(str(static / "tokenizer.json"))
    save_file({"embeddings": np.vstack([np.zeros((1, 20), np.float32), vectors()])}, static / "model.safetensors")
    return {path.name: path for path in folder.iterdir() if path.name != "beside.txt"}


def few(table: pa.Table, **options: object) -> Trained:
    options = {"device": "cpu", "ngrams": 1 << 16, **options}
    return train(table, text_column="text", label_column="kind", **options)  # type: ignore[arg-type]


def accuracy(trained: Trained, table: pa.Table) -> float:
    found = load(trained.model, device="cpu").predict(table["text"].to_pylist())
    return float(np.mean(np.array(found) == np.array(table["kind"])))


@pytest.mark.slow
def test_words_that_no_row_has_are_known(files: dict[str, Path]) -> None:
    """The model is trained on some words of each topic and tested on others, which is guessing without vectors."""
    seen, others = rows(80, WORDS[:150]), rows(200, WORDS[150:], seed=1)
    assert accuracy(few(seen, vectors=None), others) < 0.5
    told: list[object] = []
    trained = few(seen, vectors=files["glove.txt"], tell=told.append)
    assert accuracy(trained, others) > 0.9
    assert trained.model.card["ngrams"]["vectors"] > 0
    assert trained.model.card["ngrams"]["word vectors"] == {"name": "glove.txt", "words": 300, "dimensions": 20}
    assert next(one.text for one in told if isinstance(one, Note)).startswith("word vectors of glove.txt count")


def test_vectors_of_every_form_are_the_same(files: dict[str, Path]) -> None:
    text = buffers([" ".join(WORDS[:40]).upper(), "unknown"])
    for path in files.values():
        found = read_vectors([str(path)], text)
        assert sorted(found.words) == sorted(WORDS), path
        order = np.argsort(found.words)
        assert found.vectors[order] == pytest.approx(vectors()[np.argsort(WORDS)], rel=1e-6), path


def test_the_folded_weights_are_those_of_the_mean_vector(files: dict[str, Path]) -> None:
    """The sum over the table's rows is what the fit saw: features, and the mean of the words' vectors.

    (n-grams of characters that share a bucket with a word would add to it.)
    """
    table = rows(60, WORDS)
    text, labels = buffers(table["text"].to_pylist()), labels_of(table)
    found = bags(*text, Kinds(2, (0, 0), 1014), 16, read_vectors([str(files["glove.txt"])], text))
    every = np.arange(len(labels))
    fold = _Fold(found, Answers.of(labels, 3), every, every, 0.5)
    fold.weigh(BranchSettings(0.01, vectors=0.5))
    given, (solved, bias) = fold.fit(0.01), fold.weights()
    assert isinstance(fold._solved, np.ndarray)
    assert given == pytest.approx(fold._products[every] @ fold._solved, abs=1e-5 * np.abs(given).max())
    assert fold._features[every] @ solved + bias == pytest.approx(given)


@pytest.mark.slow
def test_vectors_that_say_nothing_are_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    """The vectors are random, and the model equals the one without them to the bit."""
    numbers = np.random.default_rng(1).normal(size=(len(WORDS), 20))
    lines = [f"{word} {' '.join(map(str, values))}\n" for word, values in zip(WORDS, numbers.tolist(), strict=True)]
    (tmp_path / "random.txt").write_text("".join(lines))
    table = rows(150, WORDS)
    text, answers = buffers(table["text"].to_pylist()), Answers.of(labels_of(table), 3)
    every, none = np.arange(150), np.empty(0, np.int64)
    known = read_vectors([str(tmp_path / "random.txt")], text)
    with_them = fit_branch(text, answers, every, none, KINDS, 16, False, known)
    without = fit_branch(text, answers, every, none, KINDS, 16, False)
    assert with_them.settings == without.settings
    assert (with_them.ngrams.table == without.ngrams.table).all()


@pytest.mark.parametrize("subwords", [0, 5])
def test_vectors_of_fasttext_are_those_of_the_original(tmp_path: Path, subwords: int) -> None:
    fasttext = pytest.importorskip("fasttext")
    text = [" ".join(random.Random(n).choices([*WORDS[:50], "Paris"], k=9)) for n in range(100)]
    (tmp_path / "text.txt").write_text("\n".join(text))
    made = fasttext.train_unsupervised(
        str(tmp_path / "text.txt"),
        dim=12,
        minCount=1,
        epoch=1,
        bucket=500,
        minn=min(subwords, 2),
        maxn=subwords,
        thread=1,
    )
    made.save_model(str(tmp_path / "some.bin"))
    found = read_vectors([str(tmp_path / "some.bin")], buffers([f"{WORDS[0]} paris unheardof"]))
    assert ("unheardof" in found.words) == bool(subwords)
    assert {"paris", *WORDS[:50]} <= {*found.words}
    for ours, theirs in (("paris", "Paris"), *((word, word) for word in found.words if word != "paris")):
        at = found.words.index(ours)
        # This edition of fastText gives vectors of length one.
        mine, its = found.vectors[at], made.get_word_vector(theirs)
        np.testing.assert_allclose(mine / np.linalg.norm(mine), its / np.linalg.norm(its), atol=1e-5)
        rows = made.get_input_matrix()[made.get_subwords(theirs)[1]]
        np.testing.assert_allclose(mine, rows.mean(axis=0), atol=1e-6)


def test_vectors_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    text = buffers(["some text"])
    (tmp_path / "short.txt").write_text("some 1 2 3\ntext 1 2\n")
    (tmp_path / "words.txt").write_text("some text and no numbers\n")
    (tmp_path / "nan.txt").write_text("some nan 1\n")
    (tmp_path / "other.vec").write_text("1 2\n\N{SNOWMAN} 1 2\n")
    (tmp_path / "broken.safetensors").write_bytes(b"\0" * 40)
    save_file({"v": vectors()}, tmp_path / "few.safetensors", {"vocabulary": '["some"]'})
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.bin").write_bytes(MAGIC + b"\x0c\0\0\0")
    for name, message in (
        ("missing.vec", "no word vectors"), ("short.txt", "line 2 has 2 numbers, not 3"), ("words.txt", "could not"),
        ("nan.txt", "not finite"), ("other.vec", "no vector for any word"), ("broken.safetensors", "no word vectors"),
        ("few.safetensors", "1 words for 300"), ("empty", "no word vectors"), ("cut.bin", "cut off"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            read_vectors([str(tmp_path / name)], text)


def test_the_package_is_taken_where_it_is_installed_and_rows_are_few() -> None:
    assert chosen_vectors(AUTO, 10_000) == ["wordllama"]
    assert chosen_vectors(AUTO, 10_001) == []
    assert chosen_vectors(None, 10) == []
    assert chosen_vectors(Path("wordllama"), 10_001) == ["wordllama"]  # the default of the command
    found = read_vectors(["wordllama"], buffers(["Iraq and microsoft"]))
    assert found.words[:3] == ["iraq", "and", "microsoft"]
    assert found.about["name"].startswith("wordllama ")
    assert len(found.words) > 10_000  # the table's words and the rows' own
    iraq, football = (found.vectors[found.words.index(word)] for word in ("iraq", "football"))
    kuwait = found.vectors[found.words.index("war")]
    assert iraq @ kuwait / np.linalg.norm(kuwait) > iraq @ football / np.linalg.norm(football)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    return encoder_folders.vectors(tmp_path_factory.mktemp("encoders") / "harbour", stored=True)


def test_an_encoder_gives_each_token_its_own_vector(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distances between tokens are those of sentence-transformers. Other words are the means of their tokens."""
    monkeypatch.setenv("BROADSHEET_CACHE_DIR", str(tmp_path))
    told: list[object] = []
    found = read_vectors([str(encoder)], buffers(["ferry harbour late the covid harbouring"]), "cpu", told.append)
    words = ["ferry", "harbour", "late", "the", "covid"]
    ours = found.vectors[[found.words.index(word) for word in words]]
    theirs = np.stack(encoder_folders.vectors_of_the_original(encoder, words))
    theirs = theirs / np.linalg.norm(theirs, axis=1)[:, None]
    apart, theirs_apart = (np.linalg.norm(one[:, None] - one, axis=2) for one in (ours, theirs))
    assert apart == pytest.approx(theirs_apart, abs=2e-3)  # fp16
    harbour, ing = (found.vectors[found.words.index(word)] for word in ("harbour", "ing"))
    assert found.vectors[found.words.index("harbouring")] == pytest.approx((harbour + ing) / 2, abs=2e-3)
    assert found.about["name"] == "harbour"
    assert str(tmp_path) in next(one.text for one in told if isinstance(one, Note))
    assert any(isinstance(one, RowsDone) and one.done == one.most for one in told)


def test_an_encoder_is_distilled_once(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is read until the encoder changes, or another version of it is in the same folder."""
    monkeypatch.setenv("BROADSHEET_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "encoder"
    shutil.copytree(encoder, folder)
    text = buffers(["ferry harbour"])

    def read() -> tuple[np.ndarray, bool]:
        told: list[object] = []
        vectors = read_vectors([str(folder)], text, "cpu", told.append).vectors
        return vectors, bool(told)

    first, told_first = read()
    again, told_again = read()
    assert (told_first, told_again) == (True, False)
    assert (first == again).all()
    weights = load_file(folder / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, folder / "model.safetensors")
    changed, told_of_change = read()
    assert told_of_change
    assert np.abs(changed - first).max() > 0.01


def test_a_cache_that_cannot_be_written_is_told_with_the_remedy(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BROADSHEET_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="set BROADSHEET_CACHE_DIR"):
        read_vectors([str(encoder)], buffers(["ferry"]), "cpu")


def test_several_tables_stand_side_by_side(files: dict[str, Path], tmp_path: Path) -> None:
    """Each table counts the same, however large its numbers. A word that a table lacks has zeros there."""
    lines = [f"{WORDS[0]} 1000 0\n", f"{WORDS[1]} 0 3000\n", "other 500 500\n"]
    (tmp_path / "with,comma.txt").write_text("".join(lines))
    (tmp_path / "small.txt").write_text("".join(lines))
    text = buffers([" ".join(WORDS)])
    joined = read_vectors([str(files["glove.txt"]), str(tmp_path / "small.txt")], text)
    assert joined.about == {"name": "glove.txt and small.txt", "words": 301, "dimensions": 22}
    assert np.linalg.norm(joined.vectors[:300, :20], axis=1).mean() == pytest.approx(1)
    small = joined.vectors[:, 20:]
    has_one = np.isin(joined.words, [WORDS[0], WORDS[1], "other"])
    assert np.linalg.norm(small[has_one], axis=1).mean() == pytest.approx(1)
    assert not small[~has_one].any()
    assert not joined.vectors[joined.words.index("other"), :20].any()
    assert chosen_vectors(f"wordllama, {tmp_path}", 10) == ["wordllama", str(tmp_path)]
    assert chosen_vectors(tmp_path / "with,comma.txt", 10) == [str(tmp_path / "with,comma.txt")]
