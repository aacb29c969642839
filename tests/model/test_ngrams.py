"""The n-gram branch: compared with a slow reference in plain Python, on the CPU's engine, and in model files."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_models import BITS, HOSTILE, KINDS, PIECES, branch, scored
from numpy.typing import NDArray

from broadsheet.pipeline.cli.inspect import about_model, print_model
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model import model_file, ngrams
from broadsheet.pipeline.model.alphabet import Alphabet, encode, texts_of_ids
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.ngrams import Kinds, NGrams, scores
from broadsheet.pipeline.report.console import PlainConsole

MASK = (1 << 32) - 1


# The slow reference: strings, regular expressions and integers of Python.

CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ"
CAPITALS += "".join(map(chr, range(0x400, 0x430)))
SPACES = re.compile(r"[\x00-\x20\x7f-\xa0\u2000-\u200f\u2028-\u202f\u3000\ufeff]")
WORDS = re.compile(
    r"[0-9_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u1fff\u2c00-\u2dff\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufefe"
    r"\uff10-\uff19\uff21-\uffdc]+"
)


def slow_symbols(text: bytes, reads: int) -> str:
    found = []
    for character in text.decode("utf-8", "surrogateescape")[:reads]:
        point = ord(character)
        if 0xDC80 <= point <= 0xDCFF:
            character = chr(0xD800 | (point - 0xDC00))
        elif point >= 0x10000:
            character = chr(0xD800 | (point & 0x7FF))
        elif character in CAPITALS:
            character = character.lower()
        found.append(SPACES.sub(" ", character))
    return "".join(found)


def slow_hash(state: int, symbols: list[int]) -> int:
    for symbol in symbols:
        state = (state ^ symbol) * 0x9E3779B1 & MASK
        state ^= state >> 15
    return state


def slow_bucket(value: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor & MASK
    return value >> (32 - BITS)


def slow_grams(text: bytes, kinds: Kinds) -> tuple[Counter[int], Counter[int]]:
    """Return the buckets of the word and character n-grams, and how often each occurs."""
    symbols = slow_symbols(text, kinds.reads)
    words = [slow_hash(0xBB67AE85, [ord(c) for c in word]) for word in WORDS.findall(symbols)]
    pairs = [slow_hash(a * 0x9E3779B1 & MASK, [b]) for a, b in pairwise(words)]
    of_words = Counter(map(slow_bucket, [*words, *pairs][: len(words) + len(pairs) * (kinds.words > 1)]))
    of_characters: Counter[int] = Counter()
    padded = f" {symbols} "
    for n in range(kinds.characters[0], kinds.characters[1] + 1):
        for at in range(len(padded) - n + 1):
            gram = padded[at : at + n]
            if n and gram.strip(" ") and " " not in gram[1:-1]:
                of_characters[slow_bucket(slow_hash(0x3C6EF372, [ord(c) for c in gram]))] += 1
    return (of_words if kinds.words else Counter()), of_characters


def slow_scores(text: bytes, at: NGrams) -> NDArray[np.float32]:
    found = np.zeros(at.table.shape[1] - 1, np.float32)
    for grams, scale in zip(slow_grams(text, at.kinds), at.scale, strict=True):
        times = {bucket: n.bit_length() for bucket, n in grams.items()}
        sums = [sum(n * int(at.table[bucket, c]) for bucket, n in times.items()) for c in range(len(found))]
        squares = sum(n * n * int(at.table[bucket, -1]) for bucket, n in times.items())
        if squares:
            found += np.float32(sums) * scale / np.float32(math.sqrt(np.float32(squares)))
    return found


TEXT = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join), st.binary(max_size=80), st.sampled_from(HOSTILE)
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(TEXT, max_size=4), st.sampled_from(KINDS))
def test_scores_are_those_of_a_slow_reference(articles: list[bytes], kinds: Kinds) -> None:
    """The scores are equal to the last bit, whatever else is in the batch."""
    at = branch(kinds)
    want = [slow_scores(article, at) for article in articles]
    assert np.array_equal(scored(articles, at), np.reshape(want, (len(articles), 4)))


def test_neighbours_and_batches_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    articles = [b"".join(rng.choice(PIECES, rng.integers(0, 90))) for _ in range(50)] + HOSTILE
    at = branch(KINDS[0], classes=2000)  # so many classes that a batch has 8 KiB, and the articles take several batches
    whole = scored(articles, at)
    assert np.array_equal(whole, np.concatenate([scored([article], at) for article in articles]))
    texts = Texts.of(articles)
    assert np.array_equal(whole[7:30], scores(texts.data, texts.offsets[7:31], at))


def test_a_linear_model_on_tf_idf_is_kept() -> None:
    """The table is as documented: features of two kinds, each kind of length one where no n-gram is repeated."""
    rng = np.random.default_rng(2)
    kinds, text = KINDS[0], b"The home team won, and the stocks of the home fell on Monday"
    weights, importance = rng.normal(size=(1 << BITS, 3)), rng.uniform(1, 9, 1 << BITS)
    want = np.zeros(3)
    for grams in slow_grams(text, kinds):
        buckets, counts = np.array(list(grams)), [n.bit_length() for n in grams.values()]
        features = importance[buckets] * counts
        want += features @ weights[buckets] / np.sqrt((features**2).sum())
    assert scored([text], NGrams.of_weights(kinds, weights, importance))[0] == pytest.approx(want, abs=2e-3)


def test_the_engine_adds_the_branch_to_the_logits(small_model: Model) -> None:
    """The bits are the same alone and among other articles, for text and for ids."""
    model = replace(small_model, ngrams=branch(Kinds(2, (3, 5), 300), len(small_model.classes)))
    articles = [b"Stocks fell on Monday", b"", b"The home team won " * 30, *HOSTILE[:6]]
    texts = Texts.of(articles)
    engines = [CpuEngine(small_model, 1), CpuEngine(model, 2)]
    alone, both = (engine.classify(texts, all_scores=True).all_scores for engine in engines)
    assert alone is not None
    assert both is not None
    moved = np.log(both) - np.log(alone) - scored(articles, model.ngrams)  # type: ignore[arg-type]
    assert np.ptp(moved, axis=1).max() < 1e-4
    assert np.abs(both - alone).max() > 0.01
    one = engines[1].classify(Texts.of(articles[2:3]), all_scores=True).all_scores
    assert np.array_equal(one, both[2:3])
    ascii_texts = Texts.of(articles[:2])
    ids = encode(ascii_texts.data, ascii_texts.offsets, model.alphabet, model.length).ids
    found = engines[1].classify(Texts(*(np.empty(0, t) for t in (np.uint8, np.int64)), ids), all_scores=True)
    assert np.array_equal(found.all_scores, both[:2])
    for engine in engines:
        engine.close()


@given(st.lists(st.binary(max_size=12), max_size=3), st.sampled_from(["ab c", "aé\U0001f600", "xyz\n"]))
def test_ids_are_spelled_as_text_that_has_these_ids(articles: list[bytes], symbols: str) -> None:
    texts, alphabet = Texts.of(articles), Alphabet(symbols)
    ids = encode(texts.data, texts.offsets, alphabet, 12).ids
    assert np.array_equal(encode(*texts_of_ids(ids, alphabet), alphabet, 12).ids, ids)


def test_a_model_file_holds_the_branch(small_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.safetensors"
    model = replace(small_model, ngrams=branch(Kinds(2, (3, 5), 2000), len(small_model.classes)))
    model.save(path)
    loaded = load_model(path)
    assert loaded.ngrams is not None
    assert loaded.ngrams.kinds == model.ngrams.kinds  # type: ignore[union-attr]
    assert loaded.to_bytes() == path.read_bytes()
    assert loaded.digest == model.digest != small_model.digest
    assert (loaded.reads, small_model.reads) == (2000, small_model.length)
    assert about_model(loaded)["ngrams"] == {
        "words": 2, "characters": (3, 5), "reads": 2000, "hash": "16-bit symbols/1", "buckets": 1024,
    }  # fmt: skip
    print_model(loaded, PlainConsole())
    shown = " ".join(capsys.readouterr().out.split())
    assert "of 1 to 2 words and of 3 to 5 characters, in the first 2,000 characters; 896 of 1,024 buckets used" in shown
    table = loaded.ngrams.table.copy()
    table[5, 1] ^= 1
    assert replace(loaded, ngrams=replace(loaded.ngrams, table=table)).digest != loaded.digest


def test_a_branch_that_does_not_fit_is_refused(small_model: Model) -> None:
    classes = len(small_model.classes)
    good = branch(KINDS[0], classes)
    negative, large, endless = good.table.copy(), good.table.copy(), good.scale.copy()
    negative[3, -1], large[3, -1], endless[0, 0] = -1, 20_000, np.inf
    for wrong, message in (
        (replace(good, table=good.table[:1000]), r"ngrams\.table is int16 \[1000, .*expected int16 \[1024"),
        (replace(good, table=good.table[:, 1:]), r"ngrams\.table is int16"),
        (replace(good, table=good.table.astype(np.int32)), r"ngrams\.table is int32"),
        (replace(good, table=good.table[:128]), "128 rows"),
        (replace(good, table=negative), "a square that is not from 0"),
        (replace(good, table=large), "a square that is not from 0"),
        (replace(good, scale=good.scale[:1]), r"ngrams\.scale is float32 \[1, "),
        (replace(good, scale=endless), "not finite"),
        (replace(good, kinds=Kinds(0, (0, 0), 9)), "0 words and of 0 to 0 characters"),
        (replace(good, kinds=Kinds(1, (2, 6), 9)), "of 2 to 6 characters"),
        (replace(good, kinds=Kinds(1, (5, 9), 9)), "of 5 to 9 characters"),
        (replace(good, kinds=Kinds(1, (0, 3), 9)), "of 0 to 3 characters"),
    ):
        with pytest.raises(ModelError, match=message):
            replace(small_model, ngrams=wrong)


def test_a_damaged_branch_in_a_file_is_refused(small_model: Model) -> None:
    """The damage is a missing tensor, one too many, wrong metadata, a flipped bit, or a hash of a later version."""
    whole = replace(small_model, ngrams=branch(KINDS[0], len(small_model.classes))).to_bytes()
    tensors, about, _ = model_file.decode(whole, "m")
    header = int.from_bytes(whole[:8], "little")
    flipped = bytearray(whole)
    flipped[8 + header + whole[8 + header :].index(tensors["ngrams.table"].tobytes()) + 40] ^= 1
    lacking = {name: tensor for name, tensor in tensors.items() if name != "ngrams.scale"}
    for data, message in (
        (bytes(flipped), "damaged"),
        (model_file.encode(lacking, about, [], "0"), "tensor ngrams.scale is missing"),
        (model_file.encode(tensors, replace_about(about), [], "0"), "tensor ngrams.scale does not belong"),
        (whole.replace(b"16-bit symbols/1", b"16-bit symbols/2"), "metadata is damaged"),
        (whole.replace(b'\\"reads\\": 1014', b'\\"reads\\": 9999'), "damaged"),
        (whole.replace(b'\\"words\\": 2', b'\\"words\\": 3'), "metadata is damaged"),
    ):
        assert data != whole
        with pytest.raises(ModelError, match=message):
            Model.from_bytes(data)


def replace_about(about: model_file.About) -> model_file.About:
    """Return the same metadata without the branch."""
    return model_file.About(about.alphabet, about.classes, about.length, about.card, about.frame, about.scales)


def test_sums_are_exact_at_their_largest() -> None:
    """A text has as many n-grams as possible, in as few buckets as one tile of rows has, with the largest weights."""
    text = ("abcdefgh" * (ngrams.MOST_READ // 8)).encode()
    kinds = Kinds(words=0, characters=(5, 8), reads=ngrams.MOST_READ)
    table = np.tile(np.array([32_767, -32_768, 32_766, 14_563], np.int16), (1 << 12, 1))
    data, offsets = np.frombuffer(text, np.uint8), np.array([0, len(text)])
    found = ngrams.counted(ngrams.find(data, offsets, kinds, 12).characters, 1, 12)
    times = found.times.astype(int)
    assert times.sum() >= 370
    sums, squares = times.sum() * table[0, :3].astype(int), (times**2).sum() * 14_563
    expected = sums.astype(np.float32) / np.sqrt(np.float32(squares))
    branch = NGrams(kinds, table, np.ones((2, 3), np.float32))
    assert np.array_equal(scores(data, offsets, branch)[0], expected)
