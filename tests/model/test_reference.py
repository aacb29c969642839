"""The specification: ids of characters against a slow decoder, and the forward pass against float64 and PyTorch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from conftest import examples, random_model
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import PUBLISHED, Alphabet, encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import Frame
from broadsheet.pipeline.model.reference import Rows


def one_hot(ids: NDArray[np.uint8], symbols: int) -> NDArray[np.float64]:
    return (ids[:, None, :] == np.arange(symbols)[None, :, None]).astype(np.float64)


def definition(model: Model, ids: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the network's logits in float64, channels first, computed from its definition alone."""
    t = {name: np.asarray(tensor, np.float64) for name, tensor in model.tensors.items()}

    def conv(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        windows = np.lib.stride_tricks.sliding_window_view(x, t[f"{name}.weight"].shape[2], axis=2)
        return np.einsum("nclk,ock->nol", windows, t[f"{name}.weight"], optimize=True) + t[f"{name}.bias"][:, None]

    def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        mean = x.mean(axis=(1, 2), keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=(1, 2), keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * t[f"{name}.weight"] + t[f"{name}.bias"]

    def relu(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(x, 0)

    def pool(x: NDArray[np.float64]) -> NDArray[np.float64]:
        whole = x.shape[2] // 3
        return x[:, :, : whole * 3].reshape(*x.shape[:2], whole, 3).max(axis=3)

    x = relu(norm(conv(one_hot(ids, len(model.alphabet)), "conv1"), "norm1"))
    if model.frame == "text":
        for article, text in zip(x, ids, strict=True):
            article[:, max(np.flatnonzero(text != model.alphabet.padding), default=-1) + 1 :] = 0
    x = pool(x)
    x = pool(relu(conv(x, "conv2")))
    for name in ("conv3", "conv4", "conv5"):
        x = relu(conv(x, name))
    x = pool(relu(norm(conv(x, "conv6"), "norm6"))).reshape(len(ids), -1)
    x = relu(x @ t["fc1.weight"].T + t["fc1.bias"])
    x = relu(x @ t["fc2.weight"].T + t["fc2.bias"])
    return x @ t["fc3.weight"].T + t["fc3.bias"]


def random_ids(model: Model, lengths: list[int], seed: int) -> NDArray[np.uint8]:
    """Return articles of these lengths, with known and unknown characters, then padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, len(model.alphabet) + 1, (len(lengths), model.length)).astype(np.uint8)
    ids[np.arange(model.length) >= np.array(lengths)[:, None]] = model.alphabet.padding
    return ids


def relative_error(found: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


NO_TEXT = (np.empty(0, np.uint8), np.zeros(1, np.int64))
FRAMES = [
    (70, 1014, 4),
    (1, 123, 2),
    (254, 500, 1000),
    (30, 4096, 3),
]


@pytest.mark.parametrize(
    ("symbols", "length", "classes", "frame"),
    [(*each, "dense") for each in FRAMES] + [(*each, "text") for each in FRAMES if each[1] < 2000],
)
def test_logits_agree_with_the_definition_in_float64(symbols: int, length: int, classes: int, frame: Frame) -> None:
    letters = "".join(chr(0x4E00 + i) for i in range(symbols))
    model = replace(random_model(length, letters, length, classes), frame=frame)
    lengths = [length, length - 1, 0, 1, length // 3, 7]
    ids = random_ids(model, lengths, seed=length)
    found = reference.forward(ids, reference.prepare(model))
    truth = definition(model, ids)
    assert relative_error(found, truth) <= 1e-5
    engine = open_engine(model, "cpu", threads=1)
    by_engine = engine.classify(Texts(*NO_TEXT, ids), all_scores=True).all_scores
    engine.close()
    powers = np.exp(truth - truth.max(axis=1, keepdims=True))
    assert relative_error(by_engine, powers / powers.sum(axis=1, keepdims=True)) <= 1e-5


def test_logits_agree_with_pytorch(model: Model) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    t = {name: torch.from_numpy(np.array(tensor)) for name, tensor in model.tensors.items()}
    ids = random_ids(model, [1014, 232, 500, 0], seed=5)
    with torch.inference_mode():
        x = torch.from_numpy(one_hot(ids, len(model.alphabet)).astype(np.float32))
        x = f.conv1d(x, t["conv1.weight"], t["conv1.bias"])
        x = f.max_pool1d(f.relu(f.layer_norm(x, (256, 1008), t["norm1.weight"], t["norm1.bias"])), 3)
        x = f.max_pool1d(f.relu(f.conv1d(x, t["conv2.weight"], t["conv2.bias"])), 3)
        for name in ("conv3", "conv4", "conv5"):
            x = f.relu(f.conv1d(x, t[f"{name}.weight"], t[f"{name}.bias"]))
        x = f.layer_norm(
            f.conv1d(x, t["conv6.weight"], t["conv6.bias"]), (256, 102), t["norm6.weight"], t["norm6.bias"]
        )
        x = f.max_pool1d(f.relu(x), 3).flatten(1)
        for name in ("fc1", "fc2"):
            x = f.relu(f.linear(x, t[f"{name}.weight"], t[f"{name}.bias"]))
        truth = f.linear(x, t["fc3.weight"], t["fc3.bias"]).numpy()
    assert relative_error(reference.forward(ids, reference.prepare(model)), truth) <= 1e-5


def test_articles_of_different_lengths_stand_in_one_batch() -> None:
    """Row offsets separate the articles, and each article's rows give what they give alone."""
    rng = np.random.default_rng(7)
    lengths = np.array([9, 40, 3, 17])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = Rows(rng.standard_normal((int(offsets[-1]), 256), np.float32), offsets)
    weight, bias = rng.standard_normal((3, 256, 256), np.float32), rng.standard_normal(256, np.float32)
    together = reference.conv1d(rows, weight, bias, pool=3)
    assert np.diff(together.offsets).tolist() == [(n - 2) // 3 for n in lengths]
    for i, length in enumerate(lengths):
        alone = Rows(rows.values[offsets[i] : offsets[i + 1]].copy(), np.array([0, length]))
        part = together.values[together.offsets[i] : together.offsets[i + 1]]
        assert np.array_equal(reference.conv1d(alone, weight, bias, pool=3).values, part)


@settings(max_examples=examples(12), deadline=None)
@given(data=st.data(), frame=st.sampled_from(["dense", "text"]))
def test_an_article_scores_the_same_bits_in_any_company(small_model: Model, data: st.DataObject, frame: Frame) -> None:
    """Batch size, position, neighbours, repetition and threads change nothing."""
    small_model = replace(small_model, frame=frame)
    articles = data.draw(st.lists(st.text(max_size=200).map(str.encode), min_size=1, max_size=70))
    order = data.draw(st.permutations(range(len(articles))))
    cut = data.draw(st.integers(0, len(articles)))
    one, two = open_engine(small_model, threads=1), open_engine(small_model, threads=2)
    whole = one.classify(Texts.of(articles), all_scores=True).all_scores
    shuffled = two.classify(Texts.of([articles[i] for i in order]), all_scores=True).all_scores
    parts = [two.classify(Texts.of(part), all_scores=True).all_scores for part in (articles[:cut], articles[cut:])]
    assert np.array_equal(whole[list(order)], shuffled)
    assert np.array_equal(whole, np.concatenate(parts))
    one.close(), two.close()


def test_texts_that_come_cut_keep_the_length_they_are_told(small_model: Model) -> None:
    whole = [b"a" * n for n in (10, 123, 124, 9000)]
    engine = open_engine(small_model, "cpu")
    expected = engine.classify(Texts.of(whole))
    found = engine.classify(replace(Texts.of([text[:130] for text in whole]), n_chars=np.array([*map(len, whole)])))
    engine.close()
    for name in ("labels", "scores", "n_chars", "truncated", "unknown_chars"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_blas_keeps_one_thread_until_the_last_engine_of_the_process_has_computed(small_model: Model) -> None:
    """If two calls overlap, the one that began first ends first. With several threads, a product would have
    other bits.
    """
    begun, first_ended = [Event(), Event()], Event()
    first, second = (open_engine(small_model, "cpu", threads=1) for _ in range(2))

    def blas_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if "numpy" in library["filepath"]}

    def until_the_second_has_begun(_: object) -> set[int]:
        begun[0].set()
        begun[1].wait()
        return blas_threads()

    def until_the_first_has_ended(_: object) -> set[int]:
        begun[1].set()
        first_ended.wait()
        return blas_threads()

    with threadpool_limits(limits=2, user_api="blas"), ThreadPoolExecutor(2) as calls:
        one = calls.submit(first.each_group, until_the_second_has_begun, [0])
        begun[0].wait()
        other = calls.submit(second.each_group, until_the_first_has_ended, [0])
        one.exception()
        first_ended.set()
        assert (one.result(), other.result(), blas_threads()) == ([{1}], [{1}], {2})
    first.close()
    second.close()


def test_ties_go_to_the_lowest_index() -> None:
    scores = np.array([[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.1, 0.4]], np.float32)
    labels, best = reference.top_k(scores, 3)
    assert labels.tolist() == [[0, 1, 2], [1, 3, 0]]
    assert best[1].tolist() == pytest.approx([0.4, 0.4, 0.1])


# Encoding against a character-by-character decoder, on text and on hostile bytes.


ALPHABETS = [Alphabet(PUBLISHED), Alphabet("aé€😀-a"), Alphabet("".join(map(chr, range(0x4E00, 0x4E00 + 254))))]


def characters_of(article: bytes) -> list[str | None]:
    """Return the characters of an article, with None for an invalid byte. Python's decoder reads one
    character a call.
    """
    found: list[str | None] = []
    at = 0
    while at < len(article):
        for size in (1, 2, 3, 4):
            try:
                found.append(article[at : at + size].decode("utf-8"))
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            found.append(None)
            at += 1
    return found


def expected(article: bytes, alphabet: Alphabet, length: int) -> tuple[list[int], int, bool, int]:
    characters = characters_of(article)
    lowered = [c.lower() if c is not None and "A" <= c <= "Z" else c for c in characters]
    ids = [alphabet.unknown if c is None or c not in alphabet.symbols else alphabet.symbols.index(c) for c in lowered]
    read = ids[:length]
    return (
        read + [alphabet.padding] * (length - len(read)),
        len(characters),
        len(characters) > length,
        read.count(alphabet.unknown),
    )


def check(articles: list[bytes], alphabet: Alphabet, length: int) -> None:
    data = np.frombuffer(b"".join(articles), np.uint8)
    offsets = np.concatenate([[0], np.cumsum([len(a) for a in articles])]).astype(np.int64)
    found = encode(data, offsets, alphabet, length)
    assert found.ids.dtype == np.uint8
    for i, article in enumerate(articles):
        ids, n_chars, truncated, unknown = expected(article, alphabet, length)
        assert found.ids[i].tolist() == ids
        assert (found.n_chars[i], found.truncated[i], found.unknown_chars[i]) == (n_chars, truncated, unknown)


pieces = st.one_of(
    st.text(max_size=20).map(lambda s: s.encode("utf-8")),
    st.text(alphabet="aZé€😀一- \n", max_size=20).map(lambda s: s.encode("utf-8")),
    st.binary(max_size=8),
    st.sampled_from(
        [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98"]
    ),
)
hostile = st.lists(pieces, max_size=6).map(b"".join)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(hostile, max_size=6), st.sampled_from(ALPHABETS), st.integers(1, 40))
@example([b"\xe2\x82", b"\xac"], ALPHABETS[1], 5)  # a sequence must not continue in the next article
def test_encode_agrees_with_a_plain_decoder(articles: list[bytes], alphabet: Alphabet, length: int) -> None:
    check(articles, alphabet, length)


# Characters of one to four bytes in UTF-8.
@pytest.mark.parametrize("filler", ["a", "é", "€", "😀", "一"])
# No character, one, lengths around the 1,014 characters that are read, and a long text.
@pytest.mark.parametrize("count", [0, 1, 1013, 1014, 1015, 70_000])
def test_the_cut_falls_inside_and_beside_multi_byte_characters(filler: str, count: int) -> None:
    article = (filler * count).encode()
    shifted = ("b" + filler * count + "b").encode()
    check([article, b"", shifted, article[:-1]], ALPHABETS[1], 1014)


# A character, a byte that never occurs in UTF-8, and the first byte of an incomplete character.
@pytest.mark.parametrize("end", [b"x", b"\xff", b"\xe4"])
def test_a_very_long_article_is_counted_whole_in_bounded_memory(end: bytes) -> None:
    article = "é😀".encode() * (3 << 19) + end
    data = np.frombuffer(article, np.uint8)
    found = encode(data, np.array([0, len(article)]), ALPHABETS[0], 1014)
    assert found.n_chars[0] == (3 << 20) + 1
    assert found.unknown_chars[0] == 1014


# No symbol, an upper-case letter, a surrogate, and one symbol too many.
@pytest.mark.parametrize("symbols", ["", "aB", "a\ud800", "x" * 255])
def test_an_impossible_alphabet_is_refused(symbols: str) -> None:
    with pytest.raises(ValueError, match=r"symbols|lower-cased|surrogates"):
        Alphabet(symbols)
