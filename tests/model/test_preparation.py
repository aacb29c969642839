"""The preparation of texts before a model reads them: it equals the steps of the authors of published models, wherever
the texts come from.

This module has the authors' steps in our own words, with Python's functions and the packages that the authors use.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere, examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import workers_that_run
from test_fasttext import ADDED, compared, lid, original, training_text

from broadsheet import pipeline
from broadsheet.pipeline import classify, evaluate, load, load_model, prepared
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.labelling.windows import Windows
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import carried, taken
from broadsheet.pipeline.model.preparation import Lines, Lower, Preparation, Remove, Replace, Strip
from broadsheet.pipeline.model.recipes import recipes
from broadsheet.pipeline.model.several import load_models
from broadsheet.pipeline.options import Options
from broadsheet.pipeline.source.inputs import chunks_here, identify, open_input

fasttext = pytest.importorskip("fasttext")
regex = pytest.importorskip("regex")
tokenizers = pytest.importorskip("tokenizers")

MANY = 30_000
HOW = {"bucket": 900, "epoch": 5, "lr": 0.5, "thread": 1, "verbose": 0, "dim": 8, "wordNgrams": 2}

ODD = [
    *" \t\n\v\f\r\x1c\x1d\x1e\x1f\0\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff\u200c\u200d",
    *(
        "\r\n",
        "\n\n",
        "\n\n\n",
        "\n\n\n\n",
        "  ",
        "\xa0\xa0",
        " \u3000",
        "\t\t",
        "__label__",
        "__label__x",
        "</s>",
        "\\n",
    ),
    *("İ", "I", "ı", "Σ", "ΟΔΟΣ", "ΣΑΣ Σ", "ß", "ẞ", "ǅ", "Ⅷ", "ⓐ", "Ⓐ", "🄰", "ﬁ", "ℌ", "²", "½", "٣", "३", "一", "㊀"),
    *("é", "e\u0301", "ä\u0323", "\u0301", "ก็", "हिन्दी", "ÅÅ", "Å", "가", "가", "かが", "ｶﾞ", "ﷺ", "עִבְרִית", "العربية"),
    *("😀", "👩‍👩‍👧", "🇩🇪", "❤️", "“quoted”", "it's", "a_b", "x-y", "1,234.5", "#", "¿", "…", "مر‌حبا", "naïve", "МИР"),
    *("The ", "quick ", "BROWN ", "fox ", "team ", "oil ", "orbit", "News ", "日本", "語 ", "ไทย", "мир "),
]


@cache
def hostile(seed: int, count: int) -> list[str]:
    """Return texts of odd pieces, and of characters of every script that Python knows."""
    rng = np.random.default_rng(seed)
    known = [chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")]
    texts = ["", " ", "\n", "a", "\r\n"]
    for size in rng.integers(0, 24, count - len(texts)).tolist():
        odd = rng.integers(0, len(ODD), size).tolist()
        any_of = rng.integers(0, len(known), size).tolist()
        is_odd = (rng.random(size) < 0.8).tolist()
        texts.append(
            "".join(ODD[i] if odd_one else known[j] for i, j, odd_one in zip(odd, any_of, is_odd, strict=True))
        )
    return texts


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for DeepSeek-V2's tokenizer: also byte pairs, trained here."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    marks = ["<begin>", "<end>"]
    start = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        hostile(1, 3000),
        tokenizers.trainers.BpeTrainer(
            vocab_size=1200, special_tokens=marks, initial_alphabet=start, show_progress=False
        ),
    )
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    made.save(str(path))
    return path


NOT_WORDS, SPACES = r"[^\p{Word}\p{Zs}]|\d", r"\s\s+"


def of_openlid_v2(text: str, _: Any) -> str:
    without = regex.sub(NOT_WORDS, "", text.strip().replace("\n", " ").lower())
    return regex.sub(SPACES, " ", without)


def of_openlid_v3(text: str, _: Any) -> str:
    squeezed = regex.sub(SPACES, " ", text.strip().replace("\n", " ").lower())
    return regex.sub(NOT_WORDS, "", squeezed)


def of_ultra_fineweb(text: str, made: Any) -> str:
    fewer = re.sub("\n{3,}", "\n\n", text).lower()
    bare = "".join(c for c in unicodedata.normalize("NFKD", fewer) if unicodedata.category(c) != "Mn")
    ids = made.encode(bare, add_special_tokens=False).ids
    joined = " ".join(made.decode([one], skip_special_tokens=False) for one in ids)
    escaped = joined.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return re.sub(" +", " ", escaped).strip()


def of_dolma_17(text: str, _: Any) -> str:
    stripped = tokenizers.normalizers.Strip().normalize_str(text)
    return " ".join(token for token, _ in tokenizers.pre_tokenizers.WhitespaceSplit().pre_tokenize_str(stripped))


AUTHORS: dict[str, Callable[[str, Any], str]] = {
    "ultra-fineweb": of_ultra_fineweb,
    "openlid-v2": of_openlid_v2,
    "openlid-v3": of_openlid_v3,
    "oh-eli5": lambda text, _: " ".join(text.strip().splitlines()),
    "nemo-curator": lambda text, _: text.replace("\n", " ").replace("__label__", " "),
    "glotlid": lambda text, _: text.replace("\n", " "),
    "lid.176": lambda text, _: text.replace("\n", " "),
    "lid218": lambda text, _: text.replace("\n", " "),
    "dolma-lid": lambda text, _: text.lower().replace("\n", " ").strip(),
    "dolma-jigsaw": lambda text, _: text.replace("\n", " ").strip(),
    "dolma-1.7": of_dolma_17,
    "dolma3-quality": lambda text, _: text.replace("\n", " "),
    "dolma3-topic": lambda text, _: text.replace("\n", " "),
    "gneissweb": lambda text, _: text.replace("\n", " "),
}


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A model trained by the original library, beside the tokenizer."""
    text = tokenizer.parent / "train.txt"
    text.write_text(training_text(), encoding="utf-8")
    file = tokenizer.parent / "plain.bin"
    fasttext.train_supervised(str(text), **HOW).save_model(str(file))
    return file


