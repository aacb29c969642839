"""Windows of encoders, compared with words and tokens from `tokenizers`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from encoders import minilm, needs_minilm, saved, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.pipeline import classify
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model import encoder_file
from broadsheet.pipeline.model.wordpiece import WordPiece

pytestmark = needs_minilm

PARTS = [
    "the", "unbelievably", "Straße", "e\u0301\u0327", "\u302e\u302f", "한국어", "漢字", "עברית", "👩🏽‍💻",
    "\u0000", "\u3000", "don't", "x" * 101, "supercalifragilistic", "[SEP]", "[MASK]", "[", "!", "\n", " ",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.just(" ") | st.text(max_size=6), max_size=30).map("".join)

Words = list[tuple[int, int]]
"""Where each word begins, and how many tokens it has."""


@cache
def tokens() -> WordPiece:
    return encoder_file.read(minilm(), "minilm").encoder.tokens


@cache
def library() -> Any:
    return tokenizer(minilm())


def words_of(text: str) -> Words:
    found = library().encode(text, add_special_tokens=False)
    words: dict[Any, list[int]] = {}
    for number, (word, (begin, _)) in enumerate(zip(found.word_ids, found.offsets, strict=True)):
        words.setdefault(f"special {number}" if word is None else word, []).append(begin)
    return [(own[0], len(own)) for own in words.values()]


@settings(max_examples=examples(200))
@given(text=TEXTS)
def test_words_are_those_of_the_library(text: str) -> None:
    assert [*zip(*(array.tolist() for array in tokens().words_of(text)), strict=True)] == words_of(text)


def pieces_of(text: str, which: str, size: int, overlap: int) -> tuple[list[str], bool]:
    """Return the windows, found word by word, and whether any word is in none."""
    words = words_of(text)
    counts, places, many = [n for _, n in words], [0, *(at for at, _ in words[1:]), len(text)], len(words)
    if sum(counts) <= size or many < 2:
        return [text], False

    def onwards(first: int) -> tuple[int, int]:
        return first, next((end for end in range(first + 1, many) if sum(counts[first : end + 1]) > size), many)

    last = next(i for i in range(many) if sum(counts[i:]) <= size or i == many - 1), many
    parts = {"first": [onwards(0)], "last": [last], "first+last": [onwards(0), last]}
    middle = next(i for i in range(many) if sum(counts[:i]) >= (sum(counts) - size) // 2 or i == many - 1)
    parts["spread"] = [onwards(0), *([onwards(middle)] if sum(counts) > 2 * size else []), last]
    spans = parts.get(which, [])
    while not spans or (which not in parts and len(spans) < int(which) and spans[-1][1] < many):
        end = spans[-1][1] if spans else 0
        first = end - max(n for n in range(end + 1) if sum(counts[end - n : end]) <= overlap)
        span = onwards(max(first, spans[-1][0] + 1) if spans else 0)
        spans = [*spans, last if span[1] == many else span]
    is_cut = {*range(many)} != {word for span in spans for word in range(*span)}
    return [text[places[first] : places[end]] for first, end in spans], is_cut


def texts() -> list[str]:
    rng = np.random.default_rng(0)
    some = [" ".join(rng.choice(PARTS, n)) for n in (1, 2, 5, 9, 14, 25, 60)]
    return [*some, "", "  ", "word", "the " * 90, "x" * 99 + " y", "漢" * 40]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("encoders")
    number = saved(folder / "number", "distilbert", 1, problem_type="regression", max_position_embeddings=24)
    return {"classes": saved(folder / "classes", max_position_embeddings=24), "number": number}


@pytest.mark.parametrize("kind", ["classes", "number"])
@pytest.mark.parametrize(
    ("windows", "overlap", "score"),
    [
        ("first:12t", 0, "mean"), ("last", 0, "mean"), ("first+last:9t", 0, "best"), ("spread", 0, "worst"),
        ("2:16t", 0, "mean"), ("7", 5, "mean"), ("100:9t", 0, "best"), ("spread:7t", 0, "mean"),
    ],
)  # fmt: skip
def test_windows_are_of_whole_words_and_no_more_tokens(
    folders: dict[str, Path], kind: str, windows: str, overlap: int, score: str
) -> None:
    which, _, size = windows.partition(":")
    given: dict[str, Any] = {"model": folders[kind], "device": "cpu", "scores": True}
    length = (int(size[:-1]) if size else 24) - 2  # without the two tokens that frame the text
    pieces, is_cut = zip(*(pieces_of(text, which, length, overlap) for text in texts()), strict=True)
    assert max(map(len, pieces)) > 1 or which in ("first", "last")
    found = classify(texts(), windows=windows, overlap=overlap, window_score=score, **given).to_pandas()
    names = [name for name in found.columns if name.startswith("score")][1:] + ["score"] * (kind == "number")
    alone = iter(classify([piece for own in pieces for piece in own], **given).to_pandas()[names].to_numpy(np.float64))
    expected = []
    for own in pieces:
        scores = [next(alone) for _ in own]
        by = [one[-1] if kind == "number" else one.max() for one in scores]
        chosen = {"mean": np.mean(scores, axis=0), "best": scores[np.argmax(by)], "worst": scores[np.argmin(by)]}
        expected.append(chosen[score])
    np.testing.assert_array_equal(found[names].to_numpy(np.float32), np.array(expected, np.float32))
    if kind == "number":
        assert found["label"].tolist() == [f"{np.clip(np.rint(one[-1]), 0, 5) + 0:.0f}" for one in expected]
    assert found["n_windows"].tolist() == [*map(len, pieces)]
    assert found["n_chars"].tolist() == [*map(len, texts())]
    assert found["truncated"].tolist() == [*is_cut]


def test_windows_that_do_not_fit_are_refused(folders: dict[str, Path]) -> None:
    for windows, overlap, message in (
        ("last:25t", 0, "a window is 25: it must be at most the 24 tokens that"),
        ("last:2t", 0, "a window of 2 tokens has none of a text"),
        ("3", 22, "overlap is 22: it must be below the 22 tokens of a window that"),
        ("3:10t", 9, "overlap is 9: it must be below the 8 tokens of a window that you asked for"),
    ):
        with pytest.raises(UsageError, match=message):
            classify(["a"], model=folders["classes"], windows=windows, overlap=overlap, device="cpu")