def of(preparation: Preparation, texts: list[str]) -> list[str]:
    return preparation.of(pa.array(texts, pa.large_string())).to_pylist()


def theirs(name: str, texts: list[str], tokenizer: Path) -> list[str]:
    made = tokenizer_of(tokenizer)
    return [AUTHORS[name](text, made) for text in texts]


@cache
def tokenizer_of(file: Path) -> Any:
    return tokenizers.Tokenizer.from_file(str(file))


plain_steps = st.lists(
    st.just(Strip()) | st.builds(Replace, st.sampled_from("\n\tab _"), st.sampled_from(" \rAb_")),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(300), deadline=None)
@given(plain_steps, st.lists(st.text(st.sampled_from("ab\n\t\x1f\x85 \u3000é_"))))
def test_steps_that_go_byte_by_byte_do_what_the_steps_do(steps: list, texts: list[str]) -> None:
    """A GPU applies them by a table, and then strips."""
    preparation = Preparation(tuple(steps))
    plain = preparation.byte_steps
    if plain is None:  # the order decides what is stripped
        assert Strip() in steps
        return
    mapped = [text.encode().translate(plain.table).decode() for text in texts]
    assert [text.strip() if plain.strips else text for text in mapped] == of(preparation, texts)


# Steps that change lengths or need more than one byte.
@pytest.mark.parametrize("step", [Lower(), Lines(), Replace("a", "bc"), Replace("\n", "é"), Replace(".", "a")])
def test_other_steps_do_not_go_byte_by_byte(step: Any) -> None:
    assert Preparation((step,)).byte_steps is None
    assert Preparation((Strip(), step)).byte_steps is None


@cache
def preparation_of(name: str, model: Path) -> Preparation:
    preparation = prepared(load_model(model), name).preparation
    assert preparation is not None
    return preparation


def test_each_recipe_has_the_code_of_its_authors_here() -> None:
    assert list(AUTHORS) == [name for name, recipe in recipes().items() if recipe["steps"]]


@pytest.mark.parametrize("name", AUTHORS)
@settings(max_examples=examples(60))
@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cs", "Cn", "Co"))) | st.lists(st.sampled_from(ODD)).map("".join)
    )
)
def test_a_text_becomes_what_the_authors_make_of_it(name: str, plain: Path, tokenizer: Path, texts: list[str]) -> None:
    assert of(preparation_of(name, plain), texts) == theirs(name, texts, tokenizer)


LETTERS = [*"\r\n -aZ~\x85é×ΣİжЖض\u07ff\u0840\u0939\u2028\ufb01一", "\U0001f130", "\U00020000", "\U0010fffd"]


@settings(max_examples=examples(200))
@given(
    st.lists(st.text(st.sampled_from(LETTERS), max_size=5)), st.sets(st.sampled_from(LETTERS), min_size=1, max_size=3)
)
def test_steps_take_each_text_alone(texts: list[str], removed: set[str]) -> None:
    """The end of a text and the start of the next do not combine, and characters of each size are removed."""
    texts = ["\r", "\n", *LETTERS, *texts]
    column = pa.array(texts, pa.large_string())
    characters = "[" + "".join(rf"\x{{{ord(one):x}}}" for one in sorted(removed)) + "]"
    assert Lines().of(column).to_pylist() == [re.sub("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", " ", t) for t in texts]
    assert Remove(characters).of(column).to_pylist() == ["".join(c for c in t if c not in removed) for t in texts]
    assert Lower().of(column).to_pylist() == [text.lower() for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("name", AUTHORS)
def test_many_texts_have_the_authors_texts_and_the_originals_scores(name: str, tokenizer: Path, tmp_path: Path) -> None:
    texts = hostile(7, MANY)
    expected = [text.encode() for text in theirs(name, texts, tokenizer)]
    file, of_lid = tmp_path / "model.bin", lid() if name in ("lid.176", "dolma-lid") else None
    if of_lid:
        file.write_bytes(of_lid.read_bytes())
    else:  # a model of the original library, trained on texts prepared by the authors' steps
        lines = [line.partition(" ") for line in training_text().splitlines()]
        made = theirs(name, [text for *_, text in lines] + texts[:3000], tokenizer)
        bare = [" ".join(text.replace("__label__", "").split()) for text in made]
        rows = [f"{lines[i % len(lines)][0]} {text}" for i, text in enumerate(bare)]
        (tmp_path / "train.txt").write_text("\n".join(rows), encoding="utf-8", newline="")
        fasttext.train_supervised(str(tmp_path / "train.txt"), **HOW).save_model(str(file))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    model = prepared(load_model(file), name)
    engine, raw = open_engine(model, "cpu"), open_engine(load_model(file), "cpu")
    scores = engine.classify(Texts.of([text.encode() for text in texts]), all_scores=True).all_scores
    of_expected = raw.classify(Texts.of(expected), all_scores=True).all_scores
    engine.close()
    raw.close()
    assert model.preparation is not None
    assert [text.encode() for text in of(model.preparation, texts)] == expected
    np.testing.assert_array_equal(scores, of_expected)
    if of_lid:
        assert compared(file, expected)[1] == 0
    else:
        by_original = original(fasttext.load_model(str(file)), expected, model.classes)
        np.testing.assert_allclose(scores, by_original - ADDED, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cluster with one worker that reads in processes, as a worker with a GPU does."""
    preload = (
        "from broadsheet.pipeline.job.worker import STATE\nSTATE.small_bytes = 0\n"
        "def dask_setup(worker):\n    STATE.read_in_processes(2, 2)\n"
    )
    with workers_that_run(preload, tmp_path_factory.mktemp("readers"), 1) as client:
        yield client


@pytest.mark.parametrize("name", [pytest.param("ultra-fineweb", marks=pytest.mark.slow), "openlid-v3"])
def test_texts_are_prepared_wherever_they_come_from(
    name: str, plain: Path, tmp_path: Path, reading: Client, broadsheet_here: CommandHere
) -> None:
    texts = [text for text in hostile(3, 400) if "\0" not in text]
    model = prepared(load_model(plain), name)
    engine = open_engine(load_model(plain), "cpu")
    assert model.preparation is not None
    by_hand = engine.classify(Texts.of([text.encode() for text in of(model.preparation, texts)]))
    engine.close()
    labels, scores = [model.classes[i] for i in by_hand.labels[:, 0]], by_hand.scores[:, 0].tolist()
    counts = [len(text) for text in texts]
    file, kept, output = tmp_path / "texts.jsonl", tmp_path / "kept.safetensors", tmp_path / "out"
    file.write_text(
        "".join(json.dumps({"text": text, "truth": label}) + "\n" for text, label in zip(texts, labels, strict=True))
    )
    model.save(kept)
    again = load_model(kept)
    assert again.digest == model.digest == taken(carried(model)).digest != load_model(plain).digest
    assert load_models(plain, preparation=name).digest == model.digest

    def checked(report: pipeline.JobReport) -> None:
        table = report.to_arrow()
        assert table.column("label").to_pylist() == labels
        assert table.column("score").to_pylist() == scores
        assert table.column("n_chars").to_pylist() == counts
        assert table.column("row").to_pylist() == list(range(len(texts)))

    code, told = broadsheet_here("classify", file, "-o", output, "--model", plain, "--preparation", name)
    assert code == 0, told
    (output / "_SUCCESS").unlink()
    code, told = broadsheet_here("classify", "--resume", "-o", output)
    assert code == 0, told
    checked(classify(file, output, model=plain, preparation=name, device="cpu", resume=True))
    with pytest.raises(UsageError, match="preparation"):
        classify(file, output, model=plain, device="cpu", resume=True)
    checked(classify(file, output, model=kept, device="cpu", client=reading, chunk_size=64, overwrite=True))
    checked(classify(texts, model=model, device="cpu"))
    folder = tmp_path / "parquet"  # several files become one chunk, without the rows that cannot be read
    folder.mkdir()
    for first in range(0, len(texts), 100):
        pq.write_table(pa.table({"text": [None, *texts[first : first + 100]]}), folder / f"{first:03}.parquet")
    one = classify(folder, tmp_path / "one", model=model, device="cpu").to_arrow()
    assert one.column("score").to_pylist() == scores
    assert one.column("n_chars").to_pylist() == counts
    with load(kept, device="cpu") as classifier:
        assert classifier.predict(texts) == labels
    assert evaluate(kept, file, label_column="truth", device="cpu").confusion.accuracy == 1
    two = classify(file, tmp_path / "two", model=[kept, plain], device="cpu", client=reading).to_arrow()
    raw = classify(file, model=plain, device="cpu").to_arrow().column("score").to_pylist()
    assert two.column("kept_score").to_pylist() == scores
    assert two.column("plain_score").to_pylist() == raw != scores


def test_beside_prepared_texts_no_more_is_carried_than_is_shown(plain: Path, tmp_path: Path) -> None:
    """Texts that a model reads unprepared are carried whole. If one text of a chunk begins with much white space, and
    may be blank, all texts of the chunk are carried whole.
    """
    ordinary = ["word " * 500, "слово " * 500, "😀é" * 500, "short", "", " word" * 500]
    of_space = [*ordinary, " " * 900 + "word", " \u3000" * 900]
    raw, with_steps = load_models(plain), load_models(plain, preparation="oh-eli5")
    both = load_models([plain, replace(prepared(load_model(plain), "lid.176"), name="kept")])
    for texts, models, is_cut in (
        (ordinary, with_steps, True), (of_space, with_steps, False), (ordinary, raw, False), (ordinary, both, False)
    ):  # fmt: skip
        file = tmp_path / "in.parquet"
        pq.write_table(pa.table({"text": texts}), file)
        selection = Options().selection(models)
        (chunk,) = chunks_here(open_input(identify(str(file), 70, 1014), selection, 100))
        held = [text.as_py().decode() for text in chunk.text]
        assert held == [text[:400] if is_cut else text for text in texts]
        for own in filter(None, (model.preparation for model in models.loaded)):
            assert chunk.prepared[own.id].to_pylist() == of(own, texts)
        options = {"model": plain, "device": "cpu", "preparation": "oh-eli5" if models is with_steps else None}
        report = classify(file, tmp_path / "out", overwrite=True, **options)
        assert report.to_dict()["doubtful"] == classify(texts, **options).to_dict()["doubtful"]
        assert report.to_dict()["doubtful"]["empty"] == (2 if texts is of_space else 1)
    assert not Options(windows=2).selection(with_steps).only_prepared
    frame = pa.table({"text": ordinary})
    known = classify(frame, model=plain, device="cpu", preparation="oh-eli5", chunk_size=4)
    assert known.join(frame).num_rows == len(ordinary)
    with pytest.raises(UsageError, match="rows 0 to 3 of the frame have other texts"):
        known.join(pa.table({"text": [ordinary[0] + "end", *ordinary[1:]]}))


def test_windows_are_of_the_prepared_text(tmp_path: Path) -> None:
    """A network reads only part of a text, and here that is a part of the prepared text."""
    steps = b'[{"step": "replace", "pattern": "#", "by": ""}, {"step": "squeeze"}]'
    model = load_model("ag-news")
    texts = [("#" * 3000 + "Stocks fell.  ") * 40, "#" * 2000 + "The home team won.", ""]
    with_steps = Model.from_bytes(prepared(model, steps_in(tmp_path, steps)).to_bytes())
    assert with_steps.preparation is not None
    own = of(with_steps.preparation, texts)
    engine, other = open_engine(with_steps, "cpu"), open_engine(model, "cpu")
    given, by_hand = (Texts.of([text.encode() for text in some]) for some in (texts, own))
    how = (1, True, None, False)
    for ours, expected in (
        (engine.classify(given, all_scores=True), other.classify(by_hand, all_scores=True)),
        (Windows(3).classify(engine, given, *how), Windows(3).classify(other, by_hand, *how)),
    ):
        np.testing.assert_array_equal(ours.all_scores, expected.all_scores)
        assert ours.n_chars.tolist() == [len(text) for text in texts]
        np.testing.assert_array_equal(ours.n_windows, expected.n_windows)
    engine.close()
    other.close()


def steps_in(folder: Path, steps: bytes) -> Path:
    (folder / "steps.json").write_bytes(steps)
    return folder / "steps.json"


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (b'[{"step": "replace", "pattern": "(", "by": ""}]', "Invalid regular expression"),
        (b'[{"step": "remove", "characters": "abc"}]', "characters"),
        (b'[{"step": "sort"}]', "sort"),
        (b"[]", "length >= 1"),
        (b'[{"step": "pieces", "tokenizer": "none.json"}]', "none.json"),
    ],
)
def test_steps_that_cannot_be_are_refused_with_their_reason(steps: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, ModelError), match=re.escape(told)):
        prepared(load_model("ag-news"), steps_in(tmp_path, steps))


def test_a_file_whose_preparation_was_changed_is_refused(plain: Path) -> None:
    data = prepared(load_model(plain), "oh-eli5").to_bytes()
    for other in (b"marks", b"stri_"):
        with pytest.raises(ModelError, match="damaged"):
            Model.from_bytes(data.replace(b"strip", other, 1))


def test_a_known_model_that_runs_raw_draws_one_warning(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("__label__hq good text\n__label__cc buy now\n" * 20)
    fasttext.train_supervised(str(tmp_path / "train.txt"), dim=4, verbose=0).save_model(str(tmp_path / "q.bin"))
    with pytest.warns(UserWarning, match="--preparation oh-eli5") as told:
        classify(["good text"], model=tmp_path / "q.bin", device="cpu")
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classify(["good text"], model=tmp_path / "q.bin", preparation="oh-eli5", device="cpu")
